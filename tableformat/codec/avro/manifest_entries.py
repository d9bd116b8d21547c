"""Decoding of manifests: v1, v2 and v3, by field id, so that nothing of an entry is lost.

What is inherited (spec: Sequence Number Inheritance, First Row ID Inheritance):

| value | when null | becomes |
|---|---|---|
| snapshot id | always | the manifest's `added_snapshot_id` |
| both sequence numbers | ADDED, or the manifest's is 0 (v1) | the manifest's `sequence_number` |
| first row id | live data entry | the manifest's, plus the records of such entries before it |

A first row id in a manifest that has none itself (not yet assigned, or written before v3) does not
count, as in Java.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from typing import Any

from tableformat.codec.avro.container import AvroBlock, AvroContainer, decode_container
from tableformat.codec.avro.live_columns import LiveColumns, live_columns, seen_of
from tableformat.codec.avro.named_files import Hashes, NamedFiles, wanted
from tableformat.codec.avro.records import (
    ROOT,
    AvroType,
    Projection,
    WantedField,
    compile_record,
)
from tableformat.codec.avro.values import MalformedAvroError, describe_malformed
from tableformat.codec.avro.vector_blocks import VectorBlocks
from tableformat.errors import CorruptDataError, UnsupportedError
from tableformat.spec.data_file import DataFile, EntryStatus, FileContent, ManifestEntry
from tableformat.spec.decimal_text import parse_decimal
from tableformat.spec.manifest_file import (
    MANIFEST_CONTENT_NAMES,
    UNKNOWN_COUNT,
    ManifestContent,
    ManifestFile,
)

FORMAT_VERSION_MAX = 3

_DATA_FILE_ID = 2
_PARTITION_ID = 102

# Field ids of `data_file`, in the order of the record, with the kinds they may have on disk.
# Fields 105, 106, 107 and 111 of old versions are read and dropped.
_INTEGRAL = ("int", "long")
_COUNTS = ("map<int,long>", "map<int,int>")
_DATA_FILE_FIELDS: Projection = {
    134: WantedField("content", _INTEGRAL),  # not in v1
    100: WantedField("file_path", ("str",), required=True),
    101: WantedField("file_format", ("str",), required=True),
    102: WantedField("partition", ("record",), required=True),
    103: WantedField("record_count", _INTEGRAL, required=True),
    104: WantedField("file_size_in_bytes", _INTEGRAL, required=True),
    108: WantedField("column_sizes", _COUNTS),
    109: WantedField("value_counts", _COUNTS),
    110: WantedField("null_value_counts", _COUNTS),
    137: WantedField("nan_value_counts", _COUNTS),
    125: WantedField("lower_bounds", ("map<int,bytes>",)),
    128: WantedField("upper_bounds", ("map<int,bytes>",)),
    131: WantedField("key_metadata", ("bytes",)),
    132: WantedField("split_offsets", ("list<long>", "list<int>")),
    135: WantedField("equality_ids", ("list<int>", "list<long>")),
    140: WantedField("sort_order_id", _INTEGRAL),
    142: WantedField("first_row_id", _INTEGRAL),
    143: WantedField("referenced_data_file", ("str",)),
    144: WantedField("content_offset", _INTEGRAL),
    145: WantedField("content_size_in_bytes", _INTEGRAL),
}
_PARTITION_KINDS = frozenset(
    ("null", "bool", "int", "long", "float", "bytes", "str", "uuid", "decimal")
)
_ENTRY_FIELDS: Projection = {
    0: WantedField("status", _INTEGRAL, required=True),
    1: WantedField("snapshot_id", _INTEGRAL),
    3: WantedField("sequence_number", _INTEGRAL),
    4: WantedField("file_sequence_number", _INTEGRAL),
    2: WantedField("data_file", ("record",), required=True),
}
# What live files are like; constants, so that what is compiled for them is found again.
_SEEN: Mapping[int, Projection] = {
    ROOT: {field_id: _ENTRY_FIELDS[field_id] for field_id in (0, _DATA_FILE_ID)},
    _DATA_FILE_ID: seen_of(_DATA_FILE_FIELDS),
}


def decode_manifest(data: bytes, manifest: ManifestFile) -> list[ManifestEntry]:
    """Decode a manifest of any format version: all entries, also DELETED ones, values inherited.

    Args:
        data: The whole file.
        manifest: Its record in the manifest list; must be one that has a sequence number.

    Raises:
        CorruptDataError: The bytes break Avro or the spec, or contradict `manifest` (content, spec,
            counts).
        UnsupportedError: It is encrypted, or of a later format version.
    """
    return EncodedManifest(data, manifest).decode()


class EncodedManifest:
    """A manifest whose container was read and checked, and whose entries are decoded when needed.

    Args, Raises: as `decode_manifest`. Kept as it is stored, with the names in it.
    """

    def __init__(self, data: bytes, manifest: ManifestFile) -> None:
        location = manifest.manifest_path
        if manifest.key_metadata is not None:
            raise UnsupportedError("cannot read an encrypted manifest", location=location)
        self._manifest = manifest
        self._named = NamedFiles()
        self._container = decode_container(data, location=location, look=self._named.add)
        with self._checked():
            _check_header(self._container.metadata, manifest)
        self.entry_count = self._container.record_count
        self.size_bytes = len(data) + self._named.size_bytes
        self._delete_files: tuple[ManifestEntry, ...] | None = None

    def decode(self) -> list[ManifestEntry]:
        """See `decode_manifest`."""
        with self._checked():
            blocks, row_id = self._container.blocks, self._manifest.first_row_id
            entries = list(_decode_entries(self._container, self._manifest, blocks, row_id))
            _check_counts(entries, self._manifest)
        return entries

    @property
    def live_delete_files(self) -> tuple[ManifestEntry, ...]:
        """Live delete files that are no vectors: few, as a rule; remembered.

        Blocks that are seen to hold vectors only are not decoded.
        """
        if self._delete_files is None:
            with self._checked():
                _check_total(self.entry_count, self._manifest)
                self._delete_files = tuple(self._other_delete_files())
        return self._delete_files

    @property
    def hashes(self) -> Hashes:
        """Of the names in it, sorted."""
        with self._checked():
            _check_total(self.entry_count, self._manifest)
        return self._named.hashes

    @property
    def has_vectors_only(self) -> bool:
        """Whether it has been looked for other live delete files, and there are none."""
        return self._delete_files == ()

    def live_columns(self) -> LiveColumns:
        """What its live files are like; a third of what decoding takes, and nothing is kept."""
        container, spec_id = self._container, self._manifest.partition_spec_id
        with self._checked():
            _check_total(self.entry_count, self._manifest)
            record = compile_record(container.schema, _SEEN)
            _partition_order(record, container.metadata)
            rows = _decode_records(record, container.blocks)
            live = (file for status, file in rows if status != EntryStatus.DELETED)
            return live_columns(live, spec_id)

    def _other_delete_files(self) -> Iterator[ManifestEntry]:
        vectors, blocks = VectorBlocks(self._container.schema), self._container.blocks
        vectors.learn(islice(_decode_entries(self._container, self._manifest, blocks, None), 1))
        for block in blocks:
            if not vectors.only(block.decompressed()):
                entries = self.decode_blocks([block])
                vectors.learn(entries)
                yield from delete_files_of(entries)

    def blocks_naming(self, locations: Collection[str]) -> list[AvroBlock]:
        """The blocks that may name one of some files, as its own location or as what it is for."""
        names, blocks = wanted(locations), self._container.blocks
        found = self._named.blocks(names)
        if names.others:
            for ordinal, block in enumerate(blocks):
                if ordinal not in found:
                    data = block.decompressed()
                    found |= {ordinal} if any(name in data for name in names.others) else set()
        return [blocks[ordinal] for ordinal in sorted(found)]

    def decode_blocks(self, blocks: Sequence[AvroBlock]) -> list[ManifestEntry]:
        """The entries of some of its blocks.

        They lack the `first_row_id` that they inherit: for that the entries before them count.
        """
        with self._checked():
            return list(_decode_entries(self._container, self._manifest, blocks, None))

    @contextmanager
    def _checked(self) -> Iterator[None]:
        try:
            yield
        except (IndexError, ValueError, RecursionError) as error:
            raise CorruptDataError(
                f"not a valid manifest: {describe_malformed(error)}",
                location=self._manifest.manifest_path,
            ) from error


def delete_files_of(entries: Iterable[ManifestEntry]) -> tuple[ManifestEntry, ...]:
    """The live position and equality delete files among entries of a delete manifest."""
    return tuple(entry for entry in entries if entry.is_live and not entry.data_file.is_dv)


def inherited_entries(
    entries: Sequence[ManifestEntry], manifest: ManifestFile
) -> list[ManifestEntry]:
    """What `decode_manifest` gives for a manifest that was encoded from `entries`.

    Args:
        entries: As they were given to `encode_manifest`, partition values of the exact types.
        manifest: Its record in the manifest list, numbers assigned.
    """
    row_id = manifest.first_row_id
    result = []
    for entry in entries:
        file, is_added = entry.data_file, entry.status == EntryStatus.ADDED
        first_row_id = None if is_added or row_id is None else file.first_row_id
        if row_id is not None and entry.is_live and first_row_id is None:
            first_row_id = row_id
            row_id += file.record_count
        if file.first_row_id != first_row_id:
            file = replace(file, first_row_id=first_row_id)
        if file is entry.data_file and not is_added:
            result.append(entry)
            continue
        number, snapshot_id = entry.sequence_number, entry.snapshot_id
        result.append(
            ManifestEntry(
                status=entry.status,
                snapshot_id=manifest.added_snapshot_id if snapshot_id is None else snapshot_id,
                sequence_number=manifest.sequence_number if number is None else number,
                file_sequence_number=(
                    manifest.sequence_number if is_added else entry.file_sequence_number
                ),
                data_file=file,
            )
        )
    return result


def entry_counts(entries: Iterable[ManifestEntry]) -> dict[str, Any]:
    """The counts of a manifest of these entries, by the names of `ManifestFile.counts`."""
    files = dict.fromkeys((EntryStatus.ADDED, EntryStatus.EXISTING, EntryStatus.DELETED), 0)
    rows = files.copy()
    for entry in entries:
        files[entry.status] += 1
        rows[entry.status] += entry.data_file.record_count
    return {
        f"{status.name.lower()}_{what}_count": count
        for what, counted in (("files", files), ("rows", rows))
        for status, count in counted.items()
    }


def data_file_problem(file: DataFile) -> str | None:
    """What makes a file's record invalid by itself; None if nothing does."""
    if not file.file_path:
        return "a file without a path"
    if file.record_count < 0 or file.file_size_in_bytes < 0:
        return "a negative count or size"
    if file.first_row_id is not None and file.first_row_id < 0:
        return "a negative first_row_id"
    if file.content == FileContent.EQUALITY_DELETES and not file.equality_ids:
        return "an equality delete file without equality_ids"
    if not file.is_dv:
        return None
    offset, size = file.content_offset, file.content_size_in_bytes
    if not file.referenced_data_file or offset is None or size is None:
        return "a deletion vector without referenced_data_file, offset or size"
    if offset < 0 or size < 0 or offset + size > file.file_size_in_bytes:
        return "a deletion vector outside its Puffin file"
    return None


