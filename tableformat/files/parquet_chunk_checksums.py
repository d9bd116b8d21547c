"""A checksum of every column chunk of a Parquet file, kept in its footer.

Page checksums cover the data of pages and not their headers: a flipped bit in a count or an
encoding there turns rows into other rows, and one in a length makes a reader ask for gigabytes. So
our files carry a CRC-32 of the stored bytes of every column chunk, which other readers ignore. It
is compared before Arrow looks at the first of those bytes.

In the footer: eight hexadecimal digits per chunk, row group after row group, the columns of each in
their order. On disk: never change.
"""

from __future__ import annotations

import io
import zlib
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tableformat.errors import CorruptDataError, InternalError
from tableformat.files.crc32_parts import crc32_of_rest

CHUNK_CHECKSUMS_KEY = "icefold.chunk-crc32"
_DIGITS = 8
_PART_BYTES = 8 << 20  # an object store delivers that in a tenth of a second per connection
_REQUESTS_MAX = 4
_BINARY_FIELD = b"\x18"  # Thrift: the next field of a struct, a string


class ChecksummedOutput:
    """What Arrow writes a file to, in front of the store's output.

    Where chunks begin and end is known when the footer has been written, so the checksum up to the
    end of every write is kept until then, and the footer is held back to be completed.

    Args:
        sink: The store's output; closed and aborted by its owner.
    """

    def __init__(self, sink: Any) -> None:
        self._sink = sink
        self._size_bytes = 0
        self._ends = array("q", [0])
        self._checksums = array("L", [0])
        self._held: bytearray | None = None
        self._chunk_count = 0

    closed = False

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
        self._chunk_count = chunk_count
        return {CHUNK_CHECKSUMS_KEY: "0" * (_DIGITS * chunk_count)}

    def end_footer(self, footer: pq.FileMetaData) -> None:
        """Pass on the footer, with the checksums of the chunks that it describes."""
        assert self._held is not None
        chunks = _chunks(footer, range(footer.num_row_groups), range(footer.num_columns))
        found = "".join(f"{self._checksum(start, size):08x}" for start, size in chunks).encode()
        if len(found) != _DIGITS * self._chunk_count:
            raise InternalError("Parquet footer counts other column chunks")
        empty = b"0" * len(found)
        before = CHUNK_CHECKSUMS_KEY.encode() + _BINARY_FIELD + _varint(len(found))
        # The last one: names and statistics of columns, which may hold anything, come before.
        at = self._held.rfind(before + empty)
        if at < 0:
            raise InternalError("Parquet footer without the place for its checksums")
        at += len(before)
        self._held[at : at + len(found)] = found
        held, self._held = self._held, None
        self.write(bytes(held))

    def _checksum(self, start: int, size_bytes: int) -> int:
        first, last = (bisect_left(self._ends, at) for at in (start, start + size_bytes))
        if self._ends[first] != start or self._ends[last] != start + size_bytes:
            raise InternalError("a column chunk does not begin or end with a write")
        return crc32_of_rest(self._checksums[first], self._checksums[last], size_bytes)


@dataclass(frozen=True, slots=True, order=True)
class _Chunk:
    start: int
    size_bytes: int
    checksum: bytes
    row_group: int
    leaf: int


_start = attrgetter("start")


class CheckedChunks(io.RawIOBase):
    """An open Parquet file whose column chunks are checked as they are read.

    Args:
        source: The open file.
        footer: Its footer, with checksums.
        leaves: The columns that will be read.
        row_groups: The row groups that will be read.
    """

    def __init__(
        self,
        source: pa.NativeFile,
        footer: pq.FileMetaData,
        leaves: Sequence[int],
        row_groups: Sequence[int],
    ) -> None:
        super().__init__()
        self._source = source
        self._footer = footer
        self._leaves = leaves
        self._row_groups = row_groups
        self._checksums = _parse(footer)
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
        """Bytes from here on; every wanted chunk that begins in them is checked.

        Raises:
            CorruptDataError: A chunk is not what was written, or the range leads out of the file.
        """
        rest = self._size_bytes - self._position
        size = rest if size < 0 else size
        if self._position < 0 or size > rest:
            raise CorruptDataError("a column chunk leads out of the file")
        data = self._read_at(size, self._position)
        self._check(data, self._position)
        self._position += len(data)
        return data

    def _read_at(self, size: int, position: int) -> bytes:
        """Large ranges in several requests at once: Arrow asks a Python file for one at a time."""
        if size <= _PART_BYTES:
            return bytes(self._source.read_at(size, position))
        starts = range(position, position + size, _PART_BYTES)
        sizes = [min(_PART_BYTES, position + size - start) for start in starts]
        with ThreadPoolExecutor(_REQUESTS_MAX, thread_name_prefix="icefold-chunks") as pool:
            return b"".join(pool.map(self._source.read_at, sizes, starts))

    @cached_property
    def _wanted(self) -> list[_Chunk]:
        # Not before the first read: Arrow aborts the process when chunks are looked at from here
        # whose metadata contradicts the schema, and reports it when it plans what to read.
        chunks = _chunks(self._footer, self._row_groups, self._leaves)
        places = [(group, leaf) for group in self._row_groups for leaf in self._leaves]
        return sorted(
            _Chunk(start, size, self._checksum(*place), *place)
            for (start, size), place in zip(chunks, places, strict=True)
        )

    def _checksum(self, row_group: int, leaf: int) -> bytes:
        at = (row_group * self._footer.num_columns + leaf) * _DIGITS
        return self._checksums[at : at + _DIGITS]

    def _check(self, data: bytes, position: int) -> None:
        view, end = memoryview(data), position + len(data)
        for chunk in self._wanted[bisect_left(self._wanted, position, key=_start) :]:
            if chunk.start >= end:
                return
            content = view[chunk.start - position :][: chunk.size_bytes]
            if len(content) < chunk.size_bytes:  # Arrow reads whole chunks, several at once
                content = memoryview(self._read_at(chunk.size_bytes, chunk.start))
            if b"%08x" % zlib.crc32(content) != chunk.checksum:
                raise CorruptDataError(
                    "a column chunk does not match its checksum",
                    column=self._footer.schema.column(chunk.leaf).path,
                    row_group=chunk.row_group,
                )


def has_chunk_checksums(footer: pq.FileMetaData) -> bool:
    """Whether a file carries checksums of its chunks: those written by icefold do."""
    return CHUNK_CHECKSUMS_KEY.encode() in (footer.metadata or {})


def _parse(footer: pq.FileMetaData) -> bytes:
    found: bytes = footer.metadata[CHUNK_CHECKSUMS_KEY.encode()]
    if len(found) != _DIGITS * footer.num_row_groups * footer.num_columns:
        raise CorruptDataError("the checksums in the footer do not fit the file")
    return found


def _chunks(
    footer: pq.FileMetaData, row_groups: Sequence[int], leaves: Sequence[int]
) -> Iterator[tuple[int, int]]:
    """Offset and bytes of column chunks, dictionary pages included."""
    for row_group in row_groups:
        group = footer.row_group(row_group)
        for leaf in leaves:
            chunk = group.column(leaf)
            dictionary, first = chunk.dictionary_page_offset, chunk.data_page_offset
            start = first if dictionary is None or not 0 < dictionary < first else dictionary
            yield start, chunk.total_compressed_size


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)
