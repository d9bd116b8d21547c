"""A checkpoint of Flink's upsert sink: what it writes, and what it means.

A change of a key that was inserted since the last checkpoint deletes that row by its position, in
the same commit; a change of any other key deletes by equality. Positions go into deletion vectors,
or into position delete files as before an upgrade to v3.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from tableformat.catalog.base import Identifier, TableState
from tableformat.codec.parquet.reader import read_data_file
from tableformat.codec.puffin.deletion_vector import build_positions
from tableformat.codec.puffin.dv_file import DeletionVector, write_deletion_vectors
from tableformat.commit.changeset import Changeset, CommitKind
from tableformat.commit.engine import commit_change
from tableformat.commit.snapshot_change import SnapshotChange
from tableformat.environment import Environment
from tableformat.paths import data_file_locations, equality_delete_locations, puffin_locations
from tableformat.scan.position_deletes import POSITION_DELETE_SCHEMA
from tableformat.spec.data_file import DataFile, FileContent
from tableformat.write.data_files import write_data_files
from tableformat.write.delete_scope import check_delete_scope, delete_spec
from tableformat.write.equality_deletes import write_equality_deletes
from tests.support.sim_draw import ARROW, as_table
from tests.support.sim_schema import AMOUNT, ID, Row, TableSchema


@dataclass(slots=True)
class Checkpoint:
    """What a task has taken in since the last one. `amount` tells versions of a row apart."""

    schema: TableSchema
    inserted: list[Row] = field(default_factory=list)
    current: dict[int, Row] = field(default_factory=dict)
    keys: set[int] = field(default_factory=set)

    @property
    def replaced(self) -> set[int]:
        """Amounts of rows that died within the checkpoint."""
        return {row[2] for row in self.inserted} - {row[2] for row in self.current.values()}

    def delete(self, key: int) -> None:
        if self.current.pop(key, None) is None:
            self.keys.add(key)

    def upsert(self, row: Row) -> None:
        self.delete(row[0])
        self.inserted.append(row)
        self.current[row[0]] = row


def draw_checkpoint(
    rng: random.Random, schema: TableSchema, keys: int, rows: Callable[[], tuple[Row, ...]]
) -> Checkpoint:
    """Up to three rounds of upserts and deletes over few keys, so that many meet twice."""
    checkpoint = Checkpoint(schema)
    for _ in range(rng.randint(1, 3)):
        for row in rows():
            checkpoint.upsert(row)
        for key in rng.sample(range(keys), rng.randint(0, 1)):
            checkpoint.delete(key)
    return checkpoint


def commit_checkpoint(
    environment: Environment,
    identifier: Identifier,
    checkpoint: Checkpoint,
    typed: dict[str, str],
    *,
    number: int,
    vectors: bool,
) -> None:
    """Write the files of a checkpoint and commit them to `staging`, as the sink does."""
    state = environment.catalog.load_table(identifier)
    spec, state = delete_spec(environment, state)
    metadata = state.metadata
    rows = as_table(typed, tuple(checkpoint.inserted))
    files = [] if rows is None else _data_files(environment, state, rows)
    deletes: list[DataFile] = []
    if checkpoint.keys:
        key = checkpoint.schema.by_id[ID]
        gone = pa.array(sorted(checkpoint.keys), ARROW[key.kind])
        deletes += write_equality_deletes(
            environment.store,
            pa.table({key.name: gone}),
            schema=metadata.schema(),
            equality_ids=[ID],
            spec=spec,
            properties=metadata.properties,
            location_for=equality_delete_locations(metadata, environment.runtime.ids),
        )
    positions = {file.file_path: _replaced(environment, state, file, checkpoint) for file in files}
    positions = {path: found for path, found in positions.items() if found}
    if vectors:
        deletes += _vectors(environment, state, files, positions)
    elif positions:
        deletes += _position_file(environment, state, positions)
    changeset = Changeset(
        kind=CommitKind.ROW_DELTA,
        branch="staging",
        added_data_files=tuple(files),
        added_delete_files=tuple(deletes),
        summary={
            "flink.job-id": "job",
            "flink.operator-id": "sink",
            "flink.max-committed-checkpoint-id": str(number),
        },
        carry_marker=False,
    )
    # `commit` would refuse position delete files, which another writer's may still be.
    change = SnapshotChange(environment, changeset, lambda now: check_delete_scope(now, spec))
    commit_change(environment, identifier, change, state)


def _data_files(environment: Environment, state: TableState, rows: pa.Table) -> list[DataFile]:
    metadata = state.metadata
    return write_data_files(
        environment.store,
        rows,
        schema=metadata.schema(),
        spec=metadata.spec(),
        properties=metadata.properties,
        location_for=data_file_locations(metadata, environment.runtime.ids),
    )


def _replaced(
    environment: Environment, state: TableState, file: DataFile, checkpoint: Checkpoint
) -> list[int]:
    amount = state.metadata.schema().find_column_name(AMOUNT)
    assert amount is not None
    found: list[int] = []
    for batch in read_data_file(
        environment.store,
        file,
        schema=state.metadata.schema(),
        spec=state.metadata.specs()[file.spec_id],
        positions=True,
    ):
        pairs = zip(batch.column(amount).to_pylist(), batch.column("_pos").to_pylist(), strict=True)
        found += [position for number, position in pairs if number in checkpoint.replaced]
    return found


def _vectors(
    environment: Environment,
    state: TableState,
    files: list[DataFile],
    positions: dict[str, list[int]],
) -> list[DataFile]:
    return write_deletion_vectors(
        environment.store,
        [
            DeletionVector(file, build_positions(np.array(positions[file.file_path], np.int64)))
            for file in files
            if file.file_path in positions
        ],
        location_for=puffin_locations(state.metadata, environment.runtime.ids),
        placement="packed",
    )


def _position_file(
    environment: Environment, state: TableState, positions: dict[str, list[int]]
) -> list[DataFile]:
    rows = pa.table(
        {
            "file_path": [path for path in sorted(positions) for _ in positions[path]],
            "pos": [position for path in sorted(positions) for position in positions[path]],
        }
    )
    specs = state.metadata.partition_specs
    found = write_data_files(
        environment.store,
        rows,
        schema=POSITION_DELETE_SCHEMA,
        spec=next(spec for spec in specs if not spec.fields),
        properties={},
        location_for=data_file_locations(state.metadata, environment.runtime.ids),
    )
    return [file.with_(content=FileContent.POSITION_DELETES) for file in found]