def _check_header(metadata: Mapping[str, str], manifest: ManifestFile) -> None:
    """Compare the header with the manifest list; keys that old writers leave out are not needed."""
    text = metadata.get("format-version", "1")
    version = parse_decimal(text)
    if version is None or version < 1:
        raise MalformedAvroError(f"format-version is {text[:20]!r}")
    if version > FORMAT_VERSION_MAX:
        raise UnsupportedError(
            "cannot read a manifest of a later format version",
            location=manifest.manifest_path,
            format_version=version,
        )
    content = metadata.get("content", "data")
    expected = MANIFEST_CONTENT_NAMES[manifest.content]
    if content != expected:
        raise MalformedAvroError(f"it holds {content[:20]!r}, the manifest list says {expected!r}")
    spec_id = metadata.get("partition-spec-id", str(manifest.partition_spec_id))
    if spec_id != str(manifest.partition_spec_id):
        raise MalformedAvroError(
            f"its spec is {spec_id[:20]}, the manifest list says {manifest.partition_spec_id}"
        )


def _decode_entries(
    container: AvroContainer,
    manifest: ManifestFile,
    blocks: Iterable[AvroBlock],
    row_id: int | None,
) -> Iterator[ManifestEntry]:
    projections = {ROOT: _ENTRY_FIELDS, _DATA_FILE_ID: _DATA_FILE_FIELDS}
    record = compile_record(container.schema, projections)
    order = _partition_order(record, container.metadata)
    for values in _decode_records(record, blocks):
        entry = _inherit(values, manifest, order, row_id)
        if row_id is not None and entry.is_live and values[4][16] is None:
            row_id += entry.data_file.record_count
        yield entry


