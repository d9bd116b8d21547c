"""What was found out about immutable objects, remembered for as long as they live."""

from __future__ import annotations

import weakref
from typing import Generic, TypeVar

Part = TypeVar("Part")
Value = TypeVar("Value")


class ObjectMemory(Generic[Part, Value]):
    """One value per object, by identity. Weak: it holds no object alive."""

    def __init__(self) -> None:
        self._entries: dict[int, tuple[weakref.ref[Part], Value]] = {}

    def get(self, part: Part) -> Value | None:
        """What was put for this object; a copy is another one."""
        entry = self._entries.get(id(part))
        return entry[1] if entry is not None and entry[0]() is part else None

    def put(self, part: Part, value: Value) -> None:
        """Remember a value."""
        key = id(part)

        def forget(reference: weakref.ref[Part]) -> None:
            # A new object may already live at the same address: remove only one's own entry.
            entry = self._entries.get(key)
            if entry is not None and entry[0] is reference:
                self._entries.pop(key, None)

        self._entries[key] = (weakref.ref(part, forget), value)
