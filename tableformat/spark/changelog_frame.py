"""A changelog as a Spark DataFrame, computed by Spark's tasks.

```
driver: files that differ, positions ─> items (one file of one side of one step)
tasks:  items ─ our Arrow reader ─> rows ─┬─ steps with one side only ───────────────┬─> changes
                                          └─ shuffle by key hash ─ pair (applyInArrow) ┘
```

Deletion vectors are compared on the driver when the frame is made; the frame keeps meaning the same
two snapshots as long as their files exist.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial, reduce

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql import types as spark_types

from tableformat.cdc.rowkind import RowKind
from tableformat.changelog.buckets import ADDED, REMOVED
from tableformat.changelog.change_columns import ChangeColumns
from tableformat.changelog.changes import Changes
from tableformat.changelog.pairing import KIND, one_array, pair_rows
from tableformat.changelog.step_rows import RowSource, StepReader
from tableformat.changelog.steps import ChangeStep
from tableformat.spark.arrow_scan import PARTITIONS_PER_CORE, check_reachable
from tableformat.spark.types import spark_schema, to_spark_batch

ROWS_PER_BUCKET = 200_000  # of both sides together: what one task pairs at a time
SIDE, STEP, BUCKET = "__icefold_side", "__icefold_step", "__icefold_bucket"


@dataclass(frozen=True, slots=True)
class ChangeItem:
    """One file's rows on one side of one step."""

    step: int
    side: int
    source: RowSource

    @property
    def row_count(self) -> int:
        """Rows to read, at most."""
        if self.source.positions is not None:
            return len(self.source.positions)
        return self.source.task.entry.data_file.record_count


@dataclass(frozen=True, slots=True)
class ChangeReader:
    """What tasks need to read items. Picklable if the store is."""

    rows_of: StepReader
    steps: tuple[ChangeStep, ...]

    @property
    def columns(self) -> ChangeColumns:
        """The changelog's columns."""
        return self.rows_of.columns

    def rows(self, item: ChangeItem) -> Iterator[pa.RecordBatch]:
        """The item's rows, in the types that travel through Spark."""
        for batch in self.rows_of.rows([item.source], threads=1):
            yield to_spark_batch(batch, self.columns.read.schema)

    def finish(self, batch: pa.RecordBatch, kinds: pa.Array, step: int) -> pa.RecordBatch:
        """Result columns, in the types that travel through Spark."""
        return self.columns.finish_travelling(batch, kinds, self.steps[step])


def changes_to_spark(changes: Changes, spark: SparkSession) -> DataFrame:
    """The changes as a lazy DataFrame, in no order; `_change_ordinal` tells which come first.

    Raises:
        UnsupportedError: Spark's workers cannot reach the store.
        NotFoundError: A file is gone, or a snapshot between the two has expired.
    """
    check_reachable(changes.environment.store)
    reader = ChangeReader(changes.reader, tuple(changes.steps))
    single, double = plan_items(changes)
    frames = []
    if single:
        schema = changes_schema(changes.columns)
        read = partial(_read_changes, reader=reader, items=tuple(single))
        frames.append(_ordinals(spark, single).mapInArrow(read, schema))
    if double:
        frames.append(_paired(spark, reader, double))
    if not frames:
        return spark.createDataFrame([], changes_schema(changes.columns))
    return reduce(DataFrame.unionAll, frames)


def plan_items(changes: Changes) -> tuple[list[ChangeItem], list[ChangeItem]]:
    """Items of steps with rows on one side only, and items of the others."""
    single: list[ChangeItem] = []
    double: list[ChangeItem] = []
    for number, step in enumerate(changes.steps):
        rows = changes.step_rows(step)
        items = [ChangeItem(number, REMOVED, source) for source in rows.removed]
        items += [ChangeItem(number, ADDED, source) for source in rows.added]
        (double if rows.removed and rows.added else single).extend(items)
    return single, double


def changes_schema(columns: ChangeColumns) -> spark_types.StructType:
    """The Spark schema of a changelog."""
    rows = spark_schema(columns.row_schema)
    return spark_types.StructType(
        [
            *rows.fields,
            spark_types.StructField("_change_type", spark_types.StringType(), False),
            spark_types.StructField("_change_ordinal", spark_types.IntegerType(), False),
            spark_types.StructField("_commit_snapshot_id", spark_types.LongType(), True),
        ]
    )


