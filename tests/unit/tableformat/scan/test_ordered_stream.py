from __future__ import annotations

import gc
import itertools
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import pytest

from tableformat.scan.ordered_stream import AHEAD_MAX, stream_ordered
from tableformat.scan.shared_loads import SharedLoads


def count(name: int, items: int) -> Iterator[tuple[int, int]]:
    for item in range(items):
        yield name, item


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_items_come_in_the_order_of_their_producers(threads: int) -> None:
    producers = [partial(count, name, items) for name, items in enumerate([3, 0, 7, 1, 20])]
    expected = [pair for producer in producers for pair in producer()]
    with stream_ordered(producers, threads=threads) as items:
        assert list(items) == expected


def test_producers_do_not_run_far_ahead() -> None:
    made: list[int] = []
    lock = threading.Lock()

    def produce(name: int) -> Iterator[int]:
        for _ in range(100):
            with lock:
                made.append(name)
            yield name

    with stream_ordered([partial(produce, name) for name in range(10)], threads=3) as items:
        next(items)
        for _ in range(50):
            threading.Event().wait(0.002)
        assert len(made) <= 1 + 3 * AHEAD_MAX
        assert set(made) <= {0, 1, 2}


@pytest.mark.parametrize("threads", [1, 4])
def test_error_comes_at_its_place_and_ends_the_others(threads: int) -> None:
    workers: set[threading.Thread] = set()

    def broken() -> Iterator[int]:
        workers.add(threading.current_thread())
        yield 1
        raise ValueError("broken file")

    endless = partial(_endless, workers)
    producers = [partial(iter, [0]), broken, endless]
    seen = []
    with (
        pytest.raises(ValueError, match="broken file"),
        stream_ordered(producers, threads=threads) as items,
    ):
        seen.extend(items)
    assert seen == [0, 1]
    assert not _alive(workers)


def test_leaving_early_ends_the_threads() -> None:
    workers: set[threading.Thread] = set()
    with stream_ordered([partial(_endless, workers)] * 2, threads=2) as items:
        assert next(items) == 1
        assert _alive(workers)
    assert not _alive(workers)


@pytest.mark.slow
def test_stream_that_is_left_open_does_not_keep_the_process() -> None:
    """A worker that waits for the consumer is joined at exit, for ever."""
    script = (
        "import itertools\n"
        "from tableformat.scan.ordered_stream import stream_ordered\n"
        "context = stream_ordered([itertools.count, itertools.count], threads=2)\n"
        "items = context.__enter__()\n"
        "print(next(items), next(items))"
    )
    command = [sys.executable, "-c", script]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert (ended.stdout, ended.stderr) == ("0 1\n", "")


def _endless(workers: set[threading.Thread]) -> Iterator[int]:
    workers.add(threading.current_thread())
    while True:
        yield 1


def _alive(workers: set[threading.Thread]) -> list[threading.Thread]:
    """Those that still run. Other tests' streams may have threads too."""
    return [each for each in workers - {threading.current_thread()} if each.is_alive()]


def test_shared_value_is_loaded_once_and_dropped_after_its_last_use() -> None:
    loads: list[str] = []
    shared: SharedLoads[list[int]] = SharedLoads(["a", "a", "b"])

    def load() -> list[int]:
        loads.append("a")
        return [1]

    first, second = shared.get("a", load), shared.get("a", load)
    assert first is second
    shared.release("a")
    assert shared.get("a", load) is first
    shared.release("a")
    assert loads == ["a"]
    assert shared._values == {}


def test_failed_load_is_tried_again_by_the_next() -> None:
    shared: SharedLoads[int] = SharedLoads(["a", "a"])

    def fail() -> int:
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        shared.get("a", fail)
    assert shared.get("a", lambda: 7) == 7


@pytest.mark.parametrize("how", ["closed", "collected", "collected by a worker"])
def test_generator_that_is_ended_inside_waits_for_no_thread(how: str) -> None:
    """The collector may run in a place that such a thread waits for."""
    dropped, ended, released = (threading.Event() for _ in range(3))
    workers: set[threading.Thread] = set()

    def collect() -> None:
        assert dropped.wait(30)
        gc.collect()
        ended.set()

    def produce() -> Iterator[int]:
        workers.add(threading.current_thread())
        if how == "collected by a worker":
            collect()
        assert released.wait(30)
        yield from itertools.repeat(1)

    kept: list[object] = [_generator([partial(iter, [0, 1]), produce])]
    assert next(kept[0]) == 0  # type: ignore[call-overload]
    if how == "closed":
        kept[0].close()  # type: ignore[attr-defined]
        ended.set()
    kept.append(kept)
    del kept
    dropped.set()
    if how == "collected":
        collect()
    assert ended.wait(10)
    assert _alive(workers)
    released.set()
    for worker in workers:
        worker.join(30)
    assert not _alive(workers)


def _generator(producers: Sequence[Callable[[], Iterator[int]]]) -> Iterator[int]:
    with stream_ordered(producers, threads=2) as items:
        yield from items
