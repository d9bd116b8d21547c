"""The rows that left and came between two snapshots, read from the files that differ.

| data file | in the old snapshot | in the new one | rows read                                   |
|-----------|---------------------|----------------|---------------------------------------------|
| removed   | yes                 | no             | all that were live: they left               |
| added     | no                  | yes            | all that are live: they came                |
| kept      | yes                 | yes            | positions deleted in one of the two only    |

Of a kept file only the row groups that hold such positions are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pyarrow as pa

from tableformat.cdc.rowkind import RowKind
from tableformat.changelog.buckets import ADDED, REMOVED, ChangeBuckets
from tableformat.changelog.change_columns import ChangeColumns
from tableformat.changelog.file_changes import FileChange
from tableformat.changelog.pairing import KIND, pair_rows
from tableformat.changelog.steps import ChangeStep
from tableformat.codec.parquet.reader import BATCH_ROWS
from tableformat.codec.parquet.rows import ParquetRows
from tableformat.codec.puffin.deletion_vector import Positions
from tableformat.scan.file_source import FileSource
from tableformat.scan.ordered_stream import stream_ordered
from tableformat.scan.plan import FileScanTask, ScanPlan, map_ordered
from tableformat.scan.projection import Projection
from tableformat.scan.reader import TaskReader, readers_of_tasks
from tableformat.store.base import ObjectStore


@dataclass(frozen=True, slots=True)
class RowSource:
    """One file's contribution to one side; `positions` None: all its live rows."""

    task: FileScanTask
    positions: Positions | None = None


@dataclass(frozen=True, slots=True)
class StepRows:
    """What to read for one step. Picklable."""

    removed: tuple[RowSource, ...]
    added: tuple[RowSource, ...]

    @property
    def sources(self) -> tuple[RowSource, ...]:
        """All of them."""
        return (*self.removed, *self.added)


def plan_step_rows(
    store: ObjectStore, plan: ScanPlan, projection: Projection, changes: Sequence[FileChange]
) -> StepRows:
    """Compare the deletes of kept files; what remains are rows to read.

    Args:
        store: Where files are.
        plan: The scan's schema, specs and properties; its tasks are not looked at.
        projection: What is read.
        changes: From `diff_files`.

    Raises:
        CorruptDataError: A delete file is damaged.
        NotFoundError: A file is gone.

    Effects: reads deletion vectors and delete files of kept files; where equality deletes changed,
        the key columns of those files as well.
    """
    kept = [(each.old, each.new) for each in changes if each.old and each.new]
    old_reader = _reader(store, plan, projection, [old for old, _ in kept])
    new_reader = _reader(store, plan, projection, [new for _, new in kept])

    def compare(pair: tuple[FileScanTask, FileScanTask]) -> tuple[Positions, Positions]:
        before = old_reader.deleted_positions(pair[0]) or Positions()
        after = new_reader.deleted_positions(pair[1]) or Positions()
        return after - before, before - after

    removed = [RowSource(e.old) for e in changes if e.old is not None and e.new is None]
    added = [RowSource(e.new) for e in changes if e.new is not None and e.old is None]
    for (old, new), (gone, back) in zip(kept, map_ordered(compare, kept), strict=True):
        if gone:
            removed.append(RowSource(old, gone))
        if back:
            added.append(RowSource(new, back))
    return StepRows(tuple(removed), tuple(added))


@dataclass(frozen=True, slots=True)
class StepReader:
    """Reads what `plan_step_rows` planned, and makes changes of it.

    Picklable if the store is, and without `files`, which reads the positions; see `FileSource`.
    """

    store: ObjectStore
    plan: ScanPlan
    columns: ChangeColumns
    files: ParquetRows | None = None

    def changes(
        self, step: ChangeStep, rows: StepRows, *, threads: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The changes of a step, updates paired; columns as `ChangeColumns.output`."""
        if rows.removed and rows.added:
            yield from self._paired(step, rows, threads)
            return
        kind = RowKind.DELETE if rows.removed else RowKind.INSERT
        for batch in self.rows(rows.removed or rows.added, threads=threads):
            kinds = pa.array(np.full(batch.num_rows, kind, np.int8))
            yield self.columns.finish(batch, kinds, step)

    def rows(
        self, sources: Sequence[RowSource], *, threads: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The rows of some sources, columns as `ChangeColumns.read`."""
        whole = [each.task for each in sources if each.positions is None]
        reader = _reader(self.store, self.plan, self.columns.read, whole, self.files)
        producers = [partial(_produce, reader, source) for source in sources]
        readers = threads or readers_of_tasks([each.task for each in sources])
        with stream_ordered(producers, threads=readers) as batches:
            yield from batches

    def _paired(
        self, step: ChangeStep, rows: StepRows, threads: int | None
    ) -> Iterator[pa.RecordBatch]:
        columns = self.columns
        with ChangeBuckets(columns.read.arrow_schema, columns.key) as buckets:
            for side, sources in ((REMOVED, rows.removed), (ADDED, rows.added)):
                for batch in self.rows(sources, threads=threads):
                    buckets.add(side, batch)
            for removed, added in buckets.pairs():
                paired = pair_rows(removed, added, key=columns.key, values=columns.compared)
                for batch in paired.to_batches(max_chunksize=BATCH_ROWS):
                    if batch.num_rows:
                        yield columns.finish(batch, batch.column(KIND), step)


def _produce(reader: TaskReader, source: RowSource) -> Iterator[pa.RecordBatch]:
    if source.positions is None:
        return reader.read(source.task)
    return reader.read_at(source.task, source.positions)


def _reader(
    store: ObjectStore,
    plan: ScanPlan,
    projection: Projection,
    tasks: Sequence[FileScanTask],
    files: ParquetRows | None = None,
) -> TaskReader:
    source = FileSource(store, plan.specs, plan.properties, rows=files)
    return TaskReader(source, replace(plan, tasks=()), projection, tasks)
