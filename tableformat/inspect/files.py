"""Views of what a snapshot's manifests list: `files`, `entries`, `vectors`, `manifests`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import StructType

from tableformat.codec.avro.manifest_store import each_manifest, load_manifest, load_manifest_list
from tableformat.scan.metadata_columns import partition_array, partition_struct, partition_values
from tableformat.spec.data_file import ManifestEntry
from tableformat.spec.manifest_file import UNKNOWN_COUNT, ManifestContent, ManifestFile
from tableformat.spec.types import arrow_type
from tableformat.store.base import ObjectStore

_COUNTS = pa.map_(pa.int32(), pa.int64())
_BOUNDS = pa.map_(pa.int32(), pa.binary())

# `partition` is put behind `spec_id`: its type is the table's.
FILE_FIELDS: tuple[tuple[str, pa.DataType], ...] = (
    ("content", pa.int8()),  # 0 data, 1 position deletes and deletion vectors, 2 equality deletes
    ("file_path", pa.string()),
    ("file_format", pa.string()),
    ("spec_id", pa.int32()),
    ("record_count", pa.int64()),
    ("file_size_in_bytes", pa.int64()),
    ("column_sizes", _COUNTS),
    ("value_counts", _COUNTS),
    ("null_value_counts", _COUNTS),
    ("nan_value_counts", _COUNTS),
    ("lower_bounds", _BOUNDS),
    ("upper_bounds", _BOUNDS),
    ("key_metadata", pa.binary()),
    ("split_offsets", pa.list_(pa.int64())),
    ("equality_ids", pa.list_(pa.int32())),
    ("sort_order_id", pa.int32()),
    ("first_row_id", pa.int64()),
    ("referenced_data_file", pa.string()),
    ("content_offset", pa.int64()),
    ("content_size_in_bytes", pa.int64()),
)
_MAPS = frozenset(name for name, kind in FILE_FIELDS if pa.types.is_map(kind))

ENTRY_FIELDS: tuple[tuple[str, pa.DataType], ...] = (
    ("status", pa.int8()),  # 0 existing, 1 added, 2 deleted
    ("snapshot_id", pa.int64()),
    ("sequence_number", pa.int64()),
    ("file_sequence_number", pa.int64()),
)

VECTOR_SCHEMA = pa.schema(
    [
        ("referenced_data_file", pa.string()),
        ("record_count", pa.int64()),  # deleted rows
        ("file_path", pa.string()),  # the Puffin file
        ("content_offset", pa.int64()),
        ("content_size_in_bytes", pa.int64()),
        ("spec_id", pa.int32()),
        ("snapshot_id", pa.int64()),
        ("sequence_number", pa.int64()),
    ]
)

PARTITION_SUMMARY = pa.schema(
    [
        ("contains_null", pa.bool_()),
        ("contains_nan", pa.bool_()),
        ("lower_bound", pa.binary()),
        ("upper_bound", pa.binary()),
    ]
)
MANIFEST_SCHEMA = pa.schema(
    [
        ("content", pa.int8()),  # 0 data, 1 deletes
        ("path", pa.string()),
        ("length", pa.int64()),
        ("partition_spec_id", pa.int32()),
        ("added_snapshot_id", pa.int64()),
        ("added_data_files_count", pa.int32()),
        ("existing_data_files_count", pa.int32()),
        ("deleted_data_files_count", pa.int32()),
        ("added_delete_files_count", pa.int32()),
        ("existing_delete_files_count", pa.int32()),
        ("deleted_delete_files_count", pa.int32()),
        ("sequence_number", pa.int64()),
        ("min_sequence_number", pa.int64()),
        ("added_rows_count", pa.int64()),
        ("existing_rows_count", pa.int64()),
        ("deleted_rows_count", pa.int64()),
        ("first_row_id", pa.int64()),
        ("partition_summaries", pa.list_(pa.struct(PARTITION_SUMMARY))),
    ]
)
_OF_MANIFEST = (  # these are called so in a manifest list, too
    "partition_spec_id", "added_snapshot_id", "sequence_number", "min_sequence_number",
    "first_row_id",
)  # fmt: skip


def snapshot_manifests(store: ObjectStore, snapshot: Snapshot | None) -> Sequence[ManifestFile]:
    """The manifests of a snapshot."""
    return () if snapshot is None else load_manifest_list(store, snapshot)


def snapshot_entries(
    store: ObjectStore, snapshot: Snapshot | None, *, live_only: bool = True
) -> list[ManifestEntry]:
    """The entries of a snapshot's manifests, in their order."""
    return [
        entry
        for entries in each_manifest(
            partial(load_manifest, store), snapshot_manifests(store, snapshot)
        )
        for entry in entries
        if entry.is_live or not live_only
    ]


