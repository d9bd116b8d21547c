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
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyroaring import BitMap64

from resolver.cycle_input import CycleInput
from resolver.filled_columns import STAYS, Fill, FilledColumns
from resolver.index.base import Entries, IndexChanges, IndexedFile
from resolver.match import Bools, Int64s
from resolver.merge_deletes import Conversion
from resolver.resolution import chunks
from resolver.row_identity import NO_ROW_ID
from resolver.runner import LocalRunner, Runner
from tableformat.codec.parquet.reader import read_data_file
from tableformat.codec.puffin.deletion_vector import build_positions, position_array
from tableformat.commit.request import check_v3
from tableformat.environment import Environment
from tableformat.errors import TableError, UnsupportedError
from tableformat.memory import release_unused
from tableformat.runtime import IdSource, SystemIds, TaskIds
from tableformat.scan.key_fields import key_path
from tableformat.scan.ordered_stream import stream_ordered
from tableformat.spec.computed_columns import stored_columns
from tableformat.spec.data_file import DataFile, PartitionKey
from tableformat.spec.field_paths import field_path
from tableformat.spec.missing_columns import has_missing_columns, replaced
from tableformat.spec.types import ROW_ID_FIELD, arrow_schema
from tableformat.store.base import ObjectStore
from tableformat.store.locations import readers_of
from tableformat.write.one_partition import OnePartition
from tableformat.write.ordering import Ordering, SortColumn, ordered, sort_order_columns
from tableformat.write.partitioning import Partitioner

if TYPE_CHECKING:
    from tableformat.sql.computed_columns import StoredValues  # loads sqlglot

# Arrow bytes of one bucket of the sort: the keys of a large batch are in memory, too.
SORT_BYTES = 32 << 20
SORT_BYTES_OF_FEW = 128 << 20
FEW_ROWS_MAX = 2_000_000
RELEASE_FROM_ROWS = 1_000_000
PLACE = "_icefold_place"


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedRows:
    """Live rows of a staged file.

    Attributes:
        file: The file; without `first_row_id`, ids are given here.
        dead: Positions of its other rows.
        row_id: Shape `(rows of the file,)`; `NO_ROW_ID`: it gets one with the commit.
        row: Ordinal in the batch of the file's first row.
    """

    file: DataFile
    dead: BitMap64
    row_id: Int64s
    row: int

    def __len__(self) -> int:
        return len(self.row_id) - len(self.dead)

    @property
    def position(self) -> Int64s | None:
        """Shape `(rows,)`, ascending; None: all of the file's."""
        if not self.dead:
            return None
        alive: Bools = np.ones(len(self.row_id), dtype=np.bool_)
        alive[position_array(self.dead)] = False
        return np.flatnonzero(alive)

    @property
    def places(self) -> Int64s:
        """Ordinals in the batch, ascending; shape `(rows,)`."""
        position = self.position
        return self.row + (np.arange(len(self)) if position is None else position)

    def only(self, places: Int64s) -> StagedRows:
        """Some of the rows, given by their ordinals in the batch."""
        others = BitMap64(range(len(self.row_id))) - build_positions(places - self.row)
        return replace(self, dead=others)

    def is_same(self, other: StagedRows) -> bool:
        """Whether the same rows are written."""
        if self.file.file_path != other.file.file_path or self.dead != other.dead:
            return False
        position = self.position
        rows = slice(None) if position is None else position
        return np.array_equal(self.row_id[rows], other.row_id[rows])


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteJob:
    """The live rows of one partition of one spec. Picklable.

    Attributes:
        rows: By file, oldest first.
        partition: Where they go.
        schema: Of the table.
        ordering: The order they are written in.
        sort_bytes: Arrow bytes that are sorted at a time.
        fill: Where their missing columns come from; None: none is missing.
    """

    rows: tuple[StagedRows, ...]
    partition: OnePartition
    schema: Schema
    ordering: Ordering
    sort_bytes: int
    fill: Fill | None = None

    def is_same(self, other: RewriteJob) -> bool:
        """Whether the same rows are written."""
        return (
            len(self.rows) == len(other.rows)
            and self.schema == other.schema
            and (other.fill is None if self.fill is None else self.fill.is_same(other.fill))
            and all(a.is_same(b) for a, b in zip(self.rows, other.rows, strict=True))
        )


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
    _jobs: tuple[RewriteJob, ...] = ()
    _written: RewrittenBatch = field(default_factory=RewrittenBatch)

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
        jobs = tuple(_jobs(self.environment.store, metadata, batch, conversion, row_id, fill))
        if not _are_same(jobs, self._jobs):
            self.delete_unused()
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
        """What was written is published: hold it no longer."""
        self._written, self._jobs = RewrittenBatch(), ()

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
    fill: Fill | None,
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
    table = pa.Table.from_batches(_Source(store, job).read([*names, PLACE]))
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
    source = _Source(store, job)
    names, count = source.arrow.names, sum(len(each) for each in job.rows)
    places = np.empty(count, dtype=source.arrow.field(PLACE).type.to_pandas_dtype())

    def rows() -> Iterator[pa.RecordBatch]:
        done, read = 0, source.read
        for batch in ordered(
            job.ordering, read(names), read, rows=count, memory_bytes=job.sort_bytes
        ):
            places[done : done + batch.num_rows] = batch.column(PLACE).to_numpy()
            done += batch.num_rows
            yield batch.select(names[:-1])

    return job.partition.write(store, ids or SystemIds(), source.stored, rows()), places


