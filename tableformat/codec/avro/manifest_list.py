"""Manifest lists: bytes to manifest records and back (spec: Manifest Lists).

Written are v2 and v3 lists. Writing one is where a commit attempt assigns what could not be known
before: sequence numbers, and the row ids of data manifests (spec: First Row ID Assignment).
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from operator import attrgetter
from typing import Any

from pyiceberg.avro.encoder import BinaryEncoder
from pyiceberg.avro.resolver import construct_writer
from pyiceberg.avro.writer import Writer
from pyiceberg.manifest import MANIFEST_LIST_FILE_SCHEMAS

from tableformat.codec.avro.container import decode_container, encode_container
from tableformat.codec.avro.records import ROOT, Projection, WantedField, compile_record
from tableformat.codec.avro.schema import avro_schema_json
from tableformat.codec.avro.values import MalformedAvroError, describe_malformed
from tableformat.errors import CorruptDataError, InternalError, UnsupportedError
from tableformat.object_memory import ObjectMemory
from tableformat.spec.manifest_file import (
    UNKNOWN_COUNT,
    ManifestContent,
    ManifestFile,
    PartitionFieldSummary,
)

_SUMMARY_ID = 508
_INTEGRAL = ("int", "long")

# Field ids in the order of `ManifestFile`'s fields; v1 lists lack 517, 515, 516 and may have null
# counts.
_FIELDS: Projection = {
    500: WantedField("manifest_path", ("str",), required=True),
    501: WantedField("manifest_length", _INTEGRAL, required=True),
    502: WantedField("partition_spec_id", _INTEGRAL, required=True),
    517: WantedField("content", _INTEGRAL),
    515: WantedField("sequence_number", _INTEGRAL),
    516: WantedField("min_sequence_number", _INTEGRAL),
    503: WantedField("added_snapshot_id", _INTEGRAL, required=True),
    504: WantedField("added_files_count", _INTEGRAL),
    505: WantedField("existing_files_count", _INTEGRAL),
    506: WantedField("deleted_files_count", _INTEGRAL),
    512: WantedField("added_rows_count", _INTEGRAL),
    513: WantedField("existing_rows_count", _INTEGRAL),
    514: WantedField("deleted_rows_count", _INTEGRAL),
    507: WantedField("partitions", ("list<record>",)),
    519: WantedField("key_metadata", ("bytes",)),
    520: WantedField("first_row_id", _INTEGRAL),
}
_COUNT_SLOTS = range(7, 13)
_SUMMARY_FIELDS: Projection = {
    509: WantedField("contains_null", ("bool",), required=True),
    518: WantedField("contains_nan", ("bool",)),
    510: WantedField("lower_bound", ("bytes",)),
    511: WantedField("upper_bound", ("bytes",)),
}
_NAMES = tuple(each.name for each in _FIELDS.values())
_SUMMARY_NAMES = tuple(each.name for each in _SUMMARY_FIELDS.values())
_values_of, _summary_values_of = attrgetter(*_NAMES), attrgetter(*_SUMMARY_NAMES)


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedManifestList:
    """A manifest list ready to be stored.

    Attributes:
        data: The file.
        manifests: As they stand in it: sequence numbers and first row ids assigned.
        next_row_id: The table's next row id after this commit; minus the commit's `first_row_id`
            it is the snapshot's `added-rows`.
    """

    data: bytes
    manifests: tuple[ManifestFile, ...]
    next_row_id: int


def encode_manifest_list(
    manifests: Sequence[ManifestFile],
    *,
    snapshot_id: int,
    parent_snapshot_id: int | None,
    sequence_number: int,
    first_row_id: int,
    format_version: int = 3,
    codec: str = "gzip",
) -> EncodedManifestList:
    """Assign sequence numbers and row ids, and encode a manifest list of v2 or v3.

    Pure: a retried commit calls it again with the new numbers and the manifests as they were before
    assignment.

    Args:
        manifests: In the order they shall stand in the file.
        snapshot_id: The commit's snapshot.
        parent_snapshot_id: Its parent; None for a branch's first.
        sequence_number: The commit's; given to manifests that have none.
        first_row_id: The table's `next-row-id` at this attempt; v2 has none.
        format_version: The table's.
        codec: `gzip`, `zstd` or `uncompressed`.

    Raises:
        InternalError: A manifest without a sequence number is not of this snapshot, or counts are
            unknown.
    """
    assigned = []
    next_row_id = first_row_id
    for manifest in manifests:
        checked = _with_sequence_number(manifest, snapshot_id, sequence_number)
        is_data = checked.content == ManifestContent.DATA
        if format_version > 2 and is_data and checked.first_row_id is None:
            checked = replace(checked, first_row_id=next_row_id)
            next_row_id += checked.added_rows_count + checked.existing_rows_count
        assigned.append(checked)
    parent = "null" if parent_snapshot_id is None else str(parent_snapshot_id)
    layout = _layout(format_version)
    row_id = {"first-row-id": str(first_row_id)} if format_version > 2 else {}
    data = encode_container(
        [_record(each, layout) for each in assigned],
        schema=layout.avro_schema,
        metadata={
            "snapshot-id": str(snapshot_id),
            "parent-snapshot-id": parent,
            "sequence-number": str(sequence_number),
            **row_id,
            "format-version": str(format_version),
        },
        codec=codec,
    )
    return EncodedManifestList(data=data, manifests=tuple(assigned), next_row_id=next_row_id)


def decode_manifest_list(data: bytes, *, location: str) -> list[ManifestFile]:
    """Decode a manifest list of any format version.

    v1 lists: content is data and sequence numbers are 0; counts they leave out are `UNKNOWN_COUNT`
    (`load_manifest_list` counts them).

    Raises:
        CorruptDataError: The bytes break Avro or the spec, or one manifest is listed twice.
        UnsupportedError: A later format version.
    """
    container = decode_container(data, location=location)
    try:
        version = container.metadata.get("format-version", "1")
        if version not in ("1", "2", "3"):
            raise UnsupportedError(
                "cannot read a manifest list of this format version",
                location=location,
                format_version=version[:20],
            )
        projections = {ROOT: _FIELDS, _SUMMARY_ID: _SUMMARY_FIELDS}
        decode = compile_record(container.schema, projections).decode
        manifests = []
        for block in container.blocks:
            buffer, position = block.decompressed(), 0
            for _ in range(block.record_count):
                values, position = decode(buffer, position)
                manifests.append(_manifest(values))
            if position != len(buffer):
                raise MalformedAvroError("a block has bytes after its last record")
        _check_unique(manifests)
    except (IndexError, ValueError, RecursionError) as error:
        raise CorruptDataError(
            f"not a valid manifest list: {describe_malformed(error)}", location=location
        ) from error
    return manifests


def _with_sequence_number(
    manifest: ManifestFile, snapshot_id: int, sequence_number: int
) -> ManifestFile:
    if UNKNOWN_COUNT in (manifest.added_rows_count, manifest.existing_rows_count):
        raise InternalError(
            "cannot write a manifest list: row counts are unknown", location=manifest.manifest_path
        )
    if manifest.sequence_number is not None:
        return manifest
    if manifest.added_snapshot_id != snapshot_id:
        raise InternalError(
            "cannot write a manifest list: a manifest of another snapshot has no sequence number",
            location=manifest.manifest_path,
        )
    lowest = manifest.min_sequence_number
    return replace(
        manifest,
        sequence_number=sequence_number,
        min_sequence_number=sequence_number if lowest is None else lowest,
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Layout:
    """What is the same for all lists of one format version."""

    writer: Writer
    avro_schema: Any
    fields: int  # v2 ends before `first_row_id`, the last one


@cache
def _layout(format_version: int) -> _Layout:
    schema = MANIFEST_LIST_FILE_SCHEMAS[2 if format_version == 2 else 3]
    return _Layout(
        writer=construct_writer(schema),
        avro_schema=avro_schema_json(schema, "manifest_file"),
        fields=len(schema.fields),
    )


# Most manifests of a list stood in the one before.
_records: ObjectMemory[ManifestFile, bytes] = ObjectMemory()


def _record(manifest: ManifestFile, layout: _Layout) -> bytes:
    """The Avro record of a manifest whose numbers are assigned."""
    record = _records.get(manifest, layout)
    if record is None:
        buffer = io.BytesIO()
        layout.writer.write(BinaryEncoder(buffer), _row(manifest)[: layout.fields])
        record = buffer.getvalue()
        _records.put(manifest, record, layout)
    return record


def _row(manifest: ManifestFile) -> tuple[Any, ...]:
    *values, partitions, key_metadata, first_row_id = _values_of(manifest)
    summaries = None if partitions is None else [_summary_values_of(each) for each in partitions]
    return (*values, summaries, key_metadata, first_row_id)


def _manifest(values: list[Any]) -> ManifestFile:
    content = values[3] or 0
    if not 0 <= content <= 1:
        raise MalformedAvroError(f"a manifest has content {content}")
    for slot in _COUNT_SLOTS:
        if values[slot] is None:
            values[slot] = UNKNOWN_COUNT
        elif values[slot] < 0:
            raise MalformedAvroError(f"a manifest has a negative count: {values[0]}")
    if not values[0] or values[1] < 0:
        raise MalformedAvroError("a manifest has no path or a negative length")
    if (values[4] or 0) < 0:
        raise MalformedAvroError(f"a manifest has a negative sequence number: {values[0]}")
    if values[15] is not None and values[15] < 0:
        values[15] = None  # as transactions of DuckDB 1.5 have it: its rows have no ids
    values[3:6] = ManifestContent(content), values[4] or 0, values[5] or 0
    if values[13] is not None:
        values[13] = tuple(
            PartitionFieldSummary(**dict(zip(_SUMMARY_NAMES, each, strict=True)))
            for each in values[13]
        )
    return ManifestFile(**dict(zip(_NAMES, values, strict=True)))


def _check_unique(manifests: Sequence[ManifestFile]) -> None:
    seen: set[str] = set()
    for manifest in manifests:
        if manifest.manifest_path in seen:
            raise MalformedAvroError(f"a manifest is listed twice: {manifest.manifest_path}")
        seen.add(manifest.manifest_path)
