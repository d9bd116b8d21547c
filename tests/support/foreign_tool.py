"""Another tool on a table of an SQLite catalog and local files: reads it, and commits to it.

What it writes is written by `foreign_table`, without product code; the catalog is PyIceberg's
`iceberg_tables`. Where the spec leaves a choice it does what Iceberg's Java library does: a picked
append gets a `source-snapshot-id`, a fast-forward writes a later time into the log. One writer at a
time: a lost swap is an AssertionError. Keys are the first column.
"""

from __future__ import annotations

import copy
import sqlite3
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pyiceberg.transforms import parse_transform
from pyiceberg.types import LongType, StringType
from pyroaring import BitMap64

from tests.support.foreign_table import (
    Entry,
    ForeignCommit,
    ForeignTable,
    edited,
    expire_snapshots,
    write_keys,
    write_metadata,
    write_positions,
    write_rows,
    write_vector,
)
from tests.support.sim_files import Files, spec_of
from tests.support.sim_schema import ID, Row


@dataclass(frozen=True)
class LiveRow:
    """A row that reading gives, and where it is stored."""

    values: Row
    row_id: int
    path: str
    position: int


class ForeignTool:
    """`warehouse` is a folder of `open_catalog("local")`."""

    def __init__(self, warehouse: Path, namespace: str, name: str) -> None:
        self.warehouse = warehouse
        self.name = namespace, name
        self._files = Files(read)

    # -- the catalog -----------------------------------------------------------------------------

    def location(self) -> str:
        """The current metadata file."""
        sql = (
            "SELECT metadata_location FROM iceberg_tables "
            "WHERE table_namespace = ? AND table_name = ?"
        )
        with sqlite3.connect(self.warehouse / "icefold.db", timeout=60) as connection:
            [location] = connection.execute(sql, self.name).fetchone()
        connection.close()
        return str(location)

    def table(self) -> ForeignTable:
        """The current version."""
        return ForeignTable(read, self.location())

    def swap(self, table: ForeignTable, new: str) -> None:
        """Make a version the table's that was made of `table`."""
        sql = (
            "UPDATE iceberg_tables SET metadata_location = ?, previous_metadata_location = ? "
            "WHERE table_namespace = ? AND table_name = ? AND metadata_location = ?"
        )
        with sqlite3.connect(self.warehouse / "icefold.db", timeout=60) as connection:
            given = (new, table.location, *self.name, table.location)
            swapped = connection.execute(sql, given).rowcount
        connection.close()
        assert swapped == 1, "another commit came first"

    # -- reading ---------------------------------------------------------------------------------

    def head(self, branch: str = "main") -> int | None:
        """The branch's snapshot."""
        head = self.table().head(branch)
        return None if head is None else int(head["snapshot-id"])

    def live(self, snapshot_id: int) -> list[Entry]:
        """The live files of a snapshot."""
        table = self.table()
        return table.entries(table.by_id[snapshot_id])

    def rows(self, branch: str = "main") -> list[LiveRow]:
        """Merged on read: vectors by position, equality deletes by sequence number and scope."""
        table = self.table()
        entries, schema = table.entries(table.head(branch)), table.schema
        gone = {e.path for e in entries if not _local(e.path).exists()}
        assert not gone, f"live files are gone: {gone}"
        assert all(e.is_data or e.is_vector or e.is_key_delete for e in entries)
        dead = {e.file["referenced_data_file"]: self._positions(e) for e in entries if e.is_vector}
        keyed = [e for e in entries if e.is_key_delete]
        found = []
        for entry in filter(lambda each: each.is_data, entries):
            reaching = [e for e in keyed if _reaches(table, e, entry)]
            keys = {key for each in reaching for key in self._files.file(each.path).columns[ID]}
            ids = self._files.file(entry.path).row_ids
            for at, row in enumerate(self._files.rows_of(entry.path, schema)):
                if at not in dead.get(entry.path, ()) and row[0] not in keys:
                    row_id = entry.file["first_row_id"] + at if ids[at] is None else ids[at]
                    found.append(LiveRow(row, row_id, entry.path, at))
        return found

    def _positions(self, vector: Entry) -> BitMap64:
        at, size = vector.file["content_offset"], vector.file["content_size_in_bytes"]
        return self._files.bitmap(vector.path, at, size)

    # -- files, written and not committed --------------------------------------------------------

    def data_files(self, rows: Sequence[Row], row_ids: Sequence[int] | None = None) -> list[Entry]:
        """One per partition. `row_ids` are kept where given."""
        table = self.table()
        groups = self._by_partition(table, rows)
        return [
            self._new(table, like, "rows.parquet", write_rows, table.schema,
                      [rows[at] for at in found],
                      None if row_ids is None else [row_ids[at] for at in found])
            for like, found in groups
        ]  # fmt: skip

    def key_deletes(self, keys: Sequence[int]) -> list[Entry]:
        """Equality deletes, in the partitions that the keys hash to."""
        table = self.table()
        groups = self._by_partition(table, [(key,) for key in keys])
        return [
            self._key_deletes(table, like, [keys[at] for at in found]) for like, found in groups
        ]

    def misfiled_key_deletes(self, keys: Sequence[int], partition: Row) -> list[Entry]:
        """Equality deletes filed where the caller says, right or wrong."""
        table = self.table()
        return [self._key_deletes(table, table.like(_default_spec(table), partition), keys)]

    def position_deletes(self, branch: str, path: str, positions: Iterable[int]) -> list[Entry]:
        """As v2 has them, for a live file of a branch."""
        table = self.table()
        like = next(e for e in table.entries(table.head(branch)) if e.path == path)
        return [self._new(table, like, "deletes.parquet", write_positions, path, positions)]

    def _key_deletes(self, table: ForeignTable, like: Entry, keys: Sequence[int]) -> Entry:
        key = table.schema.by_id[ID]
        rows = [(each,) for each in keys]
        return self._new(table, like, "keys.parquet", write_keys, [key], rows)

    def _by_partition(
        self, table: ForeignTable, rows: Sequence[Row]
    ) -> list[tuple[Entry, list[int]]]:
        """For each partition of the default spec a neighbour, and ordinals of its rows."""
        spec_id, groups = _default_spec(table), dict[Row, list[int]]()
        for at, row in enumerate(rows):
            groups.setdefault(_partition_of(table, spec_id, row), []).append(at)
        return [(table.like(spec_id, partition), found) for partition, found in groups.items()]

    def _new(
        self, table: ForeignTable, like: Entry, name: str, write_file: Callable, *given: Any
    ) -> Entry:
        path = f"{table.metadata['location']}/data/{uuid.uuid4()}-{name}"
        return replace(like, file={**like.file, **write_file(write, path, *given)})

    # -- commits ---------------------------------------------------------------------------------

    def commit(
        self,
        branch: str,
        operation: str,
        *,
        add: Iterable[Entry] = (),
        remove: Iterable[Entry] = (),
        **summary: str,
    ) -> int:
        """One snapshot on a branch (created from main); its id."""
        table, snapshot_id = self.table(), uuid.uuid4().int >> 65
        commit = ForeignCommit(
            table, branch, operation, snapshot_id, now_ms(), summary, parent_branch="main"
        )
        for each in add:
            commit.add(each, {})
        for each in remove:
            commit.remove(each)
        self.swap(table, commit.write(write))
        return snapshot_id

    def in_one_transaction(self, commits: Callable[[], object]) -> None:
        """Commits to main at once: the log gets the last of them."""
        log = self.table().metadata["snapshot-log"]
        commits()
        table = self.table()
        metadata = {**table.metadata, "snapshot-log": [*log, table.metadata["snapshot-log"][-1]]}
        self.swap(table, write_metadata(write, table, metadata, now_ms(), {}))

    def append(self, rows: Sequence[Row], *, branch: str = "main") -> int:
        """New rows, as any writer adds them."""
        return self.commit(branch, "append", add=self.data_files(rows))

    def add_path(self, branch: str, entry: Entry) -> int:
        """`add_files`: a data file that some other snapshot has, under its own path."""
        return self.commit(branch, "append", add=[entry])

    def delete_rows(self, branch: str, rows: Iterable[LiveRow]) -> int:
        """DELETE, merge-on-read: vectors."""
        add, remove = self._vectors(branch, rows)
        return self.commit(branch, "delete", add=add, remove=remove)

    def update_rows(self, branch: str, changes: Sequence[tuple[LiveRow, Row]]) -> int:
        """UPDATE, merge-on-read, as Spark does it: vectors, and new rows that keep their ids."""
        add, remove = self._vectors(branch, [old for old, _ in changes])
        add += self.data_files([new for _, new in changes], [old.row_id for old, _ in changes])
        return self.commit(branch, "overwrite", add=add, remove=remove)

    def _vectors(self, branch: str, rows: Iterable[LiveRow]) -> tuple[list[Entry], list[Entry]]:
        """To add, and to remove: a vector has the positions of the one that it replaces."""
        table, dead = self.table(), dict[str, BitMap64]()
        for row in rows:
            dead.setdefault(row.path, BitMap64()).add(row.position)
        entries = table.entries(table.head(branch))
        of = {e.path: e for e in entries if e.is_data}
        old = [e for e in entries if e.is_vector and e.file["referenced_data_file"] in dead]
        for each in old:
            dead[each.file["referenced_data_file"]] |= self._positions(each)
        return [
            self._new(table, of[path], "vector.puffin", write_vector, path, positions)
            for path, positions in dead.items()
        ], old

    def rewrite(
        self, *, keep_row_ids: bool, without: Callable[[LiveRow], bool] = lambda _: False
    ) -> int | None:
        """Compaction of main (or a copy-on-write DELETE of `without`); None: it has no file.

        Equality deletes stay where they are; vectors go with their files.
        """
        table, rows = self.table(), self.rows()
        old = [e for e in table.entries(table.head("main")) if e.is_data or e.is_vector]
        if not old:
            return None
        kept = [row for row in rows if not without(row)]
        ids = [row.row_id for row in kept] if keep_row_ids else None
        files = self.data_files([row.values for row in kept], ids)
        operation = "replace" if len(kept) == len(rows) else "overwrite"
        return self.commit("main", operation, add=files, remove=old)

    def copy_on_write(
        self,
        branch: str,
        change: Callable[[LiveRow], Row | None],
        *,
        paths: Iterable[str] | None = None,
    ) -> int:
        """DELETE and UPDATE of a branch, copy-on-write, as Spark does it; its id.

        Where no row changes it is a rewrite.

        Args:
            branch: The branch.
            change: What a row becomes; None: it goes. The ids of rows are kept.
            paths: The data files that are rewritten; None: those of which a row changes.
        """
        table, rows = self.table(), self.rows(branch)
        after = {(row.path, row.position): change(row) for row in rows}
        changed = {row.path for row in rows if after[row.path, row.position] != row.values}
        paths = changed if paths is None else set(paths)
        old = [
            e
            for e in table.entries(table.head(branch))
            if e.path in paths or (e.is_vector and e.file["referenced_data_file"] in paths)
        ]
        kept = [r for r in rows if r.path in paths and after[r.path, r.position] is not None]
        values = [after[row.path, row.position] for row in kept]
        files = self.data_files(values, [row.row_id for row in kept])
        operation = "overwrite" if changed else "replace"
        return self.commit(branch, operation, add=files, remove=old)

    def cherry_pick(self, snapshot_id: int) -> int | None:
        """As Java does it: appends, and what the head is the parent of. None: refused."""
        table = self.table()
        picked, head = table.by_id[snapshot_id], table.head("main")
        chain = list(table.ancestors(head and head["snapshot-id"]))
        if chain and picked.get("parent-snapshot-id") == chain[0]["snapshot-id"]:
            self.set_branch("main", snapshot_id)
            return snapshot_id
        known = {str(each["snapshot-id"]) for each in chain}
        known |= {each["summary"].get("source-snapshot-id") for each in chain}
        if picked["summary"]["operation"] != "append" or str(snapshot_id) in known:
            return None
        source = {"source-snapshot-id": str(snapshot_id)}
        return self.commit("main", "append", add=table.added(picked), **source)

    # -- refs, properties, expiry ----------------------------------------------------------------

    def set_branch(self, branch: str, snapshot_id: int, **retention: int) -> None:
        """Fast-forward, rollback, create: the log of main gets the time of now."""
        table = self.table()
        metadata = copy.deepcopy(table.metadata)
        says = {name.replace("_", "-"): value for name, value in retention.items()}
        metadata["refs"][branch] = {"type": "branch", **metadata["refs"].get(branch, {}), **says}
        self.swap(table, write_metadata(write, table, metadata, now_ms(), {branch: snapshot_id}))

    def replace_table(self, rows: Sequence[Row]) -> int:
        """REPLACE TABLE AS SELECT, as Java does it: main and its log begin anew."""

        def change(metadata: dict[str, Any]) -> None:
            metadata["refs"].pop("main")
            metadata |= {"current-snapshot-id": -1, "snapshot-log": []}

        files, table = self.data_files(rows), self.table()
        self.swap(table, edited(write, table, change, now_ms()))
        return self.commit("main", "append", add=files)

    def replace_columns(
        self, columns: Mapping[str, str], partition: tuple[str, str] | None = None
    ) -> None:
        """CREATE OR REPLACE TABLE, as Java does it: columns keep their ids by their names.

        Args:
            columns: Types by name; the first is the key.
            partition: Column and transform.
        """

        def change(metadata: dict[str, Any]) -> None:
            metadata["refs"].pop("main", None)
            known = {each["name"]: each["id"] for each in _current_fields(metadata)}
            new = [name for name in columns if name not in known]
            known |= {n: metadata["last-column-id"] + at for at, n in enumerate(new, 1)}
            key, spec_id = next(iter(columns)), len(metadata["partition-specs"])
            fields = [
                {"id": known[name], "name": name, "type": kind, "required": name == key}
                for name, kind in columns.items()
            ]
            schema = {"type": "struct", "schema-id": len(metadata["schemas"]), "fields": fields}
            schema["identifier-field-ids"] = [known[key]]
            spec = {"spec-id": spec_id, "fields": []}
            if partition is not None:
                column, transform = partition
                by = {"source-id": known[column], "transform": transform, "name": f"p{spec_id}"}
                spec["fields"] = [by | {"field-id": 1000 + spec_id}]
            metadata["schemas"].append(schema)
            metadata["partition-specs"].append(spec)
            metadata |= {
                "current-snapshot-id": -1,
                "snapshot-log": [],
                "current-schema-id": schema["schema-id"],
                "last-column-id": metadata["last-column-id"] + len(new),
                "default-spec-id": spec_id,
                "last-partition-id": 1000 + spec_id,
            }

        table = self.table()
        self.swap(table, edited(write, table, change, now_ms()))

    def set_properties(self, updates: Mapping[str, str]) -> None:
        """Table properties."""
        table = self.table()
        new = edited(write, table, lambda each: each["properties"].update(updates), now_ms())
        self.swap(table, new)

    def expire(self, *, older_than_ms: int, retain_last: int) -> None:
        """Java's `expireSnapshots`, with its clean-up by reachability."""
        table = self.table()
        expired = expire_snapshots(
            write, table, now_ms=now_ms(), older_than_ms=older_than_ms, retain_last=retain_last
        )
        if expired is not None:
            self.swap(table, expired.location)
            for location in expired.files:
                _local(location).unlink(missing_ok=True)


