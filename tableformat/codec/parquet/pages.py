"""Reads single pages of a Parquet column, which Arrow's reader cannot be asked for.

With a page index a file says where each page of a column chunk is and which row it begins with.
The wanted pages are put, as they are stored, behind a footer of their own that describes a file
of one column and of these pages only; Arrow reads that, page checksums included:

```
PAR1 | dictionary page, if there is one | wanted data pages | footer | its length | PAR1
```

Only for top-level columns with one stored column below them (primitive columns, lists of
primitive elements): pages of several stored columns do not begin with the same rows.

Source: Parquet format, "Page Index" and parquet.thrift.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tableformat.array_types import Int64s
from tableformat.codec.parquet.thrift_compact import (
    I32,
    I64,
    LIST,
    STRUCT,
    Struct,
    decode_struct,
    encode_struct,
)
from tableformat.errors import CorruptDataError

MAGIC = b"PAR1"
_TAIL_BYTES = 8
# Decoding a footer in Python costs a microsecond per value; a larger one is not worth a lookup.
FOOTER_BYTES_MAX = 4 << 20


# Field ids of parquet.thrift.
_FILE_SCHEMA, _FILE_ROWS, _FILE_GROUPS, _FILE_KEY_VALUES, _FILE_ORDERS = 2, 3, 4, 5, 7
_GROUP_COLUMNS, _GROUP_BYTES, _GROUP_ROWS = 1, 2, 3
_CHUNK_FILE_OFFSET, _CHUNK_METADATA, _CHUNK_INDEX_OFFSET, _CHUNK_INDEX_LENGTH = 2, 3, 4, 5
_COLUMN_VALUES, _COLUMN_UNCOMPRESSED, _COLUMN_COMPRESSED, _COLUMN_DATA, _COLUMN_DICTIONARY = (
    5, 6, 7, 9, 11,
)  # fmt: skip
_COLUMN_KEPT = (1, 2, 3, 4)  # type, encodings, path, codec
_ELEMENT_REPETITION, _ELEMENT_CHILDREN = 3, 5
_REPEATED = 2
_PAGE_UNCOMPRESSED, _PAGE_V1, _PAGE_V2, _PAGE_VALUES = 2, 5, 8, 1
_V1_ENCODING, _V2_ENCODING = 2, 4
_DICTIONARY_ENCODINGS = (2, 8)  # PLAIN_DICTIONARY, RLE_DICTIONARY
_INDEX_LOCATIONS = 1
_LOCATION_OFFSET, _LOCATION_BYTES, _LOCATION_ROW = 1, 2, 3


@dataclass(frozen=True, slots=True, eq=False)
class ColumnPages:
    """Where the data pages of one column chunk are.

    Attributes:
        offset: Shape `(pages,)`: byte offset in the file.
        size_bytes: Shape `(pages,)`: stored bytes, page header included.
        first_row: Shape `(pages + 1,)`: first row in the row group; the last is its row count.
        dictionary: Byte range of the dictionary page; None without one.
        metadata: The chunk's `ColumnMetaData`.
        elements: The column's schema elements, the root left out.
    """

    offset: Int64s
    size_bytes: Int64s
    first_row: Int64s
    dictionary: tuple[int, int] | None
    metadata: Struct
    elements: tuple[Struct, ...]

    @property
    def is_repeated(self) -> bool:
        """Whether a row may have several values: a list."""
        repetitions = (each.get(_ELEMENT_REPETITION) for each in self.elements)
        return any(each is not None and each[1] == _REPEATED for each in repetitions)

    def pages_of(self, rows: Int64s) -> Int64s:
        """The page of each row, given as ascending ordinals in the row group.

        Raises:
            CorruptDataError: The index ends before the last one.
        """
        if rows[-1] >= self.first_row[-1]:
            raise CorruptDataError("the page index of a column ends before its rows")
        return np.searchsorted(self.first_row, rows, side="right") - 1


class PageIndex:
    """The page index of one file; columns are looked at when they are first asked for.

    Args:
        source: The open file.
        size_bytes: Its size.
    """

    def __init__(self, source: pa.NativeFile, size_bytes: int) -> None:
        self._source = source
        self._size_bytes = size_bytes
        self._footer = read_footer(source, size_bytes)
        self._columns: dict[tuple[int, int], ColumnPages | None] = {}

    def column(self, row_group: int, leaf: int) -> ColumnPages | None:
        """The pages of a column chunk; None when the file has no index for it.

        Raises:
            CorruptDataError: The index contradicts the footer.
        """
        key = (row_group, leaf)
        if key not in self._columns:
            with broken_structs():
                self._columns[key] = self._load(row_group, leaf)
        return self._columns[key]

    def read(self, pages: ColumnPages, wanted: Sequence[int]) -> pa.Array:
        """The values of some pages, in their order.

        Raises:
            CorruptDataError: A page is damaged, or holds other rows than the index says.
        """
        if pages.is_repeated and len(wanted) > 1:
            # Nothing says how many values belong to a page of lists: what one has too many would
            # be taken for rows of the next.
            return pa.concat_arrays([self.read(pages, [page]) for page in wanted])
        parts = [
            self._read_at(int(pages.size_bytes[page]), int(pages.offset[page])) for page in wanted
        ]
        with broken_structs():
            headers = [_page_header(part) for part in parts]
        counts = [int(pages.first_row[page + 1] - pages.first_row[page]) for page in wanted]
        if not pages.is_repeated and [header.values for header in headers] != counts:
            # Decoders fill up a page that claims too many values, up to the next eighth.
            raise CorruptDataError("a page holds another number of values than of rows")
        rows = sum(counts)
        dictionary = b""
        # Writers that give up on a dictionary leave a full one behind: it is read when needed.
        if pages.dictionary is not None and any(header.uses_dictionary for header in headers):
            begin, end = pages.dictionary
            dictionary = self._read_at(end - begin, begin)
        content = _file_of(self._footer, pages, dictionary, parts, headers, rows)
        reader = pq.ParquetFile(
            pa.BufferReader(content),
            page_checksum_verification=True,
            coerce_int96_timestamp_unit="us",
        )
        column = reader.read(use_threads=False).column(0)
        if len(column) != rows:
            raise CorruptDataError("pages hold other rows than their index says")
        return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)

    def _read_at(self, count: int, offset: int) -> bytes:
        """Some bytes; their place is what the file says, and memory is taken before it is read."""
        if not (0 <= offset <= self._size_bytes and 0 <= count <= self._size_bytes - offset):
            raise CorruptDataError("the page index of a column leads out of the file")
        data: bytes = self._source.read_at(count, offset)
        return data

    def _load(self, row_group: int, leaf: int) -> ColumnPages | None:
        if self._footer is None:
            return None
        group = self._footer[_FILE_GROUPS][1][1][row_group]
        chunk: Struct = group[_GROUP_COLUMNS][1][1][leaf]
        elements = _top_level_elements(self._footer, leaf)
        if elements is None or _CHUNK_INDEX_OFFSET not in chunk or _CHUNK_METADATA not in chunk:
            return None
        data = self._read_at(chunk[_CHUNK_INDEX_LENGTH][1], chunk[_CHUNK_INDEX_OFFSET][1])
        index, _ = decode_struct(data)
        locations = index[_INDEX_LOCATIONS][1][1]
        rows = group[_GROUP_ROWS][1]
        return _column_pages(locations, rows, chunk[_CHUNK_METADATA][1], elements)


@contextmanager
def broken_structs(message: str = "the page index of the file is broken") -> Iterator[None]:
    """Fields that are missing or of another type: the bytes are not what the format says."""
    try:
        yield
    except (KeyError, TypeError, IndexError, AttributeError, OverflowError, ValueError) as error:
        if isinstance(error, CorruptDataError):
            raise
        raise CorruptDataError(message) from error


def _column_pages(
    locations: list[Struct], rows: int, metadata: Struct, elements: tuple[Struct, ...]
) -> ColumnPages | None:
    if not locations:
        return None
    offset = np.array([each[_LOCATION_OFFSET][1] for each in locations], dtype=np.int64)
    first_row = np.array([*(each[_LOCATION_ROW][1] for each in locations), rows], dtype=np.int64)
    size = np.array([each[_LOCATION_BYTES][1] for each in locations], dtype=np.int64)
    if first_row[0] != 0 or (np.diff(first_row) < 0).any() or (np.diff(offset) <= 0).any():
        raise CorruptDataError("the page index of a column is not in order")
    dictionary = None
    start = metadata.get(_COLUMN_DICTIONARY)
    first_page = metadata[_COLUMN_DATA][1]
    if start is not None and 0 < start[1] < first_page:
        dictionary = (start[1], int(offset[0]))
    elif first_page < offset[0]:  # older writers put the dictionary's place nowhere else
        dictionary = (first_page, int(offset[0]))
    return ColumnPages(offset, size, first_row, dictionary, metadata, elements)


def read_footer(source: pa.NativeFile, size_bytes: int) -> Struct | None:
    """The decoded footer of an open file; None when it is too long to be decoded here."""
    tail = source.read_at(_TAIL_BYTES, size_bytes - _TAIL_BYTES)
    length = int.from_bytes(tail[:4], "little")
    if tail[4:] != MAGIC or length > min(FOOTER_BYTES_MAX, size_bytes - _TAIL_BYTES):
        return None
    footer, _ = decode_struct(source.read_at(length, size_bytes - _TAIL_BYTES - length))
    return footer


def _top_level_elements(footer: Struct, leaf: int) -> tuple[Struct, ...] | None:
    """The schema elements of the top-level column of a leaf, if it is the column's only one."""
    elements = footer[_FILE_SCHEMA][1][1]
    at, leaves = 1, 0
    while at < len(elements):
        end, count = _subtree(elements, at)
        if leaves <= leaf < leaves + count:
            return tuple(elements[at:end]) if count == 1 else None
        at, leaves = end, leaves + count
    return None


