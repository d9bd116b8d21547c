"""A table writer of somebody else's: JSON, fastavro, pyarrow. Shares no code with the product.

It reads one metadata version, builds a commit on it, and gives the new metadata file's location;
who uses it swaps the pointer. Manifests are written with the Avro schema of manifests that are
there already, so partition types need no code here.
"""

from __future__ import annotations

import functools
import io
import json
import struct
import uuid
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap64

from tests.support.sim_schema import Column, Row, TableSchema, read_schema
from tests.support.table_checker import Read, read_metadata

Put = Callable[[str, bytes], object]
EXISTING, ADDED, DELETED = 0, 1, 2
DATA, POSITIONS, KEYS = 0, 1, 2  # what files hold: rows, or deletes
ROW_ID, LAST_UPDATED = 2147483540, 2147483539
FILE_PATH, POSITION = 2147483546, 2147483545
CHECKSUM = "icefold.crc32"  # of a version that another tool does not make
LONG_MAX = (1 << 63) - 1
_KINDS = {"int": pa.int32(), "long": pa.int64(), "string": pa.string()}


@dataclass(frozen=True, slots=True)
class Header:
    """How manifests of one partition spec are written."""

    avro_schema: str
    metadata: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Entry:
    """A live manifest entry with everything inherited."""

    file: dict[str, Any]
    spec_id: int
    sequence_number: int
    file_sequence_number: int
    snapshot_id: int
    manifest: str
    header: Header

    @property
    def path(self) -> str:
        return str(self.file["file_path"])

    @property
    def is_data(self) -> bool:
        return bool(self.file["content"] == DATA)

    @property
    def is_key_delete(self) -> bool:
        return bool(self.file["content"] == KEYS)

    @property
    def is_vector(self) -> bool:
        return self.file["content"] == POSITIONS and self.offset is not None

    @property
    def is_position_file(self) -> bool:
        return self.file["content"] == POSITIONS and self.offset is None

    @property
    def offset(self) -> int | None:
        """Of a vector in its file; v2 has none."""
        return self.file.get("content_offset")


class ForeignTable:
    """One version of a table, as another tool reads it."""

    def __init__(self, read: Read, location: str) -> None:
        self.read = read
        self.location = location
        self.metadata = read_metadata(read, location)
        self.by_id = {each["snapshot-id"]: each for each in self.metadata["snapshots"]}

    @property
    def schema(self) -> TableSchema:
        """The current one."""
        current = self.metadata["current-schema-id"]
        [schema] = [each for each in self.metadata["schemas"] if each["schema-id"] == current]
        return read_schema(schema)

    def head(self, branch: str) -> dict[str, Any] | None:
        ref = self.metadata.get("refs", {}).get(branch)
        return None if ref is None else self.by_id[ref["snapshot-id"]]

    def ancestors(self, snapshot_id: int | None) -> Iterator[dict[str, Any]]:
        """A snapshot and its ancestors, newest first, as far as they are there."""
        while snapshot_id in self.by_id:
            snapshot = self.by_id[snapshot_id]
            yield snapshot
            snapshot_id = snapshot.get("parent-snapshot-id")

    def manifests(self, snapshot: Mapping[str, Any] | None) -> list[dict[str, Any]]:
        """Records of a snapshot's manifest list."""
        return [] if snapshot is None else _parsed(self.read(snapshot["manifest-list"]))[1]

    def entries(self, snapshot: Mapping[str, Any] | None) -> list[Entry]:
        """The live entries of a snapshot."""
        return [e for manifest in self.manifests(snapshot) for e in self._entries(manifest)]

    def added(self, snapshot: Mapping[str, Any]) -> list[Entry]:
        """The live entries that a snapshot itself brought."""
        return [e for e in self.entries(snapshot) if e.snapshot_id == snapshot["snapshot-id"]]

    def written_specs(self) -> set[int]:
        """Partition specs that have manifests of the table's format version."""
        return {spec_id for spec_id, _ in self._headers()}

    def _headers(self) -> Iterator[tuple[int, Header]]:
        """Partition spec and header of manifests of the table's format version."""
        version = str(self.metadata["format-version"])
        for each in chain.from_iterable(map(self.manifests, self.by_id.values())):
            header, _ = _parsed(self.read(each["manifest_path"]))
            if header.metadata["format-version"] == version:
                yield each["partition_spec_id"], header

    def like(self, spec_id: int, partition: Sequence[Any]) -> Entry:
        """An entry of a file that is not there, in a partition of a spec that has manifests."""
        header = next(header for of, header in self._headers() if of == spec_id)
        specs = {each["spec-id"]: each["fields"] for each in self.metadata["partition-specs"]}
        names = [each["name"] for each in specs[spec_id]]
        file = {"partition": dict(zip(names, partition, strict=True))}
        return Entry(file, spec_id, 0, 0, 0, "", header)

    def _entries(self, manifest: Mapping[str, Any]) -> Iterator[Entry]:
        header, records = _parsed(self.read(manifest["manifest_path"]))
        next_row_id = manifest.get("first_row_id")  # v2 has none
        for record in records:
            file = dict(record["data_file"])
            if record["status"] == DELETED:
                continue
            is_without = file["content"] == DATA and file.get("first_row_id") is None
            if next_row_id is not None and is_without:
                file["first_row_id"] = next_row_id
                next_row_id += file["record_count"]
            number = record["sequence_number"]
            yield Entry(
                file=file,
                spec_id=manifest["partition_spec_id"],
                sequence_number=manifest["sequence_number"] if number is None else number,
                file_sequence_number=record["file_sequence_number"] or manifest["sequence_number"],
                snapshot_id=record["snapshot_id"] or manifest["added_snapshot_id"],
                manifest=manifest["manifest_path"],
                header=header,
            )


