"""A table in memory whose staging branch is written the way any writer may write it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec

from maintenance.tasks.compact import compact
from maintenance.tasks.options import CompactOptions, ExpireOptions
from tableformat import Table
from tableformat.codec.puffin.deletion_vector import build_positions
from tableformat.codec.puffin.dv_file import DeletionVector, write_deletion_vectors
from tableformat.commit.changeset import Changeset, CommitKind, Validation
from tableformat.commit.engine import CommitResult, commit
from tableformat.commit.expiry_plan import ExpiryPolicy
from tableformat.paths import data_file_locations, equality_delete_locations, puffin_locations
from tableformat.scan.plan import FileScanTask
from tableformat.spec.data_file import DataFile, FileContent
from tableformat.write.data_files import write_data_files
from tableformat.write.equality_deletes import write_equality_deletes
from tests.support.memory_tables import memory_catalog
from tests.support.scan_tables import PATH_FIELD, POS_FIELD, write_parquet

SCHEMA = pa.schema([("id", pa.int64()), ("region", pa.string()), ("note", pa.string())])
Row = tuple[int | None, str | None, str]
EVERYTHING = ExpireOptions(policy=ExpiryPolicy(max_snapshot_age_ms=-1, min_snapshots_to_keep=1))
BASE: list[Row] = [(key, "eu", "base") for key in range(20)]


def rows_of(*rows: Row) -> pa.Table:
    """Rows in the schema."""
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], SCHEMA)


def keys(*ids: int | None) -> pa.Table:
    """Keys to delete."""
    return pa.table({"id": pa.array(ids, pa.int64())})


class StagedTable:
    """`id` is the key, `region` may be the partition, `note` tells versions of a row apart."""

    def __init__(
        self,
        folder: object,
        *,
        partition_by: Sequence[str] = (),
        schema: pa.Schema = SCHEMA,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        catalog = memory_catalog(str(folder))
        self.table: Table = catalog.create_table(
            "t.rows",
            schema,
            primary_key=["id"],
            partition_by=partition_by,
            properties={"commit.retry.min-wait-ms": "0", **(properties or {})},
        )
        self.environment = self.table.environment
        self.schema = schema

    def rows(self, *rows: Row) -> pa.Table:
        columns = list(zip(*rows, strict=True)) or [[]] * len(self.schema)
        arrays = [pa.array(c, t.type) for c, t in zip(columns, self.schema, strict=True)]
        return pa.table(arrays, schema=self.schema)

    def data_files(self, *rows: Row) -> list[DataFile]:
        metadata = self.table.refresh().state.metadata
        return write_data_files(
            self.environment.store,
            self.rows(*rows),
            schema=metadata.schema(),
            spec=metadata.spec(),
            properties=metadata.properties,
            location_for=data_file_locations(metadata, self.environment.runtime.ids),
        )

    def equality_deletes(
        self, rows: pa.Table, columns: Sequence[str] = ("id",), spec: PartitionSpec | None = None
    ) -> list[DataFile]:
        metadata = self.table.refresh().state.metadata
        return write_equality_deletes(
            self.environment.store,
            rows,
            schema=metadata.schema(),
            equality_ids=[metadata.schema().find_field(name).field_id for name in columns],
            spec=self.global_spec() if spec is None else spec,
            properties=metadata.properties,
            location_for=equality_delete_locations(metadata, self.environment.runtime.ids),
        )

    def global_spec(self) -> PartitionSpec:
        specs = self.table.refresh().state.metadata.partition_specs
        return next((s for s in specs if not s.fields), UNPARTITIONED_PARTITION_SPEC)

    def vectors(
        self, positions: Mapping[str, Iterable[int]], files: Iterable[DataFile]
    ) -> list[DataFile]:
        by_path = {file.file_path: file for file in files}
        return write_deletion_vectors(
            self.environment.store,
            [
                DeletionVector(by_path[path], build_positions(np.array(list(found), np.int64)))
                for path, found in positions.items()
            ],
            location_for=puffin_locations(self.table.state.metadata, self.environment.runtime.ids),
            placement="packed",
        )

    def position_deletes(
        self, positions: Mapping[str, Iterable[int]], files: Iterable[DataFile]
    ) -> DataFile:
        """A position delete file as v2 has them; the data files are of one partition."""
        [file] = {file.partition_key: file for file in files}.values()
        pairs = sorted((path, at) for path, found in positions.items() for at in found)
        rows = pa.table(
            [[path for path, _ in pairs], [at for _, at in pairs]],
            schema=pa.schema([PATH_FIELD, POS_FIELD]),
        )
        location = data_file_locations(self.table.state.metadata, self.environment.runtime.ids)("")
        return DataFile(
            content=FileContent.POSITION_DELETES,
            file_path=location,
            file_format="PARQUET",
            spec_id=file.spec_id,
            partition=file.partition,
            record_count=len(pairs),
            file_size_in_bytes=write_parquet(self.environment.store, location, rows),
            referenced_data_file=pairs[0][0] if len(positions) == 1 else None,
        )

    def commit(
        self,
        *,
        branch: str = "staging",
        data: Iterable[DataFile] = (),
        deletes: Iterable[DataFile] = (),
        removed: Iterable = (),
        summary: Mapping[str, str] | None = None,
    ) -> CommitResult:
        head = self.table.refresh().state.head(branch)
        changeset = Changeset(
            kind=CommitKind.ROW_DELTA,
            branch=branch,
            added_data_files=tuple(data),
            added_delete_files=tuple(deletes),
            removed_entries=tuple(removed),
            summary=dict(summary or {}),
            validation=Validation(starting_snapshot_id=None if head is None else head.snapshot_id),
        )
        return commit(self.environment, self.table.identifier, changeset)

    def stage_vector(
        self,
        file: DataFile,
        *positions: int,
        data: Iterable[DataFile] = (),
        removed: Iterable = (),
    ) -> None:
        """A commit that deletes rows of one data file by their positions."""
        vector = self.vectors({file.file_path: positions}, [file])
        self.commit(data=data, deletes=vector, removed=removed)

    def rewrite(self, *rows: Row, keep_ids: bool = True) -> None:
        """Compaction of main, by icefold or by a tool that does not keep row ids."""
        if keep_ids:
            assert compact(self.table.refresh(), CompactOptions(rewrite_all=True)).commits
            return
        head = self.table.refresh().state.head("main")
        assert head is not None
        changeset = Changeset(
            kind=CommitKind.REWRITE,
            added_data_files=tuple(self.data_files(*rows)),
            removed_entries=tuple(task.entry for task in self.tasks()),
            validation=Validation(starting_snapshot_id=head.snapshot_id),
        )
        commit(self.environment, self.table.identifier, changeset)

    def pick(self) -> None:
        """Main goes on, and the head of staging is cherry-picked to it."""
        self.table.append(self.rows((7, "eu", "main")))
        head = self.table.refresh().state.head("staging")
        assert head is not None
        self.table.refs.cherry_pick(snapshot_id=head.snapshot_id)

    def tasks(self, branch: str = "main") -> tuple[FileScanTask, ...]:
        return self.table.refresh().scan(branch=branch).plan.tasks

    def only_file(self, branch: str = "main") -> DataFile:
        [task] = self.tasks(branch)
        return task.entry.data_file

    def published(self) -> Counter:
        return Counter(tuple(row.values()) for row in self.table.scan().to_arrow().to_pylist())
