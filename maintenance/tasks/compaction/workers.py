"""Who rewrites groups: this process, small ones side by side, or Spark's workers.

Either way results come one by one as they are done, and in between the caller is asked whether to
go on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from maintenance.tasks.compaction.rewrite import RewriteJob, RewrittenGroup, rewrite_group
from tableformat.codec.puffin.dv_file import PuffinFiles
from tableformat.environment import Environment
from tableformat.errors import TableError
from tableformat.runtime import Clock, SystemIds
from tableformat.store.base import ObjectStore

if TYPE_CHECKING:  # Spark is an optional dependency
    from pyspark.sql import SparkSession

POLL_MS = 250  # how soon a rewrite is stopped
SMALL_GROUP_BYTES_MAX = 8 << 20  # of such a group most of the time is waiting for the store


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewritten:
    """What became of one job: its group, or the error that stopped it alone."""

    ordinal: int
    group: RewrittenGroup | None = None
    error: TableError | None = None


def rewrite_here(
    environment: Environment,
    jobs: Sequence[RewriteJob],
    *,
    concurrent_max: int,
    between: Callable[[], None],
) -> Iterator[Rewritten]:
    """Rewrite in this process: first small groups side by side, then the others in turn.

    Args:
        environment: Store, clock, ids.
        jobs: The groups.
        concurrent_max: Small groups at the same time; 1: all groups in turn, in this thread.
        between: Called every `POLL_MS` or so; may raise to stop everything.

    Memory: that of one large group, or of `concurrent_max` small ones.
    """
    poll = _Poll(environment.runtime.clock, between)
    puffins = PuffinFiles(environment.store)
    rewrite = partial(rewrite_group, environment.store, environment.runtime.ids, puffins=puffins)
    small = [n for n, job in enumerate(jobs) if job.size_bytes <= SMALL_GROUP_BYTES_MAX]
    if concurrent_max == 1 or len(small) == 1:
        small = []
    gate = _Gate(environment.store)
    yield from _side_by_side(rewrite, jobs, small, concurrent_max, poll, gate)
    for ordinal in sorted(set(range(len(jobs))) - set(small)):
        try:
            group = rewrite(jobs[ordinal], on_batch=poll)
        except TableError as error:
            yield Rewritten(ordinal=ordinal, error=error)
        else:
            yield Rewritten(ordinal=ordinal, group=group)
        poll()


@dataclass(slots=True)
class _Poll:
    """Calls `between` when `POLL_MS` have gone by since it was called last."""

    clock: Clock
    between: Callable[[], None]
    _last_ms: float = field(init=False)

    def __post_init__(self) -> None:
        self._last_ms = self.clock.monotonic_ms()

    def __call__(self) -> None:
        if self.clock.monotonic_ms() - self._last_ms >= POLL_MS:
            self.between()
            self._last_ms = self.clock.monotonic_ms()


class _Stopped(Exception):  # noqa: N818 - ends a thread whose result nobody wants
    """Raised in a thread."""


@dataclass(slots=True)
class _Gate:
    """Lets other threads go on until it is over; then it ends them, and deletes their files."""

    store: ObjectStore
    _is_over: bool = False

    def end(self, running: Iterable[Future[RewrittenGroup]]) -> None:
        self._is_over = True
        for future in running:
            future.add_done_callback(self._discard)

    def _discard(self, future: Future[RewrittenGroup]) -> None:
        """Best effort: nobody will commit these."""
        if future.exception() is None:
            with suppress(TableError):
                self.store.delete([file.file_path for file in future.result().files])

    def __call__(self) -> None:
        if self._is_over:
            raise _Stopped


def _side_by_side(
    rewrite: Callable[..., RewrittenGroup],
    jobs: Sequence[RewriteJob],
    ordinals: Sequence[int],
    threads: int,
    poll: _Poll,
    gate: _Gate,
) -> Iterator[Rewritten]:
    """Several groups at a time, each read by one thread."""
    waiting = deque(ordinals)
    running: dict[Future[RewrittenGroup], int] = {}
    with ThreadPoolExecutor(threads, "icefold-compact") as pool:
        try:
            while waiting or running:
                while waiting and len(running) < threads:
                    ordinal = waiting.popleft()
                    future = pool.submit(rewrite, jobs[ordinal], threads=1, on_batch=gate)
                    running[future] = ordinal
                done, _ = wait(running, timeout=POLL_MS / 1e3, return_when=FIRST_COMPLETED)
                poll()
                for future in done:
                    yield _outcome(future, running.pop(future))
        finally:
            gate.end(running)


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


def _outcome(
    future: Future[RewrittenGroup] | Future[list[RewrittenGroup]], ordinal: int
) -> Rewritten:
    try:
        result = future.result()
    except TableError as error:
        return Rewritten(ordinal=ordinal, error=error)
    return Rewritten(ordinal=ordinal, group=result[0] if isinstance(result, list) else result)


def _rewrite_remotely(job: RewriteJob, *, store: ObjectStore) -> RewrittenGroup:
    """Runs on a worker."""
    return rewrite_group(store, SystemIds(), job, threads=1)