def table_partition_struct(metadata: TableMetadata) -> StructType:
    """The fields of all partition specs: the type of every `partition` column."""
    return partition_struct(metadata.specs(), [*metadata.schemas, metadata.schema()])


def files_table(entries: Sequence[ManifestEntry], metadata: TableMetadata) -> pa.Table:
    """The `files` view."""
    columns: list[pa.Array] = []
    fields: list[pa.Field] = []
    for name, kind in FILE_FIELDS:
        values = [_file_value(entry, name) for entry in entries]
        columns.append(pa.array(values, kind))
        fields.append(pa.field(name, kind))
        if name == "spec_id":
            partition = _partitions(entries, metadata)
            columns.append(partition)
            fields.append(pa.field("partition", partition.type))
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def entries_table(entries: Sequence[ManifestEntry], metadata: TableMetadata) -> pa.Table:
    """The `entries` view: deleted entries too, each with its file as a struct `data_file`."""
    columns = [
        pa.array([int(entry.status) for entry in entries], pa.int8()),
        *(
            pa.array([getattr(entry, name) for entry in entries], kind)
            for name, kind in ENTRY_FIELDS[1:]
        ),
    ]
    files = files_table(entries, metadata).combine_chunks()
    arrays = [column.combine_chunks() for column in files.columns]
    data_file = pa.StructArray.from_arrays(arrays, fields=list(files.schema))
    fields = [pa.field(name, kind) for name, kind in ENTRY_FIELDS]
    schema = pa.schema([*fields, pa.field("data_file", data_file.type)])
    return pa.Table.from_arrays([*columns, data_file], schema=schema)


def vectors_table(entries: Iterable[ManifestEntry]) -> pa.Table:
    """The `vectors` view: one row per live deletion vector."""
    of_entry = ("snapshot_id", "sequence_number")
    rows = [
        {
            name: getattr(e if name in of_entry else e.data_file, name)
            for name in VECTOR_SCHEMA.names
        }
        for e in entries
        if e.data_file.is_dv
    ]
    return pa.Table.from_pylist(rows, VECTOR_SCHEMA)


def manifests_table(manifests: Iterable[ManifestFile]) -> pa.Table:
    """The `manifests` view. Counts that an old manifest list leaves out are null."""
    return pa.Table.from_pylist([_manifest_row(each) for each in manifests], MANIFEST_SCHEMA)


def _manifest_row(manifest: ManifestFile) -> dict[str, Any]:
    is_data = manifest.content == ManifestContent.DATA
    row: dict[str, Any] = {
        "content": int(manifest.content),
        "path": manifest.manifest_path,
        "length": manifest.manifest_length,
        **{name: getattr(manifest, name) for name in _OF_MANIFEST},
        "partition_summaries": [
            {name: getattr(part, name) for name in PARTITION_SUMMARY.names}
            for part in manifest.partitions or ()
        ],
    }
    for what in ("added", "existing", "deleted"):
        count = _known(getattr(manifest, f"{what}_files_count"))
        row[f"{what}_data_files_count"] = count if is_data else 0
        row[f"{what}_delete_files_count"] = 0 if is_data else count
        row[f"{what}_rows_count"] = _known(getattr(manifest, f"{what}_rows_count"))
    return row


def _known(count: int) -> int | None:
    return None if count == UNKNOWN_COUNT else count


def _file_value(entry: ManifestEntry, name: str) -> Any:
    value = getattr(entry.data_file, name)
    if name == "content":
        return int(value)
    if name in _MAPS and isinstance(value, Mapping):
        return list(value.items())
    return list(value) if isinstance(value, tuple) else value


def _partitions(entries: Sequence[ManifestEntry], metadata: TableMetadata) -> pa.Array:
    struct = table_partition_struct(metadata)
    specs = metadata.specs()
    if not entries:
        return pa.array([], arrow_type(struct))
    return partition_array([partition_values(entry, specs) for entry in entries], struct)
