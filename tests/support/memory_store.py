"""An object store in memory: for the simulator and for tests. Deterministic and thread-safe."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator, Sequence
from functools import lru_cache
from types import TracebackType

import pyarrow as pa

from tableformat.errors import AlreadyExistsError, CorruptDataError, NotFoundError
from tableformat.runtime import Runtime
from tableformat.store.base import ObjectInfo
from tableformat.store.locations import AllowedLocations, canonical_location

MEMORY_WAREHOUSE = "memory://warehouse"
_canonical = lru_cache(4_096)(canonical_location)  # the same few are read all the time


class MemoryObjectStore:
    """A dict from canonical location to bytes, as strict as the real stores.

    `modified_ms` comes from the runtime's clock, so a simulated clock ages objects. Listing is in
    the order of the locations. `allowed` None allows everything.
    """

    def __init__(
        self, runtime: Runtime | None = None, allowed: AllowedLocations | None = None
    ) -> None:
        self._runtime = runtime or Runtime()
        self._allowed = allowed
        self._objects: dict[str, tuple[bytes, int]] = {}
        self._lock = threading.Lock()

    def get(self, location: str, *, offset: int = 0, length: int | None = None) -> bytes:
        """See `ObjectStore.get`."""
        data = self._read(location)
        end = len(data) if length is None else offset + length
        if offset > len(data) or end > len(data):
            raise CorruptDataError(
                "object is shorter than the range asked for",
                location=location,
                offset=offset,
                length=length,
                size_bytes=len(data),
            )
        return data[offset:end]

    def size_bytes(self, location: str) -> int:
        """See `ObjectStore.size_bytes`."""
        return len(self._read(location))

    def put(self, location: str, data: bytes | memoryview) -> None:
        """See `ObjectStore.put`."""
        key = self._key(location)
        content = bytes(data)
        with self._lock:
            if key in self._objects:
                raise AlreadyExistsError("object exists already", location=location)
            self._objects[key] = (content, self._runtime.clock.now_ms())

    def open_input(self, location: str) -> pa.NativeFile:
        """See `ObjectStore.open_input`."""
        return pa.BufferReader(self._read(location))

    def open_output(self, location: str) -> _MemoryOutput:
        """See `ObjectStore.open_output`."""
        self._key(location)
        return _MemoryOutput(self, location)

    def list_prefix(self, prefix: str) -> Iterator[ObjectInfo]:
        """See `ObjectStore.list_prefix`. The list is taken at the call, as one consistent view."""
        folder = self._key(prefix).rstrip("/") + "/"
        with self._lock:
            found = [
                ObjectInfo(key, len(data), modified_ms)
                for key, (data, modified_ms) in sorted(self._objects.items())
                if key.startswith(folder)
            ]
        return iter(found)

    def delete(self, locations: Sequence[str]) -> None:
        """See `ObjectStore.delete`."""
        keys = [self._key(location) for location in locations]
        with self._lock:
            for key in keys:
                self._objects.pop(key, None)

    def _key(self, location: str) -> str:
        if self._allowed is not None:
            return str(self._allowed.check(location))
        return _canonical(location)

    def _read(self, location: str) -> bytes:
        with self._lock:
            found = self._objects.get(self._key(location))
        if found is None:
            raise NotFoundError("object does not exist", location=location)
        return found[0]


class _MemoryOutput(io.BytesIO):
    """Collects the bytes and puts them when it is closed without an error."""

    def __init__(self, store: MemoryObjectStore, location: str) -> None:
        super().__init__()
        self._store = store
        self._location = location
        self._aborted = False

    def abort(self) -> None:
        """Close and forget the bytes."""
        self._aborted = True
        super().close()

    def close(self) -> None:
        if not self.closed:
            data = self.getvalue()
            super().close()
            if not self._aborted:
                self._store.put(self._location, data)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        else:
            self.abort()

    def __del__(self) -> None:
        # Never closed: the writer died. The base class would close, and so put, half an object.
        self.abort()
