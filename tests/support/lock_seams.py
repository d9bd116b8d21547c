"""Clocks, ids and a faulty store for the lock's tests; `tableformat` is not imported."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID, uuid4

from lock.errors import LockUnavailableError
from lock.register import RecordStore, Stored, SwapOutcome

POLL_MIN_MS = 10.0
OVERSLEEPS = 10  # times: sleepers may be late, and need to look less often


class RealClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> float:
        return time.monotonic_ns() / 1e6

    def sleep_ms(self, duration_ms: float) -> None:
        time.sleep(duration_ms / 1e3)


@dataclass
class SharedClock(RealClock):
    """The machine's clock, but whoever sleeps moves it on at once, for every process.

    For who waits for a process that is dead or stands still: nothing is waited for.

    Attributes:
        path: Holds how far it was moved on, in milliseconds; need not be there.
    """

    path: Path

    def now_ms(self) -> int:
        return super().now_ms() + int(self._moved_ms())

    def monotonic_ms(self) -> float:
        return super().monotonic_ms() + self._moved_ms()

    def sleep_ms(self, duration_ms: float) -> None:
        new = self.path.with_name(f"{self.path.name}.{uuid4().hex}")
        new.write_text(str(self._moved_ms() + OVERSLEEPS * duration_ms))
        new.replace(self.path)

    def _moved_ms(self) -> float:
        with suppress(FileNotFoundError):
            return float(self.path.read_text())
        return 0.0


class RandomIds:
    """The machine's randomness."""

    def uuid(self) -> UUID:
        return uuid4()

    def uniform(self, low: float, high: float) -> float:
        return random.uniform(low, high)


def asked_often(store: RecordStore) -> RecordStore:
    """The same, on loopback: its requests cost nothing, and waiters need not spare it."""
    store.poll_min_ms = min(store.poll_min_ms, POLL_MIN_MS)
    return store


@dataclass
class ManualClock:
    """Time that passes only when someone sleeps, or when the test says so."""

    wall_ms: int = 1_700_000_000_000
    elapsed_ms: float = 0.0
    on_sleep: Callable[[], None] = lambda: None

    def now_ms(self) -> int:
        return self.wall_ms

    def monotonic_ms(self) -> float:
        return self.elapsed_ms

    def sleep_ms(self, duration_ms: float) -> None:
        self.pass_ms(duration_ms)
        self.on_sleep()

    def pass_ms(self, duration_ms: float) -> None:
        self.elapsed_ms += duration_ms
        self.wall_ms += int(duration_ms)


@dataclass
class SeededIds:
    """The same ids for the same seed."""

    seed: int = 0
    _random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def uuid(self) -> UUID:
        return UUID(int=self._random.getrandbits(128), version=4)

    def uniform(self, low: float, high: float) -> float:
        return self._random.uniform(low, high)


@dataclass
class FaultyRecordStore:
    """A `RecordStore` that goes wrong as told.

    `faults` maps a fault to its probability in each operation:

    | fault          | effect | reply                                        |
    |----------------|--------|----------------------------------------------|
    | `load_error`   | -      | error                                        |
    | `lost_request` | none   | error                                        |
    | `lost_reply`   | landed | error                                        |
    | `busy`         | none   | BUSY (409)                                   |
    | `resent`       | landed | LOST (412 to the transport's own retry, R71) |
    | `late`         | lands before the next operation, if its condition still holds | error |

    With all at zero it is the wrapped store.
    """

    inner: RecordStore
    faults: dict[str, float] = field(default_factory=dict)
    seed: int = 0
    hits: dict[str, int] = field(default_factory=dict)
    clock_offset_ms: int = 0
    _late: list[tuple[str, str | None, bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.poll_min_ms = self.inner.poll_min_ms
        self.poll_max_ms = self.inner.poll_max_ms
        self._random = random.Random(self.seed)

    def load(self, key: str) -> Stored:
        self._land_late()
        if self._strikes("load_error"):
            raise LockUnavailableError("injected: no reply")
        stored = self.inner.load(key)
        if stored.now_ms is None:
            return stored
        return Stored(stored.data, stored.version, stored.now_ms + self.clock_offset_ms)

    def swap(self, key: str, version: str | None, data: bytes) -> SwapOutcome:
        self._land_late()
        if self._strikes("busy"):
            return SwapOutcome.BUSY
        if self._strikes("lost_request"):
            raise LockUnavailableError("injected: request lost")
        if self._strikes("late"):
            self._late.append((key, version, data))
            raise LockUnavailableError("injected: late")
        outcome = self.inner.swap(key, version, data)
        if self._strikes("lost_reply"):
            raise LockUnavailableError("injected: reply lost")
        if self._strikes("resent"):
            return SwapOutcome.LOST
        return outcome

    def describe(self, key: str | None = None) -> str:
        return self.inner.describe(key)

    def prepare(self) -> None:
        self.inner.prepare()

    def close(self) -> None:
        self.inner.close()

    def _land_late(self) -> None:
        late, self._late = self._late, []
        for key, version, data in late:
            self.inner.swap(key, version, data)

    def _strikes(self, fault: str) -> bool:
        if self._random.random() >= self.faults.get(fault, 0.0):
            return False
        self.hits[fault] = self.hits.get(fault, 0) + 1
        return True
