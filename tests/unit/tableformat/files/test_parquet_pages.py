"""Page indexes and footers that ask for what cannot be."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tableformat.errors import CorruptDataError
from tableformat.files.parquet_pages import PageIndex
from tableformat.files.thrift_compact import decode_struct


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
