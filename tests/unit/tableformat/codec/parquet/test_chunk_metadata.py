"""Footers of other writers that contradict themselves: an error, where Arrow aborts the process.

A failure here takes the whole test process with it.
"""

from typing import Any

import pyarrow as pa
import pytest

from tableformat.codec.parquet.thrift_compact import (
    BINARY,
    I32,
    I64,
    LIST,
    decode_struct,
    encode_struct,
)
from tableformat.errors import CorruptDataError, TableError
from tableformat.spec.data_file import DataFile
from tableformat.spec.types import iceberg_schema
from tests.support.data_files import DataFiles

TABLE = pa.table(
    {
        "id": pa.array(range(40), pa.int64()),
        "name": [f"n{i % 7}" for i in range(40)],
        "tags": [["a"] * (i % 3) for i in range(40)],
    }
)
OPTIONS = {"write_page_index": True, "store_schema": False, "row_group_size": 20}
_GROUPS, _COLUMNS, _METADATA, _TYPE, _SIZES = 4, 1, 3, 1, 16


def foreign() -> tuple[DataFiles, DataFile, bytes]:
    files = DataFiles(iceberg_schema(TABLE.schema))
    with_ids = files.read(files.write_one(TABLE))
    file = files.foreign(with_ids, options=OPTIONS)
    return files, file, files.store.get(file.file_path)


def read(files: DataFiles, file: DataFile) -> pa.Table:
    return files.read(file, row_group_filter=lambda _: True)


def change(chunk: dict[int, Any], kind: str) -> None:
    """Contradict the schema in a way that Arrow checks when it is asked for a chunk."""
    sizes = chunk[_SIZES][1]
    match kind:
        case "type":
            chunk[_TYPE] = (I32, 3)  # INT96
        case "unknown type":
            chunk[_TYPE] = (I32, 77)
        case "type that is none":
            chunk[_TYPE] = (BINARY, b"INT64")
        case "definition levels":
            sizes[3] = (LIST, (I64, [1, 2, 3, 4, 5, 6, 7]))
        case "repetition levels":
            sizes[2] = (LIST, (I64, [1, 2, 3, 4, 5, 6, 7]))
        case "bytes of texts":
            sizes[1] = (I64, 100)


KINDS = [
    "type",
    "unknown type",
    "type that is none",
    "definition levels",
    "repetition levels",
    "bytes of texts",
]


@pytest.mark.parametrize("row_group", [0, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_contradiction_of_the_schema_is_an_error(kind: str, row_group: int) -> None:
    files, file, data = foreign()
    assert read(files, file).to_pylist() == TABLE.to_pylist()
    size = int.from_bytes(data[-8:-4], "little")
    footer, _ = decode_struct(data[-8 - size : -8])
    change(footer[_GROUPS][1][1][row_group][_COLUMNS][1][1][0][_METADATA][1], kind)
    text = encode_struct(footer)
    broken = data[: -8 - size] + text + len(text).to_bytes(4, "little") + data[-4:]
    with pytest.raises(CorruptDataError):
        read(files, files.replace(file, broken))


@pytest.mark.slow
def test_no_flipped_bit_of_a_footer_aborts_the_process() -> None:
    files, file, data = foreign()
    size = int.from_bytes(data[-8:-4], "little")
    refused = 0
    for place in range(len(data) - 8 - size, len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[place] ^= 1 << bit
            try:
                read(files, files.replace(file, bytes(flipped)))
            except TableError:
                refused += 1
    assert refused > 4 * size
