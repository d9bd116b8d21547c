"""Write the live rows of a batch once more: into files of target size, with their row ids.

Staged files are many and small, and partly dead. Their live rows go into new files, per partition
spec and partition, in the table's sort order, else by primary key; `_row_id` is stored, and
`_last_updated_sequence_number` is left to the commit. The rows keep spec and partition, since later
staged deletes may name these. Staged files that are live on the target already stay as they are.

A job and its result cross process boundaries: the same function runs here and on Spark's workers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain

import numpy as np
import pyarrow as pa
from pyiceberg.table.metadata import TableMetadata
from pyroaring import BitMap64

from resolver.cycle_input import CycleInput
from resolver.filled_columns import Fill
from resolver.index.base import Entries, IndexChanges, IndexedFile
from resolver.match import Int64s
from resolver.merge_deletes import Conversion
from resolver.resolution import chunks
from resolver.row_identity import NO_ROW_ID
from resolver.runner import LocalRunner, Runner
from resolver.staged_rows import PLACE, RewriteJob, StagedRows, StagedSource
from tableformat.commit.request import check_v3
from tableformat.environment import Environment
from tableformat.errors import TableError, UnsupportedError
from tableformat.memory import release_unused
from tableformat.runtime import IdSource, SystemIds, TaskIds
from tableformat.scan.key_fields import key_path
from tableformat.spec.computed_columns import stored_columns
from tableformat.spec.data_file import DataFile, PartitionKey
from tableformat.spec.field_paths import field_path
from tableformat.spec.missing_columns import has_missing_columns
from tableformat.spec.types import ROW_ID_FIELD
from tableformat.store.base import ObjectStore
from tableformat.write.one_partition import OnePartition
from tableformat.write.ordering import Ordering, SortColumn, sort_order_columns
from tableformat.write.partitioning import Partitioner

# Arrow bytes of one bucket of the sort: the keys of a large batch are in memory, too.
SORT_BYTES = 32 << 20
SORT_BYTES_OF_FEW = 128 << 20
FEW_ROWS_MAX = 2_000_000
# What a larger batch takes to be matched leaves no room for its rows.
AHEAD_FILE_BYTES = 32 << 20
AHEAD_BYTES = 4 * AHEAD_FILE_BYTES
RELEASE_FROM_ROWS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RewrittenBatch:
    """New files, and the rows in them.

    Attributes:
        files: The files; none: nothing of the batch lives, or nothing was rewritten.
        row: Shape `(rows,)`, integers: the batch's ordinal of each row, file by file in their
            order.
    """

    files: tuple[DataFile, ...] = ()
    row: Int64s = field(default_factory=lambda: np.empty(0, dtype=np.int64))

    def add_to(self, changes: IndexChanges, batch: CycleInput) -> IndexChanges:
        """Changes of the index, with the rows where they are now."""
        if not self.files:
            return changes
        ends = np.cumsum([file.record_count for file in self.files])
        first = len(changes.added_files)

        def put() -> Iterator[Entries]:
            for some in chunks(len(self.row)):
                places = np.arange(some.start, some.stop)
                file = np.searchsorted(ends, places, side="right")
                yield Entries(
                    keys=batch.rows.keys.take(self.row[some]),
                    file_id=(first + file).astype(np.int64),
                    position=places - np.r_[0, ends][file],
                )

        added = (
            IndexedFile(file_path=f.file_path, spec_id=f.spec_id, partition=f.partition)
            for f in self.files
        )
        return replace(
            changes,
            added_files=(*changes.added_files, *added),
            put=chain(changes.put, put()),
        )


def check_rewritable(metadata: TableMetadata, *, table: str) -> None:
    """Refuse a table whose batches cannot be written with row ids.

    Raises:
        UnsupportedError: A v2 table, or a column has the name that row ids are stored under.
    """
    what = "write staged rows once more (icefold.publish=rewrite, or columns are missing) on"
    check_v3(metadata, table=table, what=what, why="row ids")
    if any(each.name == ROW_ID_FIELD.name for each in metadata.schema().fields):
        raise UnsupportedError(
            "cannot rewrite the rows of a table with a column of a reserved name",
            column=ROW_ID_FIELD.name,
            action="rename it; or set icefold.publish to link, and stage whole rows only",
        )


@dataclass(slots=True)
class BatchWriter:
    """Writes the rows of a cycle over several publish attempts; one per cycle.

    A lost race that changes neither which rows live nor their ids has them written once.
    """

    environment: Environment
    _ahead: dict[PartitionKey, pa.Table | None] = field(default_factory=dict)
    _jobs: tuple[RewriteJob, ...] = ()
    _written: RewrittenBatch = field(default_factory=RewrittenBatch)

    def read_ahead(self, metadata: TableMetadata, batch: CycleInput, runner: LocalRunner) -> None:
        """Read the rows of a small batch and put them in order, before it is known which live.

        For a `write` of the same version of the table. A batch of larger files than
        `AHEAD_FILE_BYTES`, and what takes more than its share of `AHEAD_BYTES` in Arrow, is left to
        that. No column may be missing.

        Raises:
            CorruptDataError, StoreUnavailableError: As `write`.
        """
        files = tuple(each.file for each in batch.files)
        row_id = np.full(sum(file.record_count for file in files), NO_ROW_ID, dtype=np.int64)
        if not len(row_id) or sum(file.file_size_in_bytes for file in files) > AHEAD_FILE_BYTES:
            return
        store = self.environment.store
        whole = Conversion(vectors=(), published=files, dropped=(), replaced=(), new_positions=0)

        def read(job: RewriteJob) -> pa.Table | None:
            share = AHEAD_BYTES * sum(map(len, job.rows)) // len(row_id)
            return StagedSource(store, job).read_in_order(share)

        jobs = tuple(_jobs(store, metadata, batch, whole, row_id))
        keys = (job.rows[0].file.partition_key for job in jobs)
        self._ahead = dict(zip(keys, runner.run(read, jobs), strict=True))

    def write(
        self,
        metadata: TableMetadata,
        batch: CycleInput,
        conversion: Conversion,
        row_id: Int64s,
        runner: Runner,
        *,
        fill: Fill | None = None,
    ) -> RewrittenBatch:
        """Write the rows that a conversion publishes.

        Args:
            metadata: The table: schema, specs, sort order, properties.
            batch: The cycle's input.
            conversion: The staged files to publish, and the vectors that delete rows of them.
            row_id: Shape `(staged rows,)`: the row ids.
            runner: Partitions are written side by side.
            fill: Where missing columns come from.

        Returns:
            The new files, which take the place of the published ones.

        Raises:
            CorruptDataError: A staged file is damaged.
            StoreUnavailableError: The store refused.

        Effects: data files. A crash leaves them unreferenced, for orphan removal.
        Memory: per partition that is written a few batches per reader, one bucket of the sort and
        the rows that wait in a `FileSet`; the values that are filled in; and three numbers per row.
        """
        runtime = self.environment.runtime
        runtime.fail_point("resolve.before_rewrite")
        jobs = tuple(
            replace(job, ahead=self._ahead.get(job.rows[0].file.partition_key))
            for job in _jobs(self.environment.store, metadata, batch, conversion, row_id, fill)
        )
        if not _are_same(jobs, self._jobs):
            self.delete_unused()  # and forget what was read: a later version may have other columns
            write = partial(_write, store=self.environment.store)
            is_here = isinstance(runner, LocalRunner)
            names = (TaskIds(runtime.ids.uuid()) if is_here else None for _ in jobs)
            parts = runner.run(write, list(zip(jobs, names, strict=False)))
            self._jobs = jobs
            self._written = RewrittenBatch(
                files=tuple(file for files, _ in parts for file in files),
                row=np.concatenate([row for _, row in parts] or [np.empty(0, dtype=np.int64)]),
            )
            if len(row_id) >= RELEASE_FROM_ROWS:
                release_unused()
        runtime.fail_point("resolve.after_rewrite")
        return self._written

    def forget(self) -> None:
        """Hold no longer what was read ahead, or was written: it is published, or never will be."""
        self._ahead, self._written, self._jobs = {}, RewrittenBatch(), ()

    def delete_unused(self) -> None:
        """Remove what was written. Only after a known outcome, or where nothing was committed."""
        written = self._written
        self.forget()
        if written.files:
            with suppress(TableError):
                self.environment.store.delete([file.file_path for file in written.files])


def _jobs(
    store: ObjectStore,
    metadata: TableMetadata,
    batch: CycleInput,
    conversion: Conversion,
    row_id: Int64s,
    fill: Fill | None = None,
) -> Iterator[RewriteJob]:
    """One per partition, in the order of their first staged files."""
    groups: dict[PartitionKey, tuple[DataFile, list[StagedRows]]] = {}
    ordering = _ordering(metadata)

    def job(file: DataFile, rows: Sequence[StagedRows]) -> RewriteJob:
        places = [each.places for each in rows] if fill is not None else []
        return RewriteJob(
            rows=tuple(rows),
            partition=OnePartition.of(metadata, file),
            schema=metadata.schema(),
            ordering=ordering,
            sort_bytes=SORT_BYTES_OF_FEW if len(row_id) <= FEW_ROWS_MAX else SORT_BYTES,
            fill=None if fill is None else fill.only(np.concatenate(places)),
        )

    for each in _staged_rows(batch, conversion, row_id):
        parts = [(each.file, each)]
        if fill is not None and has_missing_columns(each.file):
            parts = _filed(store, job(each.file, [each]))
        for file, rows in parts:
            groups.setdefault(file.partition_key, (file, []))[1].append(rows)
    for file, group in groups.values():
        yield job(file, group)


def _staged_rows(batch: CycleInput, conversion: Conversion, row_id: Int64s) -> Iterator[StagedRows]:
    """The live rows of each file that is published."""
    dead = {each.data_file.file_path: each.positions for each in conversion.vectors}
    published = {file.file_path for file in conversion.published}
    first = 0
    for each in batch.files:
        file, count = each.file, each.file.record_count
        if file.file_path in published:
            yield StagedRows(
                file=file.with_(first_row_id=None),
                dead=dead.get(file.file_path, BitMap64()),
                row_id=row_id[first : first + count],
                row=first,
            )
        first += count


def _filed(store: ObjectStore, job: RewriteJob) -> list[tuple[DataFile, StagedRows]]:
    """The rows of one staged file, by the partitions that they are in once they are filled."""
    [rows] = job.rows
    schema, spec = job.schema, job.partition.spec
    sources = (field_path(schema, each.source_id) for each in spec.fields)
    names = list(dict.fromkeys(path[0] for path in sources if path))
    filled = set() if job.fill is None else set(job.fill.source)
    computed = stored_columns(job.partition.properties, schema).values()
    filled |= {each.field_id for each in computed if filled and each.field_id}
    if not any(schema.find_field(name).field_id in filled for name in names):
        return [(rows.file, rows)]
    table = pa.Table.from_batches(StagedSource(store, job).read([*names, PLACE]))
    found = []
    for values, part in Partitioner(spec, schema).split(table):
        kept = rows.only(part.column(PLACE).to_numpy())
        found.append((rows.file.with_(partition=values), kept))
    return found


def _ordering(metadata: TableMetadata) -> Ordering:
    """The table's sort order; without one, or with one that has transforms, the primary key."""
    columns: list[SortColumn] = []
    with suppress(UnsupportedError):
        columns = sort_order_columns(metadata)
    if not columns:
        schema = metadata.schema()
        ids = sorted(schema.identifier_field_ids)
        columns = [SortColumn(path=tuple(key_path(schema, field_id))) for field_id in ids]
    return Ordering(columns=tuple(columns))


def _are_same(jobs: Sequence[RewriteJob], others: Sequence[RewriteJob]) -> bool:
    return len(jobs) == len(others) and all(
        job.is_same(other) for job, other in zip(jobs, others, strict=True)
    )


def _write(
    item: tuple[RewriteJob, IdSource | None], *, store: ObjectStore
) -> tuple[list[DataFile], Int64s]:
    """Write one job; runs here or on a worker, where a task may run twice: it draws its own names.

    Returns:
        The files, and the batch's ordinals of the rows in them, in their order.
    """
    job, ids = item
    source = StagedSource(store, job)
    count = sum(len(each) for each in job.rows)
    places = np.empty(count, dtype=source.arrow.field(PLACE).type.to_pandas_dtype())

    def rows() -> Iterator[pa.RecordBatch]:
        done = 0
        for batch in source.in_order():
            places[done : done + batch.num_rows] = batch.column(PLACE).to_numpy()
            done += batch.num_rows
            yield batch.select(source.names[:-1])

    return job.partition.write(store, ids or SystemIds(), source.stored, rows()), places
