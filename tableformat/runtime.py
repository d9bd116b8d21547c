"""The one place that touches time, ids and randomness, and that holds the fail points.

A `Runtime` is passed down as a value, so that the simulator replaces all of it and patches nothing.
ruff's banned-api list keeps `time`, `uuid`, `random` and `secrets` out of every other module.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from tableformat.side_by_side import AT_ONCE, run_side_by_side

JUMP_MIN_MS = 60_000  # less is what setting a clock right does
JUMP_LASTS_MS = 5 * 60_000  # a virtual machine that was paused is late for as long
SNAPSHOT_ID_MASK = (1 << 63) - 1

S = TypeVar("S")
T = TypeVar("T")


class Clock(Protocol):
    """Time as the code sees it. Wall time labels, monotonic time measures and decides."""

    def now_ms(self) -> int:
        """Wall-clock milliseconds since the epoch; may jump."""

    def monotonic_ms(self) -> float:
        """Milliseconds that never go back; only differences mean anything."""

    def sleep_ms(self, duration_ms: float) -> None:
        """Wait."""


class IdSource(Protocol):
    """Everything that must be unique or random."""

    def uuid(self) -> uuid.UUID:
        """A fresh random UUID."""

    def snapshot_id(self) -> int:
        """A random positive 63-bit id, never 0 (spec: unique within the table; callers check)."""

    def uniform(self, low: float, high: float) -> float:
        """A uniform random number in [low, high), for jitter."""


class WallClock:
    """Wall-clock time whose jumps ahead are believed only once they have lasted. Thread-safe.

    By it snapshots expire and orphans are deleted, and a commit gives a table a time that never
    goes back: none of it can be undone when the clock is set right again. A jump back is believed
    at once; it makes nothing old.

    Args:
        wall_ns: What may jump.
        steady_ns: What does not.
    """

    def __init__(self, wall_ns: Callable[[], int], steady_ns: Callable[[], int]) -> None:
        self._wall_ns, self._steady_ns = wall_ns, steady_ns
        offset_ms, _ = self._read()
        # What wall time is ahead of steady time, as it is believed; by how much more it is, and
        # since when. One value, so that threads need no lock.
        self._state = offset_ms, 0, 0

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        offset_ms, steady_ms = self._read()
        base_ms, known_ms, since_ms = self._state
        jump_ms = offset_ms - base_ms
        if abs(jump_ms - known_ms) > JUMP_MIN_MS:
            known_ms, since_ms = jump_ms, steady_ms
        if abs(jump_ms) <= JUMP_MIN_MS or steady_ms - since_ms >= JUMP_LASTS_MS:
            base_ms, known_ms = offset_ms, 0
        self._state = base_ms, known_ms, since_ms
        return steady_ms + min(offset_ms, base_ms)

    def _read(self) -> tuple[int, int]:
        steady_ms = self._steady_ns() // 1_000_000
        return self._wall_ns() // 1_000_000 - steady_ms, steady_ms


def _steady_ns() -> int:
    """With the time that the machine sleeps, where the system counts that."""
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic_ns() if boot is None else time.clock_gettime_ns(boot)


def machine_ms() -> int:
    """The machine's wall clock as it is, for what is only asked for once more when it is wrong."""
    return time.time_ns() // 1_000_000


_wall_clock = WallClock(time.time_ns, _steady_ns)  # of this process, whoever asks


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        """See `Clock` and `WallClock`."""
        return _wall_clock.now_ms()

    def monotonic_ms(self) -> float:
        """See `Clock`."""
        return time.monotonic_ns() / 1e6

    def sleep_ms(self, duration_ms: float) -> None:
        """See `Clock`."""
        time.sleep(max(duration_ms, 0.0) / 1e3)


class SystemIds:
    """Ids from the operating system's randomness."""

    def uuid(self) -> uuid.UUID:
        """See `IdSource`."""
        return uuid.uuid4()

    def snapshot_id(self) -> int:
        """See `IdSource`."""
        return snapshot_id_of(uuid.uuid4())

    def uniform(self, low: float, high: float) -> float:
        """See `IdSource`."""
        return random.uniform(low, high)  # noqa: S311 - jitter, not a secret


@dataclass(slots=True)
class TaskIds(SystemIds):
    """The names that one of several tasks gives, from one that was drawn before they began.

    Tasks run side by side in any order; so a run can be replayed all the same.
    """

    base: uuid.UUID
    _count: int = 0

    def uuid(self) -> uuid.UUID:
        """See `IdSource`."""
        self._count += 1
        return uuid.uuid5(self.base, str(self._count))


def snapshot_id_of(value: uuid.UUID) -> int:
    """Fold a UUID into a positive 63-bit id: its halves XORed, the sign bit cleared."""
    return ((value.int >> 64) ^ value.int) & SNAPSHOT_ID_MASK or 1


@dataclass(slots=True)
class FailPoints:
    """Named places where a test makes the code fail or wait. Costs a dict look-up when off."""

    armed: dict[str, Callable[[str], None]] = field(default_factory=dict)
    observer: Callable[[str], None] | None = None

    def hit(self, name: str) -> None:
        """Run what is armed at `name`; nothing otherwise."""
        if self.observer is not None:
            self.observer(name)
        action = self.armed.get(name)
        if action is not None:
            action(name)


@dataclass(frozen=True, slots=True)
class Runtime:
    """Clock, ids and fail points of one process (or of one simulated actor).

    `side_by_side`: whether steps that are independent may run in threads; not where a run has to be
    repeatable.
    """

    clock: Clock = field(default_factory=SystemClock)
    ids: IdSource = field(default_factory=SystemIds)
    fail_points: FailPoints = field(default_factory=FailPoints)
    side_by_side: bool = True

    def fail_point(self, name: str) -> None:
        """Shorthand for `fail_points.hit`."""
        self.fail_points.hit(name)

    def each(
        self, step: Callable[[S], T], items: Sequence[S], *, at_once: int = AT_ONCE
    ) -> list[T]:
        """`step` of every item: see `run_side_by_side`."""
        return run_side_by_side(step, items, at_once=at_once if self.side_by_side else 1)
