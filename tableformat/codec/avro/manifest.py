"""Encoding of v2 and v3 manifests (spec: Manifests): PyIceberg's Avro writers, entries in blocks.

Decoding is in `manifest_entries`.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from typing import Any

from pyiceberg.avro.encoder import BinaryEncoder
from pyiceberg.avro.resolver import construct_writer
from pyiceberg.avro.writer import Writer
from pyiceberg.manifest import DATA_FILE_TYPE, manifest_entry_schema_with_data_file
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.types import IntegerType, ListType, NestedField, StructType

from tableformat.codec.avro.container import encode_container
from tableformat.codec.avro.manifest_entries import data_file_problem, entry_counts
from tableformat.codec.avro.partition_values import (
    partition_normalizer,
    partition_type,
    summarize_partitions,
)
from tableformat.codec.avro.schema import avro_schema_json
from tableformat.codec.avro.values import write_long
from tableformat.errors import InternalError
from tableformat.object_memory import ObjectMemory
from tableformat.spec.data_file import DataFile, EntryStatus, FileContent, ManifestEntry
from tableformat.spec.json_texts import text_of
from tableformat.spec.manifest_file import MANIFEST_CONTENT_NAMES, ManifestContent, ManifestFile

# What v2 does not know: row lineage, and where in a file a deletion vector is. The data file that a
# position delete file is for came to v2 later, as an optional field (spec: Manifests).
_SINCE_V3 = (142, 144, 145)
_PARTITION_ID = 102
_EQUALITY_IDS_ID = 135
_PARTITION_SLOT, _ROW_ID_SLOT = 3, 16  # among the fields of `data_file`; v2 has no row id


def encode_manifest(
    entries: Sequence[ManifestEntry],
    *,
    schema: Schema,
    spec: PartitionSpec,
    content: ManifestContent,
    format_version: int = 3,
    codec: str = "gzip",
) -> bytes:
    """Encode one manifest of v2 or v3.

    `first_row_id` is written for EXISTING and DELETED data files only: an ADDED file gets its ids
    from the manifest list, also when it carries old ones (spec: First Row ID Assignment).

    Args:
        entries: All of `spec` and of `content`; EXISTING and DELETED ones with explicit sequence
            numbers, ADDED ones with none (or an explicit data sequence number in a rewrite).
        schema: Goes into the header and types the partition values. It must have the source
            columns of `spec` unless their values are null (`schema_for_spec` picks it).
        spec: The entries' partition spec.
        content: Data or deletes.
        format_version: The table's.
        codec: `gzip`, `zstd` or `uncompressed`.

    Raises:
        InvalidInputError: A partition value does not fit its type.
        InternalError: Entries that do not belong together, or without what they must carry.
    """
    layout = _layout(partition_type(spec, schema), format_version)
    records = []
    for entry in entries:
        _check_writable(entry, spec.spec_id, content)
        records.append(_record(entry, layout))
    return encode_container(
        records,
        schema=layout.avro_schema,
        metadata={
            "schema": text_of(schema).decode(),
            "schema-id": str(schema.schema_id),
            "partition-spec": json.dumps([each.model_dump() for each in spec.fields]),
            "partition-spec-id": str(spec.spec_id),
            "format-version": str(format_version),
            "content": MANIFEST_CONTENT_NAMES[content],
        },
        codec=codec,
    )


def describe_manifest(
    entries: Sequence[ManifestEntry],
    *,
    location: str,
    length: int,
    schema: Schema,
    spec: PartitionSpec,
    content: ManifestContent,
    snapshot_id: int,
) -> ManifestFile:
    """The manifest list's record of a manifest that was just encoded.

    `sequence_number` and `first_row_id` are None: `encode_manifest_list` assigns them, and
    `min_sequence_number` too when every live entry inherits its own.
    """
    partition = partition_type(spec, schema)
    normalize = partition_normalizer(partition)
    explicit = [
        entry.sequence_number
        for entry in entries
        if entry.is_live and entry.sequence_number is not None
    ]
    return ManifestFile(
        manifest_path=location,
        manifest_length=length,
        partition_spec_id=spec.spec_id,
        content=content,
        sequence_number=None,
        min_sequence_number=min(explicit, default=None),
        added_snapshot_id=snapshot_id,
        partitions=summarize_partitions(
            partition, [normalize(entry.data_file.partition) for entry in entries]
        ),
        **entry_counts(entries),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Layout:
    """What is the same for all manifests with one partition type."""

    data_file_writer: Writer
    avro_schema: Any
    values_of: Callable[[DataFile], tuple[Any, ...]]  # in the record's order
    has_row_ids: bool
    normalize: Callable[[tuple[Any, ...]], tuple[Any, ...]]


@lru_cache(maxsize=64)
def _layout(partition: StructType, format_version: int) -> _Layout:
    entry_schema = _entry_schema(partition, format_version)
    data_file_type = entry_schema.find_type("data_file")
    assert isinstance(data_file_type, StructType)
    return _Layout(
        data_file_writer=construct_writer(data_file_type),
        avro_schema=avro_schema_json(entry_schema, "manifest_entry"),
        values_of=attrgetter(*(each.name for each in data_file_type.fields)),
        has_row_ids=format_version > 2,
        normalize=partition_normalizer(partition),
    )


# EXISTING entries are what is written over and over: by every rewrite of their manifest. A file
# itself is the same in an ADDED, an EXISTING and a DELETED entry, but for a data file's row id.
_existing_records: ObjectMemory[ManifestEntry, bytes] = ObjectMemory()
_file_records: ObjectMemory[DataFile, bytes] = ObjectMemory()


def _record(entry: ManifestEntry, layout: _Layout) -> bytes:
    """The Avro record of an entry."""
    if entry.status != EntryStatus.EXISTING:
        return _encode_record(entry, layout)
    record = _existing_records.get(entry, layout)
    if record is None:
        record = _encode_record(entry, layout)
        _existing_records.put(entry, record, layout)
        _file_records.forget(entry.data_file)  # they are in the entry's, which serves from now on
    return record


def _encode_record(entry: ManifestEntry, layout: _Layout) -> bytes:
    record = bytearray()
    write_long(record, int(entry.status))
    for value in (entry.snapshot_id, entry.sequence_number, entry.file_sequence_number):
        write_long(record, 0 if value is None else 1)  # the branch of ["null", "long"]
        if value is not None:
            write_long(record, value)
    return bytes(record) + _file_record(entry, layout)


def _file_record(entry: ManifestEntry, layout: _Layout) -> bytes:
    file = entry.data_file
    changes = file.content == FileContent.DATA and file.first_row_id is not None
    record = None if changes else _file_records.get(file, layout)
    if record is None:
        problem = data_file_problem(file)
        if problem is not None:
            raise _unwritable(problem, file)
        buffer = io.BytesIO()
        layout.data_file_writer.write(BinaryEncoder(buffer), _data_file_row(entry, layout))
        record = buffer.getvalue()
        if not changes:
            _file_records.put(file, record, layout)
    return record


def _entry_schema(partition: StructType, format_version: int) -> Schema:
    """PyIceberg's schema with our partition type, and `equality_ids` as the spec has it.

    Differs from PyIceberg: list<int>, not list<long>.
    """
    replaced = {
        _PARTITION_ID: partition,
        _EQUALITY_IDS_ID: ListType(136, IntegerType(), element_required=True),
    }
    fields = [
        NestedField(
            each.field_id,
            each.name,
            replaced.get(each.field_id, each.field_type),
            required=each.required,
            doc=None if each.name == "content" else each.doc,
        )
        for each in DATA_FILE_TYPE[3].fields
        if format_version > 2 or each.field_id not in _SINCE_V3
    ]
    return manifest_entry_schema_with_data_file(
        2 if format_version == 2 else 3, StructType(*fields)
    )


def _check_writable(entry: ManifestEntry, spec_id: int, content: ManifestContent) -> None:
    file = entry.data_file
    problem = None
    if file.spec_id != spec_id:
        problem = f"a file of spec {file.spec_id} in a manifest of spec {spec_id}"
    elif (file.content == FileContent.DATA) != (content == ManifestContent.DATA):
        problem = f"{file.content.name} in a manifest of {MANIFEST_CONTENT_NAMES[content]}"
    elif entry.status != EntryStatus.ADDED and entry.sequence_number is None:
        problem = f"{entry.status.name} entry without a sequence number"
    elif entry.status != EntryStatus.ADDED and entry.snapshot_id is None:
        problem = f"{entry.status.name} entry without a snapshot id"
    elif entry.status == EntryStatus.ADDED and entry.file_sequence_number is not None:
        problem = "ADDED entry with a file sequence number"
    if problem is not None:
        raise _unwritable(problem, file)


def _unwritable(problem: str, file: DataFile) -> InternalError:
    return InternalError(f"cannot write a manifest: {problem}", file_path=file.file_path)


def _data_file_row(entry: ManifestEntry, layout: _Layout) -> list[Any]:
    file = entry.data_file
    row = list(layout.values_of(file))
    row[_PARTITION_SLOT] = layout.normalize(file.partition)
    keeps_row_id = file.content == FileContent.DATA and entry.status != EntryStatus.ADDED
    if layout.has_row_ids and not keeps_row_id:
        row[_ROW_ID_SLOT] = None
    return row
