"""What Arrow writes a Parquet file to, so that its footer can hold checksums of the file.

See `chunk_checksums` and `footer_checksum`.
"""

from __future__ import annotations

import zlib
from array import array
from bisect import bisect_left
from typing import Any

import pyarrow.parquet as pq

from tableformat.codec.parquet.chunk_checksums import CHUNK_CHECKSUMS_KEY, DIGITS, chunk_ranges
from tableformat.codec.parquet.footer_checksum import (
    FOOTER_CHECKSUM_KEY,
    NO_CHECKSUM,
    TAIL_BYTES,
    footer_checksum,
    place_of_value,
)
from tableformat.crc32_parts import crc32_of_rest
from tableformat.errors import InternalError


class ChecksummedOutput:
    """Stands in front of the store's output.

    Where chunks begin and end is known when the footer has been written, so the checksum up to the
    end of every write is kept until then, and the footer is held back to be completed.

    Args:
        sink: The store's output; closed and aborted by its owner.
    """

    closed = False

    def __init__(self, sink: Any) -> None:
        self._sink = sink
        self._size_bytes = 0
        self._ends = array("q", [0])
        self._checksums = array("L", [0])
        self._held: bytearray | None = None
        self._no_checksums = b""

    def writable(self) -> bool:
        """Always."""
        return True

    def readable(self) -> bool:
        """Never."""
        return False

    def seekable(self) -> bool:
        """Never."""
        return False

    def flush(self) -> None:
        """Nothing is buffered here but a footer that has to be completed."""

    def tell(self) -> int:
        """Bytes written so far."""
        return self._size_bytes + len(self._held or b"")

    def write(self, data: bytes) -> int:
        """Pass on what belongs to row groups, hold back what comes after `begin_footer`."""
        if self._held is not None:
            self._held += data
            return len(data)
        self._sink.write(data)
        self._size_bytes += len(data)
        self._ends.append(self._size_bytes)
        self._checksums.append(zlib.crc32(data, self._checksums[-1]))
        return len(data)

    def begin_footer(self, chunk_count: int) -> dict[str, str]:
        """To be called before the footer is written.

        Args:
            chunk_count: Row groups times columns.

        Returns:
            What to put into the footer; the checksums are filled in by `end_footer`.
        """
        self._held = bytearray()
        self._no_checksums = b"0" * (DIGITS * chunk_count)
        return {
            CHUNK_CHECKSUMS_KEY: self._no_checksums.decode(),
            FOOTER_CHECKSUM_KEY: NO_CHECKSUM.decode(),
        }

    def end_footer(self, footer: pq.FileMetaData) -> None:
        """Pass on the footer, with the checksums of the chunks that it describes and its own."""
        assert self._held is not None
        held, self._held = self._held, None
        size_bytes = int.from_bytes(held[-TAIL_BYTES:-4], "little")
        start = len(held) - TAIL_BYTES - size_bytes
        text = held[start:-TAIL_BYTES]
        ranges = chunk_ranges(footer, range(footer.num_row_groups), range(footer.num_columns))
        chunks = "".join(f"{self._checksum(begin, size):08x}" for begin, size in ranges).encode()
        _fill_in(text, CHUNK_CHECKSUMS_KEY, self._no_checksums, chunks)
        own = footer_checksum(text, place_of_value(text, FOOTER_CHECKSUM_KEY, NO_CHECKSUM))
        _fill_in(text, FOOTER_CHECKSUM_KEY, NO_CHECKSUM, own)
        self.write(bytes(held[:start]))
        self.write(bytes(text + held[-TAIL_BYTES:]))

    def _checksum(self, start: int, size_bytes: int) -> int:
        first, last = (bisect_left(self._ends, at) for at in (start, start + size_bytes))
        if self._ends[first] != start or self._ends[last] != start + size_bytes:
            raise InternalError("a column chunk does not begin or end with a write")
        return crc32_of_rest(self._checksums[first], self._checksums[last], size_bytes)


def _fill_in(footer: bytearray, key: str, empty: bytes, value: bytes) -> None:
    at = place_of_value(footer, key, empty)
    if at < 0 or len(value) != len(empty):
        raise InternalError("the Parquet footer has no place for its checksums", key=key)
    footer[at : at + len(value)] = value
