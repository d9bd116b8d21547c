"""A checksum of every column chunk of a Parquet file, kept in its footer.

Page checksums cover the data of pages and not their headers: a flipped bit in a count or an
encoding there turns rows into other rows, and one in a length makes a reader ask for gigabytes. So
our files carry a CRC-32 of the stored bytes of every column chunk, which other readers ignore. It
is compared before Arrow looks at the first of those bytes.

In the footer: eight hexadecimal digits per chunk, row group after row group, the columns of each in
their order. On disk: never change.
"""

from __future__ import annotations

import zlib
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter

import pyarrow as pa
import pyarrow.parquet as pq

from tableformat.cached import cached_property
from tableformat.codec.tapped_source import read_range
from tableformat.errors import CorruptDataError

CHUNK_CHECKSUMS_KEY = "icefold.chunk-crc32"
DIGITS = 8


@dataclass(frozen=True, slots=True, order=True)
class _Chunk:
    start: int
    size_bytes: int
    checksum: bytes
    row_group: int
    leaf: int


_start = attrgetter("start")


class ChunkChecksums:
    """Checks column chunks as they are read; the tap of a `TappedSource`.

    Args:
        source: The open file.
        footer: Its footer, with checksums.
        leaves: The columns that will be read.
        row_groups: The row groups that will be read.

    Raises:
        CorruptDataError: The footer has checksums for another number of chunks.
    """

    def __init__(
        self,
        source: pa.NativeFile,
        footer: pq.FileMetaData,
        leaves: Sequence[int],
        row_groups: Sequence[int],
    ) -> None:
        self._source = source
        self._footer = footer
        self._leaves = leaves
        self._row_groups = row_groups
        self._checksums: bytes = footer.metadata[CHUNK_CHECKSUMS_KEY.encode()]
        if len(self._checksums) != DIGITS * footer.num_row_groups * footer.num_columns:
            raise CorruptDataError("the checksums in the footer do not fit the file")

    def __call__(self, data: bytes, position: int) -> None:
        """Check the wanted chunks that begin in some bytes of the file.

        Raises:
            CorruptDataError: One is not what was written.
        """
        view, end = memoryview(data), position + len(data)
        for chunk in self._wanted[bisect_left(self._wanted, position, key=_start) :]:
            if chunk.start >= end:
                return
            content = view[chunk.start - position :][: chunk.size_bytes]
            if len(content) < chunk.size_bytes:  # Arrow reads whole chunks, several at once
                content = memoryview(read_range(self._source, chunk.start, chunk.size_bytes))
            if b"%08x" % zlib.crc32(content) != chunk.checksum:
                raise CorruptDataError(
                    "a column chunk does not match its checksum",
                    column=self._footer.schema.column(chunk.leaf).path,
                    row_group=chunk.row_group,
                )

    @cached_property
    def _wanted(self) -> list[_Chunk]:
        # Not before the first read: Arrow aborts the process when chunks are looked at from here
        # whose metadata contradicts the schema, and reports it when it plans what to read.
        places = [(group, leaf) for group in self._row_groups for leaf in self._leaves]
        ranges = chunk_ranges(self._footer, self._row_groups, self._leaves)
        return sorted(
            _Chunk(start, size, self._checksum(*place), *place)
            for (start, size), place in zip(ranges, places, strict=True)
        )

    def _checksum(self, row_group: int, leaf: int) -> bytes:
        at = (row_group * self._footer.num_columns + leaf) * DIGITS
        return self._checksums[at : at + DIGITS]


def has_chunk_checksums(footer: pq.FileMetaData) -> bool:
    """Whether a file carries checksums of its chunks: those written by icefold do."""
    return CHUNK_CHECKSUMS_KEY.encode() in (footer.metadata or {})


def chunk_ranges(
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
