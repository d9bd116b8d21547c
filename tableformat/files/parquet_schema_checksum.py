"""A checksum of a Parquet file's schema, kept beside it in the footer.

Parquet protects pages and not the footer: a flipped bit can make a `double` a `float`, microseconds
milliseconds, a required field optional, or a field id another one, and the same bytes read as other
rows without an error. Arrow even aborts the process when the levels of a changed schema contradict
a column's histograms. So our files carry a CRC-32 of what the schema means, which other readers
ignore.

What is summed, as JSON: per field its id, name, nullability, type (Iceberg's name for it) and
children; per stored column its path, levels, physical type and width. On disk: never change.
"""

from __future__ import annotations

import json
import zlib
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tableformat.errors import CorruptDataError, UnsupportedError
from tableformat.spec.types import field_id_of, is_list, primitive_of_arrow

CHECKSUM_KEY = "icefold.schema-crc32"


def expected_checksum(stored: pa.Schema) -> str:
    """The checksum of files that are written with an Arrow schema.

    Arrow decides how a schema becomes a Parquet one, so an empty file in memory is asked.
    """
    return _checksum_of_empty_file(stored.serialize().to_pybytes())


def check_schema(reader: pq.ParquetFile) -> None:
    """Hold a file's schema against the checksum in its footer, if there is one.

    Raises:
        CorruptDataError: They differ.
    """
    stored = (reader.metadata.metadata or {}).get(CHECKSUM_KEY.encode())
    if stored is None:
        return
    found = schema_checksum(reader)
    if stored != found.encode():
        raise CorruptDataError(
            "the schema in the footer does not match its checksum",
            expected=stored.decode("ascii", "replace"),
            found=found,
        )


def schema_checksum(reader: pq.ParquetFile) -> str:
    """Eight hexadecimal digits: the CRC-32 of what a file's schema means."""
    columns = [reader.schema.column(index) for index in range(len(reader.schema))]
    meaning = [
        [_node(field) for field in reader.schema_arrow],
        [
            [
                column.path,
                column.max_definition_level,
                column.max_repetition_level,
                column.physical_type,
                column.length,
            ]
            for column in columns
        ],
    ]
    return f"{zlib.crc32(json.dumps(meaning).encode()):08x}"


@lru_cache(maxsize=64)
def _checksum_of_empty_file(serialized: bytes) -> str:
    schema = pa.ipc.read_schema(pa.py_buffer(serialized))
    sink = pa.BufferOutputStream()
    pq.ParquetWriter(sink, schema, store_schema=False, store_decimal_as_integer=True).close()
    return schema_checksum(pq.ParquetFile(pa.BufferReader(sink.getvalue())))


def _node(field: pa.Field) -> list[Any]:
    kind = field.type
    name, children = "", []
    if pa.types.is_struct(kind):
        name, children = "struct", list(kind)
    elif is_list(kind):
        name, children = "list", [kind.value_field]
    elif pa.types.is_map(kind):
        name, children = "map", [kind.key_field, kind.item_field]
    else:
        try:
            name = str(primitive_of_arrow(kind))
        except UnsupportedError:
            name = str(kind)
    below = [_node(child) for child in children]
    return [field_id_of(field), field.name, field.nullable, name, below]
