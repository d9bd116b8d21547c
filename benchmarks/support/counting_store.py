"""Counts requests and bytes of the object store behind it."""

from __future__ import annotations

from collections import Counter
from typing import Any


class CountingStore:
    """An `ObjectStore` that passes everything on and counts it."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.counts: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        if name == "inner":  # asked for while a worker unpickles it
            raise AttributeError(name)
        return getattr(self.inner, name)

    def get(self, location: str, **options: Any) -> bytes:
        data: bytes = self.inner.get(location, **options)
        self.counts.update({"get": 1, "bytes read": len(data)})
        return data

    def put(self, location: str, data: bytes) -> None:
        self.counts.update({"put": 1, "bytes written": len(data)})
        self.inner.put(location, data)

    def open_input(self, location: str) -> Any:
        self.counts.update({"open": 1})
        return self.inner.open_input(location)

    def open_output(self, location: str) -> Any:
        self.counts.update({"create": 1})
        return self.inner.open_output(location)

    def delete(self, locations: list[str]) -> None:
        self.counts.update({"delete": len(locations)})
        self.inner.delete(locations)
