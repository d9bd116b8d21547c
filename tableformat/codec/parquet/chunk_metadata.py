"""Whether Arrow can be asked for what a Parquet footer says of its column chunks.

Arrow reports chunk metadata that contradicts the schema when it reads the chunk, and aborts the
process when it is only asked for it, as for statistics. So footers without a checksum are decoded
here first, and held against the rules that Arrow has.

Source: parquet.thrift, `ColumnMetaData` and `SizeStatistics`.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq

from tableformat.codec.parquet.chunk_checksums import has_chunk_checksums
from tableformat.codec.parquet.pages import broken_structs, read_footer
from tableformat.codec.parquet.thrift_compact import LIST, Struct
from tableformat.errors import CorruptDataError

_PHYSICAL_TYPES = (
    "BOOLEAN", "INT32", "INT64", "INT96", "FLOAT", "DOUBLE", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY",
)  # fmt: skip
_FILE_GROUPS, _GROUP_COLUMNS, _CHUNK_METADATA = 4, 1, 3
_COLUMN_TYPE, _COLUMN_SIZES = 1, 16
_SIZES_UNENCODED, _SIZES_REPETITION, _SIZES_DEFINITION = 1, 2, 3


def statistics_can_be_read(source: pa.NativeFile, footer: pq.FileMetaData) -> bool:
    """Whether the statistics of row groups may be looked at; False for a very long footer.

    Raises:
        CorruptDataError: A chunk's metadata contradicts the schema.
    """
    if has_chunk_checksums(footer):
        return True  # then the footer has one, too, and it was right
    decoded = read_footer(source, source.size())
    if decoded is None:
        return False
    with broken_structs("the footer of the file is broken"):
        for group in decoded[_FILE_GROUPS][1][1]:
            for leaf, chunk in enumerate(group[_GROUP_COLUMNS][1][1]):
                if _CHUNK_METADATA in chunk:
                    _check(chunk[_CHUNK_METADATA][1], footer.schema.column(leaf))
    return True


def _check(chunk: Struct, column: pq.ColumnSchema) -> None:
    if _PHYSICAL_TYPES[chunk[_COLUMN_TYPE][1]] != column.physical_type:
        raise _contradiction(column)
    sizes: Struct = chunk[_COLUMN_SIZES][1] if _COLUMN_SIZES in chunk else {}
    if _SIZES_UNENCODED in sizes and column.physical_type != "BYTE_ARRAY":
        raise _contradiction(column)
    for field, level in (
        (_SIZES_REPETITION, column.max_repetition_level),
        (_SIZES_DEFINITION, column.max_definition_level),
    ):
        kind, histogram = sizes.get(field, (LIST, (0, [])))
        if kind != LIST or len(histogram[1]) not in (0, level + 1):
            raise _contradiction(column)


def _contradiction(column: pq.ColumnSchema) -> CorruptDataError:
    return CorruptDataError(
        "what the footer says of a column chunk contradicts its schema", column=column.path
    )
