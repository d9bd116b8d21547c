"""Reads a planned scan as Arrow batches: deletes applied, filter exact, memory bounded.

```
DV, position deletes ─┐
                      ├─> positions ──┐
equality deletes ─────┘               │
data file ── columns, by field id ────┴─> mask ─> filter ─> metadata columns ─> batch
```

Several files are read ahead on threads; batches come out in plan order, rows in file order.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyiceberg.expressions import AlwaysTrue, BooleanExpression

from tableformat.codec.parquet.reader import BATCH_ROWS, rows_of_batch
from tableformat.codec.puffin.deletion_vector import Positions, position_array
from tableformat.environment import Environment
from tableformat.scan.equality_deletes import EqualityDeletes
from tableformat.scan.file_source import POSITIONS, FileSource
from tableformat.scan.metadata_columns import DELETED
from tableformat.scan.ordered_stream import stream_ordered
from tableformat.scan.plan import FileScanTask, ScanPlan
from tableformat.scan.position_deletes import PositionDeletes
from tableformat.scan.projection import FileProjection, Projection, project, project_file
from tableformat.store.base import ObjectStore
from tableformat.store.locations import readers_of


def scan_schema(plan: ScanPlan, *, columns: Sequence[str] | None = None) -> pa.Schema:
    """The Arrow schema that `read_scan` gives for these columns.

    Raises:
        InvalidInputError: An unknown or repeated column.
    """
    return project(plan, columns).arrow_schema


def read_scan(
    environment: Environment,
    plan: ScanPlan,
    *,
    columns: Sequence[str] | None = None,
    limit: int | None = None,
    batch_rows: int = BATCH_ROWS,
    threads: int | None = None,
) -> Generator[pa.RecordBatch, None, None]:
    """The rows of a planned scan.

    Args:
        environment: Where files are read.
        plan: From `plan_scan`.
        columns: Result columns in order, metadata columns (`_file`, `_pos`, `_row_id`, ...)
            included; None: every table column.
        limit: Stop after so many rows.
        batch_rows: At most so many rows per batch.
        threads: Files read at the same time; None: one per core, at most eight.

    Returns:
        Batches with the schema of `scan_schema`, none of them empty. Close the iterator to stop
        early; errors of a file come up at its place in the order.

    Raises:
        InvalidInputError: An unknown or repeated column, before anything is read.
        CorruptDataError: A file is damaged or contradicts the metadata.
        NotFoundError: A file is gone.
    """
    projection = project(plan, columns)
    return _read(environment.store, plan, projection, limit, batch_rows, threads)


def to_table(
    environment: Environment,
    plan: ScanPlan,
    *,
    columns: Sequence[str] | None = None,
    limit: int | None = None,
) -> pa.Table:
    """`read_scan` as one table."""
    batches = read_scan(environment, plan, columns=columns, limit=limit)
    return pa.Table.from_batches(batches, schema=scan_schema(plan, columns=columns))


def live_row_count(task: FileScanTask) -> int | None:
    """How many rows of the task are returned, as far as metadata alone can say."""
    if not isinstance(task.residual, AlwaysTrue) or task.position_deletes or task.equality_deletes:
        return None
    deleted = 0 if task.dv is None else task.dv.data_file.record_count
    return task.entry.data_file.record_count - deleted


def readers_of_tasks(tasks: Sequence[FileScanTask]) -> int:
    """How many threads read some files, all of one table; see `readers_of`."""
    return readers_of(tasks[0].entry.data_file.file_path) if tasks else 1


def _read(
    store: ObjectStore,
    plan: ScanPlan,
    projection: Projection,
    limit: int | None,
    batch_rows: int,
    threads: int | None,
) -> Generator[pa.RecordBatch, None, None]:
    if limit is not None and limit <= 0:
        return
    tasks = _enough_tasks(plan.tasks, limit)
    source = FileSource(store, plan.specs, plan.properties)
    reader = TaskReader(source, plan, projection, tasks, batch_rows=batch_rows)
    producers: list[Callable[[], Iterator[pa.RecordBatch]]] = [
        partial(reader.read, task) for task in tasks
    ]
    readers = threads or readers_of_tasks(tasks)
    left = None if limit is None else min(limit, sys.maxsize)  # Arrow counts in 64 bits
    with stream_ordered(producers, threads=readers) as batches:
        for batch in batches:
            if left is None:
                yield batch
                continue
            yield batch.slice(0, left)
            left -= batch.num_rows
            if left <= 0:
                return


def _enough_tasks(tasks: Sequence[FileScanTask], limit: int | None) -> Sequence[FileScanTask]:
    """The first tasks that are known to hold `limit` rows."""
    if limit is None:
        return tasks
    known = 0
    for count, task in enumerate(tasks, start=1):
        known += live_row_count(task) or 0
        if known >= limit:
            return tasks[:count]
    return tasks


class TaskReader:
    """Reads the tasks of one scan, in any order and from several threads; each task once."""

    def __init__(
        self,
        source: FileSource,
        plan: ScanPlan,
        projection: Projection,
        tasks: Sequence[FileScanTask],
        *,
        batch_rows: int = BATCH_ROWS,
    ) -> None:
        self._source = source
        self._plan = plan
        self._projection = projection
        self._batch_rows = batch_rows
        self._position_deletes = PositionDeletes(source, tasks)
        self._equality_deletes = EqualityDeletes(source, plan, tasks)
        self._of_whole_files = project_file(plan, projection, AlwaysTrue())
        # By identity (files share residuals), and with the residual, whose id would be used again.
        self._of_residuals: dict[int, tuple[BooleanExpression, FileProjection]] = {}

    def read(self, task: FileScanTask) -> Iterator[pa.RecordBatch]:
        """The task's live rows that pass the filter; no empty batches."""
        deleted = self.deleted_positions(task)
        return self._read(task, _Mask(deleted) if deleted else None, None)

    def read_at(self, task: FileScanTask, positions: Positions) -> Iterator[pa.RecordBatch]:
        """The rows at these positions that pass the filter, deleted or not; no empty batches."""
        return self._read(task, None, position_array(positions))

    def _of_residual(self, residual: BooleanExpression) -> FileProjection:
        """Binding a filter with a list of thousands takes as long as reading a small file."""
        found = self._of_residuals.get(id(residual))
        if found is None:
            found = residual, project_file(self._plan, self._projection, residual)
            self._of_residuals[id(residual)] = found
        return found[1]

    def _read(
        self, task: FileScanTask, mask: _Mask | None, wanted: NDArray[np.int64] | None
    ) -> Iterator[pa.RecordBatch]:
        file_projection = self._of_whole_files
        if not isinstance(task.residual, AlwaysTrue):
            file_projection = self._of_residual(task.residual)
        # Without any column a batch would not know how many rows it has.
        keeps_positions = self._projection.needs_positions or not file_projection.read_schema.fields
        batches = self._source.read(
            task.entry,
            file_projection.read_schema,
            batch_rows=min(self._batch_rows, rows_of_batch(task.entry.data_file)),
            positions=mask is not None or keeps_positions,
            row_group_filter=file_projection.row_group_filter,
            wanted=wanted,
        )
        keeps_deleted = self._projection.keeps_deleted
        for batch in batches:
            if keeps_deleted:
                live = _flagged(batch, mask)
            else:
                live = batch if mask is None else mask.apply(batch, keeps_positions)
            if live.num_rows:
                finished = file_projection.finish(live, task.entry, self._plan)
                if finished.num_rows:
                    yield finished

    def deleted_positions(self, task: FileScanTask) -> Positions | None:
        """Row ordinals that deletes of any kind kill in the task's file; None or empty: none."""
        by_position = self._position_deletes.load(task)
        by_key = self._equality_deletes.load(task)
        if by_position is None or by_key is None:
            return by_key if by_position is None else by_position
        return by_position | by_key


