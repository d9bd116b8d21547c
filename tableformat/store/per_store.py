"""What is remembered of an object store for as long as it lives."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Generic, TypeVar

from tableformat.store.base import ObjectStore

Value = TypeVar("Value")


class PerStore(Generic[Value]):
    """One value per store; for several threads.

    By `id(store)`: stores need not be hashable, and equal stores need not see the same objects.

    Args:
        make: Makes the value of a store that is first asked for.
    """

    def __init__(self, make: Callable[[], Value]) -> None:
        self._make = make
        self._values: dict[int, tuple[weakref.ref[ObjectStore], Value]] = {}
        self._lock = threading.Lock()

    def of(self, store: ObjectStore) -> Value | None:
        """The store's value; None for a store that cannot be referred to weakly."""
        store_id = id(store)
        with self._lock:
            found = self._values.get(store_id)
            if found is not None and found[0]() is store:
                return found[1]
            try:
                reference = weakref.ref(store, lambda dead: self._drop(store_id, dead))
            except TypeError:
                return None
            value = self._make()
            self._values[store_id] = (reference, value)
            return value

    def forget(self, store: ObjectStore) -> None:
        """Drop the store's value."""
        with self._lock:
            self._values.pop(id(store), None)

    def __len__(self) -> int:
        return len(self._values)

    def _drop(self, store_id: int, reference: weakref.ref[ObjectStore]) -> None:
        # No lock: this runs inside any allocation, also while this thread holds the lock. One `pop`
        # is atomic; a value that a new store under the same id just got is only lost, not wrong.
        found = self._values.get(store_id)
        if found is not None and found[0] is reference:
            self._values.pop(store_id, None)