def single_kind(item: ChangeItem) -> RowKind:
    """What the rows of an item are when its step has no other side."""
    return RowKind.DELETE if item.side == REMOVED else RowKind.INSERT


def pair_table(rows: pa.Table, *, reader: ChangeReader) -> pa.Table:
    """Runs on a worker: one bucket of one step, rows of both sides."""
    side = rows.column(SIDE).to_numpy()
    step = rows.column(STEP)[0].as_py()
    names = [field.name for field in reader.columns.read.schema.fields]
    sides = [rows.filter(pa.array(side == which)).select(names) for which in (REMOVED, ADDED)]
    paired = pair_rows(*sides, key=reader.columns.key, values=reader.columns.compared)
    columns = [one_array(paired, name) for name in paired.column_names]
    batch = pa.RecordBatch.from_arrays(columns, names=paired.column_names)
    return pa.Table.from_batches([reader.finish(batch, batch.column(KIND), step)])


def _paired(spark: SparkSession, reader: ChangeReader, items: Sequence[ChangeItem]) -> DataFrame:
    read_schema = spark_schema(reader.columns.read.schema)
    schema = spark_types.StructType(
        [
            *read_schema.fields,
            spark_types.StructField(SIDE, spark_types.IntegerType(), False),
            spark_types.StructField(STEP, spark_types.IntegerType(), False),
        ]
    )
    rows = _ordinals(spark, items).mapInArrow(
        partial(_read_sides, reader=reader, items=tuple(items)), schema
    )
    row_count = sum(item.row_count for item in items)
    buckets = max(spark.sparkContext.defaultParallelism, row_count // ROWS_PER_BUCKET + 1)
    keys = [_column(path) for path in reader.columns.key]
    bucket = sf.pmod(sf.xxhash64(*keys), sf.lit(buckets)).cast("int")
    grouped = rows.withColumn(BUCKET, bucket).groupBy(STEP, BUCKET)
    pair: Callable[[pa.Table], pa.Table] = partial(pair_table, reader=reader)
    return grouped.applyInArrow(_as_function(pair), changes_schema(reader.columns))


def _as_function(pair: Callable[[pa.Table], pa.Table]) -> Callable[[pa.Table], pa.Table]:
    """Spark inspects the signature, which a `partial` does not show plainly."""

    def apply(rows: pa.Table) -> pa.Table:
        return pair(rows)

    return apply


def _ordinals(spark: SparkSession, items: Sequence[ChangeItem]) -> DataFrame:
    cores = spark.sparkContext.defaultParallelism
    return spark.range(0, len(items), 1, min(len(items), cores * PARTITIONS_PER_CORE))


def _read_changes(
    ordinals: Iterator[pa.RecordBatch], *, reader: ChangeReader, items: tuple[ChangeItem, ...]
) -> Iterator[pa.RecordBatch]:
    """Runs on a worker: items whose rows are changes as they are."""
    for item in _mine(ordinals, items):
        for batch in reader.rows(item):
            kinds = pa.array(np.full(batch.num_rows, single_kind(item), np.int8))
            yield reader.finish(batch, kinds, item.step)


def _read_sides(
    ordinals: Iterator[pa.RecordBatch], *, reader: ChangeReader, items: tuple[ChangeItem, ...]
) -> Iterator[pa.RecordBatch]:
    """Runs on a worker: rows, with their side and step."""
    for item in _mine(ordinals, items):
        for batch in reader.rows(item):
            side = pa.array(np.full(batch.num_rows, item.side, np.int32))
            step = pa.array(np.full(batch.num_rows, item.step, np.int32))
            yield batch.append_column(SIDE, side).append_column(STEP, step)


def _mine(
    ordinals: Iterator[pa.RecordBatch], items: tuple[ChangeItem, ...]
) -> Iterator[ChangeItem]:
    for batch in ordinals:
        for ordinal in batch.column(0).to_pylist():
            yield items[ordinal]


def _column(path: Sequence[str]) -> Column:
    first, *rest = path
    column = sf.col(f"`{first.replace('`', '``')}`")
    for name in rest:
        column = column.getField(name)
    return column