class _Mask:
    """Drops deleted rows from batches that hold `_pos`."""

    def __init__(self, deleted: Positions) -> None:
        self._deleted = position_array(deleted)

    def apply(self, batch: pa.RecordBatch, keeps_positions: bool) -> pa.RecordBatch:
        live = self.live(batch)
        if not keeps_positions:  # a column less to copy
            batch = batch.drop_columns([POSITIONS])
        if live is None:
            return batch
        # Column by column: Arrow filters a batch by making row numbers of the mask first, which
        # takes several times as long for numbers, and as long for text.
        # `pa.array` takes fifteen times as long to make bits of bytes.
        bits = pa.py_buffer(np.packbits(live, bitorder="little"))
        wanted = pa.BooleanArray.from_buffers(pa.bool_(), len(live), [None, bits])
        columns = [column.filter(wanted) for column in batch.columns]
        return pa.RecordBatch.from_arrays(columns, schema=batch.schema)

    def live(self, batch: pa.RecordBatch) -> NDArray[np.bool_] | None:
        """Which rows are not deleted; None: all of them."""
        positions = batch.column(POSITIONS).to_numpy(zero_copy_only=False)
        if not positions.size:
            return None
        first, last = int(positions[0]), int(positions[-1])
        start, stop = np.searchsorted(self._deleted, [first, last + 1])
        if start == stop:
            return None
        live: NDArray[np.bool_] = np.ones(positions.size, dtype=np.bool_)
        if last - first + 1 == positions.size:
            live[self._deleted[start:stop] - first] = False
        else:  # row groups were skipped: positions are ascending, with gaps
            live = ~np.isin(positions, self._deleted[start:stop], assume_unique=True)
        return live


def _flagged(batch: pa.RecordBatch, mask: _Mask | None) -> pa.RecordBatch:
    """The batch with a column that says which rows are deleted."""
    live = None if mask is None else mask.live(batch)
    deleted = np.zeros(batch.num_rows, np.bool_) if live is None else ~live
    return batch.append_column(DELETED, pa.array(deleted))
