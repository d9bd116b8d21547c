"""An open file as Arrow reads it, with somebody looking at what goes by."""

from __future__ import annotations

import io
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

from tableformat.errors import CorruptDataError

PART_BYTES = 8 << 20  # an object store delivers that in a tenth of a second per connection
_REQUESTS_MAX = 4


class TappedSource(io.RawIOBase):
    """Reads a file for Arrow.

    Arrow asks a Python file for one range at a time, so large ones are fetched in several requests
    at once.

    Args:
        source: The open file.
        tap: Told every range that was read, as bytes and their offset, before Arrow gets it; what
            it raises is what the reader raises.
    """

    def __init__(self, source: pa.NativeFile, tap: Callable[[bytes, int], None]) -> None:
        super().__init__()
        self._source = source
        self._tap = tap
        self._size_bytes: int = source.size()
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

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to an offset from the beginning, the position or the end."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size_bytes}[whence]
        self._position = base + offset
        return self._position

    def read(self, size: int = -1) -> bytes:
        """Bytes from here on.

        Raises:
            CorruptDataError: The range leads out of the file; no memory is taken for it.
        """
        rest = self._size_bytes - self._position
        size = rest if size < 0 else size
        if self._position < 0 or size > rest:
            raise CorruptDataError("what is to be read leads out of the file")
        data = read_range(self._source, self._position, size)
        self._tap(data, self._position)
        self._position += len(data)
        return data


def read_range(source: pa.NativeFile, position: int, size: int) -> bytes:
    """Some bytes of an open file, less at its end."""
    if size <= PART_BYTES:
        return bytes(source.read_at(size, position))
    starts = range(position, position + size, PART_BYTES)
    sizes = [min(PART_BYTES, position + size - start) for start in starts]
    with ThreadPoolExecutor(_REQUESTS_MAX, thread_name_prefix="icefold-range") as pool:
        return b"".join(pool.map(source.read_at, sizes, starts))
