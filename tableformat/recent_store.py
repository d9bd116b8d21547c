"""An object store that still has in memory what this process has written lately.

Who stages and publishes in one process reads every staged file once more, and the vectors of the
cycle before. Objects never change, so those bytes are what a read would bring. It is a cache: small
objects only, bounded, the least recently used go first, and it is empty after a restart. An object
that another process has deleted may still be read here, as by a reader that was faster.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from tableformat.errors import CorruptDataError
from tableformat.limits import RECENT_BYTES_MAX, RECENT_OBJECT_BYTES_MAX
from tableformat.sized_cache import SizedCache
from tableformat.store.base import ObjectInfo, ObjectStore, WholeOutput


class RecentStore:
    """An `ObjectStore` before another one. Pickled it is the other one: memory stays where it is.

    Args:
        inner: The store.
        bytes_max: Of all objects together.
        object_bytes_max: Of one.
    """

    def __init__(
        self,
        inner: ObjectStore,
        *,
        bytes_max: int = RECENT_BYTES_MAX,
        object_bytes_max: int = RECENT_OBJECT_BYTES_MAX,
    ) -> None:
        self._inner = inner
        self._object_bytes_max = object_bytes_max
        self._kept: SizedCache[bytes] = SizedCache(bytes_max, len)

    def __reduce__(self) -> tuple[Any, ...]:
        return _same, (self._inner,)

    def get(self, location: str, *, offset: int = 0, length: int | None = None) -> bytes:
        """See `ObjectStore.get`."""
        kept = self._kept.get(location)
        if kept is None:
            return self._inner.get(location, offset=offset, length=length)
        end = len(kept) if length is None else offset + length
        if not 0 <= offset <= end <= len(kept):
            raise CorruptDataError(
                "file is shorter than the range asked for",
                location=location,
                offset=offset,
                length=length,
                size_bytes=len(kept),
            )
        return kept[offset:end]

    def size_bytes(self, location: str) -> int:
        """See `ObjectStore.size_bytes`."""
        kept = self._kept.get(location)
        return self._inner.size_bytes(location) if kept is None else len(kept)

    def put(self, location: str, data: bytes | memoryview) -> None:
        """See `ObjectStore.put`."""
        self._inner.put(location, data)
        self.keep(location, bytes(data) if len(data) <= self._object_bytes_max else None)

    def open_input(self, location: str) -> pa.NativeFile:
        """See `ObjectStore.open_input`."""
        kept = self._kept.get(location)
        return self._inner.open_input(location) if kept is None else pa.BufferReader(kept)

    def open_output(self, location: str) -> Any:
        """See `ObjectStore.open_output`."""
        return _KeptOutput(self, location, self._inner.open_output(location))

    def list_prefix(self, prefix: str) -> Iterator[ObjectInfo]:
        """See `ObjectStore.list_prefix`."""
        return self._inner.list_prefix(prefix)

    def delete(self, locations: Sequence[str]) -> None:
        """See `ObjectStore.delete`."""
        gone = set(locations)
        self._kept.forget(gone.__contains__)
        self._inner.delete(locations)

    def keep(self, location: str, data: bytes | None) -> None:
        """Keep an object that was written; None: it is too large."""
        if data is not None and len(data) <= self._object_bytes_max:
            self._kept.put(location, data)

    def has_room(self, size_bytes: int) -> bool:
        """Whether an object so large would be kept."""
        return size_bytes <= self._object_bytes_max


def _same(inner: ObjectStore) -> ObjectStore:
    return inner


class _KeptOutput(WholeOutput):
    """Writes through, and keeps what it wrote when the object has appeared."""

    def __init__(self, store: RecentStore, location: str, inner: Any) -> None:
        super().__init__()
        self._store, self._location, self._inner = store, location, inner
        self._written: bytearray | None = bytearray()

    def tell(self) -> int:
        """Bytes written so far."""
        return int(self._inner.tell())

    def write(self, data: Any) -> int:
        """Append all of `data`."""
        written = int(self._inner.write(data))
        if self._written is not None:
            self._written += memoryview(data).cast("B")
            if not self._store.has_room(len(self._written)):
                self._written = None
        return written

    def flush(self) -> None:
        """As the inner one does."""
        if not self.closed:
            self._inner.flush()

    def abort(self) -> None:
        """Forget the bytes; nothing appears."""
        self._written = None
        inner = getattr(self, "_inner", None)
        if inner is not None and not self.closed:
            inner.abort()
        super().abort()

    def close(self) -> None:
        """Make the object appear; an error keeps nothing."""
        if self.closed:
            return
        written, self._written = self._written, None
        try:
            self._inner.close()
            if written is not None:
                self._store.keep(self._location, bytes(written))
        finally:
            super().close()
