"""Bytes made of immutable values, kept exactly as long as the value lives.

A commit writes most manifest entries and manifest records again as they are. Encoding one costs
tens of microseconds, its bytes never change, so they are made once per object. The memory is by
object identity and weak: it keeps nothing alive, and a changed copy is another object.
"""

from __future__ import annotations

import weakref
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")


class RememberedBytes(Generic[Value]):
    """Bytes by object, under a `layout` that must be the same object when asked again."""

    def __init__(self) -> None:
        self._bytes: dict[int, tuple[weakref.ref[Any], object, bytes]] = {}

    def get(self, value: Value, layout: object) -> bytes | None:
        """What was remembered for `value` under `layout`."""
        entry = self._bytes.get(id(value))
        if entry is not None and entry[0]() is value and entry[1] is layout:
            return entry[2]
        return None

    def put(self, value: Value, layout: object, encoded: bytes) -> None:
        """Remember; a former layout's bytes are forgotten."""
        key = id(value)

        def forget(reference: weakref.ref[Any]) -> None:
            # A new object may live at the same address already: remove only one's own entry.
            entry = self._bytes.get(key)
            if entry is not None and entry[0] is reference:
                self._bytes.pop(key, None)

        self._bytes[key] = (weakref.ref(value, forget), layout, encoded)

    def __len__(self) -> int:
        return len(self._bytes)
