"""Short steps that mostly wait, several at a time, in threads that stay.

A thread costs more to start than such a step takes: whoever starts one waits until it runs, which
in a busy process is one turn of the interpreter's lock more.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import lru_cache
from typing import TypeVar

# More wait less for the disk, and take more of the processor to take turns with Python's lock: a
# third more with eight, where a step works as long as it waits.
AT_ONCE = 3
IN_BUCKETS = 16  # of a step that mostly waits tens of milliseconds for an answer
THREADS_MAX = 2 * IN_BUCKETS  # a stream stages beside its tables' maintenance

S = TypeVar("S")
T = TypeVar("T")

_here = threading.local()


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
    if lanes < 2 or getattr(_here, "is_busy", False):
        work()
    else:
        futures = [_pool().submit(_marked, work) for _ in range(lanes)]
        try:
            wait(futures)
        finally:
            waiting.clear()
            wait(futures)
    if errors:
        raise errors[min(errors)]
    return [answers[number] for number in range(len(items))]


def run_ahead(step: Callable[[S], T], items: Iterable[S], *, at_once: int) -> Iterator[T]:
    """`step` of every item in their order, at most `at_once` of them ahead of whoever takes them.

    For what waits tens of milliseconds: the threads are its own. With `at_once` 1 all is done in
    turn. Memory: so many answers.

    Raises:
        Exception: What a step raised, at its place in the order.

    Effects: whoever stops early waits for the steps that are running.
    """
    if at_once < 2 or (isinstance(items, Sequence) and len(items) < 2):
        yield from map(step, items)
        return
    begun: deque[Future[T]] = deque()
    with ThreadPoolExecutor(at_once, thread_name_prefix="icefold-ahead") as pool:
        try:
            for item in items:
                begun.append(pool.submit(step, item))
                if len(begun) >= at_once:
                    yield begun.popleft().result()
            while begun:
                yield begun.popleft().result()
        finally:
            for each in begun:
                each.cancel()


def _marked(work: Callable[[], None]) -> None:
    _here.is_busy = True
    try:
        work()
    finally:
        _here.is_busy = False


@lru_cache(maxsize=1)
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="icefold-step")


os.register_at_fork(after_in_child=_pool.cache_clear)
