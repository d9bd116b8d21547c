"""A truncate of the source: every row that a branch has is deleted by position.

Each live data file of the branch gets one deletion vector over all of its rows, in place of the one
it has. So a commit can delete everything and bring new rows, and the resolver, which follows rows
that others move meanwhile, publishes it like any other staged change. The vectors are those of one
head: a commit that loses it needs new ones.

Cost: an entry per live data file, whatever its rows. Where the table has a sequence column, rows
with a greater sequence stay: that column is read of files that may have some.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import NestedField

from tableformat.catalog.base import TableState
from tableformat.codec.avro.manifest_store import load_manifest_list
from tableformat.codec.puffin.deletion_vector import Positions, build_positions
from tableformat.codec.puffin.dv_file import DeletionVector, write_deletion_vectors
from tableformat.commit.request import check_v3
from tableformat.environment import Environment
from tableformat.errors import InvalidInputError
from tableformat.paths import puffin_locations
from tableformat.scan.bounds import key_range
from tableformat.scan.file_source import FileSource
from tableformat.scan.plan import live_entries, plan_scan
from tableformat.scan.position_deletes import PositionDeletes
from tableformat.spec.constraints import sequence_field_id
from tableformat.spec.data_file import DataFile, FileContent, ManifestEntry
from tableformat.spec.properties import dv_placement

READ_ROWS = 1 << 20


@dataclass(frozen=True, slots=True)
class Truncation:
    """All rows go, but for those that are newer.

    Attributes:
        sequence: The truncate's value of the table's sequence column; None: the table has none.
    """

    sequence: pa.Scalar | None = None

    @classmethod
    def of(cls, truncate: pa.Table, sequence: str | None) -> Truncation | None:
        """The truncate of a table of at most one row; `sequence` is its sequence column."""
        if not truncate.num_rows:
            return None
        value = pa.scalar(None) if sequence is None else truncate.column(sequence)[0]
        return cls(value if value.is_valid else None)

    def as_table(self, name: str) -> pa.Table:
        """One row, from which `of` makes it again."""
        value = pa.scalar(None) if self.sequence is None else self.sequence
        return pa.table({name: pa.repeat(value, 1)})


@dataclass(frozen=True, slots=True)
class VectorsAtHead:
    """Vectors to add, and those that they replace."""

    added: tuple[DataFile, ...] = ()
    removed: tuple[ManifestEntry, ...] = ()


def check_one_partition(partitions: int) -> None:
    """Debezium's truncate has no key: it is in any partition, and nothing orders the others.

    Args:
        partitions: All that the table is fed by, of all its topics.

    Raises:
        InvalidInputError: There are several.
    """
    if partitions > 1:
        raise InvalidInputError(
            "on-truncate=apply needs a topic of one partition: of several, nothing says which "
            "changes a truncate comes after",
            partitions=partitions,
            action="set on-truncate=ignore or fail, or topic.creation.default.partitions=1 for a "
            "new topic",
        )


def vectors_of_all_rows(
    environment: Environment, state: TableState, head: Snapshot | None, truncation: Truncation
) -> VectorsAtHead:
    """Delete the rows of `head`, the branch's own in `state`.

    Raises:
        UnsupportedError: The table is not v3.
        TableError: A manifest, or with a sequence column a file, cannot be read.

    Effects: Puffin files, which mean nothing until a commit names them.
    """
    if head is None:
        return VectorsAtHead()
    check_v3(state.metadata, table=state.name, what="truncate", why="deletion vectors")
    vectors: list[DeletionVector] = []
    removed: list[ManifestEntry] = []
    for file, dv, positions in _deleted(environment, state, head, truncation):
        if len(positions) > (0 if dv is None else dv.data_file.record_count):
            vectors.append(DeletionVector(file, positions))
            removed += [] if dv is None else [dv]
    metadata = state.metadata
    added = write_deletion_vectors(
        environment.store,
        vectors,
        location_for=puffin_locations(metadata, environment.runtime.ids),
        placement=dv_placement(metadata.properties),
        bounds_of=metadata.schema().identifier_field_ids,
    )
    return VectorsAtHead(tuple(added), tuple(removed))


def _deleted(
    environment: Environment, state: TableState, head: Snapshot, truncation: Truncation
) -> Iterator[tuple[DataFile, ManifestEntry | None, Positions]]:
    """Each live data file, its vector, and what is deleted of it afterwards."""
    field_id = None if truncation.sequence is None else sequence_field_id(state.metadata)
    if field_id is None:
        yield from _all_rows(environment, head)
        return
    plan = plan_scan(environment, state, snapshot_id=head.snapshot_id)
    source = FileSource(environment.store, plan.specs, plan.properties)
    deletes = PositionDeletes(source, plan.tasks)
    column = state.metadata.schema().find_field(field_id)
    for task in plan.tasks:
        file, known = task.entry.data_file, deletes.load(task) or Positions()
        if _may_be_newer(file, column, truncation):
            yield file, task.dv, known | _older(source, task.entry, column, truncation)
        else:
            yield file, task.dv, _whole(file)


def _all_rows(
    environment: Environment, head: Snapshot
) -> Iterator[tuple[DataFile, ManifestEntry | None, Positions]]:
    manifests = load_manifest_list(environment.store, head)
    entries = live_entries(environment.store, [each for each in manifests if each.has_live_files])
    vectors = {e.data_file.referenced_data_file: e for e in entries if e.data_file.is_dv}
    # By path: a writer that retried may have listed a file twice.
    data = (e.data_file for e in entries if e.data_file.content == FileContent.DATA)
    files = {file.file_path: file for file in data}
    for path, file in files.items():
        yield file, vectors.get(path), _whole(file)


def _whole(file: DataFile) -> Positions:
    every = Positions()
    every.add_range(0, file.record_count)
    return every


def _may_be_newer(file: DataFile, column: NestedField, truncation: Truncation) -> bool:
    """Whether the file's bounds leave room for a greater sequence."""
    assert truncation.sequence is not None
    upper, own = key_range(file, column).upper, truncation.sequence.as_py()
    return not (isinstance(upper, int) and isinstance(own, int) and upper <= own)


def _older(
    source: FileSource, entry: ManifestEntry, column: NestedField, truncation: Truncation
) -> Positions:
    batches = source.read(entry, Schema(column), batch_rows=READ_ROWS)
    newer = [pc.fill_null(pc.greater(b.column(0), truncation.sequence), False) for b in batches]
    return build_positions(np.flatnonzero(~pa.chunked_array(newer, pa.bool_()).to_numpy()))
