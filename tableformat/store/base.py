"""The object-store seam: what icefold asks of local files, S3 or the simulator's memory.

Locations are absolute URIs or paths as they stand in table metadata. Objects are immutable: `put`
refuses to replace one. Every method raises `StoreUnavailableError` for transient trouble,
`NotFoundError` for a missing object and `InvalidInputError` for a location outside the allowed
prefixes, before any I/O.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One listed object. `modified_ms` is the store's clock, milliseconds since the epoch."""

    location: str
    size_bytes: int
    modified_ms: int


class RangeInput(io.RawIOBase):
    """A file of a known size that goes where it is told; subclasses read there.

    Args:
        size_bytes: Its size.
    """

    def __init__(self, size_bytes: int) -> None:
        super().__init__()
        self._size_bytes = size_bytes
        self._position = 0

    def readable(self) -> bool:
        """Always."""
        return True

    def seekable(self) -> bool:
        """Always."""
        return True

    def tell(self) -> int:
        """Where the next read begins."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Go to an offset from the beginning, the position or the end; nothing is read."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size_bytes}[whence]
        self._position = base + offset
        return self._position


class WholeOutput(io.RawIOBase):
    """A sink whose object appears whole with `close`, or never.

    As a context manager it aborts when the block raises. Forgotten without `close` it also aborts.
    """

    def writable(self) -> bool:
        """Always."""
        return True

    def abort(self) -> None:
        """Forget the bytes; nothing appears."""
        super().close()

    def __exit__(self, _kind: object, error: object, _trace: object) -> None:
        if error is None:
            self.close()
        else:
            self.abort()

    def __del__(self) -> None:
        self.abort()


class ObjectStore(Protocol):
    """Reads, conditional writes, lists and deletes of whole objects."""

    def get(self, location: str, *, offset: int = 0, length: int | None = None) -> bytes:
        """Exactly the bytes `[offset, offset + length)`; a short object is `CorruptDataError`."""

    def size_bytes(self, location: str) -> int:
        """The object's size."""

    def put(self, location: str, data: bytes | memoryview) -> None:
        """Create the object, whole or not at all; `AlreadyExistsError` if there is one."""

    def open_input(self, location: str) -> pa.NativeFile:
        """Open for random access (Parquet)."""

    def open_output(self, location: str) -> Any:
        """A binary sink; the object appears whole when it is closed, never on an error before."""

    def list_prefix(self, prefix: str) -> Iterator[ObjectInfo]:
        """Everything below `prefix` (a folder; `/tbl` does not list `/tbl2`)."""

    def delete(self, locations: Sequence[str]) -> None:
        """Remove the objects; those that are already gone are no error."""
