"""Columns that every table has without storing them (spec: Reserved Field IDs; Row Lineage).

| column                          | value                                                       |
|---------------------------------|-------------------------------------------------------------|
| `_file`                         | location of the data file                                   |
| `_pos`                          | the row's ordinal in the file, from 0                       |
| `_spec_id`                      | the partition spec the file was written under               |
| `_partition`                    | partition values, a struct over the fields of all specs     |
| `_row_id`                       | stored, else `first_row_id + _pos`; null without lineage     |
| `_last_updated_sequence_number` | stored, else the file's sequence number; null likewise      |
| `_deleted`                      | whether a delete killed it; asking for it brings such rows  |

A table column of the same name hides the metadata column.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BooleanType,
    IntegerType,
    NestedField,
    StringType,
    StructType,
    UnknownType,
)

from tableformat.scan.file_source import POSITIONS
from tableformat.scan.key_fields import merged_fields
from tableformat.spec.data_file import ManifestEntry
from tableformat.spec.names import (
    FILE_PATH_FIELD_ID,
    IS_DELETED_FIELD_ID,
    PARTITION_FIELD_ID,
    SPEC_ID_FIELD_ID,
)
from tableformat.spec.types import (
    LAST_UPDATED_FIELD,
    POS_FIELD,
    ROW_ID_FIELD,
    arrow_type,
)

FILE_FIELD = NestedField(FILE_PATH_FIELD_ID, "_file", StringType(), required=True)
SPEC_ID_FIELD = NestedField(SPEC_ID_FIELD_ID, "_spec_id", IntegerType(), required=True)
DELETED_FIELD = NestedField(IS_DELETED_FIELD_ID, "_deleted", BooleanType(), required=True)
PARTITION_NAME = "_partition"
# Which rows of a batch are deleted, while it is worked on; a name no table column can have.
DELETED = "\0deleted"

# Stored in the file when a writer kept them, and read like any column.
STORED_FIELDS = {field.name: field for field in (ROW_ID_FIELD, LAST_UPDATED_FIELD)}
METADATA_COLUMNS = frozenset(
    {
        FILE_FIELD.name,
        POS_FIELD.name,
        SPEC_ID_FIELD.name,
        DELETED_FIELD.name,
        PARTITION_NAME,
        *STORED_FIELDS,
    }
)


def partition_struct(specs: Mapping[int, PartitionSpec], schemas: Iterable[Schema]) -> StructType:
    """The type of `_partition`: the fields of every spec, each id once, all optional."""
    sources = merged_fields(schemas)
    fields: dict[int, NestedField] = {}
    for spec_id in sorted(specs, reverse=True):
        for part in specs[spec_id].fields:
            source = sources.get(part.source_id)
            kind = part.transform.result_type(source.field_type) if source else UnknownType()
            fields.setdefault(
                part.field_id, NestedField(part.field_id, part.name, kind, required=False)
            )
    return StructType(*(fields[field_id] for field_id in sorted(fields)))


def metadata_field(
    name: str, specs: Mapping[int, PartitionSpec], schemas: Iterable[Schema]
) -> NestedField:
    """The Iceberg field of a metadata column."""
    if name == PARTITION_NAME:
        struct = partition_struct(specs, schemas)
        return NestedField(PARTITION_FIELD_ID, name, struct, required=False)
    fixed = {field.name: field for field in (FILE_FIELD, POS_FIELD, SPEC_ID_FIELD, DELETED_FIELD)}
    return {**fixed, **STORED_FIELDS}[name]


def partition_values(entry: ManifestEntry, specs: Mapping[int, PartitionSpec]) -> dict[int, Any]:
    """The file's partition values by partition field id."""
    parts = specs[entry.data_file.spec_id].fields
    return {
        part.field_id: value for part, value in zip(parts, entry.data_file.partition, strict=True)
    }


def metadata_column(
    field: NestedField,
    batch: pa.RecordBatch,
    entry: ManifestEntry,
    specs: Mapping[int, PartitionSpec],
) -> pa.Array:
    """The column for the rows of `batch`, which holds positions, lineage and flags if wanted."""
    data, rows = entry.data_file, batch.num_rows
    if field.name == POS_FIELD.name:
        return batch.column(POSITIONS)
    if field.name in STORED_FIELDS:
        return batch.column(field.name)
    if field.name == DELETED_FIELD.name:
        return batch.column(DELETED)
    if field.name == FILE_FIELD.name:
        return pa.repeat(pa.scalar(data.file_path, pa.string()), rows)
    if field.name == SPEC_ID_FIELD.name:
        return pa.repeat(pa.scalar(data.spec_id, pa.int32()), rows)
    return _partition_column(field, entry, specs, rows)


def _partition_column(
    field: NestedField, entry: ManifestEntry, specs: Mapping[int, PartitionSpec], rows: int
) -> pa.Array:
    struct = field.field_type
    assert isinstance(struct, StructType)
    values = partition_values(entry, specs)
    first = pa.repeat(pa.scalar(0, pa.int64()), rows)
    return partition_array([values], struct).take(first)


def partition_array(rows: Sequence[Mapping[int, Any]], struct: StructType) -> pa.Array:
    """Partition values by field id as an Arrow array of type `struct`."""
    kind = arrow_type(struct)
    if not struct.fields:
        return pa.array([{}] * len(rows), kind)
    children = [
        pa.array([row.get(part.field_id) for row in rows], child.type)
        for part, child in zip(struct.fields, kind, strict=True)
    ]
    return pa.StructArray.from_arrays(children, fields=list(kind))
