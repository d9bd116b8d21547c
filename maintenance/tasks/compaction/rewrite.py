"""Rewrite one group: its live rows into new files, row by row the same, lineage included.

Every row takes its `_row_id` and `_last_updated_sequence_number` along, stored in the new file
(spec: Row Lineage; R42); on v2 it has none. The result tells, per old file, which positions were
dead when it was read and how many rows went over, in order: all that is needed to find an old
position in the new files of a rewrite that keeps the order.

A job and its result cross process boundaries: the same function runs here and on Spark's workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import NestedField

from maintenance.tasks.compaction.plan import FileGroup
from tableformat.codec.puffin.deletion_vector import Positions
from tableformat.codec.puffin.dv_file import PuffinFiles
from tableformat.errors import UnsupportedError
from tableformat.runtime import IdSource
from tableformat.scan.file_source import FileSource
from tableformat.scan.ordered_stream import stream_ordered
from tableformat.scan.plan import FileScanTask, ScanPlan
from tableformat.scan.projection import project
from tableformat.scan.reader import TaskReader, readers_of_tasks
from tableformat.spec.data_file import DataFile
from tableformat.spec.types import LINEAGE_FIELDS
from tableformat.store.base import ObjectStore
from tableformat.write.one_partition import OnePartition
from tableformat.write.ordering import Ordering, ordered
from tableformat.write.row_deletes import has_vectors

LINEAGE_NAMES = tuple(field.name for field in LINEAGE_FIELDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteJob:
    """One group, with everything a worker needs. Picklable.

    Attributes:
        plan: Its tasks, in the order their rows are written.
        partition: That of all files, old and new.
        ordering: None: rows keep their order.
        keeps_lineage: Rows have ids, which they keep; on v2 they have none.
    """

    plan: ScanPlan
    partition: OnePartition
    ordering: Ordering | None = None
    keeps_lineage: bool = True

    @property
    def lineage_fields(self) -> tuple[NestedField, ...]:
        """What is stored of each row beside its columns."""
        return LINEAGE_FIELDS if self.keeps_lineage else ()

    @property
    def size_bytes(self) -> int:
        """Bytes to read."""
        return sum(task.entry.data_file.file_size_in_bytes for task in self.plan.tasks)


@dataclass(frozen=True, slots=True, kw_only=True)
class RewrittenSource:
    """One old file: positions that were dead when it was read, and rows that went over."""

    task: FileScanTask
    deleted: Positions
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RewrittenGroup:
    """New files, in the order their rows follow each other, and the old ones in that order.

    `is_in_order`: the n-th live row of the sources is the n-th row of the files.
    """

    files: tuple[DataFile, ...]
    sources: tuple[RewrittenSource, ...]
    is_in_order: bool


def rewrite_job(
    plan: ScanPlan, metadata: TableMetadata, group: FileGroup, ordering: Ordering | None
) -> RewriteJob:
    """The job of a group.

    Raises:
        UnsupportedError: The table has a column that hides a lineage column, so that lineage could
            neither be read nor stored.
    """
    keeps_lineage = has_vectors(metadata)
    for name in LINEAGE_NAMES if keeps_lineage else ():
        if name in {field.name for field in plan.schema.fields}:
            raise UnsupportedError(
                "cannot compact a table with a column of a reserved name",
                column=name,
                action="rename it",
            )
    partition = OnePartition.of(metadata, group.tasks[0].entry.data_file)
    options = replace(partition.options, target_file_size_bytes=group.target_size_bytes)
    return RewriteJob(
        plan=replace(plan, tasks=group.tasks),
        partition=replace(partition, options=options),
        ordering=ordering,
        keeps_lineage=keeps_lineage,
    )


def rewrite_group(
    store: ObjectStore,
    ids: IdSource,
    job: RewriteJob,
    *,
    threads: int | None = None,
    puffins: PuffinFiles | None = None,
    on_batch: Callable[[], None] = lambda: None,
) -> RewrittenGroup:
    """Write the live rows of a group into new files.

    Args:
        store: Where files are read and written.
        ids: Names of the new files.
        job: The group.
        threads: Files read at the same time; None: one per core, at most eight.
        puffins: Shared with other groups; None: the group's own.
        on_batch: Called between batches; may take its time, or raise to stop.

    Raises:
        CorruptDataError, NotFoundError: An old file is damaged or gone.
        StoreUnavailableError: The store refused.

    Effects: creates the new files. If it raises they are deleted again; a crash leaves them
    unreferenced, for orphan removal.
    Memory: a few batches per reader, one row group being encoded, and for an ordering one bucket.
    """
    source = _Source(store, job, threads, puffins)
    schema = Schema(*job.plan.schema.fields, *job.lineage_fields)
    batches: Iterator[pa.RecordBatch] = source.read()
    if job.ordering is not None:
        batches = ordered(job.ordering, batches, source.read_columns, rows=source.rows_max)

    def polled() -> Iterator[pa.RecordBatch]:
        with closing(batches):  # type: ignore[type-var]
            for batch in batches:
                yield batch
                on_batch()

    written = job.partition.write(store, ids, schema, polled())
    return RewrittenGroup(
        files=tuple(written), sources=source.sources(), is_in_order=job.ordering is None
    )


class _Source:
    """Reads a group's live rows in order, and notes what it left out."""

    def __init__(
        self,
        store: ObjectStore,
        job: RewriteJob,
        threads: int | None,
        puffins: PuffinFiles | None,
    ) -> None:
        self._source = FileSource(store, job.plan.specs, job.plan.properties, puffins)
        self._plan = job.plan
        self._names = [field.name for field in (*job.plan.schema.fields, *job.lineage_fields)]
        self._threads = threads or readers_of_tasks(job.plan.tasks)
        self._rows = [0] * len(job.plan.tasks)
        self._deleted: list[Positions] = [Positions() for _ in job.plan.tasks]
        self.rows_max = sum(task.entry.data_file.record_count for task in job.plan.tasks)

    def read(self) -> Iterator[pa.RecordBatch]:
        """Whole rows with lineage, task by task."""
        return self._stream(self._names, note=True)

    def read_columns(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Some columns, in the same order."""
        return self._stream(columns, note=False)

    def sources(self) -> tuple[RewrittenSource, ...]:
        """What was read, once `read` has ended."""
        return tuple(
            RewrittenSource(task=task, deleted=deleted, rows=rows)
            for task, deleted, rows in zip(self._plan.tasks, self._deleted, self._rows, strict=True)
        )

    def _stream(self, columns: Sequence[str], *, note: bool) -> Iterator[pa.RecordBatch]:
        projection = project(self._plan, columns)
        reader = _NotingReader(self._source, self._plan, projection, self._plan.tasks)
        producers = [
            partial(self._read_task, reader, ordinal, note)
            for ordinal in range(len(self._plan.tasks))
        ]
        with stream_ordered(producers, threads=self._threads) as batches:
            yield from batches

    def _read_task(
        self, reader: _NotingReader, ordinal: int, note: bool
    ) -> Iterator[pa.RecordBatch]:
        task = self._plan.tasks[ordinal]
        rows = 0
        for batch in reader.read(task):
            rows += batch.num_rows
            yield batch
        if note:
            self._rows[ordinal] = rows
            self._deleted[ordinal] = reader.deleted.pop(task.entry.data_file.file_path, Positions())


class _NotingReader(TaskReader):
    """Keeps what it found deleted in each file."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self.deleted: dict[str, Positions] = {}

    def deleted_positions(self, task: FileScanTask) -> Positions | None:
        """See `TaskReader`."""
        found = super().deleted_positions(task)
        if found:
            self.deleted[task.entry.data_file.file_path] = found
        return found
