"""Another tool on a table of an SQLite catalog: reads it and commits to it without product code.

JSON, Avro (fastavro), Parquet (pyarrow) and Puffin by hand, by the v3 spec; the catalog is
PyIceberg's `iceberg_tables`. Where the spec leaves a choice it does what Iceberg's Java library
does: a picked append gets a `source-snapshot-id`, a fast-forward writes a later time into the log,
expiry follows `RemoveSnapshots`. One writer at a time: a lost swap is an AssertionError.

Tables of one schema version whose specs have bucket or identity fields of flat columns.
"""

from __future__ import annotations

import functools
import io
import json
import sqlite3
import struct
import time
import uuid
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.transforms import parse_transform
from pyiceberg.types import IcebergType, IntegerType, LongType, StringType
from pyroaring import BitMap64

EXISTING, ADDED, DELETED = 0, 1, 2
DATA, POSITION_DELETES, EQUALITY_DELETES = 0, 1, 2
LONG_MAX = (1 << 63) - 1
FIVE_DAYS_MS = 5 * 24 * 3600 * 1000
ROW_ID, ROW_ID_FIELD = "_row_id", 2147483540
_TYPES: dict[str, tuple[pa.DataType, IcebergType, str]] = {
    "int": (pa.int32(), IntegerType(), "int"),
    "long": (pa.int64(), LongType(), "long"),
    "string": (pa.string(), StringType(), "string"),
}
_POSITION_FIELDS = (
    {"name": "file_path", "type": "string", "required": True, "id": 2147483546},
    {"name": "pos", "type": "long", "required": True, "id": 2147483545},
)
_MAGIC = b"PFA1"
_DV_MAGIC = bytes([0xD1, 0xD3, 0x39, 0x64])

Row = tuple[Any, ...]
Metadata = dict[str, Any]


@dataclass
class Entry:
    """A live file of a snapshot, everything inherited."""

    file: dict[str, Any]
    snapshot_id: int
    sequence_number: int
    file_sequence_number: int
    spec_id: int
    first_row_id: int | None
    manifest: str

    @property
    def path(self) -> str:
        """Of the file."""
        return str(self.file["file_path"])

    @property
    def is_data(self) -> bool:
        """Not a delete file."""
        return bool(self.file["content"] == DATA)

    @property
    def is_vector(self) -> bool:
        """A deletion vector."""
        return self.file.get("content_offset") is not None

    @property
    def identity(self) -> tuple[str, int | None]:
        """Vectors share Puffin files."""
        return self.path, self.file.get("content_offset")

    @property
    def partition(self) -> tuple[Any, ...]:
        """Values in the order of the spec."""
        return (self.spec_id, *(self.file["partition"] or {}).values())


@dataclass(frozen=True)
class LiveRow:
    """A row that reading gives, and where it is stored."""

    values: Row
    row_id: int
    path: str
    position: int
    sequence_number: int


@dataclass(frozen=True)
class NewFile:
    """A file to add; `file` is the `data_file` of its entry."""

    file: dict[str, Any]
    spec_id: int


@dataclass(frozen=True)
class Retention:
    """Of a branch, as Java's `ManageSnapshots` sets it."""

    max_ref_age_ms: int | None = None
    max_snapshot_age_ms: int | None = None
    min_snapshots_to_keep: int | None = None