def _subtree(elements: Sequence[Struct], at: int) -> tuple[int, int]:
    """Where the subtree of an element ends, and how many leaves it has."""
    waiting, leaves = 1, 0
    while waiting:
        children = elements[at].get(_ELEMENT_CHILDREN, (I32, 0))[1]
        waiting += children - 1
        leaves += children == 0
        at += 1
    return at, leaves


@dataclass(frozen=True, slots=True)
class _PageHeader:
    """What a data page says about itself."""

    values: int
    uncompressed_bytes: int
    uses_dictionary: bool


def _page_header(page: bytes) -> _PageHeader:
    header, size = decode_struct(page)
    for field, encoding in ((_PAGE_V1, _V1_ENCODING), (_PAGE_V2, _V2_ENCODING)):
        if field in header:
            detail: Struct = header[field][1]
            return _PageHeader(
                values=detail[_PAGE_VALUES][1],
                uncompressed_bytes=header[_PAGE_UNCOMPRESSED][1] + size,
                uses_dictionary=detail[encoding][1] in _DICTIONARY_ENCODINGS,
            )
    raise CorruptDataError("the page index leads to something that is no data page")


def _file_of(
    footer: Struct | None,
    pages: ColumnPages,
    dictionary: bytes,
    parts: Sequence[bytes],
    headers: Sequence[_PageHeader],
    rows: int,
) -> bytes:
    """A Parquet file of one column that consists of some pages of another file."""
    assert footer is not None
    uncompressed = sum(header.uncompressed_bytes for header in headers)
    metadata: Struct = {id_: pages.metadata[id_] for id_ in _COLUMN_KEPT if id_ in pages.metadata}
    if dictionary:
        metadata[_COLUMN_DICTIONARY] = (I64, len(MAGIC))
    metadata |= {
        _COLUMN_VALUES: (I64, sum(header.values for header in headers)),
        _COLUMN_UNCOMPRESSED: (I64, uncompressed + len(dictionary)),
        _COLUMN_COMPRESSED: (I64, len(dictionary) + sum(map(len, parts))),
        _COLUMN_DATA: (I64, len(MAGIC) + len(dictionary)),
    }
    chunk: Struct = {_CHUNK_FILE_OFFSET: (I64, 0), _CHUNK_METADATA: (STRUCT, metadata)}
    group: Struct = {
        _GROUP_COLUMNS: (LIST, (STRUCT, [chunk])),
        _GROUP_BYTES: (I64, uncompressed),
        _GROUP_ROWS: (I64, rows),
    }
    root = dict(footer[_FILE_SCHEMA][1][1][0])
    root[_ELEMENT_CHILDREN] = (I32, 1)
    dropped = (_FILE_KEY_VALUES, _FILE_ORDERS)
    described: dict[int, tuple[int, Any]] = {
        id_: value for id_, value in footer.items() if id_ not in dropped
    }
    described[_FILE_SCHEMA] = (LIST, (STRUCT, [root, *pages.elements]))
    described[_FILE_ROWS] = (I64, rows)
    described[_FILE_GROUPS] = (LIST, (STRUCT, [group]))
    encoded = encode_struct(described)
    return b"".join([MAGIC, dictionary, *parts, encoded, len(encoded).to_bytes(4, "little"), MAGIC])
