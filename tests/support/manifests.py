"""Data files, entries and manifests with sensible defaults, and an object store that is a dict."""

from __future__ import annotations

from typing import Any

from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import LongType, NestedField, StringType

from tableformat.codec.avro.manifest import describe_manifest, encode_manifest
from tableformat.codec.avro.manifest_list import encode_manifest_list
from tableformat.spec.data_file import DataFile, EntryStatus, FileContent, ManifestEntry
from tableformat.spec.manifest_file import ManifestContent, ManifestFile

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "name", StringType()),
    schema_id=4,
)
SPEC = PartitionSpec(PartitionField(1, 1000, BucketTransform(16), "id_bucket"), spec_id=3)
SNAPSHOT_ID = 7001
LOCATION = "memory://warehouse/t/metadata/m0.avro"


def data_file(name: str = "a", **changes: Any) -> DataFile:
    """A data file of `SPEC`."""
    values: dict[str, Any] = {
        "content": FileContent.DATA,
        "file_path": f"memory://warehouse/t/data/{name}.parquet",
        "file_format": "PARQUET",
        "spec_id": SPEC.spec_id,
        "partition": (5,),
        "record_count": 100,
        "file_size_in_bytes": 4096,
    }
    return DataFile(**(values | changes))


def full_data_file(**changes: Any) -> DataFile:
    """A data file with every field that a data file can have."""
    values: dict[str, Any] = {
        "column_sizes": {1: 800, 2: 70_000},
        "value_counts": {1: 100, 2: 100},
        "null_value_counts": {1: 0, 2: 3},
        "nan_value_counts": {5: 1},
        "lower_bounds": {1: b"\x01" * 8, 2: b""},
        "upper_bounds": {1: b"\xff" * 8, 2: b"zz"},
        "key_metadata": b"\x00key",
        "split_offsets": (4, 70_000),
        "sort_order_id": 1,
    }
    return data_file(**(values | changes))


def deletion_vector(name: str = "a", **changes: Any) -> DataFile:
    """The entry of a deletion vector for `data_file(name)`."""
    values: dict[str, Any] = {
        "content": FileContent.POSITION_DELETES,
        "file_path": "memory://warehouse/t/data/dvs.puffin",
        "file_format": "PUFFIN",
        "record_count": 3,
        "file_size_in_bytes": 400,
        "lower_bounds": {2147483546: f"memory://warehouse/t/data/{name}.parquet".encode()},
        "upper_bounds": {2147483546: f"memory://warehouse/t/data/{name}.parquet".encode()},
        "referenced_data_file": f"memory://warehouse/t/data/{name}.parquet",
        "content_offset": 4,
        "content_size_in_bytes": 44,
    }
    return data_file(**(values | changes))


def equality_delete(name: str = "eq", **changes: Any) -> DataFile:
    """An equality delete file on column 1."""
    return data_file(
        name, **({"content": FileContent.EQUALITY_DELETES, "equality_ids": (1,)} | changes)
    )


def added(file: DataFile, **changes: Any) -> ManifestEntry:
    """An ADDED entry that inherits everything."""
    values: dict[str, Any] = {
        "status": EntryStatus.ADDED,
        "snapshot_id": None,
        "sequence_number": None,
        "file_sequence_number": None,
        "data_file": file,
    }
    return ManifestEntry(**(values | changes))


def existing(file: DataFile, **changes: Any) -> ManifestEntry:
    """An EXISTING entry with explicit values."""
    values: dict[str, Any] = {
        "status": EntryStatus.EXISTING,
        "snapshot_id": 6001,
        "sequence_number": 2,
        "file_sequence_number": 2,
        "data_file": file,
    }
    return ManifestEntry(**(values | changes))


def deleted(file: DataFile, **changes: Any) -> ManifestEntry:
    """A DELETED entry with explicit values."""
    return existing(file, **({"status": EntryStatus.DELETED, "snapshot_id": SNAPSHOT_ID} | changes))


def written_manifest(
    entries: list[ManifestEntry],
    *,
    content: ManifestContent = ManifestContent.DATA,
    schema: Schema = SCHEMA,
    spec: PartitionSpec = SPEC,
    location: str = LOCATION,
    codec: str = "gzip",
    sequence_number: int = 9,
    first_row_id: int = 1000,
) -> tuple[bytes, ManifestFile]:
    """A manifest's bytes, and its record as the manifest list of its commit has it."""
    data = encode_manifest(entries, schema=schema, spec=spec, content=content, codec=codec)
    manifest = describe_manifest(
        entries,
        location=location,
        length=len(data),
        schema=schema,
        spec=spec,
        content=content,
        snapshot_id=SNAPSHOT_ID,
    )
    encoded = encode_manifest_list(
        [manifest],
        snapshot_id=SNAPSHOT_ID,
        parent_snapshot_id=None,
        sequence_number=sequence_number,
        first_row_id=first_row_id,
    )
    return data, encoded.manifests[0]
