"""Table metadata and commits for the tests of catalogs: small, as JSON and as models."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import AddSnapshotUpdate, SetSnapshotRefUpdate, TableUpdate
from pyiceberg.types import LongType, NestedField, StringType

from tableformat.catalog.base import Catalog, Identifier, TableState
from tableformat.spec.metadata_checksum import CHECKSUM_KEY
from tableformat.spec.metadata_json import decode_metadata

TABLE_UUID = "6d2b6a5e-0c4f-4e3c-9a52-5f2f1d6c9a11"
SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "name", StringType(), required=False),
    identifier_field_ids=[1],
)
_ids = itertools.count(1001)


def raw_snapshot(snapshot_id: int, **fields: Any) -> dict[str, Any]:
    """One snapshot as JSON; its sequence number is its id, its 10 rows start at 10 * (id - 1)."""
    parent = {"parent-snapshot-id": snapshot_id - 1} if snapshot_id > 1 else {}
    return {
        "snapshot-id": snapshot_id,
        **parent,
        "sequence-number": snapshot_id,
        "timestamp-ms": 1_700_000_000_000 + snapshot_id,
        "manifest-list": f"memory://warehouse/t/metadata/snap-{snapshot_id}.avro",
        "summary": {"operation": "append", "added-records": "10"},
        "schema-id": 0,
        "first-row-id": 10 * (snapshot_id - 1),
        "added-rows": 10,
        **fields,
    }


def raw_metadata(count: int = 2, /, **fields: Any) -> dict[str, Any]:
    """v3 metadata as JSON with `count` snapshots on main. A field given as None is left out."""
    column = {"id": 1, "name": "id", "type": "long", "required": True}
    raw: dict[str, Any] = {
        "format-version": 3,
        "table-uuid": TABLE_UUID,
        "location": "memory://warehouse/t",
        "last-sequence-number": count,
        "last-updated-ms": 1_700_000_000_000 + count,
        "last-column-id": 1,
        "current-schema-id": 0,
        "schemas": [{"type": "struct", "schema-id": 0, "fields": [column]}],
        "default-spec-id": 0,
        "partition-specs": [{"spec-id": 0, "fields": []}],
        "last-partition-id": 999,
        "default-sort-order-id": 0,
        "sort-orders": [{"order-id": 0, "fields": []}],
        "properties": {},
        "current-snapshot-id": count or None,
        "next-row-id": 10 * count,
        "refs": {"main": {"snapshot-id": count, "type": "branch"}} if count else {},
        "snapshots": [raw_snapshot(number) for number in range(1, count + 1)],
        "snapshot-log": [
            {"snapshot-id": number, "timestamp-ms": 1_700_000_000_000 + number}
            for number in range(1, count + 1)
        ],
        "metadata-log": [],
        "statistics": [],
        "partition-statistics": [],
    }
    return {key: value for key, value in (raw | fields).items() if value is not None}


def metadata_of(count: int = 2, /, **fields: Any) -> TableMetadata:
    """`raw_metadata`, decoded."""
    data = json.dumps(raw_metadata(count, **fields)).encode()
    return decode_metadata(data, location="memory://warehouse/t/metadata/v.metadata.json")


def edit_metadata(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a metadata file by hand, as somebody who knows of its checksum would."""
    metadata = json.loads(path.read_bytes())
    metadata.pop(CHECKSUM_KEY, None)
    change(metadata)
    path.write_text(json.dumps(metadata))


def next_snapshot(metadata: TableMetadata, branch: str = "main", **fields: Any) -> Snapshot:
    """A snapshot that continues `branch`, with a fresh id and 10 rows."""
    ref = metadata.refs.get(branch) or metadata.refs.get("main")
    snapshot_id = next(_ids)
    values: dict[str, Any] = {
        "snapshot_id": snapshot_id,
        "parent_snapshot_id": None if ref is None else ref.snapshot_id,
        "sequence_number": metadata.last_sequence_number + 1,
        "timestamp_ms": metadata.last_updated_ms + 1,
        "manifest_list": f"{metadata.location}/metadata/snap-{snapshot_id}.avro",
        "summary": Summary(Operation.APPEND, **{"added-records": "10"}),
        "schema_id": 0,
        "first_row_id": metadata.next_row_id,
        "added_rows": 10,
    }
    return Snapshot(**(values | fields))


def set_ref(snapshot_id: int, name: str = "main", kind: str = "branch") -> SetSnapshotRefUpdate:
    """Point a ref at a snapshot."""
    return SetSnapshotRefUpdate(
        ref_name=name,
        type=SnapshotRefType(kind),
        snapshot_id=snapshot_id,
        max_ref_age_ms=None,
        max_snapshot_age_ms=None,
        min_snapshots_to_keep=None,
    )


def append_updates(
    metadata: TableMetadata, branch: str = "main", **fields: Any
) -> list[TableUpdate]:
    """The updates of one append."""
    snapshot = next_snapshot(metadata, branch, **fields)
    return [AddSnapshotUpdate(snapshot=snapshot), set_ref(snapshot.snapshot_id, branch)]


def create(catalog: Catalog, identifier: Identifier, **properties: str) -> TableState:
    """A new table of `SCHEMA`, namespace included."""
    catalog.create_namespace(identifier[:-1])
    return catalog.create_table(
        identifier,
        schema=SCHEMA,
        partition_spec=UNPARTITIONED_PARTITION_SPEC,
        sort_order=UNSORTED_SORT_ORDER,
        location=None,
        properties=properties,
    )
