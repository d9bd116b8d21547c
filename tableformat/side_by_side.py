"""Steps that mostly wait, several at a time, in threads that stay.

A thread costs more to start than a short step takes: whoever starts one waits until it runs, which
in a busy process is one turn of the interpreter's lock more, and dozens where dozens are busy.

There are two sets of threads, so that nobody waits for a thread which waits for him: steps may wait
for what runs in the other set; what runs there gets threads of its own where it wants some.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from enum import Enum
from functools import lru_cache, partial
from typing import TypeVar

# More wait less for the disk, and take more of the processor to take turns with Python's lock: a
# third more with eight, where a step works as long as it waits.
AT_ONCE = 3
IN_BUCKETS = 16  # of a step that mostly waits tens of milliseconds for an answer

S = TypeVar("S")
T = TypeVar("T")


class _Kind(Enum):
    """What runs in a set of threads, and how many there are at most."""

    STEP = 2 * IN_BUCKETS  # a stream stages beside its tables' maintenance
    PART = 4 * IN_BUCKETS


class _Here(threading.local):
    """What this thread runs; both where a part has its own threads for steps."""

    is_step = False
    is_part = False


_here = _Here()


def run_side_by_side(
    step: Callable[[S], T], items: Sequence[S], *, at_once: int = AT_ONCE
) -> list[T]:
    """`step` of every item, at most `at_once` at a time; answers in the order of the items.

    One item needs no thread, and a step that calls this again gets no others. With `at_once` 1 all
    is done in turn.

    Raises:
        Exception: What the first of the items raised, after all have been tried. After anything
            else, such as an interrupt, no other step is begun. None is running any more then.
    """
    return _run(_Kind.STEP, step, items, 1 if _here.is_step else at_once)


def run_in_parts(step: Callable[[S], T], items: Sequence[S], *, at_once: int) -> list[T]:
    """As `run_side_by_side`, for what is worth threads within a step, too."""
    return _run(_Kind.PART, step, items, at_once)


def run_ahead(step: Callable[[S], T], items: Iterable[S], *, at_once: int) -> Iterator[T]:
    """`step` of every item in their order, at most `at_once` of them ahead of whoever takes them.

    With `at_once` 1 all is done in turn. Memory: so many answers.

    Raises:
        Exception: What a step raised, at its place in the order.

    Effects: whoever stops early waits for the steps that are running.
    """
    if at_once < 2 or (isinstance(items, Sequence) and len(items) < 2):
        yield from map(step, items)
        return
    begun: deque[Future[T]] = deque()
    with _threads(_Kind.PART, at_once) as pool:
        try:
            for item in items:
                begun.append(pool.submit(partial(step, item)))
                if len(begun) >= at_once:
                    yield begun.popleft().result()
            while begun:
                yield begun.popleft().result()
        finally:
            wait([each for each in begun if not each.cancel()])


def _run(kind: _Kind, step: Callable[[S], T], items: Sequence[S], at_once: int) -> list[T]:
    waiting = deque(enumerate(items))
    answers: dict[int, T] = {}
    errors: dict[int, BaseException] = {}

    def work() -> None:
        while waiting:
            with suppress(IndexError):  # another thread took the last one
                number, item = waiting.popleft()
                try:
                    answers[number] = step(item)
                except BaseException as error:  # noqa: BLE001 - raised below
                    errors[number] = error
                    if not isinstance(error, Exception):
                        waiting.clear()

    lanes = min(at_once, len(items))
    if lanes < 2:
        work()
    else:
        with _threads(kind, lanes) as pool:
            futures: list[Future[None]] = []
            try:
                futures.extend(pool.submit(work) for _ in range(lanes))
                wait(futures, return_when=FIRST_COMPLETED)  # then nothing waits to be begun
            finally:
                waiting.clear()
                wait([each for each in futures if not each.cancel()])
    if errors:
        raise errors[min(errors)]
    return [answers[number] for number in range(len(items))]


@contextmanager
def _threads(kind: _Kind, count: int) -> Iterator[Executor]:
    if _here.is_part:
        with _new_pool(kind, count, is_part=True) as own:
            yield own
    else:
        yield _pool(kind)


@lru_cache
def _pool(kind: _Kind) -> Executor:
    return _new_pool(kind, kind.value, is_part=kind is _Kind.PART)


def _new_pool(kind: _Kind, count: int, *, is_part: bool) -> Executor:
    def mark() -> None:
        _here.is_step, _here.is_part = kind is _Kind.STEP, is_part

    return ThreadPoolExecutor(count, f"icefold-{kind.name.lower()}", initializer=mark)


os.register_at_fork(after_in_child=_pool.cache_clear)
