"""Reads data files on Spark's workers with our own Arrow reader.

For what Spark's Parquet reader cannot do: types it does not have, files without field ids,
columns that only the partition knows, stores it has no file system for. Slower than the native
scan (rows travel from Python to the JVM), same rows.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from tableformat.errors import UnsupportedError
from tableformat.scan.file_source import FileSource
from tableformat.scan.plan import FileScanTask, ScanPlan
from tableformat.scan.projection import Projection
from tableformat.scan.reader import TaskReader
from tableformat.spark.types import spark_schema, to_spark_batch
from tableformat.store.base import ObjectStore

PARTITIONS_PER_CORE = 4


def arrow_scan(
    spark: SparkSession,
    store: ObjectStore,
    plan: ScanPlan,
    projection: Projection,
    tasks: Sequence[FileScanTask],
) -> DataFrame:
    """The tasks' live rows that pass the filter, columns as `projection` says.

    Raises:
        UnsupportedError: Workers cannot reach the store, because it lives in this process.
    """
    check_reachable(store)
    cores = spark.sparkContext.defaultParallelism
    partitions = min(len(tasks), cores * PARTITIONS_PER_CORE)
    ordinals = spark.range(0, len(tasks), 1, partitions)
    read = _reader(store, replace(plan, tasks=()), projection, tuple(tasks))
    return ordinals.mapInArrow(read, spark_schema(projection.schema))


def check_reachable(store: ObjectStore, *, instead: str = "do it without Spark") -> None:
    """Raise `UnsupportedError`, and say what to do `instead`, if executors cannot reach it."""
    try:
        pickle.dumps(store)
    except (TypeError, pickle.PicklingError, AttributeError) as error:
        raise UnsupportedError(
            f"Spark's executors cannot read from {type(store).__name__}",
            action=f"use a store outside of this process, or {instead}",
        ) from error


def _reader(
    store: ObjectStore, plan: ScanPlan, projection: Projection, tasks: tuple[FileScanTask, ...]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    return partial(_read_ordinals, store=store, plan=plan, projection=projection, tasks=tasks)


def _read_ordinals(
    ordinals: Iterator[pa.RecordBatch],
    *,
    store: ObjectStore,
    plan: ScanPlan,
    projection: Projection,
    tasks: tuple[FileScanTask, ...],
) -> Iterator[pa.RecordBatch]:
    """Runs on a worker: the tasks whose ordinals the partition holds, one after the other."""
    mine = [tasks[ordinal] for batch in ordinals for ordinal in batch.column(0).to_pylist()]
    source = FileSource(store, plan.specs, plan.properties)
    reader = TaskReader(source, plan, projection, mine)
    for task in mine:
        for batch in reader.read(task):
            yield to_spark_batch(batch, projection.schema)