def _decode_records(record: AvroType, blocks: Iterable[AvroBlock]) -> Iterator[list[Any]]:
    decode = record.decode
    for block in blocks:
        buffer = block.decompressed()
        position = 0
        for _ in range(block.record_count):
            values, position = decode(buffer, position)
            yield values
        if position != len(buffer):
            raise MalformedAvroError("a block has bytes after its last record")


def _partition_order(record: AvroType, metadata: Mapping[str, str]) -> Sequence[int]:
    """Where the values of the manifest's own spec stand in its partition records.

    The values are of the types they were written with. The table's schema is not asked: it may
    have lost the source column since.
    """
    data_file = next(each.type for each in record.fields if each.field_id == _DATA_FILE_ID)
    partition = next(each.type for each in data_file.fields if each.field_id == _PARTITION_ID)
    if any(each.type.kind not in _PARTITION_KINDS for each in partition.fields):
        raise MalformedAvroError("a partition value is not of a primitive type")
    present = [each.field_id for each in partition.fields]
    wanted = _spec_field_ids(metadata)
    if wanted is None or wanted == present:
        return range(len(present))
    if len(wanted) != len(present) or set(wanted) != set(present):
        raise MalformedAvroError("the partition fields are not those of the partition-spec header")
    return [present.index(field_id) for field_id in wanted]


