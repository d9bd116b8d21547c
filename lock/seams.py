"""What the lock needs from the process around it: time, ids and fail points.

`tableformat.runtime` satisfies these without being imported: `lock` is a leaf.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol
from uuid import UUID


class Clock(Protocol):
    """Time. Monotonic time decides; wall time only labels, and judges queue tickets."""

    def now_ms(self) -> int:
        """Wall-clock milliseconds since the epoch; may jump."""

    def monotonic_ms(self) -> float:
        """Milliseconds that never go back; only differences within one process mean anything."""

    def sleep_ms(self, duration_ms: float) -> None:
        """Wait."""


class IdSource(Protocol):
    """Nonces and jitter."""

    def uuid(self) -> UUID:
        """A fresh random UUID."""

    def uniform(self, low: float, high: float) -> float:
        """A uniform random number in [low, high)."""


FailPoint = Callable[[str], None]
"""Called at named places; a test makes it raise, wait or kill."""


def no_fail_point(name: str) -> None:
    """Nothing fails."""
