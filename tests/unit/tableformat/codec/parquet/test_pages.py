"""Page indexes and footers that ask for what cannot be."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tableformat.codec.parquet.pages import ColumnPages, PageIndex
from tableformat.codec.parquet.thrift_compact import decode_struct, encode_struct
from tableformat.errors import CorruptDataError


@pytest.mark.parametrize("length", [1 << 20, (1 << 31) - 1, 1 << 50, -1])
def test_page_index_outside_the_file_is_an_error_before_memory_is_taken(length: int) -> None:
    index = PageIndex.__new__(PageIndex)
    index._source = pa.BufferReader(b"PAR1")
    index._size_bytes = 4
    with pytest.raises(CorruptDataError, match="leads out of the file"):
        index._read_at(length, 0)
    with pytest.raises(CorruptDataError, match="leads out of the file"):
        index._read_at(1, length)


@pytest.mark.parametrize("number", [b"\xff" * 9 + b"\x02", b"\xff" * 9 + b"\x7f", b"\xff" * 12])
def test_number_of_more_than_64_bits_in_a_footer_is_an_error(number: bytes) -> None:
    assert decode_struct(b"\x16" + b"\xff" * 9 + b"\x01\x00")[0] == {1: (6, -(2**63))}
    with pytest.raises(CorruptDataError, match="broken Thrift struct"):
        decode_struct(b"\x16" + number + b"\x00")


def pages_of_file(damage: int | None = None) -> pa.Array:
    """40 rows in pages of ten, pages 1 and 3 read; `damage` is what page 1 claims to hold."""
    table = pa.table({"id": pa.array([200 + i for i in range(40)], pa.int64())})
    sink = pa.BufferOutputStream()
    field = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    pq.write_table(
        table.cast(field), sink, max_rows_per_page=10, write_page_index=True, write_batch_size=10
    )
    data = bytearray(sink.getvalue().to_pybytes())
    index = PageIndex(pa.BufferReader(bytes(data)), len(data))
    pages = index.column(0, 0)
    assert pages is not None
    if damage is not None:
        start = int(pages.offset[1])
        header, size = decode_struct(bytes(data), start)
        header[5][1][1] = (5, damage)
        changed = encode_struct(header)
        assert len(changed) == size - start
        data[start:size] = changed
    return PageIndex(pa.BufferReader(bytes(data)), len(data)).read(pages, [1, 3])


def test_pages_are_read() -> None:
    assert pages_of_file().to_pylist() == [*range(210, 220), *range(230, 240)]


@pytest.mark.parametrize("values", [9, 11, 14, 16])
def test_page_that_claims_other_values_than_it_has_rows_is_an_error(values: int) -> None:
    with pytest.raises(CorruptDataError, match="another number of values than of rows"):
        pages_of_file(values)


def test_rows_behind_the_page_index_are_an_error() -> None:
    one = np.array([0], np.int64)
    pages = ColumnPages(one, one, np.array([0, 10]), None, {}, ())
    assert pages.pages_of(np.array([9])).tolist() == [0]
    with pytest.raises(CorruptDataError, match="ends before its rows"):
        pages.pages_of(np.array([3, 10]))