class _Source:
    """Reads the live rows of a job: the table's columns, row ids, and places in the batch."""

    def __init__(self, store: ObjectStore, job: RewriteJob) -> None:
        self._store = store
        self._job = job
        self.stored = Schema(*job.schema.fields, ROW_ID_FIELD)
        last = max((each.row + len(each.row_id) for each in job.rows), default=0)
        place = pa.int32() if last <= np.iinfo(np.int32).max else pa.int64()
        self.arrow = arrow_schema(self.stored).append(pa.field(PLACE, place))
        self._filled: FilledColumns | None = None
        self._computed: StoredValues | None = None
        if job.fill is not None:
            properties = job.partition.properties
            self._filled = job.fill.read(store, job.schema, properties)
            if stored_columns(properties, job.schema):
                from tableformat.sql.computed_columns import StoredValues  # loads sqlglot

                self._computed = StoredValues.of(properties, job.schema)

    def read(self, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Some columns of all rows, file by file."""
        producers = [partial(self._rows, each, names) for each in self._job.rows]
        threads = readers_of(self._job.rows[0].file.file_path)
        with stream_ordered(producers, threads=threads) as batches:
            yield from batches

    def _rows(self, rows: StagedRows, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        read = set(names)
        if self._computed is not None:
            read |= self._computed.inputs(names, self._job.schema)
        wanted = Schema(*(each for each in self._job.schema.fields if each.name in read))
        done, position = 0, rows.position
        ids = rows.row_id if position is None else rows.row_id[position]
        places = rows.places
        for batch in read_data_file(
            self._store,
            rows.file,
            schema=wanted,
            spec=self._job.partition.spec,
            properties=self._job.partition.properties,
            wanted=position,
        ):
            here = slice(done, done + batch.num_rows)
            done += batch.num_rows
            yield self._with_ids(batch, ids[here], places[here], names)

    def _with_ids(
        self, batch: pa.RecordBatch, ids: Int64s, places: Int64s, names: Sequence[str]
    ) -> pa.RecordBatch:
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        if self._filled is not None:
            is_filled = self._filled.fill(columns, places)
            if self._computed is not None and is_filled.any():
                self._compute(columns, is_filled)
        columns[ROW_ID_FIELD.name] = pa.array(ids, mask=ids == NO_ROW_ID)
        columns[PLACE] = pa.array(places, type=self.arrow.field(PLACE).type)
        schema = pa.schema([self.arrow.field(name) for name in names])
        return pa.RecordBatch.from_arrays([columns[name] for name in names], schema=schema)

    def _compute(self, columns: dict[str, pa.Array], is_filled: Bools) -> None:
        """Replace the stored computed columns, as far as they are there, of rows that were filled.

        The others were computed when they were staged.
        """
        assert self._computed is not None
        wanted = self._computed.columns.keys() & columns.keys()
        if not wanted:
            return
        used = wanted | self._computed.inputs(wanted, self._job.schema)
        given = pa.RecordBatch.from_pydict({name: columns[name] for name in used})
        filled = given.filter(pa.array(is_filled))
        at = np.where(is_filled, np.cumsum(is_filled) - 1, STAYS)
        for name in wanted:
            values = self._computed.compute(name, filled)
            columns[name] = replaced(columns[name], values, at)
