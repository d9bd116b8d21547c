"""Files in a bucket: one being read at random, and one being written until it is whole."""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Callable
from contextlib import suppress
from typing import IO, Any, cast

from tableformat.store.base import RangeInput, WholeOutput
from tableformat.temporary_disk import temporary_disk_errors

_SPOOL_BYTES = 32 << 20  # above this it goes to local disk

Read = Callable[[int, int], Any]
"""Exactly the bytes `[offset, offset + length)`, as a buffer."""

Put = Callable[[Any, int], None]
"""Create the object from a buffer of so many bytes."""


class BucketInput(RangeInput):
    """An object as a file: each read is one request for exactly what is wanted.

    Args:
        read: Gets a range.
        size_bytes: The object's size.
        tail: Its last bytes, as far as they are known: a buffer.
    """

    def __init__(self, read: Read, size_bytes: int, tail: Any = b"") -> None:
        super().__init__(size_bytes)
        self._read = read
        self._tail = memoryview(tail)

    def read(self, size: int | None = -1, /) -> Any:
        """Up to `size` bytes, as a buffer; all that is left without one."""
        left = max(0, self._size_bytes - self._position)
        wanted = left if size is None or size < 0 else min(size, left)
        if wanted == 0:
            return b""
        known = self._position - (self._size_bytes - len(self._tail))
        if known >= 0:
            data = self._tail[known : known + wanted]
        else:
            data = self._read(self._position, wanted)
        self._position += wanted
        return data


class BucketOutput(WholeOutput):
    """Collects bytes, in memory and then on local disk, and puts them when it is closed."""

    def __init__(self, put: Put) -> None:
        self._put = put
        spool = tempfile.SpooledTemporaryFile(max_size=_SPOOL_BYTES)  # noqa: SIM115
        self._spool: IO[bytes] | None = cast("IO[bytes]", spool)

    def tell(self) -> int:
        """Bytes written so far."""
        return 0 if self._spool is None else self._spool.tell()

    def flush(self) -> None:
        """Nothing leaves before `close`."""

    def write(self, data: bytes | memoryview) -> int:  # type: ignore[override]
        """Append all of `data`."""
        if self._spool is None:
            raise ValueError("write to a closed object")
        with temporary_disk_errors():
            return self._spool.write(data)

    def abort(self) -> None:
        """Forget the bytes; nothing appears."""
        spool, self._spool = self._spool, None
        if spool is not None:
            with suppress(OSError):  # on a full disk Python tries once more to write what waits
                spool.close()
        super().close()

    def close(self) -> None:
        """Put the object."""
        spool, self._spool = self._spool, None
        super().close()
        if spool is None:
            return
        with spool:
            size = spool.tell()
            if size <= _SPOOL_BYTES:
                spool.seek(0)
                self._put(spool.read(), size)
                return
            with temporary_disk_errors():
                spool.flush()
            # A view of the file: not copied into memory, and sent again from its start.
            with mmap.mmap(spool.fileno(), size, access=mmap.ACCESS_READ) as body:
                self._put(body, size)
