"""An open file as Arrow reads it, with somebody looking at what goes by."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pyarrow as pa

from tableformat.errors import CorruptDataError
from tableformat.side_by_side import run_in_parts
from tableformat.store.base import RangeInput

PART_BYTES = 8 << 20  # an object store delivers that in a tenth of a second per connection
_REQUESTS_MAX = 4


class TappedSource(RangeInput):
    """Reads a file for Arrow.

    Arrow asks a Python file for one range at a time, so large ones are fetched in several requests
    at once.

    Args:
        source: The open file.
        tap: Told every range that was read, as bytes and their offset, before Arrow gets it. What
            it raises ends the reading; `errors` raises it again.
    """

    def __init__(self, source: pa.NativeFile, tap: Callable[[bytes, int], None]) -> None:
        super().__init__(source.size())
        self.source = source
        self._tap = tap
        self._error: Exception | None = None

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Around what reads: raises what the tap or the file has raised, as it was.

        Arrow keeps an error that a Python file raises, as long as its reader lives; with the
        frames that the error has gone through the reader would keep itself alive for ever, and
        what it has read. So Arrow is given another error, and its frames are cut off here.
        """
        try:
            yield
        except Exception as given:
            found, self._error = self._error, None
            if found is None:
                raise
            given.__traceback__ = None
            raise found from None

    def read(self, size: int = -1) -> bytes:
        """Bytes from here on.

        Raises:
            OSError: `errors` knows why. A range that leads out of the file takes no memory.
        """
        try:
            return self._read(size)
        except Exception as error:  # noqa: BLE001 - raised again by `errors`
            self._error = error
        raise OSError("see TappedSource.errors")

    def _read(self, size: int) -> bytes:
        rest = self._size_bytes - self._position
        size = rest if size < 0 else size
        if self._position < 0 or size > rest:
            raise CorruptDataError("what is to be read leads out of the file")
        data = read_range(self.source, self._position, size)
        self._tap(data, self._position)
        self._position += len(data)
        return data


def read_range(source: pa.NativeFile, position: int, size: int) -> bytes:
    """Some bytes of an open file, less at its end."""
    if size <= PART_BYTES:
        return bytes(source.read_at(size, position))

    def read(start: int) -> bytes:
        return bytes(source.read_at(min(PART_BYTES, position + size - start), start))

    starts = range(position, position + size, PART_BYTES)
    return b"".join(run_in_parts(read, starts, at_once=_REQUESTS_MAX))
