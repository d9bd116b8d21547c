"""Several producers run ahead on threads; their items come out in the producers' order.

Memory is bounded: each of at most `threads` producers is `AHEAD_MAX` items ahead at most.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Condition, get_ident
from typing import Generic, TypeVar

AHEAD_MAX = 2

_Item = TypeVar("_Item")
Producer = Callable[[], Iterator[_Item]]


def stream_ordered(
    producers: Sequence[Producer[_Item]], *, threads: int
) -> Generator[_Item, None, None]:
    """All items of the first producer, then of the second, and so on.

    Args:
        producers: Each is called once, on a worker thread, and iterated there.
        threads: How many run at the same time; with 1 everything runs in the caller's thread.

    Raises:
        Exception: Whatever a producer raises, at its place in the order. When the consumer stops
            early (`close`), the producers end after their current item, and that is waited for.
    """
    if threads <= 1 or len(producers) <= 1:
        for producer in producers:
            yield from producer()
        return
    waiting = deque(producers)
    running: deque[tuple[_Channel[_Item], Future[None]]] = deque()
    workers: set[int] = set()
    pool = ThreadPoolExecutor(
        threads,
        thread_name_prefix="icefold-scan",
        initializer=lambda: workers.add(get_ident()),
    )
    try:
        while waiting or running:
            while waiting and len(running) < threads:
                channel: _Channel[_Item] = _Channel()
                running.append((channel, pool.submit(channel.fill, waiting.popleft())))
            channel, future = running[0]
            yield from channel
            future.result()
            running.popleft()
    finally:
        for channel, _ in running:
            channel.close()
        # A dropped stream is closed by the garbage collector on whatever thread it runs on; one of
        # the stream's own cannot wait for itself.
        pool.shutdown(wait=get_ident() not in workers)


class _Channel(Generic[_Item]):
    """A bounded queue between one producer and one consumer; either side may end it."""

    def __init__(self) -> None:
        self._items: deque[_Item] = deque()
        self._changed = Condition()
        self._finished = False
        self._closed = False

    def fill(self, producer: Producer[_Item]) -> None:
        """Run the producer to its end, or until the consumer closes."""
        try:
            for item in producer():
                with self._changed:
                    self._changed.wait_for(lambda: self._closed or len(self._items) < AHEAD_MAX)
                    if self._closed:
                        return
                    self._items.append(item)
                    self._changed.notify_all()
        finally:
            with self._changed:
                self._finished = True
                self._changed.notify_all()

    def close(self) -> None:
        """Tell the producer that nothing more is wanted."""
        with self._changed:
            self._closed = True
            self._items.clear()
            self._changed.notify_all()

    def __iter__(self) -> Iterator[_Item]:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._finished or bool(self._items))
                if not self._items:
                    return
                item = self._items.popleft()
                self._changed.notify_all()
            yield item
