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


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        """See `Clock`."""
        return time.time_ns() // 1_000_000

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
