"""What was found out about immutable objects, remembered for as long as they live."""

from __future__ import annotations

import weakref
from typing import Any, Generic, TypeVar

Part = TypeVar("Part")
Value = TypeVar("Value")


class ObjectMemory(Generic[Part, Value]):
    """One value per object, by identity. Weak: it holds no object alive."""

    def __init__(self) -> None:
        self._entries: dict[int, _Entry] = {}
        self._forget_dead = self._drop  # one object, whatever is remembered

    def get(self, part: Part) -> Value | None:
        """What was put for this object; a copy is another one."""
        entry = self._entries.get(id(part))
        return entry.value if entry is not None and entry() is part else None

    def put(self, part: Part, value: Value) -> None:
        """Remember a value."""
        entry = _Entry(part, self._forget_dead)
        entry.key, entry.value = id(part), value
        self._entries[entry.key] = entry

    def _drop(self, dead: weakref.ref[Any]) -> None:
        # A new object may already live at the same address: remove only one's own entry.
        assert isinstance(dead, _Entry)
        if self._entries.get(dead.key) is dead:
            self._entries.pop(dead.key, None)


class _Entry(weakref.ref[Any]):
    """A weak reference that holds what is remembered: there are thousands."""

    __slots__ = ("key", "value")

    key: int
    value: Any
