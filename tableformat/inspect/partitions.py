"""The `partitions` view: what each partition holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyiceberg.table.metadata import TableMetadata

from tableformat.inspect.files import table_partition_struct
from tableformat.scan.metadata_columns import partition_array, partition_values
from tableformat.spec.data_file import FileContent, ManifestEntry, PartitionKey
from tableformat.spec.types import arrow_type

# Behind `partition`, whose type is the table's. A deletion vector counts as a position delete file.
PARTITION_FIELDS: tuple[tuple[str, pa.DataType], ...] = (
    ("spec_id", pa.int32()),
    ("record_count", pa.int64()),
    ("file_count", pa.int32()),
    ("total_data_file_size_in_bytes", pa.int64()),
    ("position_delete_record_count", pa.int64()),
    ("position_delete_file_count", pa.int32()),
    ("equality_delete_record_count", pa.int64()),
    ("equality_delete_file_count", pa.int32()),
    ("last_updated_at", pa.timestamp("ms", tz="UTC")),
    ("last_updated_snapshot_id", pa.int64()),
)
_COUNTS = {
    FileContent.DATA: ("record_count", "file_count"),
    FileContent.POSITION_DELETES: ("position_delete_record_count", "position_delete_file_count"),
    FileContent.EQUALITY_DELETES: ("equality_delete_record_count", "equality_delete_file_count"),
}


def partitions_table(entries: Sequence[ManifestEntry], metadata: TableMetadata) -> pa.Table:
    """One row per partition with live files; the partition of an unpartitioned table is empty."""
    rows: dict[PartitionKey, dict[str, Any]] = {}
    values: dict[PartitionKey, dict[int, Any]] = {}
    specs = metadata.specs()
    for entry in entries:
        file = entry.data_file
        key = file.partition_key
        if key not in rows:
            numbers = [name for name, kind in PARTITION_FIELDS if pa.types.is_integer(kind)]
            rows[key] = dict.fromkeys(numbers, 0) | {
                "spec_id": file.spec_id,
                "last_updated_at": None,
                "last_updated_snapshot_id": None,
            }
            values[key] = partition_values(entry, specs)
        _add(rows[key], entry, metadata)
    struct = table_partition_struct(metadata)
    listed = list(rows.values())
    partition = (
        partition_array(list(values.values()), struct) if rows else pa.array([], arrow_type(struct))
    )
    columns = [pa.array([row[name] for row in listed], kind) for name, kind in PARTITION_FIELDS]
    fields = [pa.field("partition", partition.type)]
    fields += [pa.field(name, kind) for name, kind in PARTITION_FIELDS]
    return pa.Table.from_arrays([partition, *columns], schema=pa.schema(fields))


def _add(row: dict[str, Any], entry: ManifestEntry, metadata: TableMetadata) -> None:
    file = entry.data_file
    records, files = _COUNTS[file.content]
    row[records] += file.record_count
    row[files] += 1
    if file.content == FileContent.DATA:
        row["total_data_file_size_in_bytes"] += file.file_size_in_bytes
    if entry.snapshot_id is None:
        return
    snapshot = metadata.snapshot_by_id(entry.snapshot_id)
    if snapshot is None:  # expired; the file lives on
        return
    if row["last_updated_at"] is None or snapshot.timestamp_ms > row["last_updated_at"]:
        row["last_updated_at"] = snapshot.timestamp_ms
        row["last_updated_snapshot_id"] = snapshot.snapshot_id