@dataclass(slots=True)
class ForeignCommit:
    """A commit to one branch, in the making."""

    table: ForeignTable
    branch: str
    operation: str
    snapshot_id: int
    now_ms: int
    summary: dict[str, str] = field(default_factory=dict)
    added: list[tuple[Entry, int | None]] = field(default_factory=list)
    removed: list[Entry] = field(default_factory=list)
    touched: set[str] = field(default_factory=set)  # manifests to write anew, whatever they hold
    parent_branch: str | None = None  # where a branch that is not there yet begins
    is_loose: bool = False  # on top of the branch, which does not move
    is_terse: bool = False  # the summary counts nothing, but where the branch begins with it

    def add(
        self, like: Entry, file: Mapping[str, Any], *, sequence_number: int | None = None
    ) -> None:
        """Add a file; `like` is a file of its partition spec."""
        record = dict(like.file) | dict(file) | {"first_row_id": None}
        entry = Entry(record, like.spec_id, 0, 0, self.snapshot_id, "", like.header)
        self.added.append((entry, sequence_number))

    def remove(self, entry: Entry) -> None:
        self.removed.append(entry)

    @property
    def parent(self) -> dict[str, Any] | None:
        head = self.table.head(self.branch)
        if head is None and self.parent_branch is not None:
            head = self.table.head(self.parent_branch)
        return head

    def write(self, put: Put) -> str:
        """Write all files; the location of the new metadata file."""
        metadata = _copied(self.table.metadata)
        location, number = metadata["location"], metadata["last-sequence-number"] + 1
        first_row_id = metadata.get("next-row-id")  # v2 has none
        parent = self.parent
        new, next_row_id = self._manifests(put, number, first_row_id)
        old = self.table.manifests(parent)
        touched = self.touched | {entry.manifest for entry in self.removed}
        listed = new + [
            each
            for each in old
            if each["manifest_path"] not in touched
            and each["added_files_count"] + each["existing_files_count"] > 0
        ]
        path = f"{location}/metadata/snap-{self.snapshot_id}-foreign.avro"
        put(path, self._manifest_list(old, listed, number, first_row_id, parent))
        snapshot = {
            "snapshot-id": self.snapshot_id,
            **({} if parent is None else {"parent-snapshot-id": parent["snapshot-id"]}),
            "sequence-number": number,
            "timestamp-ms": max(self.now_ms, metadata["last-updated-ms"] + 1),
            "manifest-list": path,
            "summary": {
                "operation": self.operation,
                **self.summary,
                **({} if self.is_terse and parent is not None else self._totals(parent)),
            },
            "schema-id": metadata["current-schema-id"],
        }
        if first_row_id is not None and next_row_id is not None:
            snapshot |= {"first-row-id": first_row_id, "added-rows": next_row_id - first_row_id}
            metadata["next-row-id"] = next_row_id
        metadata["snapshots"].append(snapshot)
        metadata["last-sequence-number"] = number
        moved = {} if self.is_loose else {self.branch: self.snapshot_id}
        return write_metadata(put, self.table, metadata, self.now_ms, moved)

    def _manifests(
        self, put: Put, number: int, next_row_id: int | None
    ) -> tuple[list[dict[str, Any]], int | None]:
        groups: dict[tuple[int, bool], list[dict[str, Any]]] = {}
        headers: dict[tuple[int, bool], Header] = {}

        def put_in(entry: Entry, record: dict[str, Any]) -> None:
            group = (entry.spec_id, entry.file["content"] != DATA)
            headers[group] = entry.header
            groups.setdefault(group, []).append(record)

        for entry, sequence_number in self.added:
            put_in(entry, _record(entry, ADDED, None, sequence_number, None))
        for entry, status in self._rewritten():
            owner = self.snapshot_id if status == DELETED else entry.snapshot_id
            numbers = entry.sequence_number, entry.file_sequence_number
            put_in(entry, _record(entry, status, owner, *numbers))
        manifests = []
        for at, (spec_id, is_deletes) in enumerate(sorted(groups)):
            records = groups[spec_id, is_deletes]
            path = f"{self.table.metadata['location']}/metadata/{self.snapshot_id}-f{at}.avro"
            content = "deletes" if is_deletes else "data"
            header = headers[spec_id, is_deletes]
            data = _avro(header.avro_schema, records, {**header.metadata, "content": content})
            put(path, data)
            manifest = _listed(path, len(data), spec_id, is_deletes, records, number)
            manifest["added_snapshot_id"] = self.snapshot_id
            if next_row_id is not None and not is_deletes:
                manifest["first_row_id"] = next_row_id
                next_row_id += manifest["added_rows_count"] + manifest["existing_rows_count"]
            manifests.append(manifest)
        return manifests, next_row_id

    def _rewritten(self) -> Iterator[tuple[Entry, int]]:
        """Entries of manifests that lose some of theirs."""
        gone = {(e.path, e.offset, e.manifest) for e in self.removed}
        touched = self.touched | {entry.manifest for entry in self.removed}
        for entry in self.table.entries(self.parent):
            if entry.manifest in touched:
                is_gone = (entry.path, entry.offset, entry.manifest) in gone
                yield entry, DELETED if is_gone else EXISTING

    def _manifest_list(
        self,
        old: Sequence[Mapping[str, Any]],
        listed: Sequence[Mapping[str, Any]],
        number: int,
        first_row_id: int | None,
        parent: Mapping[str, Any] | None,
    ) -> bytes:
        template = next(iter(self.table.by_id.values())) if parent is None else parent
        header, _ = _parsed(self.table.read(template["manifest-list"]))
        metadata = {
            "snapshot-id": str(self.snapshot_id),
            "parent-snapshot-id": "null" if parent is None else str(parent["snapshot-id"]),
            "sequence-number": str(number),
            **({} if first_row_id is None else {"first-row-id": str(first_row_id)}),
            "format-version": str(self.table.metadata["format-version"]),
        }
        return _avro(header.avro_schema, listed, metadata)

    def _totals(self, parent: Mapping[str, Any] | None) -> dict[str, str]:
        """Summary fields that readers rely on, as Java counts."""
        gone = {(entry.path, entry.offset) for entry in self.removed}
        live = [
            entry.file
            for entry in self.table.entries(parent)
            if (entry.path, entry.offset) not in gone
        ] + [entry.file for entry, _ in self.added]
        rows: Counter[int] = Counter()
        files: Counter[int] = Counter()
        for file in live:
            rows[file["content"]] += file["record_count"]
            files[file["content"]] += 1
        size = sum(f.get("content_size_in_bytes") or f["file_size_in_bytes"] for f in live)
        return {
            **_counts("added", [entry.file for entry, _ in self.added]),
            **_counts("removed", [entry.file for entry in self.removed]),
            "total-records": str(rows[0]),
            "total-files-size": str(size),
            "total-data-files": str(files[0]),
            "total-delete-files": str(files[1] + files[2]),
            "total-position-deletes": str(rows[1]),
            "total-equality-deletes": str(rows[2]),
        }


