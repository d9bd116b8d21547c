"""A cache bounded by what its values cost, least recently used out first; for several threads."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Value = TypeVar("Value")
ADMITTED_EVERY = 16


class SizedCache(Generic[Value]):
    """Values by key with what each costs; a value larger than the bound is not kept at all."""

    def __init__(self, bound: int, cost: Callable[[Value], int]) -> None:
        """Create an empty cache.

        Args:
            bound: Cost of all values together, at most.
            cost: Of one value, in the unit of the bound.
        """
        self._bound = bound
        self._cost = cost
        self._entries: OrderedDict[Hashable, tuple[Value, int]] = OrderedDict()
        self._refused = 0
        self._lock = threading.RLock()  # a finalizer may drop a value in the middle of anything
        self.used = 0

    def get(self, key: Hashable) -> Value | None:
        """The value, if it is here."""
        with self._lock:
            found = self._entries.get(key)
            if found is None:
                return None
            self._entries.move_to_end(key)
            return found[0]

    def put(self, key: Hashable, value: Value) -> None:
        """Keep a value; of two under one key the later one."""
        cost = self._cost(value)
        with self._lock:
            former = self._entries.pop(key, None)
            if former is not None:
                self.used -= former[1]
            if cost <= self._bound:
                self._entries[key] = (value, cost)
                self.used += cost
            while self.used > self._bound:
                _, (_, dropped_cost) = self._entries.popitem(last=False)
                self.used -= dropped_cost

    def offer(self, key: Hashable, value: Value) -> None:
        """Keep a value of many that are asked for in turn, if it takes no other's place.

        Where such values do not all fit, the least recently used one is always the next to be asked
        for. One in `ADMITTED_EVERY` takes the place of others: some may have had their day.
        """
        with self._lock:
            former = self._entries.get(key, (value, 0))[1]
            has_room = self.used - former + self._cost(value) <= self._bound
            self._refused += not has_room
            if has_room or self._refused % ADMITTED_EVERY == 0:
                self.put(key, value)

    def drop(self, key: Hashable) -> None:
        """Forget one value, if it is here."""
        with self._lock:
            former = self._entries.pop(key, None)
            if former is not None:
                self.used -= former[1]

    def forget(self, is_meant: Callable[[Hashable], bool] = lambda _: True) -> None:
        """Drop the values of some keys; by default everything."""
        with self._lock:
            for key in [key for key in self._entries if is_meant(key)]:
                self.used -= self._entries.pop(key)[1]