def now_ms() -> int:
    """The wall clock."""
    return time.time_ns() // 1_000_000


def read(location: str) -> bytes:
    """The bytes of a local file."""
    return _local(location).read_bytes()


def write(location: str, data: bytes) -> None:
    """A new local file."""
    path = _local(location)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("xb") as file:
        file.write(data)


def _local(location: str) -> Path:
    return Path(location.removeprefix("file:"))


def _current_fields(metadata: dict[str, Any]) -> list[dict[str, Any]]:
    current = metadata["current-schema-id"]
    [fields] = [s["fields"] for s in metadata["schemas"] if s["schema-id"] == current]
    return list(fields)


def _default_spec(table: ForeignTable) -> int:
    return int(table.metadata["default-spec-id"])


def _partition_of(table: ForeignTable, spec_id: int, row: Row) -> Row:
    values = [(row[source - 1], each) for source, each in spec_of(table.metadata, spec_id)]
    types = {int: LongType(), str: StringType()}
    return tuple(
        None if value is None else parse_transform(each).transform(types[type(value)])(value)
        for value, each in values
    )


def _reaches(table: ForeignTable, delete: Entry, data: Entry) -> bool:
    is_global = not spec_of(table.metadata, delete.spec_id)
    where = [(each.spec_id, each.file["partition"]) for each in (delete, data)]
    return (is_global or where[0] == where[1]) and data.sequence_number < delete.sequence_number
