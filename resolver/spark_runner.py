"""The work of a cycle on Spark's executors.

Functions and items travel pickled, as all of Spark's Python does; results come back the same way
and are small next to what was read. A task that fails with one of our errors hands the error back
as a value, so the driver raises the same class; only trouble that another executor may not have
(`StoreUnavailableError`, a dead process) is left to Spark, which runs the task again elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from py4j.protocol import Py4JError
from pyspark import SparkFiles
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tableformat.errors import StoreUnavailableError, TableError
from tableformat.spark.arrow_scan import check_reachable
from tableformat.spark.session import local_session
from tableformat.spark.worker import freeze_imports
from tableformat.store.base import ObjectStore

APP_NAME = "icefold resolve"
CACHE_FOLDER = "icefold-index-cache"
# Items differ in size: some more tasks than cores even that out.
TASKS_PER_CORE = 4

S = TypeVar("S")
T = TypeVar("T")
P = TypeVar("P")


@dataclass(frozen=True, slots=True)
class _Failed:
    error: TableError


class SparkRunner:
    """A `ShufflingRunner` over a Spark session."""

    __slots__ = ("_context", "parallelism")

    name = "spark"

    def __init__(
        self, spark: SparkSession, store: ObjectStore, *, instead: str = "engine='local'"
    ) -> None:
        """Use a session.

        Raises:
            UnsupportedError: Executors could not reach the store, because it lives in this process;
                do it `instead`.
        """
        check_reachable(store, instead=instead)
        self._context: Any = spark.sparkContext
        self.parallelism: int = max(self._context.defaultParallelism, 1)

    def run(self, task: Callable[[S], T], items: Sequence[S]) -> list[T]:
        """See `Runner`."""
        if not items:
            return []
        rdd = self._spread(items).map(partial(_guarded, task))
        return _results(rdd)

    def shuffle(
        self,
        split: Callable[[S], Iterable[tuple[int, P]]],
        items: Sequence[S],
        merge: Callable[[int, Iterator[P]], T],
        shard_count: int,
        *,
        more: Sequence[tuple[int, P]] = (),
    ) -> list[T]:
        """See `ShufflingRunner`."""
        parts = self._spread(items).flatMap(partial(_guarded_split, split))
        if more:
            parts = parts.union(self._spread(more))
        merged = parts.partitionBy(shard_count, _shard_itself)
        return _results(merged.mapPartitionsWithIndex(partial(_guarded_merge, merge)))

    def _spread(self, items: Sequence[Any]) -> Any:
        slices = max(1, min(len(items), self.parallelism * TASKS_PER_CORE))
        return self._context.parallelize(items, slices)


def open_session(
    given: SparkSession | None, *, is_submitted: bool = False, start: bool = False
) -> SparkSession | None:
    """The session to use.

    Args:
        given: The caller's.
        is_submitted: `spark-submit` has started this process: take the session it configured.
        start: Start a local one where there is none.
    """
    session = given or SparkSession.getActiveSession()
    if session is None and is_submitted:
        return SparkSession.builder.appName(APP_NAME).getOrCreate()
    return local_session(APP_NAME) if session is None and start else session


def executor_cache(configured: str | None, name: str) -> Path:
    """Runs on an executor: where it keeps copies of an index.

    Args:
        configured: The operator's folder. None: the executor's own, which goes with it.
        name: The index.
    """
    base = Path(configured) if configured else Path(SparkFiles.getRootDirectory()) / CACHE_FOLDER
    return base.absolute() / name


def is_cluster(spark: SparkSession) -> bool:
    """Whether executors are other processes than the driver, perhaps on other machines."""
    master = str(spark.sparkContext.master)
    return master != "local" and not master.startswith("local[")


def _results(rdd: Any) -> list[Any]:
    try:
        results = rdd.collect()
    except (Py4JError, PySparkException) as error:
        raise StoreUnavailableError(
            f"the Spark job failed: {_last_line(error)}",
            action="see Spark's log; nothing was published, run it again",
        ) from error
    for result in results:
        if isinstance(result, _Failed):
            raise result.error
    return results  # type: ignore[no-any-return]


def _guarded(task: Callable[[S], T], item: S) -> T | _Failed:
    """Runs on an executor."""
    freeze_imports()
    try:
        return task(item)
    except StoreUnavailableError:
        raise
    except TableError as error:
        return _Failed(error)


def _guarded_split(
    split: Callable[[S], Iterable[tuple[int, P]]], item: S
) -> Iterator[tuple[int, P | _Failed]]:
    """Runs on an executor. A failure becomes a part of shard 0, where the merge hands it on."""
    try:
        yield from split(item)
    except StoreUnavailableError:
        raise
    except TableError as error:
        yield 0, _Failed(error)


def _guarded_merge(
    merge: Callable[[int, Iterator[P]], T], shard: int, pairs: Iterable[tuple[int, P | _Failed]]
) -> list[T | _Failed]:
    """Runs on an executor, once per shard."""

    def parts() -> Iterator[P]:
        for _, part in pairs:
            if isinstance(part, _Failed):
                raise part.error
            yield part

    return [_guarded(partial(merge, shard), parts())]


def _shard_itself(shard: int) -> int:
    return shard


def _last_line(error: Exception) -> str:
    """The line of a Java stack trace that says what went wrong."""
    java = getattr(error, "java_exception", None)
    text = str(error) if java is None else str(java.getMessage())
    causes = [line.strip() for line in text.splitlines() if "Error: " in line or "Lost" in line]
    lines = causes or text.splitlines() or [type(error).__name__]
    return lines[-1].strip()[:300]
