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
        self._bytes: dict[int, _Remembered] = {}
        self._forget_dead = self._drop  # one object, whatever is remembered

    def get(self, value: Value, layout: object) -> bytes | None:
        """What was remembered for `value` under `layout`."""
        found = self._bytes.get(id(value))
        if found is not None and found() is value and found.layout is layout:
            return found.encoded
        return None

    def put(self, value: Value, layout: object, encoded: bytes) -> None:
        """Remember; a former layout's bytes are forgotten."""
        remembered = _Remembered(value, self._forget_dead)
        remembered.key, remembered.layout, remembered.encoded = id(value), layout, encoded
        self._bytes[remembered.key] = remembered

    def forget(self, value: Value) -> None:
        """Keep nothing for `value` any more."""
        self._bytes.pop(id(value), None)

    def _drop(self, dead: weakref.ref[Any]) -> None:
        # A new object may live at the same address already: remove only one's own entry.
        assert isinstance(dead, _Remembered)
        if self._bytes.get(dead.key) is dead:
            self._bytes.pop(dead.key, None)

    def __len__(self) -> int:
        return len(self._bytes)


class _Remembered(weakref.ref[Any]):
    """A weak reference that holds what is remembered: there are several per file of a table."""

    __slots__ = ("encoded", "key", "layout")

    key: int
    layout: object
    encoded: bytes
