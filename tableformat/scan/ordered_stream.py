"""Several producers run ahead on threads; their items come out in the producers' order.

Memory is bounded: each of at most `threads` producers is `AHEAD_MAX` items ahead at most. No thread
ever waits for the consumer: the interpreter joins all of them before it ends, and a stream that
somebody left open would keep the process from ending.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain
from threading import Condition
from typing import Generic, TypeVar

AHEAD_MAX = 2

_Item = TypeVar("_Item")
Producer = Callable[[], Iterator[_Item]]


@contextmanager
def stream_ordered(
    producers: Sequence[Producer[_Item]], *, threads: int
) -> Iterator[Iterator[_Item]]:
    """All items of the first producer, then of the second, and so on.

    Args:
        producers: Each is called once and iterated, on worker threads: on one at a time, but not
            on the same for all of its items.
        threads: How many run at the same time; with 1 everything runs in the caller's thread.

    Raises:
        Exception: Whatever a producer raises, at its place in the order.

    Effects: at the exit of the context the producers end after their current item, and that is
    waited for. A generator that is closed or dropped inside does not wait: the garbage collector
    may do that anywhere, also while the interpreter holds what the threads need for their end.
    """
    if threads <= 1 or len(producers) <= 1:
        yield chain.from_iterable(producer() for producer in producers)
        return
    pool = ThreadPoolExecutor(threads, thread_name_prefix="icefold-scan")
    running: deque[_Channel[_Item]] = deque()
    waits = True
    try:
        yield _stream(pool, deque(producers), running, threads)
    except GeneratorExit:
        waits = False
        raise
    finally:
        for channel in running:
            channel.close()
        pool.shutdown(wait=waits)


def _stream(
    pool: ThreadPoolExecutor,
    waiting: deque[Producer[_Item]],
    running: deque[_Channel[_Item]],
    threads: int,
) -> Iterator[_Item]:
    while waiting or running:
        while waiting and len(running) < threads:
            running.append(_Channel(pool, waiting.popleft()))
        yield from running[0]
        running.popleft()


class _Channel(Generic[_Item]):
    """A bounded queue between one producer and one consumer; either side may end it.

    The producer is run by tasks of the pool. A task ends when the queue is full, and the consumer
    submits the next one when it takes an item.
    """

    def __init__(self, pool: ThreadPoolExecutor, producer: Producer[_Item]) -> None:
        self._pool = pool
        self._producer = producer
        self._iterator: Iterator[_Item] | None = None
        self._items: deque[_Item] = deque()
        self._changed = Condition()
        self._finished = False
        self._closed = False
        self._filling = True
        self._task: Future[None] = pool.submit(self._fill)

    def _fill(self) -> None:
        """Produce until the queue is full or the producer ends."""
        finished = True
        try:
            if self._iterator is None:
                self._iterator = self._producer()
            for item in self._iterator:
                with self._changed:
                    if self._closed:
                        return
                    self._items.append(item)
                    self._changed.notify_all()
                    if len(self._items) >= AHEAD_MAX:
                        finished = self._filling = False
                        return
        finally:
            if finished:
                with self._changed:
                    self._finished = True
                    self._changed.notify_all()

    def close(self) -> None:
        """Tell the producer that nothing more is wanted."""
        with self._changed:
            self._closed = True
            self._items.clear()

    def __iter__(self) -> Iterator[_Item]:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._finished or bool(self._items))
                if not self._items:
                    break
                item = self._items.popleft()
                if not (self._filling or self._finished):
                    self._filling = True
                    self._task = self._pool.submit(self._fill)
            yield item
        self._task.result()
