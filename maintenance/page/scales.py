"""Axes: where ticks go and what they say. Pure arithmetic for hand-written SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

_TIME_STEPS_MS = tuple(
    step * 1000
    for step in (
        1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400,
        172800, 604800, 1209600, 2592000, 7776000, 31536000,
    )
)  # fmt: skip
_DAY_MS = 86_400_000
_QUARTER_MS = 90 * _DAY_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """Maps values `low..high` to pixels `start..end`."""

    low: float
    high: float
    start: float
    end: float

    def place(self, value: float) -> float:
        """The pixel of a value; a range of nothing is drawn in its middle."""
        if self.high <= self.low:
            return (self.start + self.end) / 2
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def nice_limit(value: float) -> float:
    """The smallest of 1, 1.5, 2, 3, 4, 5, 6, 8 times a power of ten that is not below `value`."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    for factor in (1, 1.5, 2, 3, 4, 5, 6, 8):
        if value <= factor * power * (1 + 1e-9):
            return factor * power
    return 10 * power


def value_ticks(limit: float, *, is_whole: bool) -> list[float]:
    """Ticks from 0 to `limit`, three to five of them; whole numbers for counts."""
    for parts in (4, 3, 5, 2, 1):
        step = limit / parts
        digits = step / 10.0 ** math.floor(math.log10(step))
        is_round = any(abs(digits - nice) < 1e-6 for nice in (1, 2, 2.5, 5))
        if (is_round or parts == 1) and (not is_whole or step == int(step)):
            return [step * number for number in range(parts + 1)]
    return [0.0, limit]


def time_ticks(low_ms: float, high_ms: float, *, count_max: int = 7) -> list[int]:
    """Round UTC times inside a range."""
    span_ms = max(high_ms - low_ms, 1)
    step_ms = next((s for s in _TIME_STEPS_MS if span_ms / s <= count_max), _TIME_STEPS_MS[-1])
    first = math.ceil(low_ms / step_ms) * step_ms
    return list(range(int(first), int(high_ms) + 1, step_ms))


def time_labels(ticks: Sequence[int]) -> list[str]:
    """What ticks say: as much of date and time as tells them apart."""
    if len(ticks) > 1 and ticks[1] - ticks[0] >= _QUARTER_MS:
        return [_utc(tick, "%b %Y") for tick in ticks]
    if len(ticks) > 1 and ticks[1] - ticks[0] >= _DAY_MS:
        return [_utc(tick, "%d %b") for tick in ticks]
    seconds = any(tick % 60_000 for tick in ticks)
    labels = [_utc(tick, "%H:%M:%S" if seconds else "%H:%M") for tick in ticks]
    return [
        _utc(tick, "%d %b") if tick % _DAY_MS == 0 else label
        for tick, label in zip(ticks, labels, strict=True)
    ]


def days_text(low_ms: float, high_ms: float) -> str:
    """The days of an axis and its zone, whose ticks need not repeat them."""
    first, last = _utc(low_ms, "%Y-%m-%d"), _utc(high_ms, "%Y-%m-%d")
    return f"{first}, UTC" if first == last else f"{first} to {last}, UTC"


def time_text(at_ms: float) -> str:
    """A moment in full."""
    return _utc(at_ms, "%Y-%m-%d %H:%M:%S UTC")


def _utc(at_ms: float, pattern: str) -> str:
    return datetime.fromtimestamp(at_ms / 1e3, UTC).strftime(pattern)
