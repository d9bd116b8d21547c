"""Values that several scan tasks need: loaded once, kept until the last of them is done."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from threading import Lock
from typing import Any, Generic, TypeVar

_Value = TypeVar("_Value")


class SharedLoads(Generic[_Value]):
    """Loads each value on first use; forgets it after as many releases as there were uses.

    Args:
        uses: Every key, as often as it will be asked for and released.
    """

    def __init__(self, uses: Iterable[Hashable]) -> None:
        self._left = Counter(uses)
        self._values: dict[Hashable, Any] = {}
        self._guard = Lock()
        self._locks: dict[Hashable, Lock] = {}

    def get(self, key: Hashable, load: Callable[[], _Value]) -> _Value:
        """The value of `key`. While one thread loads it, others that want it wait."""
        with self._guard:
            lock = self._locks.setdefault(key, Lock())
        with lock:
            if key not in self._values:
                self._values[key] = load()
            value: _Value = self._values[key]
            return value

    def release(self, key: Hashable) -> None:
        """One user is done."""
        with self._guard:
            self._left[key] -= 1
            if self._left[key] <= 0:
                self._values.pop(key, None)
                self._locks.pop(key, None)