@dataclass
class ForeignTable:
    """`warehouse` is a folder of `open_catalog("local")`."""

    warehouse: Path
    namespace: str
    name: str
    clock: Callable[[], int] = field(default=lambda: time.time_ns() // 1_000_000)

    # -- the catalog -----------------------------------------------------------------------------

    def location(self) -> str:
        """The current metadata file."""
        with sqlite3.connect(self.warehouse / "icefold.db", timeout=60) as connection:
            found = connection.execute(
                "SELECT metadata_location FROM iceberg_tables "
                "WHERE table_namespace = ? AND table_name = ?",
                (self.namespace, self.name),
            ).fetchone()
        connection.close()
        return str(found[0])

    def load(self) -> Metadata:
        """The current metadata, as JSON has it."""
        metadata: Metadata = json.loads(read(self.location()))
        return metadata

    def swap(self, base: str, metadata: Metadata) -> None:
        """Write the next metadata file, and make it the current one."""
        metadata.pop("icefold.crc32", None)  # no tool keeps a member that it does not know
        number = int(base.rsplit("/", 1)[1].split("-")[0]) + 1
        path = f"{metadata['location']}/metadata/{number:05d}-{uuid.uuid4()}.metadata.json"
        metadata["metadata-log"].append(
            {"metadata-file": base, "timestamp-ms": metadata["last-updated-ms"]}
        )
        metadata["last-updated-ms"] = max(self.clock(), metadata["last-updated-ms"])
        write(path, json.dumps(metadata).encode())
        with sqlite3.connect(self.warehouse / "icefold.db", timeout=60) as connection:
            swapped = connection.execute(
                "UPDATE iceberg_tables SET metadata_location = ?, previous_metadata_location = ? "
                "WHERE table_namespace = ? AND table_name = ? AND metadata_location = ?",
                (path, base, self.namespace, self.name, base),
            ).rowcount
        connection.close()
        assert swapped == 1, "another commit came first"

    # -- reading ---------------------------------------------------------------------------------

    def head(self, branch: str = "main") -> int | None:
        """The branch's snapshot."""
        return head_of(self.load(), branch)

    def live(self, snapshot_id: int, metadata: Metadata | None = None) -> list[Entry]:
        """The live files of a snapshot."""
        metadata = metadata or self.load()
        snapshot = snapshots_of(metadata)[snapshot_id]
        return [entry for manifest in _manifests(snapshot) for entry in _live_entries(manifest)]

    def rows(self, branch: str = "main", *, snapshot_id: int | None = None) -> list[LiveRow]:
        """Merged on read: vectors by position, equality deletes by sequence number and scope."""
        metadata = self.load()
        snapshot_id = head_of(metadata, branch) if snapshot_id is None else snapshot_id
        if snapshot_id is None:
            return []
        return merge_on_read(metadata, self.live(snapshot_id, metadata))

    # -- commits ---------------------------------------------------------------------------------

    def append(self, rows: Sequence[Row], *, branch: str = "main") -> int:
        """New rows, as any writer adds them."""
        return self.commit(branch, "append", add=self.data_files(rows))

    def commit(
        self,
        branch: str,
        operation: str,
        *,
        add: Iterable[NewFile] = (),
        remove: Iterable[Entry] = (),
        summary: Mapping[str, str] | None = None,
    ) -> int:
        """One snapshot on a branch (created from main); its id."""
        base, metadata = self._base()
        snapshot_id = uuid.uuid4().int >> 65
        ref = metadata["refs"].get(branch) or metadata["refs"].get("main")
        parent = None if ref is None else snapshots_of(metadata)[ref["snapshot-id"]]
        snapshot = _write_snapshot(
            metadata, parent, snapshot_id, self._now(metadata), operation,
            list(add), list(remove), summary or {},
        )  # fmt: skip
        metadata["snapshots"].append(snapshot)
        metadata["last-sequence-number"] = snapshot["sequence-number"]
        metadata["next-row-id"] += snapshot["added-rows"]
        self._point(metadata, branch, snapshot_id, snapshot["timestamp-ms"])
        self.swap(base, metadata)
        return snapshot_id

    def data_files(self, rows: Sequence[Row], row_ids: Sequence[int | None] = ()) -> list[NewFile]:
        """Written and not committed: one file per partition. `row_ids` are kept where given."""
        metadata = self.load()
        schema = _schema_of(metadata)
        spec = _spec_of(metadata, metadata["default-spec-id"])
        ids = list(row_ids) or [None] * len(rows)
        groups: dict[Row, list[int]] = {}
        for at, row in enumerate(rows):
            groups.setdefault(_partition_of(spec, schema, row), []).append(at)
        return [
            _write_data_file(metadata, spec, partition, [rows[at] for at in found],
                             [ids[at] for at in found])
            for partition, found in groups.items()
        ]  # fmt: skip

    def key_deletes(self, keys: Sequence[Row], names: Sequence[str] = ("id",)) -> list[NewFile]:
        """Equality deletes, in the partitions that the keys hash to."""
        metadata = self.load()
        schema = _schema_of(metadata)
        spec = _spec_of(metadata, metadata["default-spec-id"])
        groups: dict[Row, list[Row]] = {}
        for key in keys:
            whole = tuple(dict(zip(names, key, strict=True)).get(each["name"]) for each in schema)
            groups.setdefault(_partition_of(spec, schema, whole), []).append(key)
        return [
            self.key_delete_file(found, names, partition) for partition, found in groups.items()
        ]

    def key_delete_file(
        self, keys: Sequence[Row], names: Sequence[str], partition: Row, spec_id: int | None = None
    ) -> NewFile:
        """Equality deletes filed where the caller says, right or wrong."""
        metadata = self.load()
        fields = [each for each in _schema_of(metadata) if each["name"] in names]
        spec = _spec_of(metadata, metadata["default-spec-id"] if spec_id is None else spec_id)
        path = _new_path(metadata, "eq-deletes.parquet")
        size = _write_parquet(path, fields, list(zip(*keys, strict=True)))
        ids = [each["id"] for each in fields]
        file = _file(EQUALITY_DELETES, path, "PARQUET", spec, partition, len(keys), size)
        return NewFile(file | {"equality_ids": ids}, spec["spec-id"])

    def vector(
        self, branch: str, path: str, positions: Iterable[int]
    ) -> tuple[list[NewFile], list[Entry]]:
        """A vector for a live file of a branch, merged with the one it replaces: (add, remove)."""
        metadata = self.load()
        head = head_of(metadata, branch)
        assert head is not None
        live = self.live(head, metadata)
        [target] = [entry for entry in live if entry.is_data and entry.path == path]
        old = [
            each for each in live if each.is_vector and each.file["referenced_data_file"] == path
        ]
        dead = BitMap64(positions)
        for each in old:
            dead |= read_vector(each.file)
        location = _new_path(metadata, "vectors.puffin")
        blob = _blob(dead)
        write(location, _puffin(blob, path, len(dead)))
        spec = _spec_of(metadata, target.spec_id)
        file = _file(
            POSITION_DELETES, location, "PUFFIN", spec, target.partition[1:], len(dead),
            Path(location.removeprefix("file://")).stat().st_size,
        )  # fmt: skip
        file |= {
            "referenced_data_file": path,
            "content_offset": len(_MAGIC),
            "content_size_in_bytes": len(blob),
        }
        return [NewFile(file, target.spec_id)], old

    def position_delete_file(self, branch: str, path: str, positions: Iterable[int]) -> NewFile:
        """A position delete file as v2 has them, for a live file of a branch."""
        metadata = self.load()
        head = head_of(metadata, branch)
        assert head is not None
        [target] = [e for e in self.live(head, metadata) if e.is_data and e.path == path]
        dead = sorted(positions)
        location = _new_path(metadata, "deletes.parquet")
        size = _write_parquet(location, _POSITION_FIELDS, [[path] * len(dead), dead])
        spec = _spec_of(metadata, target.spec_id)
        file = _file(
            POSITION_DELETES, location, "PARQUET", spec, target.partition[1:], len(dead), size
        )
        return NewFile(file | {"referenced_data_file": path}, target.spec_id)

    def delete_rows(self, branch: str, rows: Iterable[LiveRow]) -> int:
        """DELETE, merge-on-read: vectors."""
        add, remove = self._vectors(branch, rows)
        return self.commit(branch, "delete", add=add, remove=remove)

    def update_rows(self, branch: str, changes: Sequence[tuple[LiveRow, Row]]) -> int:
        """UPDATE, merge-on-read, as Spark does it: vectors, and new rows that keep their ids."""
        add, remove = self._vectors(branch, [old for old, _ in changes])
        files = self.data_files([new for _, new in changes], [old.row_id for old, _ in changes])
        return self.commit(branch, "overwrite", add=[*files, *add], remove=remove)

    def _vectors(self, branch: str, rows: Iterable[LiveRow]) -> tuple[list[NewFile], list[Entry]]:
        by_path: dict[str, list[int]] = {}
        for row in rows:
            by_path.setdefault(row.path, []).append(row.position)
        pairs = [self.vector(branch, path, found) for path, found in by_path.items()]
        return [each for add, _ in pairs for each in add], [e for _, old in pairs for e in old]

    def rewrite(
        self,
        branch: str = "main",
        *,
        keep_row_ids: bool,
        wanted: Callable[[str], bool] = lambda _: True,
        without: Callable[[LiveRow], bool] = lambda _: False,
    ) -> int | None:
        """Compaction (or a copy-on-write DELETE of `without`) of the wanted files into new ones.

        Deletes that reach none of what is left stay where they are; vectors of the old files go.
        """
        head = self.head(branch)
        assert head is not None
        live = self.live(head)
        old = [entry for entry in live if entry.is_data and wanted(entry.path)]
        paths = {entry.path for entry in old}
        vectors = [e for e in live if e.is_vector and e.file["referenced_data_file"] in paths]
        rows = [row for row in self.rows(branch) if row.path in paths and not without(row)]
        if not old:
            return None
        ids = [row.row_id if keep_row_ids else None for row in rows]
        files = self.data_files([row.values for row in rows], ids)
        gone = any(without(row) for row in self.rows(branch) if row.path in paths)
        operation = "overwrite" if gone else "replace"
        return self.commit(branch, operation, add=files, remove=[*old, *vectors])

    def add_path(self, branch: str, entry: Entry) -> int:
        """`add_files`: a data file that some other snapshot has, under its own path."""
        file = dict(entry.file) | {"first_row_id": None}
        return self.commit(branch, "append", add=[NewFile(file, entry.spec_id)])

    def cherry_pick(self, snapshot_id: int, branch: str = "main") -> int | None:
        """As Java does it: appends, and what the head is the parent of. None: refused."""
        metadata = self.load()
        picked = snapshots_of(metadata)[snapshot_id]
        head = head_of(metadata, branch)
        if head is not None and picked.get("parent-snapshot-id") == head:
            self.set_branch(branch, snapshot_id)
            return snapshot_id
        by_id = snapshots_of(metadata)
        chain = list(chain_of(metadata, head))
        sources = {by_id[each]["summary"].get("source-snapshot-id") for each in chain}
        if (
            picked["summary"]["operation"] != "append"
            or snapshot_id in chain
            or str(snapshot_id) in sources
        ):
            return None
        added = [e for e in self.live(snapshot_id, metadata) if e.snapshot_id == snapshot_id]
        files = [NewFile(dict(e.file) | {"first_row_id": None}, e.spec_id) for e in added]
        return self.commit(
            branch, "append", add=files, summary={"source-snapshot-id": str(snapshot_id)}
        )

    # -- refs, properties, expiry ----------------------------------------------------------------

    def set_branch(self, branch: str, snapshot_id: int, retention: Retention | None = None) -> None:
        """Fast-forward, rollback, create: the log of main gets the time of now."""
        base, metadata = self._base()
        self._point(metadata, branch, snapshot_id, self._now(metadata))
        if retention is not None:
            names = ("max_ref_age_ms", "max_snapshot_age_ms", "min_snapshots_to_keep")
            given = {each.replace("_", "-"): getattr(retention, each) for each in names}
            metadata["refs"][branch] |= {k: v for k, v in given.items() if v is not None}
        self.swap(base, metadata)

    def set_properties(self, updates: Mapping[str, str], remove: Iterable[str] = ()) -> None:
        """Table properties."""
        base, metadata = self._base()
        metadata["properties"] |= updates
        for key in remove:
            metadata["properties"].pop(key, None)
        self.swap(base, metadata)

    def expire(self, *, older_than_ms: int | None = None, retain_last: int | None = None) -> None:
        """Java's `expireSnapshots`, with its clean-up by reachability."""
        base, metadata = self._base()
        kept, refs = java_retained(metadata, self.clock(), older_than_ms, retain_last)
        gone = [each for each in metadata["snapshots"] if each["snapshot-id"] not in kept]
        metadata["snapshots"] = [e for e in metadata["snapshots"] if e["snapshot-id"] in kept]
        metadata["refs"] = {name: metadata["refs"][name] for name in refs}
        log: list[dict[str, int]] = []
        for each in metadata["snapshot-log"]:
            log = [*log, each] if each["snapshot-id"] in kept else []
        metadata["snapshot-log"] = log
        self.swap(base, metadata)
        left = set().union(*(_locations(each) for each in metadata["snapshots"]))
        for location in set().union(*(_locations(each) for each in gone)) - left:
            Path(location.removeprefix("file://")).unlink(missing_ok=True)

    def _base(self) -> tuple[str, Metadata]:
        location = self.location()
        return location, json.loads(read(location))

    def _now(self, metadata: Metadata) -> int:
        return max(self.clock(), int(metadata["last-updated-ms"]) + 1)

    def _point(self, metadata: Metadata, branch: str, snapshot_id: int, now_ms: int) -> None:
        ref = metadata["refs"].setdefault(branch, {"type": "branch"})
        ref["snapshot-id"] = snapshot_id
        metadata["last-updated-ms"] = now_ms
        if branch == "main":
            metadata["current-snapshot-id"] = snapshot_id
            metadata["snapshot-log"].append({"timestamp-ms": now_ms, "snapshot-id": snapshot_id})


def snapshots_of(metadata: Metadata) -> dict[int, dict[str, Any]]:
    """By id."""
    return {each["snapshot-id"]: each for each in metadata["snapshots"]}


def head_of(metadata: Metadata, branch: str) -> int | None:
    """The branch's snapshot."""
    ref = metadata["refs"].get(branch)
    return None if ref is None else int(ref["snapshot-id"])


def chain_of(metadata: Metadata, snapshot_id: int | None) -> Iterable[int]:
    """A snapshot and its ancestors, newest first."""
    by_id = snapshots_of(metadata)
    while snapshot_id is not None and snapshot_id in by_id:
        yield snapshot_id
        snapshot_id = by_id[snapshot_id].get("parent-snapshot-id")


def java_retained(
    metadata: Metadata, now_ms: int, older_than_ms: int | None, retain_last: int | None
) -> tuple[set[int], set[str]]:
    """Snapshots and refs that `RemoveSnapshots` keeps."""
    properties, by_id = metadata["properties"], snapshots_of(metadata)
    age = int(properties.get("history.expire.max-snapshot-age-ms", FIVE_DAYS_MS))
    older = now_ms - age if older_than_ms is None else older_than_ms
    keep = int(properties.get("history.expire.min-snapshots-to-keep", 1))
    keep = keep if retain_last is None else retain_last
    ref_age = int(properties.get("history.expire.max-ref-age-ms", LONG_MAX))
    refs = {
        name
        for name, ref in metadata["refs"].items()
        if name == "main"
        or now_ms - by_id[ref["snapshot-id"]]["timestamp-ms"] <= ref.get("max-ref-age-ms", ref_age)
    }
    kept, referenced = set(), set()
    for name in refs:
        ref = metadata["refs"][name]
        kept.add(ref["snapshot-id"])
        chain = list(chain_of(metadata, ref["snapshot-id"]))
        referenced.update(chain)
        if ref["type"] == "tag":
            continue
        own_age = ref.get("max-snapshot-age-ms")
        limit = older if own_age is None else now_ms - own_age
        least = ref.get("min-snapshots-to-keep", keep)
        for count, each in enumerate(chain):
            if count >= least and by_id[each]["timestamp-ms"] < limit:
                break
            kept.add(each)
    loose = by_id.keys() - referenced
    kept.update(each for each in loose if by_id[each]["timestamp-ms"] >= older)
    return kept, refs


def merge_on_read(metadata: Metadata, live: Sequence[Entry]) -> list[LiveRow]:
    """The rows that these files are together."""
    schema = _schema_of(metadata)
    dead = {e.file["referenced_data_file"]: read_vector(e.file) for e in live if e.is_vector}
    unknown = [e.path for e in live if e.file["content"] == POSITION_DELETES and not e.is_vector]
    assert not unknown, f"position delete files are not for this reader: {unknown}"
    keyed = [_KeyDelete.read(metadata, e) for e in live if e.file["content"] == EQUALITY_DELETES]
    found = []
    for entry in live:
        if not entry.is_data:
            continue
        reach = [each for each in keyed if each.reaches(entry)]
        gone = dead.get(entry.path, ())
        for at, (values, row_id) in enumerate(_stored_rows(schema, entry)):
            if at not in gone and not any(each.hits(schema, values) for each in reach):
                row = LiveRow(values, row_id, entry.path, at, entry.sequence_number)
                found.append(row)
    return found


@dataclass(frozen=True)
class _KeyDelete:
    entry: Entry
    ids: tuple[int, ...]
    keys: frozenset[Row]
    is_global: bool

    @classmethod
    def read(cls, metadata: Metadata, entry: Entry) -> _KeyDelete:
        ids = tuple(sorted(entry.file["equality_ids"]))
        _, by_id = _columns(entry.path)
        keys = frozenset(zip(*(by_id[i] for i in ids), strict=True))
        return cls(entry, ids, keys, not _spec_of(metadata, entry.spec_id)["fields"])

    def reaches(self, data: Entry) -> bool:
        in_scope = self.is_global or self.entry.partition == data.partition
        return in_scope and data.sequence_number < self.entry.sequence_number

    def hits(self, schema: list[dict[str, Any]], values: Row) -> bool:
        by_id = {each["id"]: value for each, value in zip(schema, values, strict=True)}
        return tuple(by_id[each] for each in self.ids) in self.keys


def _stored_rows(schema: list[dict[str, Any]], entry: Entry) -> Iterable[tuple[Row, int]]:
    count, by_id = _columns(entry.path)
    empty = [None] * count
    columns = [by_id.get(each["id"], empty) for each in schema]
    ids = by_id.get(ROW_ID_FIELD, empty)
    assert entry.first_row_id is not None
    for at, (row_id, *values) in enumerate(zip(ids, *columns, strict=True)):
        yield tuple(values), entry.first_row_id + at if row_id is None else row_id


def _columns(location: str) -> tuple[int, dict[int, list[Any]]]:
    """How many rows a Parquet file has, and its columns by field id."""
    _check_is_there(location)
    return _parsed_columns(location)


@functools.lru_cache(maxsize=4096)
def _parsed_columns(location: str) -> tuple[int, dict[int, list[Any]]]:
    stored = pq.ParquetFile(Path(location.removeprefix("file://"))).read(use_threads=False)
    return stored.num_rows, {
        int((each.metadata or {}).get(b"PARQUET:field_id", -1)): column.to_pylist()
        for each, column in zip(stored.schema, stored.columns, strict=True)
    }


def _check_is_there(location: str) -> None:
    """Files never change, so they are parsed once; but one that was deleted is an error."""
    assert Path(location.removeprefix("file://")).exists(), f"a live file is gone: {location}"


# -- files ---------------------------------------------------------------------------------------


def read(location: str) -> bytes:
    """The bytes of a local file."""
    return Path(location.removeprefix("file://")).read_bytes()


def write(location: str, data: bytes) -> None:
    """A new local file."""
    path = Path(location.removeprefix("file://"))
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("xb") as file:
        file.write(data)


def read_vector(file: Mapping[str, Any]) -> BitMap64:
    """Dead positions."""
    begin = file["content_offset"]
    blob = read(file["file_path"])[begin : begin + file["content_size_in_bytes"]]
    return BitMap64.deserialize(blob[8:-4])


def _blob(dead: BitMap64) -> bytes:
    body = _DV_MAGIC + dead.serialize()
    return struct.pack(">i", len(body)) + body + struct.pack(">I", zlib.crc32(body))


def _puffin(blob: bytes, path: str, cardinality: int) -> bytes:
    described = {
        "type": "deletion-vector-v1",
        "fields": [],
        "snapshot-id": -1,
        "sequence-number": -1,
        "offset": len(_MAGIC),
        "length": len(blob),
        "properties": {"referenced-data-file": path, "cardinality": str(cardinality)},
    }
    footer = json.dumps({"blobs": [described], "properties": {}}).encode()
    end = struct.pack("<i", len(footer)) + bytes(4) + _MAGIC
    return _MAGIC + blob + _MAGIC + footer + end


def _write_parquet(path: str, fields: Sequence[dict[str, Any]], columns: Sequence[Any]) -> int:
    schema = pa.schema(
        [
            pa.field(
                each["name"],
                _TYPES[each["type"]][0],
                nullable=not each["required"],
                metadata={"PARQUET:field_id": str(each["id"])},
            )
            for each in fields
        ]
    )
    arrays = [pa.array(c, t.type) for c, t in zip(columns, schema, strict=True)]
    sink = io.BytesIO()
    pq.write_table(pa.table(arrays, schema=schema), sink)
    write(path, sink.getvalue())
    return len(sink.getvalue())


def _write_data_file(
    metadata: Metadata,
    spec: dict[str, Any],
    partition: Row,
    rows: Sequence[Row],
    row_ids: Sequence[int | None],
) -> NewFile:
    fields, columns = _schema_of(metadata), [list(each) for each in zip(*rows, strict=True)]
    if any(each is not None for each in row_ids):
        lineage = {"name": ROW_ID, "type": "long", "required": False, "id": ROW_ID_FIELD}
        fields, columns = [*fields, lineage], [*columns, list(row_ids)]
    path = _new_path(metadata, "foreign.parquet")
    size = _write_parquet(path, fields, columns)
    file = _file(DATA, path, "PARQUET", spec, partition, len(rows), size)
    return NewFile(file, spec["spec-id"])


def _file(
    content: int, path: str, form: str, spec: dict[str, Any], partition: Row, rows: int, size: int
) -> dict[str, Any]:
    names = [each["name"] for each in spec["fields"]]
    return {
        "content": content,
        "file_path": path,
        "file_format": form,
        "partition": dict(zip(names, partition, strict=True)),
        "record_count": rows,
        "file_size_in_bytes": size,
    }


def _new_path(metadata: Metadata, suffix: str) -> str:
    return f"{metadata['location']}/data/{uuid.uuid4()}-{suffix}"


def _schema_of(metadata: Metadata) -> list[dict[str, Any]]:
    wanted = metadata["current-schema-id"]
    [schema] = [each for each in metadata["schemas"] if each["schema-id"] == wanted]
    return list(schema["fields"])


def _spec_of(metadata: Metadata, spec_id: int) -> dict[str, Any]:
    [spec] = [each for each in metadata["partition-specs"] if each["spec-id"] == spec_id]
    return dict(spec)


def _partition_of(spec: dict[str, Any], schema: list[dict[str, Any]], row: Row) -> Row:
    values = {each["id"]: (each["type"], value) for each, value in zip(schema, row, strict=True)}
    found = []
    for each in spec["fields"]:
        kind, value = values[each["source-id"]]
        transform = parse_transform(each["transform"]).transform(_TYPES[kind][1])
        found.append(None if value is None else transform(value))
    return tuple(found)


# -- manifests -----------------------------------------------------------------------------------


def _write_snapshot(
    metadata: Metadata,
    parent: dict[str, Any] | None,
    snapshot_id: int,
    now_ms: int,
    operation: str,
    add: list[NewFile],
    remove: list[Entry],
    summary: Mapping[str, str],
) -> dict[str, Any]:
    number = metadata["last-sequence-number"] + 1
    writer = _ManifestWriter(metadata, snapshot_id, number)
    manifests = [] if parent is None else _without(writer, _manifests(parent), remove)
    groups: dict[tuple[int, bool], list[dict[str, Any]]] = {}
    for each in add:
        key = each.spec_id, each.file["content"] == DATA
        groups.setdefault(key, []).append(_entry(ADDED, None, None, None, each.file))
    new = [
        writer.write(entries, spec_id, is_data=is_data)
        for (spec_id, is_data), entries in groups.items()
    ]
    listed = new + manifests
    next_row_id = metadata["next-row-id"]
    for manifest in listed:
        if manifest["content"] == 0 and manifest["first_row_id"] is None:
            manifest["first_row_id"] = next_row_id
            next_row_id += manifest["added_rows_count"] + manifest["existing_rows_count"]
    path = f"{metadata['location']}/metadata/snap-{snapshot_id}-1-{uuid.uuid4()}.avro"
    write(path, _avro(_LIST_SCHEMA, listed, {"format-version": "3"}))
    snapshot = {
        "snapshot-id": snapshot_id,
        "sequence-number": number,
        "timestamp-ms": now_ms,
        "manifest-list": path,
        "schema-id": metadata["current-schema-id"],
        "first-row-id": metadata["next-row-id"],
        "added-rows": next_row_id - metadata["next-row-id"],
    }
    if parent is not None:
        snapshot["parent-snapshot-id"] = parent["snapshot-id"]
    totals = _totals(snapshot)
    snapshot["summary"] = {"operation": operation, **summary, **totals, **_added(add)}
    return snapshot


def _added(add: list[NewFile]) -> dict[str, str]:
    rows = sum(each.file["record_count"] for each in add if each.file["content"] == DATA)
    files = sum(each.file["content"] == DATA for each in add)
    return {"added-data-files": str(files), "added-records": str(rows)} if files else {}


def _totals(snapshot: dict[str, Any]) -> dict[str, str]:
    live = [entry for manifest in _manifests(snapshot) for entry in _live_entries(manifest)]
    sums: Counter[str] = Counter()
    for entry in live:
        file = entry.file
        sums["files-size"] += file.get("content_size_in_bytes") or file["file_size_in_bytes"]
        sums["data-files"] += file["content"] == DATA
        sums["delete-files"] += file["content"] != DATA
        kind = ("records", "position-deletes", "equality-deletes")[file["content"]]
        sums[kind] += file["record_count"]
    names = (
        "records", "files-size", "data-files", "delete-files", "position-deletes",
        "equality-deletes",
    )  # fmt: skip
    return {f"total-{name}": str(sums[name]) for name in names}


def _without(
    writer: _ManifestWriter, manifests: list[dict[str, Any]], remove: list[Entry]
) -> list[dict[str, Any]]:
    gone = {entry.identity for entry in remove}
    found = []
    for manifest in manifests:
        entries = _live_entries(manifest)
        if not entries:  # it told of removals only, to the snapshot that it came with
            continue
        if not any(entry.identity in gone for entry in entries):
            found.append(manifest)
            continue
        found.append(
            writer.write(
                [
                    _entry(
                        DELETED if each.identity in gone else EXISTING,
                        writer.snapshot_id if each.identity in gone else each.snapshot_id,
                        each.sequence_number,
                        each.file_sequence_number,
                        each.file | {"first_row_id": each.first_row_id},
                    )
                    for each in entries
                ],
                manifest["partition_spec_id"],
                is_data=manifest["content"] == 0,
            )
        )
    return found


@dataclass
class _ManifestWriter:
    metadata: Metadata
    snapshot_id: int
    number: int

    def write(
        self, entries: list[dict[str, Any]], spec_id: int, *, is_data: bool
    ) -> dict[str, Any]:
        """Its record in the list."""
        spec = _spec_of(self.metadata, spec_id)
        fields = {each["id"]: each["type"] for each in _schema_of(self.metadata)}
        header = {
            "schema": json.dumps(
                {
                    "type": "struct",
                    "schema-id": self.metadata["current-schema-id"],
                    "fields": _schema_of(self.metadata),
                }
            ),
            "schema-id": str(self.metadata["current-schema-id"]),
            "partition-spec": json.dumps(spec["fields"]),
            "partition-spec-id": str(spec_id),
            "format-version": "3",
            "content": "data" if is_data else "deletes",
        }
        path = f"{self.metadata['location']}/metadata/{uuid.uuid4()}-m0.avro"
        data = _avro(_entry_schema(spec, fields), entries, header)
        write(path, data)
        counts: Counter[str] = Counter()
        for each in entries:
            name = ("existing", "added", "deleted")[each["status"]]
            counts[f"{name}_files_count"] += 1
            counts[f"{name}_rows_count"] += each["data_file"]["record_count"]
        numbers = [
            self.number if each["sequence_number"] is None else each["sequence_number"]
            for each in entries
            if each["status"] != DELETED
        ]
        kinds = [f"{n}_{k}_count" for n in ("added", "existing", "deleted") for k in _COUNTED]
        return {
            "manifest_path": path,
            "manifest_length": len(data),
            "partition_spec_id": spec_id,
            "content": 0 if is_data else 1,
            "sequence_number": self.number,
            "min_sequence_number": min(numbers, default=self.number),
            "added_snapshot_id": self.snapshot_id,
            "partitions": None,
            "first_row_id": None,
            **{kind: counts[kind] for kind in kinds},
        }


_COUNTED = ("files", "rows")


def _entry(
    status: int,
    snapshot_id: int | None,
    number: int | None,
    file_number: int | None,
    file: Mapping[str, Any],
) -> dict[str, Any]:
    return {
        "status": status,
        "snapshot_id": snapshot_id,
        "sequence_number": number,
        "file_sequence_number": file_number,
        "data_file": dict(file),
    }


def _manifests(snapshot: Mapping[str, Any]) -> list[dict[str, Any]]:
    return _records(snapshot["manifest-list"])


def _live_entries(manifest: Mapping[str, Any]) -> list[Entry]:
    found = []
    next_row_id = manifest["first_row_id"]
    number = manifest["sequence_number"]
    for record in _records(manifest["manifest_path"]):
        if record["status"] == DELETED:
            continue
        file = record["data_file"]
        first = file.get("first_row_id")
        if file["content"] == DATA and first is None and next_row_id is not None:
            first = next_row_id
            next_row_id += file["record_count"]
        own, file_own = record["sequence_number"], record["file_sequence_number"]
        entry = Entry(
            file=file,
            snapshot_id=record["snapshot_id"] or manifest["added_snapshot_id"],
            sequence_number=number if own is None else own,
            file_sequence_number=number if file_own is None else file_own,
            spec_id=manifest["partition_spec_id"],
            first_row_id=first,
            manifest=manifest["manifest_path"],
        )
        found.append(entry)
    return found


def _records(location: str) -> list[dict[str, Any]]:
    """Of an Avro file; the caller's own to change at the first level."""
    _check_is_there(location)
    return [dict(each) for each in _parsed_records(location)]


@functools.lru_cache(maxsize=4096)
def _parsed_records(location: str) -> list[dict[str, Any]]:
    return list(fastavro.reader(io.BytesIO(read(location))))  # type: ignore[arg-type]


def _locations(snapshot: Mapping[str, Any]) -> set[str]:
    manifests = _manifests(snapshot)
    files = {entry.path for manifest in manifests for entry in _live_entries(manifest)}
    return {snapshot["manifest-list"]} | {each["manifest_path"] for each in manifests} | files


def _avro(schema: dict[str, Any], records: list[dict[str, Any]], header: dict[str, str]) -> bytes:
    sink = io.BytesIO()
    parsed = fastavro.parse_schema(schema)
    fastavro.writer(sink, parsed, records, codec="deflate", metadata=header)
    return sink.getvalue()


def _optional(name: str, kind: Any, field_id: int) -> dict[str, Any]:
    return {"name": name, "type": ["null", kind], "default": None, "field-id": field_id}


def _required(name: str, kind: Any, field_id: int) -> dict[str, Any]:
    return {"name": name, "type": kind, "field-id": field_id}


def _map(name: str, field_id: int, key_id: int, value: str) -> dict[str, Any]:
    pair = {
        "type": "record",
        "name": f"k{key_id}_v{key_id + 1}",
        "fields": [_required("key", "int", key_id), _required("value", value, key_id + 1)],
    }
    return _optional(name, {"type": "array", "items": pair, "logicalType": "map"}, field_id)


def _entry_schema(spec: dict[str, Any], fields: dict[int, str]) -> dict[str, Any]:
    partition = [
        _optional(
            each["name"],
            "int"
            if each["transform"].startswith("bucket")
            else _TYPES[fields[each["source-id"]]][2],
            each["field-id"],
        )
        for each in spec["fields"]
    ]
    file = [
        _required("content", "int", 134),
        _required("file_path", "string", 100),
        _required("file_format", "string", 101),
        _required("partition", {"type": "record", "name": "r102", "fields": partition}, 102),
        _required("record_count", "long", 103),
        _required("file_size_in_bytes", "long", 104),
        _map("column_sizes", 108, 117, "long"),
        _map("value_counts", 109, 119, "long"),
        _map("null_value_counts", 110, 121, "long"),
        _map("nan_value_counts", 137, 138, "long"),
        _map("lower_bounds", 125, 126, "bytes"),
        _map("upper_bounds", 128, 129, "bytes"),
        _optional("key_metadata", "bytes", 131),
        _optional("split_offsets", {"type": "array", "items": "long", "element-id": 133}, 132),
        _optional("equality_ids", {"type": "array", "items": "int", "element-id": 136}, 135),
        _optional("sort_order_id", "int", 140),
        _optional("first_row_id", "long", 142),
        _optional("referenced_data_file", "string", 143),
        _optional("content_offset", "long", 144),
        _optional("content_size_in_bytes", "long", 145),
    ]
    return {
        "type": "record",
        "name": "manifest_entry",
        "fields": [
            _required("status", "int", 0),
            _optional("snapshot_id", "long", 1),
            _optional("sequence_number", "long", 3),
            _optional("file_sequence_number", "long", 4),
            _required("data_file", {"type": "record", "name": "r2", "fields": file}, 2),
        ],
    }


_SUMMARY = {
    "type": "record",
    "name": "r508",
    "fields": [
        _required("contains_null", "boolean", 509),
        _optional("contains_nan", "boolean", 518),
        _optional("lower_bound", "bytes", 510),
        _optional("upper_bound", "bytes", 511),
    ],
}
_LIST_SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "manifest_file",
    "fields": [
        _required("manifest_path", "string", 500),
        _required("manifest_length", "long", 501),
        _required("partition_spec_id", "int", 502),
        _required("content", "int", 517),
        _required("sequence_number", "long", 515),
        _required("min_sequence_number", "long", 516),
        _required("added_snapshot_id", "long", 503),
        _required("added_files_count", "int", 504),
        _required("existing_files_count", "int", 505),
        _required("deleted_files_count", "int", 506),
        _required("added_rows_count", "long", 512),
        _required("existing_rows_count", "long", 513),
        _required("deleted_rows_count", "long", 514),
        _optional("partitions", {"type": "array", "items": _SUMMARY, "element-id": 508}, 507),
        _optional("key_metadata", "bytes", 519),
        _optional("first_row_id", "long", 520),
    ],
}
