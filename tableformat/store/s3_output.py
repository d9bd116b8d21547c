"""A file being written to S3: spooled in memory, then on local disk, and put when it is closed."""

from __future__ import annotations

import os
import tempfile
from types import TracebackType
from typing import IO, Protocol, Self, cast

from tableformat.store.locations import ParsedLocation

_SPOOL_BYTES = 32 << 20  # above this it goes to local disk


class Puts(Protocol):
    """The one thing an output needs of its store."""

    def put(self, at: ParsedLocation, body: IO[bytes], size: int) -> None:
        """See `S3Objects.put`."""


class S3Output:
    """Collects bytes and puts them when closed; as a context manager it aborts on an error."""

    def __init__(self, objects: Puts, at: ParsedLocation) -> None:
        self._objects = objects
        self._at = at
        spool = tempfile.SpooledTemporaryFile(max_size=_SPOOL_BYTES)  # noqa: SIM115
        self._spool: IO[bytes] | None = cast("IO[bytes]", spool)

    @property
    def closed(self) -> bool:
        """Whether nothing can be written any more."""
        return self._spool is None

    def writable(self) -> bool:
        """Always."""
        return True

    def readable(self) -> bool:
        """Never."""
        return False

    def seekable(self) -> bool:
        """Never."""
        return False

    def tell(self) -> int:
        """Bytes written so far."""
        return 0 if self._spool is None else self._spool.tell()

    def flush(self) -> None:
        """Nothing leaves before `close`."""

    def write(self, data: bytes | memoryview) -> int:
        """Append all of `data`."""
        if self._spool is None:
            raise ValueError("write to a closed object")
        return self._spool.write(data)

    def abort(self) -> None:
        """Forget the bytes; nothing appears."""
        spool, self._spool = self._spool, None
        if spool is not None:
            spool.close()

    def close(self) -> None:
        """Put the object."""
        spool, self._spool = self._spool, None
        if spool is None:
            return
        with spool:
            size = spool.seek(0, os.SEEK_END)
            self._objects.put(self._at, spool, size)

    def __enter__(self) -> Self:
        return self

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
        self.abort()
