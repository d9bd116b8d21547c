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

import pyarrow as pa

from tableformat.changelog.file_changes import FileChange
from tableformat.files.deletion_vector import Positions
from tableformat.scan.file_source import FileSource
from tableformat.scan.ordered_stream import Producer
from tableformat.scan.plan import FileScanTask, ScanPlan, map_ordered
from tableformat.scan.projection import Projection
from tableformat.scan.reader import TaskReader
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


def row_producers(
    store: ObjectStore, plan: ScanPlan, projection: Projection, sources: Sequence[RowSource]
) -> list[Producer[pa.RecordBatch]]:
    """One producer of batches per source; each may run on a thread of its own, once."""
    whole = [each.task for each in sources if each.positions is None]
    reader = _reader(store, plan, projection, whole)

    def produce(source: RowSource) -> Iterator[pa.RecordBatch]:
        if source.positions is None:
            return reader.read(source.task)
        return reader.read_at(source.task, source.positions)

    return [partial(produce, source) for source in sources]


def _reader(
    store: ObjectStore, plan: ScanPlan, projection: Projection, tasks: Sequence[FileScanTask]
) -> TaskReader:
    source = FileSource(store, plan.specs, plan.properties)
    return TaskReader(source, replace(plan, tasks=()), projection, tasks)
