"""Acquire-and-release pairs per second of every lock backend, one task and several at once.

    scripts/bench lock [--seconds S] [--tasks N] [--url URL]

Without `--url`: memory, a local folder and a SQLite file in a temporary folder; PostgreSQL and S3
(moto) as the tests start them, where they are installed. `requests` are reads and conditional
writes per pair. With several tasks (threads that share nothing but the store), `pairs/s` is what
all of them get together, and `unfair` the longest wait divided by the mean.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import pytest

from lock.manager import LockManager
from lock.open import _open_store
from lock.register import RecordStore, Stored, SwapOutcome
from tableformat.runtime import Runtime
from tests.support.lock_stores import SHARED_BACKENDS, open_store

RUNTIME = Runtime()


@dataclass
class CountingStore:
    """Counts what goes to the store behind it."""

    inner: RecordStore
    requests: int = 0

    def __post_init__(self) -> None:
        self.poll_min_ms, self.poll_max_ms = self.inner.poll_min_ms, self.inner.poll_max_ms

    def load(self, key: str) -> Stored:
        self.requests += 1
        return self.inner.load(key)

    def swap(self, key: str, version: str | None, data: bytes) -> SwapOutcome:
        self.requests += 1
        return self.inner.swap(key, version, data)

    def describe(self, key: str | None = None) -> str:
        return self.inner.describe(key)

    def prepare(self) -> None:
        self.inner.prepare()

    def close(self) -> None:
        self.inner.close()


@dataclass
class Waits:
    """How long each acquisition of a run took."""

    waits_ms: list[float] = field(default_factory=list)

    def work(self, store: RecordStore, name: str, seconds: float) -> None:
        manager = LockManager(store, clock=RUNTIME.clock, ids=RUNTIME.ids)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            asked = time.monotonic()
            lease = manager.acquire(name, task="bench", timeout_ms=600_000)
            self.waits_ms.append((time.monotonic() - asked) * 1e3)
            manager.release(lease)


def measure(store: RecordStore, *, tasks: int, seconds: float) -> str:
    counting, waits, name = CountingStore(store), Waits(), uuid4().hex
    threads = [
        threading.Thread(target=waits.work, args=(counting, name, seconds)) for _ in range(tasks)
    ]
    started = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    elapsed_s = time.monotonic() - started
    pairs = len(waits.waits_ms)
    mean_ms = statistics.fmean(waits.waits_ms)
    return (
        f"{pairs / elapsed_s:9.1f} {mean_ms:9.2f} {max(waits.waits_ms) / mean_ms:7.1f} "
        f"{counting.requests / pairs:9.1f}"
    )


def stores(url: str | None, folder: Path) -> Iterator[tuple[str, RecordStore]]:
    if url is not None:
        yield "url", _open_store(url, RUNTIME.ids)
        return
    for backend in ("memory", *SHARED_BACKENDS):
        try:
            store = open_store(backend, folder)
        except pytest.skip.Exception as missing:  # how test support says that it is not here
            print(f"{backend}: left out: {missing}")
            continue
        yield backend, store


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--tasks", type=int, default=4)
    parser.add_argument("--url")
    options = parser.parse_args()
    print(f"{'store':12} {'tasks':>5} {'pairs/s':>9} {'wait ms':>9} {'unfair':>7} {'requests':>9}")
    with tempfile.TemporaryDirectory() as folder:
        for backend, store in stores(options.url, Path(folder)):
            store.prepare()
            for tasks in (1, options.tasks):
                line = measure(store, tasks=tasks, seconds=options.seconds)
                print(f"{backend:12} {tasks:5} {line}", flush=True)
            store.close()


if __name__ == "__main__":
    main()
