"""Reads data files on Spark's workers with our own Arrow reader, from any store.

A scan is cut into parts on the driver; each part is one task's work and travels with what reading
it needs: the store, the plan without its tasks, the columns. The catalog stays where it is.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from tableformat.errors import UnsupportedError
from tableformat.scan.file_source import FileSource
from tableformat.scan.plan import FileScanTask, ScanPlan
from tableformat.scan.projection import Projection
from tableformat.scan.reader import TaskReader
from tableformat.spark.types import to_spark_batch
from tableformat.spark.worker import freeze_imports
from tableformat.store.base import ObjectStore

PARTITIONS_PER_CORE = 4

# Rows of a part: small enough to keep every core busy, large enough to pay for a task.
PART_ROWS = 500_000


@dataclass
class ScanPart(InputPartition):
    """Some files of a scan. Picklable if the store is.

    Attributes:
        limit: No more rows than that are wanted of the part.
    """

    store: ObjectStore
    plan: ScanPlan
    projection: Projection
    tasks: tuple[FileScanTask, ...]
    limit: int | None = None

    def rows(self) -> Iterator[pa.RecordBatch]:
        """Runs on a worker: live rows that pass the filter, in the types that Spark takes."""
        freeze_imports()
        source = FileSource(self.store, self.plan.specs, self.plan.properties)
        reader = TaskReader(source, self.plan, self.projection, self.tasks)
        left = self.limit
        for task in self.tasks:
            for batch in reader.read(task):
                wanted = batch if left is None else batch.slice(0, left)
                yield to_spark_batch(wanted, self.projection.schema)
                if left is not None:
                    left -= wanted.num_rows
                    if left <= 0:
                        return


def scan_parts(
    store: ObjectStore, plan: ScanPlan, projection: Projection, *, limit: int | None = None
) -> list[ScanPart]:
    """Neighbouring files of a scan, put together until they hold `PART_ROWS`."""
    shipped = replace(plan, tasks=())
    groups: list[list[FileScanTask]] = []
    rows = PART_ROWS
    for task in plan.tasks:
        if rows >= PART_ROWS:
            groups.append([])
            rows = 0
        groups[-1].append(task)
        rows += task.entry.data_file.record_count
    return [ScanPart(store, shipped, projection, tuple(tasks), limit) for tasks in groups]


def check_reachable(store: ObjectStore, *, instead: str = "do it without Spark") -> None:
    """Raise `UnsupportedError`, and say what to do `instead`, if executors cannot reach it."""
    try:
        pickle.dumps(store)
    except (TypeError, pickle.PicklingError, AttributeError) as error:
        raise UnsupportedError(
            f"Spark's executors cannot read from {type(store).__name__}",
            action=f"use a store outside of this process, or {instead}",
        ) from error