def _spec_field_ids(metadata: Mapping[str, str]) -> list[int] | None:
    """Field ids of the `partition-spec` header; None where an old writer has none."""
    try:
        fields = json.loads(metadata.get("partition-spec", "null"))
    except (ValueError, RecursionError) as error:
        raise MalformedAvroError("partition-spec in the header is not JSON") from error
    if isinstance(fields, dict):  # a whole spec instead of its fields: early writers
        fields = fields.get("fields")
    if fields is None:
        return None
    if not isinstance(fields, list) or not all(isinstance(each, dict) for each in fields):
        raise MalformedAvroError("partition-spec in the header is not a list of fields")
    ids = [each.get("field-id") for each in fields]
    if None in ids:  # v1 wrote no ids: then the order of the fields counts
        return None
    if not all(isinstance(each, int) for each in ids) or len(set(ids)) < len(ids):
        raise MalformedAvroError("partition-spec in the header has wrong field ids")
    return ids


def _inherit(
    values: list[Any], manifest: ManifestFile, order: Sequence[int], row_id: int | None
) -> ManifestEntry:
    """Build an entry from the fields of `_ENTRY_FIELDS`; fill in what is inherited."""
    raw_status, snapshot_id, sequence_number, file_sequence_number, file_values = values
    if not 0 <= raw_status <= 2:
        raise MalformedAvroError(f"an entry has status {raw_status}")
    status = EntryStatus(raw_status)
    inherits = status == EntryStatus.ADDED or manifest.sequence_number == 0
    if sequence_number is None:
        if not inherits and status == EntryStatus.EXISTING:
            raise MalformedAvroError("an EXISTING entry has no sequence number")
        # A DELETED entry without one is informational; the manifest's is the safe upper bound.
        sequence_number = manifest.sequence_number
    if file_sequence_number is None and inherits:
        file_sequence_number = manifest.sequence_number
    file = _data_file(
        file_values, manifest, order, row_id if status != EntryStatus.DELETED else None
    )
    return ManifestEntry(
        status=status,
        snapshot_id=manifest.added_snapshot_id if snapshot_id is None else snapshot_id,
        sequence_number=sequence_number,
        file_sequence_number=file_sequence_number,
        data_file=file,
    )


def _data_file(
    values: list[Any], manifest: ManifestFile, order: Sequence[int], row_id: int | None
) -> DataFile:
    raw_content = values[0] or 0
    if not 0 <= raw_content <= 2:
        raise MalformedAvroError(f"a file has content {raw_content}")
    content = FileContent(raw_content)
    if (content == FileContent.DATA) != (manifest.content == ManifestContent.DATA):  # R82
        raise MalformedAvroError(
            f"it lists {content.name} in a manifest of {MANIFEST_CONTENT_NAMES[manifest.content]}"
        )
    first_row_id = None
    if manifest.content == ManifestContent.DATA and manifest.first_row_id is not None:
        first_row_id = row_id if values[16] is None else values[16]
    file = DataFile(
        content=content,
        file_path=values[1],
        file_format=values[2].upper(),
        spec_id=manifest.partition_spec_id,
        partition=tuple([values[3][index] for index in order]),
        record_count=values[4],
        file_size_in_bytes=values[5],
        column_sizes=values[6],
        value_counts=values[7],
        null_value_counts=values[8],
        nan_value_counts=values[9],
        lower_bounds=values[10],
        upper_bounds=values[11],
        key_metadata=values[12],
        split_offsets=None if values[13] is None else tuple(values[13]),
        equality_ids=None if values[14] is None else tuple(values[14]),
        sort_order_id=values[15],
        first_row_id=first_row_id,
        referenced_data_file=values[17],
        content_offset=values[18],
        content_size_in_bytes=values[19],
    )
    problem = data_file_problem(file)
    if problem is not None:
        raise MalformedAvroError(f"{problem}: {file.file_path!r}")
    return file


def _check_total(entries: int, manifest: ManifestFile) -> None:
    """What can be said of the counts of entries that are not all decoded."""
    counts = manifest.counts[:3]
    if UNKNOWN_COUNT not in counts and entries != sum(counts):
        raise MalformedAvroError(f"it has {entries} entries, the manifest list says {sum(counts)}")


def _check_counts(entries: Sequence[ManifestEntry], manifest: ManifestFile) -> None:
    """A manifest that was swapped for another, or cut between blocks, has other counts."""
    for (name, found), count in zip(entry_counts(entries).items(), manifest.counts, strict=True):
        status, what, _ = name.split("_")
        if what == "files" and count not in (found, UNKNOWN_COUNT):
            raise MalformedAvroError(
                f"{found} entries are {status.upper()}, the manifest list says {count}"
            )
