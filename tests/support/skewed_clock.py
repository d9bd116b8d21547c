"""A wall clock that is wrong, or that jumps."""

from __future__ import annotations

from dataclasses import dataclass

from tableformat.runtime import SystemClock


@dataclass
class SkewedClock(SystemClock):
    """The machine's, its wall-clock time moved by `skew_ms`."""

    skew_ms: int = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.skew_ms
