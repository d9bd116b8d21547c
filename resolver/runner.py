"""Where the work of a cycle runs: in threads of this process, or on Spark's executors.

Both run the same functions. A function must not depend on state of the caller, so that it can be
sent to another process and repeated there: what it writes has a name of its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol, TypeVar, runtime_checkable

from tableformat.side_by_side import run_in_parts
from tableformat.store.locations import readers_of

THREADS_MAX = 8

S = TypeVar("S")
T = TypeVar("T")
P = TypeVar("P")


class Runner(Protocol):
    """Runs functions over items."""

    @property
    def name(self) -> str:
        """`local` or `spark`, for the report."""

    @property
    def parallelism(self) -> int:
        """How many tasks run at a time."""

    def run(self, task: Callable[[S], T], items: Sequence[S]) -> list[T]:
        """`task` of every item, in the order of the items.

        Raises:
            TableError: Of one of the tasks.
            StoreUnavailableError: The executors could not finish the work.
        """


@runtime_checkable
class ShufflingRunner(Runner, Protocol):
    """A runner that can bring what belongs together to one task, without the driver."""

    def shuffle(
        self,
        split: Callable[[S], Iterable[tuple[int, P]]],
        items: Sequence[S],
        merge: Callable[[int, Iterator[P]], T],
        shard_count: int,
        *,
        more: Sequence[tuple[int, P]] = (),
    ) -> list[T]:
        """Split items into parts of shards, and merge the parts of each shard in one task.

        Args:
            split: Parts of one item with their shards.
            items: What is split.
            merge: Called once for each shard, also for one without parts.
            shard_count: Number of shards.
            more: Further parts, from the caller.

        Returns:
            The result of `merge` for each shard.
        """


def reading(runner: Runner | None, location: str) -> Runner:
    """A runner for reading a few columns of many files; `location`: of one of them.

    In this process it is one of its own: what waits for a bucket leaves the processor to others.
    """
    if runner is None or isinstance(runner, LocalRunner):
        return LocalRunner(max(readers_of(location), 2))
    return runner


class LocalRunner:
    """Threads of this process."""

    __slots__ = ("parallelism",)

    name = "local"

    def __init__(self, threads: int | None = None) -> None:
        self.parallelism = threads or min(THREADS_MAX, max(os.cpu_count() or 1, 2))

    def run(self, task: Callable[[S], T], items: Sequence[S]) -> list[T]:
        """See `Runner`. One item needs no thread."""
        return run_in_parts(task, items, at_once=self.parallelism)
