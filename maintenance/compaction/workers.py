"""Who rewrites groups: this process one after the other, or Spark's workers several at a time.

Either way results come one by one, each to be committed at once, and in between the caller gets
the chance to let a waiting task through.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from maintenance.compaction.rewrite import (
    RewriteJob,
    RewrittenGroup,
    RewrittenSource,
    rewrite_group,
)
from tableformat.environment import Environment
from tableformat.errors import TableError, UnsupportedError
from tableformat.files.deletion_vector import Positions
from tableformat.runtime import SystemIds
from tableformat.store.base import ObjectStore
from tableformat.write.fragments import decode_data_files, encode_data_files

if TYPE_CHECKING:  # Spark is an optional dependency
    from pyspark.sql import SparkSession

POLL_MS = 250  # how long a waiting task waits at most until it is noticed
FRAGMENT_SCHEMA = "files string, rows array<bigint>, deleted array<binary>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewritten:
    """What became of one job: its group, or the error that stopped it alone."""

    ordinal: int
    group: RewrittenGroup | None = None
    error: TableError | None = None


def rewrite_here(
    environment: Environment, jobs: Sequence[RewriteJob], *, between: Callable[[], None]
) -> Iterator[Rewritten]:
    """Rewrite in this process.

    Args:
        environment: Store, clock, ids.
        jobs: The groups.
        between: Called every `POLL_MS` or so; may take its time, or raise to stop everything.
    """
    clock = environment.runtime.clock
    for ordinal, job in enumerate(jobs):
        last_ms = clock.monotonic_ms()

        def poll() -> None:
            nonlocal last_ms
            if clock.monotonic_ms() - last_ms >= POLL_MS:
                between()
                last_ms = clock.monotonic_ms()

        try:
            group = rewrite_group(environment.store, environment.runtime.ids, job, on_batch=poll)
        except TableError as error:
            yield Rewritten(ordinal=ordinal, error=error)
        else:
            yield Rewritten(ordinal=ordinal, group=group)


def rewrite_on_spark(
    spark: SparkSession,
    environment: Environment,
    jobs: Sequence[RewriteJob],
    *,
    between: Callable[[], None],
) -> Iterator[Rewritten]:
    """Rewrite on Spark's workers, one Spark task per group, as many at a time as it has cores.

    Raises:
        UnsupportedError: The workers cannot reach the store, because it lives in this process.

    Effects: as `rewrite_group`, on the workers. A task that Spark runs twice leaves the files of
    one run unreferenced.
    """
    try:
        pickle.dumps(environment.store)
    except (TypeError, pickle.PicklingError, AttributeError) as error:
        raise UnsupportedError(
            f"Spark's workers cannot use {type(environment.store).__name__}",
            action="compact without Spark",
        ) from error
    cores = max(spark.sparkContext.defaultParallelism, 1)
    with ThreadPoolExecutor(min(cores, max(len(jobs), 1)), "icefold-compact") as pool:
        running: dict[Future[RewrittenGroup], int] = {
            pool.submit(_run_on_spark, spark, environment.store, job): ordinal
            for ordinal, job in enumerate(jobs)
        }
        try:
            while running:
                done, _ = wait(running, timeout=POLL_MS / 1e3, return_when=FIRST_COMPLETED)
                between()
                for future in done:
                    yield _outcome(future, running.pop(future))
        finally:
            for future in running:
                future.cancel()


def _outcome(future: Future[RewrittenGroup], ordinal: int) -> Rewritten:
    try:
        return Rewritten(ordinal=ordinal, group=future.result())
    except TableError as error:
        return Rewritten(ordinal=ordinal, error=error)


def _run_on_spark(spark: SparkSession, store: ObjectStore, job: RewriteJob) -> RewrittenGroup:
    frame = spark.range(0, 1, 1, 1).mapInArrow(
        partial(_rewrite_task, store=store, job=job), FRAGMENT_SCHEMA
    )
    row = frame.collect()[0]
    files = decode_data_files(row["files"])
    sources = tuple(
        RewrittenSource(task=task, rows=rows, deleted=Positions.deserialize(bytes(deleted)))
        for task, rows, deleted in zip(job.plan.tasks, row["rows"], row["deleted"], strict=True)
    )
    return RewrittenGroup(files=tuple(files), sources=sources, is_in_order=job.ordering is None)


def _rewrite_task(
    batches: Iterator[pa.RecordBatch], *, store: ObjectStore, job: RewriteJob
) -> Iterator[pa.RecordBatch]:
    """Runs on a worker; one row comes in, one row with the fragment goes out."""
    for _ in batches:
        group = rewrite_group(store, SystemIds(), job, threads=1)
        yield pa.RecordBatch.from_pydict(
            {
                "files": [encode_data_files(group.files)],
                "rows": [[source.rows for source in group.sources]],
                "deleted": pa.array(
                    [[bytes(source.deleted.serialize()) for source in group.sources]],
                    pa.list_(pa.binary()),
                ),
            }
        )
