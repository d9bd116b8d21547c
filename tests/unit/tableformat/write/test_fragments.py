from __future__ import annotations

import math
import uuid
from decimal import Decimal

import pytest

from tableformat.errors import CorruptDataError
from tableformat.spec.data_file import DataFile, FileContent
from tableformat.write.fragments import decode_data_files, encode_data_files

FULL = DataFile(
    content=FileContent.EQUALITY_DELETES,
    file_path="s3://b/ü.parquet",
    file_format="PARQUET",
    spec_id=3,
    partition=(1, None, "x", b"\0\xff", Decimal("1.10"), uuid.UUID(int=5), True, 0.5),
    record_count=7,
    file_size_in_bytes=99,
    column_sizes={1: 2},
    value_counts={1: 7},
    null_value_counts={1: 0},
    nan_value_counts={},
    lower_bounds={1: b"\0"},
    upper_bounds={1: b"\xff"},
    key_metadata=b"k",
    split_offsets=(4, 8),
    equality_ids=(1, 2),
    sort_order_id=0,
    first_row_id=1 << 40,
    referenced_data_file="d",
    content_offset=4,
    content_size_in_bytes=5,
)
SPARSE = DataFile(
    content=FileContent.DATA,
    file_path="a",
    file_format="PARQUET",
    spec_id=0,
    partition=(),
    record_count=0,
    file_size_in_bytes=0,
)


def test_files_come_back_as_they_were() -> None:
    decoded = decode_data_files(encode_data_files([FULL, SPARSE]))
    assert decoded == [FULL, SPARSE]
    assert [type(value) for value in decoded[0].partition] == [
        type(value) for value in FULL.partition
    ]


def test_float_partitions_keep_infinity_and_nan() -> None:
    file = SPARSE.with_(partition=(math.inf, math.nan))
    infinite, nan = decode_data_files(encode_data_files([file]))[0].partition
    assert infinite == math.inf
    assert math.isnan(nan)


@pytest.mark.parametrize("text", ["", "{}x", "[{}]", '[{"content":9}]', "[1]", "null"])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(CorruptDataError, match="task's answer"):
        decode_data_files(text)
