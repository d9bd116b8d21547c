"""From a table's history to what the charts draw: at most so many columns, however long it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import numpy as np

from maintenance.cycle_history import Cycle, Point

COLUMNS_MAX = 140
SPANS_MAX = 56
PHASES = ("plan", "read", "index", "match", "rebase", "write")

T = TypeVar("T", Point, Cycle)
Fold = Callable[[Sequence[float]], float]


def group_by_time(items: Sequence[T], *, columns_max: int = COLUMNS_MAX) -> list[list[T]]:
    """Items in spans of equal time, empty ones left out; each by itself where they are few."""
    if len(items) <= columns_max:
        return [[item] for item in items]
    low, high = items[0].at_ms, max(item.at_ms for item in items)
    step = max((high - low) / columns_max, 1.0)
    groups: dict[int, list[T]] = {}
    for item in items:
        number = min(int(max(item.at_ms - low, 0) / step), columns_max - 1)
        groups.setdefault(number, []).append(item)
    return [groups[number] for number in sorted(groups)]


def spans_of_time(items: Sequence[T], *, columns_max: int = SPANS_MAX) -> dict[int, list[T]]:
    """Items in spans of equal time, by the middle of each: columns beside each other."""
    low, high = items[0].at_ms, max(item.at_ms for item in items)
    step = max((high - low) / columns_max, 1.0)
    spans: dict[int, list[T]] = {}
    for item in sorted(items, key=lambda each: each.at_ms):
        number = min(int((item.at_ms - low) / step), columns_max - 1) if item.at_ms > low else 0
        spans.setdefault(int(low + (number + 0.5) * step), []).append(item)
    return spans


def folded(
    groups: Iterable[Sequence[T]], value: Callable[[T], float | None], fold: Fold
) -> list[float | None]:
    """One value per group, of those that are known."""
    found = [[v for v in map(value, group) if v is not None] for group in groups]
    return [fold(values) if values else None for values in found]


def last(values: Sequence[float]) -> float:
    """The newest of a group: for states."""
    return values[-1]


def mean(values: Sequence[float]) -> float:
    """The average of a group: for parts of a stack."""
    return sum(values) / len(values)


def percentile(values: Iterable[float | None], share: float) -> float | None:
    """A percentile of those that are known."""
    known = [value for value in values if value is not None]
    return float(np.percentile(known, share * 100)) if known else None
