"""A planned scan as a Spark DataFrame.

```
tasks ─┬─ no deletes ──────────> native scan ───────────────────────────────┐
       ├─ DV, position deletes ─> native scan ─ bit per row (file_lookup) ──┤
       ├─ equality deletes ────> the same, then anti-joins (equality_join) ─┼─ union ─> DataFrame
       └─ not for Spark's reader ─> our Arrow reader on the workers ────────┘
```

The choice is made per file. Deletion vectors are read on the driver when the frame is made, so the
frame keeps reading the same snapshot as long as its files exist.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import reduce

import numpy as np
from numpy.typing import NDArray
from pyiceberg.expressions import AlwaysTrue
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from tableformat.environment import Environment
from tableformat.files.parquet_columns import has_field_ids
from tableformat.files.parquet_reader import NAME_MAPPING_PROPERTY
from tableformat.scan.file_source import FileSource
from tableformat.scan.plan import FileScanTask, ScanPlan, map_ordered
from tableformat.scan.position_deletes import PositionDeletes
from tableformat.scan.projection import Projection, project
from tableformat.scan.row_filter import bind_filter
from tableformat.spark.arrow_scan import arrow_scan
from tableformat.spark.equality_join import ROW_KEY, ROW_SCOPE, ROW_SEQUENCE, EqualityJoin
from tableformat.spark.file_lookup import FileLookup, deleted_words, split_by_key, word_count
from tableformat.spark.filters import spark_filter
from tableformat.spark.native_scan import check_files, file_obstacle, looked_up, read_files
from tableformat.spark.scan_columns import (
    ScanColumns,
    absent_columns,
    identity_sources,
    stored_columns,
)
from tableformat.spark.types import spark_schema
from tableformat.store.base import ObjectStore

# Deleted-row bits of one scan that the driver collects: 512 MiB, 4 billion rows. Beyond, the
# workers read deletion vectors themselves.
WORDS_TOTAL_MAX = 1 << 26

OUT = "__icefold_out_{}"


def scan_to_spark(
    environment: Environment,
    plan: ScanPlan,
    spark: SparkSession,
    *,
    columns: Sequence[str] | None = None,
) -> DataFrame:
    """The rows of a planned scan: deletes applied, the plan's filter exact.

    Args:
        environment: Where deletion vectors and footers are read.
        plan: From `plan_scan`.
        spark: A session; `tableformat.spark.session.local_session` makes one.
        columns: Result columns in order, metadata columns included; None: every table column.

    Returns:
        A lazy DataFrame. Types are those of `spark.types.spark_schema`. Filters put on it later
        are pushed into the Parquet scan.

    Raises:
        InvalidInputError: An unknown or repeated column.
        CorruptDataError: A deletion vector or position delete file is damaged.
        NotFoundError: A file is gone.
        UnsupportedError: A file that Spark cannot read lies in a store its workers cannot reach.
    """
    projection = project(plan, columns)
    frames = _frames(environment.store, plan, spark, projection)
    if not frames:
        return spark.createDataFrame([], spark_schema(projection.schema))
    return reduce(DataFrame.unionAll, frames)


def _frames(
    store: ObjectStore, plan: ScanPlan, spark: SparkSession, projection: Projection
) -> list[DataFrame]:
    scan = _NativeScan(store, plan, spark, projection)
    native, others = scan.split(plan.tasks)
    frames = [
        *scan.without_equality([task for task in native if not task.equality_deletes]),
        *scan.with_equality([task for task in native if task.equality_deletes]),
    ]
    if others:
        frames.append(arrow_scan(spark, store, plan, projection, others))
    return frames


class _NativeScan:
    """Builds the frames that Spark's own reader serves."""

    def __init__(
        self, store: ObjectStore, plan: ScanPlan, spark: SparkSession, projection: Projection
    ) -> None:
        self._store = store
        self._plan = plan
        self._spark = spark
        self._projection = projection
        self._join = EqualityJoin(plan, plan.tasks)
        self._absent: dict[str, frozenset[int]] = {}
        bound = bind_filter(plan.row_filter, plan.schema)
        self._filter = None if isinstance(bound, AlwaysTrue) else bound
        self._columns = ScanColumns(plan, projection, self._filter, self._join)

    def split(self, tasks: Sequence[FileScanTask]) -> tuple[list[FileScanTask], list[FileScanTask]]:
        """Tasks for Spark's reader, and the others."""
        if self._columns.obstacle is not None:
            return [], list(tasks)
        join_obstacle = self._join.obstacle()
        keeps_deleted = self._projection.keeps_deleted  # a join would drop the rows
        has_ids = self._with_field_ids(tasks)
        absent = absent_columns(self._store, self._plan, tasks, self._columns.fields.fields)
        words = 0
        native: list[FileScanTask] = []
        others: list[FileScanTask] = []
        for task, is_readable, missing in zip(tasks, has_ids, absent, strict=True):
            data = task.entry.data_file
            if task.dv is not None or task.position_deletes:
                words += word_count(data.record_count)
            if (
                (task.equality_deletes and (join_obstacle is not None or keeps_deleted))
                or not is_readable
                or words > WORDS_TOTAL_MAX
                or file_obstacle(data) is not None
                or missing & identity_sources(data, self._plan)
            ):
                others.append(task)
            else:
                native.append(task)
                self._absent[data.file_path] = missing
        check_files(self._store, [task.entry.data_file for task in native])
        if any(task.equality_deletes for task in native):
            check_files(self._store, self._join.files())
        return native, others

    def _with_field_ids(self, tasks: Sequence[FileScanTask]) -> list[bool]:
        """Whether each file carries field ids; only tables with a name mapping have others."""
        if NAME_MAPPING_PROPERTY not in self._plan.properties:
            return [True] * len(tasks)
        return map_ordered(
            lambda task: has_field_ids(stored_columns(self._store, task.entry.data_file)), tasks
        )

    def without_equality(self, tasks: Sequence[FileScanTask]) -> list[DataFrame]:
        """Frames with the projection's columns."""
        outputs = [
            sf.col(OUT.format(ordinal)).alias(field.name, metadata={})
            for ordinal, field in enumerate(self._projection.schema.fields)
        ]
        deleted = [task for task in tasks if task.dv is not None or task.position_deletes]
        untouched = [task for task in tasks if task.dv is None and not task.position_deletes]
        return [
            frame.select(*outputs)
            for group in (untouched, deleted)
            for frame in self._scans(group, with_keys=False)
        ]

    def with_equality(self, tasks: Sequence[FileScanTask]) -> list[DataFrame]:
        """One frame with the projection's columns, or none."""
        scans = self._scans(tasks, with_keys=True)
        if not scans:
            return []
        joined = self._join.apply(self._spark, reduce(DataFrame.unionAll, scans))
        outputs = [
            sf.col(OUT.format(ordinal)).alias(field.name, metadata={})
            for ordinal, field in enumerate(self._projection.schema.fields)
        ]
        return [joined.select(*outputs)]

    def _scans(self, tasks: Sequence[FileScanTask], *, with_keys: bool) -> list[DataFrame]:
        """Scans of files of one physical shape each; positions and the filter are applied."""
        shapes: defaultdict[frozenset[int], list[FileScanTask]] = defaultdict(list)
        for task in tasks:
            shapes[self._absent[task.entry.data_file.file_path]].append(task)
        scans = []
        for missing, members in shapes.items():
            if self._columns.needs_lookup(with_keys=with_keys) or any(
                task.dv is not None or task.position_deletes for task in members
            ):
                files = [looked_up(task) for task in members]
                for key, indices in split_by_key(files):
                    part = [members[index] for index in indices]
                    lookup = FileLookup(
                        self._spark,
                        key,
                        [files[index] for index in indices],
                        words=self._words(part),
                        values=self._columns.lookup_values(part, with_keys=with_keys),
                    )
                    scans.append(self._scan(part, missing, lookup, with_keys=with_keys))
            else:
                scans.append(self._scan(members, missing, None, with_keys=with_keys))
        return scans

    def _scan(
        self,
        tasks: Sequence[FileScanTask],
        missing: frozenset[int],
        lookup: FileLookup | None,
        *,
        with_keys: bool,
    ) -> DataFrame:
        paths = [task.entry.data_file.file_path for task in tasks]
        helpers = self._columns.helpers | (frozenset() if lookup is None else lookup.helpers)
        frame = read_files(self._spark, paths, self._columns.fields, helpers)
        resolve = self._columns.resolver(missing)
        if lookup is not None and not self._projection.keeps_deleted:
            frame = frame.where(lookup.is_live())
        if self._filter is not None:
            frame = frame.where(spark_filter(self._filter, resolve))
        selected = self._columns.outputs(resolve, lookup, OUT)
        if with_keys:
            assert lookup is not None, "scans with equality deletes look their files up"
            selected += [
                resolve(field_id).alias(ROW_KEY.format(field_id)) for field_id in self._join.key_ids
            ]
            selected.append(lookup.value("sequences").alias(ROW_SEQUENCE))
            selected.append(lookup.value("scopes").alias(ROW_SCOPE))
        return frame.select(*selected)

    def _words(self, tasks: Sequence[FileScanTask]) -> list[NDArray[np.int64] | None]:
        """Per task the bits of its deleted rows."""
        source = FileSource(self._store, self._plan.specs, self._plan.properties)
        deletes = PositionDeletes(source, tasks)

        def load(task: FileScanTask) -> NDArray[np.int64] | None:
            positions = deletes.load(task)
            count = task.entry.data_file.record_count
            return deleted_words(positions, count) if positions else None

        return map_ordered(load, tasks)