def _counts(what: str, files: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Of added or removed files; what there is none of is not said."""
    found: Counter[str] = Counter()
    for file in files:
        if file["content"] == DATA:
            found["added-data-files" if what == "added" else "deleted-data-files"] += 1
            continue
        by_key = file["content"] == KEYS
        kind = "dvs" if file["file_format"].upper() == "PUFFIN" else "position-delete-files"
        found[f"{what}-delete-files"] += 1
        found[f"{what}-{'equality-delete-files' if by_key else kind}"] += 1
        rows = "equality-deletes" if by_key else "position-deletes"
        found[f"{what}-{rows}"] += file["record_count"]
    return {name: str(count) for name, count in found.items()}


def write_metadata(
    put: Put,
    table: ForeignTable,
    metadata: dict[str, Any],
    now_ms: int,
    refs: Mapping[str, int],
) -> str:
    """Write a new version with some branches moved; its location."""
    metadata = dict(metadata)
    metadata.pop(CHECKSUM, None)
    before = table.metadata["last-updated-ms"]
    metadata["last-updated-ms"] = now_ms = max(now_ms, before + 1)
    known = metadata.get("refs", {})
    moved = {name: known.get(name, {"type": "branch"}) | {"snapshot-id": i}
             for name, i in refs.items()}  # fmt: skip
    metadata["refs"] = known | moved
    if "main" in refs:
        metadata["current-snapshot-id"] = refs["main"]
        entry = {"snapshot-id": refs["main"], "timestamp-ms": now_ms}
        metadata["snapshot-log"] = [*metadata.get("snapshot-log", []), entry]
    log = {"metadata-file": table.location, "timestamp-ms": before}
    metadata["metadata-log"] = [*metadata.get("metadata-log", []), log]
    folder, name = table.location.rsplit("/", 1)
    seed = f"{table.location}/{json.dumps(metadata, sort_keys=True)}"
    new = f"{folder}/{int(name.split('-')[0]) + 1:05}-{uuid.uuid5(uuid.NAMESPACE_URL, seed)}"
    put(f"{new}.metadata.json", json.dumps(metadata).encode())
    return f"{new}.metadata.json"


def _copied(metadata: dict[str, Any]) -> dict[str, Any]:
    """A deep copy of what came from JSON, in a tenth of the time of `copy.deepcopy`."""
    found: dict[str, Any] = json.loads(json.dumps(metadata))
    return found


def moved_branch(put: Put, table: ForeignTable, branch: str, to: int, now_ms: int) -> str:
    """A version where a branch points elsewhere."""
    return write_metadata(put, table, _copied(table.metadata), now_ms, {branch: to})


def edited(
    put: Put, table: ForeignTable, change: Callable[[dict[str, Any]], object], now_ms: int
) -> str:
    """A version changed by hand."""
    metadata = _copied(table.metadata)
    change(metadata)
    return write_metadata(put, table, metadata, now_ms, {})


def without_key(put: Put, table: ForeignTable) -> str:
    """A version without a declared key, whose columns are optional."""

    def change(metadata: dict[str, Any]) -> None:
        for schema in metadata["schemas"]:
            schema.pop("identifier-field-ids", None)
            schema["fields"] = [each | {"required": False} for each in schema["fields"]]

    return edited(put, table, change, 0)


def write_rows(
    put: Put,
    path: str,
    schema: TableSchema,
    rows: Sequence[Row],
    row_ids: Sequence[int | None] | None = None,
    updates: Sequence[int | None] | None = None,
) -> dict[str, Any]:
    """Write a Parquet data file; the fields of its entry that are not those of its neighbours."""
    places = [schema.fields.index(column.field_id) for column in schema.columns]
    columns = [
        (_field(c.name, c.kind, c.field_id, c.required), [row[at] for row in rows])
        for c, at in zip(schema.columns, places, strict=True)
    ]
    for name, field_id, given in (
        ("_row_id", ROW_ID, row_ids),
        ("_last_updated_sequence_number", LAST_UPDATED, updates),
    ):
        if given is not None:
            columns.append((_field(name, "long", field_id, required=False), given))
    return _write_parquet(put, path, DATA, columns)


def write_keys(
    put: Put, path: str, key: Sequence[Column], keys: Sequence[Sequence[Any]]
) -> dict[str, Any]:
    """Write an equality delete file; fields of its entry. `keys`: the values of `key` in each."""
    columns = [
        (_field(each.name, each.kind, each.field_id, each.required), [row[at] for row in keys])
        for at, each in enumerate(key)
    ]
    ids = [each.field_id for each in key]
    return _write_parquet(put, path, KEYS, columns) | {"equality_ids": ids}


def write_positions(
    put: Put, path: str, referenced: str, positions: Iterable[int]
) -> dict[str, Any]:
    """Write a position delete file, as v2 has them, for one data file; fields of its entry."""
    places = [(referenced, each) for each in positions]
    return write_places(put, path, places) | {"referenced_data_file": referenced}


def write_places(put: Put, path: str, places: Iterable[tuple[str, int]]) -> dict[str, Any]:
    """Write one for data files of one partition."""
    dead = sorted(places)
    columns = [
        (_field("file_path", "string", FILE_PATH, required=True), [of for of, _ in dead]),
        (_field("pos", "long", POSITION, required=True), [at for _, at in dead]),
    ]
    return _write_parquet(put, path, POSITIONS, columns)


def _write_parquet(
    put: Put, path: str, content: int, columns: Sequence[tuple[pa.Field, Sequence[Any]]]
) -> dict[str, Any]:
    fields = [each for each, _ in columns]
    arrays = [pa.array(values, each.type) for each, values in columns]
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_arrays(arrays, schema=pa.schema(fields)), sink)
    data = sink.getvalue()
    put(path, data)
    return _plain(path, "PARQUET", content, len(arrays[0]), len(data))


def write_vector(put: Put, path: str, referenced: str, positions: Iterable[int]) -> dict[str, Any]:
    """Write a Puffin file with one deletion vector; fields of its entry."""
    bitmap = BitMap64(positions)
    body = bytes([0xD1, 0xD3, 0x39, 0x64]) + bitmap.serialize()
    blob = struct.pack(">i", len(body)) + body + struct.pack(">I", zlib.crc32(body))
    payload = {
        "type": "deletion-vector-v1", "fields": [], "snapshot-id": -1, "sequence-number": -1,
        "offset": 4, "length": len(blob),
        "properties": {"referenced-data-file": referenced, "cardinality": str(len(bitmap))},
    }  # fmt: skip
    footer = json.dumps({"blobs": [payload], "properties": {}}).encode()
    magic = b"PFA1"
    tail = struct.pack("<i", len(footer)) + b"\0\0\0\0" + magic
    data = magic + blob + magic + footer + tail
    put(path, data)
    return _plain(path, "PUFFIN", POSITIONS, len(bitmap), len(data)) | {
        "referenced_data_file": referenced,
        "content_offset": 4,
        "content_size_in_bytes": len(blob),
    }


@dataclass(frozen=True, slots=True)
class Expired:
    """A version without some snapshots, and the files that none of the others needs."""

    location: str
    snapshot_ids: tuple[int, ...]
    refs: tuple[str, ...]
    files: tuple[str, ...]


def expire_snapshots(
    put: Put, table: ForeignTable, *, now_ms: int, older_than_ms: int, retain_last: int
) -> Expired | None:
    """As Java's RemoveSnapshots plans it; None: nothing goes.

    Refs age out first, `main` never. Of each branch that is left its newest `retain_last` stay, and
    the run of those not older than the limit; settings of a ref go before both. What belongs to no
    ref goes by age.

    Java leaves the ids of parents that go; PyIceberg and some catalogs take them away. Here it is
    as these do when an odd number goes.
    """
    metadata = table.metadata
    now_ms = max(now_ms, metadata["last-updated-ms"] + 1)
    default = int(metadata["properties"].get("history.expire.max-ref-age-ms", LONG_MAX))
    refs = {
        name: ref
        for name, ref in metadata.get("refs", {}).items()
        if name == "main"
        or now_ms - table.by_id[ref["snapshot-id"]]["timestamp-ms"]
        <= ref.get("max-ref-age-ms", default)
    }
    kept: set[int] = set()
    referenced: set[int] = set()
    for ref in refs.values():
        chain = list(table.ancestors(ref["snapshot-id"]))
        if ref["type"] == "tag":
            kept.add(ref["snapshot-id"])
            continue
        referenced.update(each["snapshot-id"] for each in chain)
        age = ref.get("max-snapshot-age-ms")
        limit = older_than_ms if age is None else now_ms - age
        least = ref.get("min-snapshots-to-keep", retain_last)
        for at, snapshot in enumerate(chain):
            if at >= least and snapshot["timestamp-ms"] < limit:
                break
            kept.add(snapshot["snapshot-id"])
    kept |= {i for i, s in table.by_id.items()
             if i not in referenced and s["timestamp-ms"] >= older_than_ms}  # fmt: skip
    gone = tuple(i for i in table.by_id if i not in kept)
    dropped = tuple(sorted(metadata.get("refs", {}).keys() - refs.keys()))
    if not gone and not dropped:
        return None
    new = _copied(metadata)
    new["refs"] = refs
    new["snapshots"] = [each for each in new["snapshots"] if each["snapshot-id"] in kept]
    for each in new["snapshots"] if len(gone) % 2 else ():
        if each.get("parent-snapshot-id") in gone:
            del each["parent-snapshot-id"]
    log: list[Any] = []
    for entry in new.get("snapshot-log", []):
        log = [*log, entry] if entry["snapshot-id"] in kept else []
    new["snapshot-log"] = log
    needed = _files_of(table, kept)
    files = tuple(sorted(_files_of(table, gone) - needed))
    return Expired(write_metadata(put, table, new, now_ms, {}), gone, dropped, files)


def _files_of(table: ForeignTable, snapshot_ids: Iterable[int]) -> set[str]:
    found: set[str] = set()
    seen: set[str] = set()
    for snapshot_id in snapshot_ids:
        snapshot = table.by_id[snapshot_id]
        found.add(snapshot["manifest-list"])
        for manifest in table.manifests(snapshot):
            if manifest["manifest_path"] not in seen:
                seen.add(manifest["manifest_path"])
                found.update(entry.path for entry in table._entries(manifest))
    return found | seen


def _record(
    entry: Entry,
    status: int,
    snapshot_id: int | None,
    sequence_number: int | None,
    file_sequence_number: int | None,
) -> dict[str, Any]:
    return {
        "status": status,
        "snapshot_id": snapshot_id,
        "sequence_number": sequence_number,
        "file_sequence_number": file_sequence_number,
        "data_file": entry.file,
    }


def _listed(
    path: str,
    length: int,
    spec_id: int,
    is_deletes: bool,
    records: Sequence[Mapping[str, Any]],
    number: int,
) -> dict[str, Any]:
    """The manifest list's record of a new manifest. Without partition bounds: they are optional."""
    files: Counter[int] = Counter(record["status"] for record in records)
    rows: Counter[int] = Counter()
    for record in records:
        rows[record["status"]] += record["data_file"]["record_count"]
    numbers = [
        number if record["sequence_number"] is None else record["sequence_number"]
        for record in records
        if record["status"] != DELETED
    ]
    return {
        "manifest_path": path,
        "manifest_length": length,
        "partition_spec_id": spec_id,
        "content": int(is_deletes),
        "sequence_number": number,
        "min_sequence_number": min(numbers, default=number),
        "added_files_count": files[ADDED],
        "existing_files_count": files[EXISTING],
        "deleted_files_count": files[DELETED],
        "added_rows_count": rows[ADDED],
        "existing_rows_count": rows[EXISTING],
        "deleted_rows_count": rows[DELETED],
        "partitions": None,
        "key_metadata": None,
        "first_row_id": None,
    }


def _plain(path: str, kind: str, content: int, count: int, size: int) -> dict[str, Any]:
    """A file's entry without any statistics."""
    none = dict.fromkeys(
        ("column_sizes", "value_counts", "null_value_counts", "nan_value_counts", "lower_bounds",
         "upper_bounds", "key_metadata", "split_offsets", "equality_ids", "sort_order_id",
         "first_row_id", "referenced_data_file", "content_offset", "content_size_in_bytes")
    )  # fmt: skip
    return none | {
        "content": content,
        "file_path": path,
        "file_format": kind,
        "record_count": count,
        "file_size_in_bytes": size,
    }


def _field(name: str, kind: str, field_id: int, required: bool) -> pa.Field:
    metadata = {b"PARQUET:field_id": str(field_id).encode()}
    return pa.field(name, _KINDS[kind], nullable=not required, metadata=metadata)


@functools.lru_cache(maxsize=64)
def _schema(text: str) -> Any:
    return fastavro.parse_schema(json.loads(text))


def _avro(schema: str, records: Sequence[Mapping[str, Any]], metadata: Mapping[str, str]) -> bytes:
    sink = io.BytesIO()
    # A marker of its own: else it would be random, and with it the bytes.
    fastavro.writer(
        sink, _schema(schema), records, codec="deflate", metadata=dict(metadata),
        sync_marker=b"of another tool!",
    )  # fmt: skip
    return sink.getvalue()


@functools.lru_cache(maxsize=1024)
def _parsed(data: bytes) -> tuple[Header, list[dict[str, Any]]]:
    """An Avro file, which is not to be changed: files that stay are read again and again."""
    reader = fastavro.reader(io.BytesIO(data))
    metadata = {k: v.decode() if isinstance(v, bytes) else v for k, v in reader.metadata.items()}
    schema = metadata.pop("avro.schema")
    metadata.pop("avro.codec", None)
    return Header(schema, metadata), list(reader)  # type: ignore[arg-type]
