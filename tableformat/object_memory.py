"""What was found out about objects, remembered for as long as they live: by identity, and weakly.

Nothing is held alive, objects need not be hashable, and a changed copy is another object.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar

Part = TypeVar("Part")
Value = TypeVar("Value")


class ObjectMemory(Generic[Part, Value]):
    """One value per object, under a `layout` that must be the same object when asked again.

    A commit writes most manifest entries and manifest records again as they are. Encoding one costs
    tens of microseconds, its bytes never change, so they are made once per object and layout.
    """

    def __init__(self) -> None:
        self._entries: dict[int, _Entry] = {}
        self._forget_dead = self._drop  # one object, whatever is remembered

    def get(self, part: Part, layout: object = None) -> Value | None:
        """What was put for this object; a copy is another one."""
        entry = self._entries.get(id(part))
        if entry is not None and entry() is part and entry.layout is layout:
            value: Value = entry.value
            return value
        return None

    def put(self, part: Part, value: Value, layout: object = None) -> None:
        """Remember a value; a former layout's is forgotten."""
        entry = _Entry(part, self._forget_dead)
        entry.key, entry.layout, entry.value = id(part), layout, value
        self._entries[entry.key] = entry

    def forget(self, part: Part) -> None:
        """Keep nothing for this object any more."""
        self._entries.pop(id(part), None)

    def _drop(self, dead: weakref.ref[Any]) -> None:
        # No lock: this runs inside any allocation, and one `pop` is atomic. A new object may
        # already live at the same address: only one's own entry is removed.
        assert isinstance(dead, _Entry)
        if self._entries.get(dead.key) is dead:
            self._entries.pop(dead.key, None)

    def __len__(self) -> int:
        return len(self._entries)


class _Entry(weakref.ref[Any]):
    """A weak reference that holds what is remembered: there are several per file of a table."""

    __slots__ = ("key", "layout", "value")

    key: int
    layout: object
    value: Any


class MadeOnce(Generic[Part, Value]):
    """One value per object, made when it is first asked for; for several threads."""

    def __init__(self, make: Callable[[], Value]) -> None:
        self._make = make
        self._memory: ObjectMemory[Part, Value] = ObjectMemory()
        self._lock = threading.Lock()

    def of(self, part: Part) -> Value | None:
        """The object's value; None for one that cannot be referred to weakly."""
        with self._lock:
            value = self._memory.get(part)
            if value is None:
                value = self._make()
                try:
                    self._memory.put(part, value)
                except TypeError:
                    return None
            return value

    def forget(self, part: Part) -> None:
        """Drop the object's value."""
        self._memory.forget(part)

    def __len__(self) -> int:
        return len(self._memory)
