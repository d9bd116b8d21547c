"""Reads rows of one snapshot by file and position: deletes applied, schema as in a scan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue

from tableformat.array_types import Int64s
from tableformat.codec.parquet.rows import PARALLEL_ROWS_MIN, ParquetRows
from tableformat.codec.puffin.deletion_vector import Positions, build_positions, position_array
from tableformat.codec.puffin.dv_file import PuffinFiles
from tableformat.environment import Environment
from tableformat.integer_order import distinct, pair_order
from tableformat.scan.file_source import POSITIONS, FileSource
from tableformat.scan.plan import FileScanTask, ScanPlan
from tableformat.scan.projection import FileProjection, project, project_file
from tableformat.scan.reader import TaskReader, readers_of_tasks
from tableformat.side_by_side import run_ahead
from tableformat.sized_cache import SizedCache
from tableformat.store.locations import requests_of

DELETES_CACHE_BYTES = 64 << 20
SMALL_LOOKUP_ROWS = 64  # asked one by one, larger ones as a bitmap


@dataclass(frozen=True, slots=True, eq=False)
class RowsOfFile:
    """Rows wanted of one file: ascending positions, and which of the lookup's rows they are."""

    task: FileScanTask
    position: Int64s
    ordinal: Int64s


class RowCaches:
    """What stays in memory between lookups of one table, whichever snapshot they read.

    Args:
        environment: Where files are.
        cache_bytes: Bound of decoded values.
    """

    def __init__(self, environment: Environment, cache_bytes: int) -> None:
        self.files = ParquetRows(environment.store, cache_bytes=cache_bytes)
        self.deletes: SizedCache[Positions] = SizedCache(DELETES_CACHE_BYTES, _deletes_bytes)

    def close(self) -> None:
        """Forget everything."""
        self.files.close()
        self.deletes.forget()


class SnapshotRows:
    """Rows of one snapshot.

    Args:
        environment: Where files are.
        plan: All files of the snapshot, without a filter.
        caches: Shared with other snapshots of the table.
    """

    def __init__(self, environment: Environment, plan: ScanPlan, caches: RowCaches) -> None:
        self.plan = plan
        self._source = FileSource(
            environment.store, plan.specs, plan.properties, PuffinFiles(environment.store)
        )
        self._caches = caches
        self._tasks = {task.entry.data_file.file_path: task for task in plan.tasks}

    def task(self, path: str) -> FileScanTask | None:
        """The data file at a location, if the snapshot has it."""
        return self._tasks.get(path)

    def by_file(
        self, paths: Sequence[str], file: Int64s, position: Int64s
    ) -> list[RowsOfFile] | None:
        """Rows by the data files that hold them; None: the snapshot lacks a file or a row.

        Args:
            paths: Data files.
            file: Shape `(n,)`: ordinals in `paths`.
            position: Shape `(n,)`: 0-based row ordinals in the files.
        """
        order = pair_order(file, position)
        cuts = np.flatnonzero(np.diff(file[order], prepend=-1))
        found = []
        for ordinals in np.split(order, cuts)[1:]:
            task = self.task(paths[int(file[ordinals[0]])])
            if task is None or position[ordinals[-1]] >= task.entry.data_file.record_count:
                return None
            found.append(RowsOfFile(task, position[ordinals], ordinals))
        return found

    def lives(self, files: Sequence[RowsOfFile]) -> list[npt.NDArray[np.bool_]]:
        """Which rows of each file no delete reaches."""
        at_once = requests_of(files[0].task.entry.data_file.file_path) if len(files) > 1 else 1
        found = run_ahead(lambda each: self.live(each.task, each.position), files, at_once=at_once)
        return list(found)

    def live(self, task: FileScanTask, position: Int64s) -> npt.NDArray[np.bool_]:
        """Which positions no delete reaches."""
        deleted = self._deleted(task)
        if not deleted:
            return np.ones(len(position), dtype=np.bool_)
        if len(position) <= SMALL_LOOKUP_ROWS:
            return np.array([at not in deleted for at in position.tolist()], dtype=np.bool_)
        dead = build_positions(distinct(position)) & deleted
        return ~np.isin(position, position_array(dead))

    def read(self, files: Sequence[RowsOfFile], columns: Sequence[str]) -> tuple[pa.Table, Int64s]:
        """The rows, and which of the lookup's rows they are.

        Raises:
            InvalidInputError: An unknown column.
            CorruptDataError, NotFoundError: A file is damaged or gone.
        """
        projection = project(self.plan, columns)
        file_projection = project_file(self.plan, projection, AlwaysTrue())
        rows = sum(len(each.position) for each in files)
        at_once = requests_of(files[0].task.entry.data_file.file_path) if len(files) > 1 else 1
        if len(files) > 1 and rows >= PARALLEL_ROWS_MIN:
            at_once = readers_of_tasks([files[0].task])
        read = run_ahead(lambda each: self._read(each, file_projection), files, at_once=at_once)
        batches = list(read)
        ordinals = [each.ordinal for each in files]
        table = pa.Table.from_batches(batches, projection.arrow_schema)
        return table, np.concatenate([np.empty(0, dtype=np.int64), *ordinals])

    def _read(self, rows: RowsOfFile, projection: FileProjection) -> pa.RecordBatch:
        entry = rows.task.entry
        batch = self._caches.files.read(
            entry,
            rows.position,
            schema=projection.read_schema,
            spec=self.plan.specs[entry.data_file.spec_id],
            properties=self.plan.properties,
            with_positions=True,
        )
        named = batch.rename_columns([*batch.schema.names[:-1], POSITIONS])
        return projection.finish(named, entry, self.plan)

    def _deleted(self, task: FileScanTask) -> Positions | None:
        if not task.has_deletes:
            return None
        path = task.entry.data_file.file_path
        assert self.plan.snapshot is not None
        only_dv = task.dv is not None and not task.equality_deletes
        # A vector is immutable; what other deletes do to a file is known for one snapshot.
        key = (
            path,
            task.dv.data_file.identity if only_dv and task.dv else self.plan.snapshot.snapshot_id,
        )
        found = self._caches.deletes.get(key)
        if found is None:
            reader = TaskReader(self._source, self.plan, project(self.plan, None), [task])
            found = reader.deleted_positions(task)
            if found is None:
                found = Positions()
            self._caches.deletes.put(key, found)
        return found


def _deletes_bytes(deleted: Positions) -> int:
    return 200 + min(2 * len(deleted), int(deleted.max()) // 8 + 8192 if deleted else 0)
