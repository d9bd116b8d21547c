"""Who rewrites groups: this process one after the other, or Spark's workers several at a time.

Either way results come one by one, each to be committed at once, and in between the caller gets
the chance to let a waiting task through.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from maintenance.compaction.rewrite import RewriteJob, RewrittenGroup, rewrite_group
from tableformat.environment import Environment
from tableformat.errors import TableError
from tableformat.runtime import SystemIds
from tableformat.store.base import ObjectStore

if TYPE_CHECKING:  # Spark is an optional dependency
    from pyspark.sql import SparkSession

POLL_MS = 250  # how long a waiting task waits at most until it is noticed


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
    from resolver.spark_runner import SparkRunner

    runner = SparkRunner(spark, environment.store, instead="compact without Spark")
    rewrite = partial(_rewrite_remotely, store=environment.store)
    with ThreadPoolExecutor(min(runner.parallelism, max(len(jobs), 1)), "icefold-compact") as pool:
        running: dict[Future[list[RewrittenGroup]], int] = {
            pool.submit(runner.run, rewrite, [job]): ordinal for ordinal, job in enumerate(jobs)
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


def _outcome(future: Future[list[RewrittenGroup]], ordinal: int) -> Rewritten:
    try:
        return Rewritten(ordinal=ordinal, group=future.result()[0])
    except TableError as error:
        return Rewritten(ordinal=ordinal, error=error)


def _rewrite_remotely(job: RewriteJob, *, store: ObjectStore) -> RewrittenGroup:
    """Runs on a worker."""
    return rewrite_group(store, SystemIds(), job, threads=1)
