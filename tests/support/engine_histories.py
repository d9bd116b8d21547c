"""Random histories of icefold and of Spark with Iceberg's runtime on one table, beside a model.

The model is a dict of rows per snapshot, by field id, and the log of staged changes: the keys that
each deletes, and its rows. Staged changes come in their order after what is on `main` when they are
published. Keys that statements insert are never used twice, so `main` has one row per key.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tableformat as tf
from maintenance import (
    CompactOptions,
    DropDeadDeletesOptions,
    ExpireOptions,
    ExpiryPolicy,
    RemoveOrphansOptions,
    RewriteManifestsOptions,
    RewriteVectorsOptions,
    compact,
    drop_dead_deletes,
    expire,
    remove_orphans,
    rewrite_manifests,
    rewrite_vectors,
)
from resolver import resolve
from resolver.cursor import LostCursorError
from tests.support.interop_engines import LINEAGE, duckdb_connection, plain_rows
from tests.support.interop_java_tables import SharedTable
from tests.support.java_iceberg import JavaIcebergError

EVERYTHING = ExpiryPolicy(max_snapshot_age_ms=0, min_snapshots_to_keep=1)
EVERY_TIME = "TIMESTAMP '2999-01-01'"
OLD_S = 30 * 24 * 3600
KEYS = range(10)  # those that are upserted; what statements insert is above
TYPES = {"bigint": 1, "int": 1, "string": 1, "double": 1, "date": 1, "decimal(9,2)": 1}

WEIGHTS = {
    "stage": 8, "resolve": 5, "resolve_some": 2, "spark_on_main": 5, "spark_on_staging": 5,
    "insert_overwrite": 1.5, "truncate": 0.3, "replace_table": 0.4, "rewrite_data_files": 3,
    "rewrite_position_delete_files": 1, "spark_rewrites_manifests": 1, "spark_expires": 1.5,
    "spark_removes_orphans": 1, "compute_stats": 0.3, "rollback": 1, "fast_forward": 0.5,
    "cherrypick": 1.5, "write_for_audit": 0.5, "publish_audited": 1, "add_files": 0.7,
    "change_columns": 1.5, "change_partitions": 1.5, "change_order": 0.4, "change_properties": 2,
    "upgrade": 0.5, "branches_and_tags": 0.7, "set_key_again": 0.3, "compact": 1, "expire": 1,
    "other_maintenance": 2, "icefold_on_main": 1.5,
}  # fmt: skip

Row = Mapping[int, Any]  # by field id
Rows = dict[int, Row]  # by key


class Skipped(Exception):
    """The step does not apply here."""


class ToldAsLost(Exception):
    """Staged changes have expired, and only a person can say which."""


@dataclass(frozen=True)
class Staged:
    """What a staged snapshot changes."""

    snapshot_id: int
    deletes: frozenset[int]
    rows: tuple[Row, ...]
    is_append: bool = False  # a statement that only adds files
    copies: bool = False  # a statement that removed files and added others


@dataclass(frozen=True)
class State:
    """Rows of a snapshot, how much of the log is in them, and what was picked out of it."""

    rows: Rows = field(default_factory=dict)
    cursor: int = 0
    picked: frozenset[int] = frozenset()


@dataclass
class Column:
    """A column of the current schema."""

    name: str
    field_id: int
    type: str
    default: Any = None


class EngineHistory:
    """One table, the engines, and the model; a step is a method."""

    def __init__(self, shared: SharedTable, seed: int) -> None:
        self.rng = random.Random(seed)
        self.shared = shared
        self.version = self.rng.choice([2, 3, 3])
        self.number = 0
        self.next_key = 100
        self.statements: list[str] = []
        self.refusals: Counter[str] = Counter()
        self.states: dict[int | None, State] = {None: State()}
        self.log: list[Staged] = []
        self.wap: dict[str, Staged] = {}
        self.main_before = self.staging_before = State()  # before the step
        self.is_believed = False  # the key is no identifier field: it may be null
        self.lost = False  # another tool has expired staged changes
        by = self.rng.choice(["", "", "region", "bucket(2, id)", "truncate(10, amount)"])
        modes = {f"write.{each}.mode": self.mode() for each in ("delete", "update", "merge")}
        listed = ", ".join(f"'{k}'='{v}'" for k, v in modes.items())
        partitioned = f"PARTITIONED BY ({by})" if by else ""
        self.spark(
            "CREATE TABLE T (id bigint NOT NULL, region string, amount bigint) USING iceberg "
            f"{partitioned} TBLPROPERTIES ('format-version'='{self.version}', {listed})",
            "ALTER TABLE T SET IDENTIFIER FIELDS id",
        )
        self.table = shared.load()
        self.read_columns()
        for keys in (KEYS[:4], KEYS[4:7]):
            self.main_before, rows = self.main, self.fresh(keys)
            self.table.refresh().append(self.arrow(rows))
            self.on_main({**self.main_before.rows, **by_key(rows)})

    # -- the model ---------------------------------------------------------------------------------

    def mode(self) -> str:
        return self.rng.choice(["merge-on-read", "merge-on-read", "copy-on-write"])

    def metadata(self) -> dict[str, Any]:
        """As the file says it, which the catalog names."""
        self.table.refresh()
        return json.loads(local_path(self.table.metadata_location).read_text())

    def head(self, branch: str) -> int | None:
        return self.metadata()["refs"].get(branch, {}).get("snapshot-id")

    def snapshot(self, snapshot_id: int) -> dict[str, Any]:
        return next(s for s in self.metadata()["snapshots"] if s["snapshot-id"] == snapshot_id)

    @property
    def main(self) -> State:
        return self.states[self.head("main")]

    @property
    def staging(self) -> State | None:
        head = self.head("staging")
        return None if head is None else self.states[head]

    @property
    def waiting(self) -> list[Staged]:
        return [] if self.head("staging") is None else self.log[self.main.cursor :]

    def on_main(self, rows: Rows, **changes: Any) -> None:
        """The head of main has these rows now."""
        self.states[self.head("main")] = replace(self.main_before, rows=rows, **changes)

    def on_staging(self, rows: Rows, deletes: Iterable[int], added: Iterable[Row]) -> None:
        """The newest snapshot of staging made these changes, if there is one."""
        head = self.head("staging")
        if head is None or head in self.states:
            return
        summary = self.snapshot(head)["summary"]
        added_files = int(summary.get("added-data-files", 0))
        removed_files = int(summary.get("deleted-data-files", 0))
        deletes_added = int(summary.get("added-delete-files", 0))
        self.log.append(
            Staged(
                head,
                frozenset(deletes),
                tuple(added),
                is_append=summary["operation"] == "append" and not deletes_added,
                copies=removed_files > 0 and added_files > 0,
            )
        )
        self.states[head] = State(rows, len(self.log), self.staging_before.picked)

    def read_columns(self) -> None:
        metadata = self.metadata()
        schema = next(
            s for s in metadata["schemas"] if s["schema-id"] == metadata["current-schema-id"]
        )
        self.columns = [
            Column(f["name"], f["id"], f["type"], f.get("initial-default"))
            for f in schema["fields"]
        ]
        self.by_name = {each.name: each for each in self.columns}

    def draw(self, least: int = 1, most: int = 4) -> set[int]:
        return set(self.rng.sample(KEYS, self.rng.randint(least, most)))

    def new_keys(self) -> set[int]:
        count = self.rng.randint(1, 3)
        self.next_key += count
        return set(range(self.next_key - count, self.next_key))

    def value(self, of: Column) -> Any:
        self.number += 1
        if self.rng.random() < 0.2:
            return None
        match of.type:
            case "string":
                return f"s{self.number}"
            case "double" | "float":
                return self.number / 2
            case "date":
                return date(2026, 1 + self.number % 12, 1 + self.number % 28)
            case _:
                return self.number

    def fresh(self, keys: Iterable[int]) -> list[Row]:
        rows = []
        for key in sorted(keys):
            row = {each.field_id: self.value(each) for each in self.columns[3:]}
            region = self.rng.choice(["eu", "us", None])
            self.number += 1
            rows.append({1: key, 2: region, 3: self.number, **row})
        return rows

    def sees(self, row: Row, name: str) -> Any:
        column = self.by_name[name]
        return row.get(column.field_id, column.default)

    def shown(self, rows: Iterable[Row]) -> Counter[tuple[Any, ...]]:
        """In the columns as they are now."""
        return Counter(
            tuple(_plain(row.get(c.field_id, c.default)) for c in self.columns) for row in rows
        )

    def arrow(self, rows: Iterable[Row]) -> pa.Table:
        schema = self.table.refresh().scan().to_arrow().schema
        listed = [{c.name: _exact(row.get(c.field_id), c) for c in self.columns} for row in rows]
        return pa.Table.from_pylist(listed, schema=schema)

    # -- statements --------------------------------------------------------------------------------

    def spark(self, *texts: str) -> None:
        for text in texts:
            self.statements.append(text)
            self.shared.sql(text)

    def call(self, procedure: str, **arguments: str) -> list[tuple[Any, ...]]:
        self.statements.append(f"CALL {procedure}({arguments})")
        return self.shared.call(procedure, **arguments)

    def values(self, rows: Iterable[Row]) -> str:
        return ", ".join(
            "(" + ", ".join(_sql(r.get(c.field_id), c) for c in self.columns) + ")" for r in rows
        )

    def condition(self, rows: Rows) -> tuple[str, set[int]]:
        """SQL, and the keys of the rows that it is true for."""
        match self.rng.randint(0, 5):
            case 0:
                limit = self.rng.randint(0, self.number)
                hit = {k for k, r in rows.items() if (v := r.get(3)) is not None and v < limit}
                return f"amount < {limit}", hit
            case 1:
                region = self.rng.choice(["eu", "us"])
                return f"region = '{region}'", {k for k, r in rows.items() if r.get(2) == region}
            case 2:
                rest = self.rng.randint(0, 2)
                return f"id % 3 = {rest}", {k for k in rows if k % 3 == rest}
            case _:
                keys = set(self.rng.sample(sorted(rows), min(len(rows), self.rng.randint(1, 3))))
                keys |= {self.rng.choice(KEYS)}
                return f"id IN ({', '.join(map(str, sorted(keys)))})", keys & rows.keys()

    def statement(self, kind: str, rows: Rows, name: str) -> tuple[str, Rows, set[int]]:
        """SQL, and what it makes of these rows: the new ones, and the keys that it deletes."""
        if kind == "insert":
            new = self.fresh(self.new_keys())
            return f"INSERT INTO {name} VALUES {self.values(new)}", by_key(new), set()
        if kind == "merge":
            gone = set(self.rng.sample(sorted(rows), min(len(rows), 1)))
            old = set(self.rng.sample(sorted(rows), min(len(rows), 2))) - gone
            new = by_key(self.fresh(old | self.new_keys()))
            marked = by_key(self.fresh(gone))
            names = ", ".join(each.name for each in self.columns)
            tuples = self.values([*new.values(), *marked.values()])
            flagged = f"SELECT *, id IN ({', '.join(map(str, gone)) or '-1'}) AS is_gone FROM " + (
                f"(VALUES {tuples}) AS v({names})"
            )
            sets = ", ".join(f"{c.name} = s.{c.name}" for c in self.columns if c.name != "id")
            inserted = ", ".join(f"s.{each.name}" for each in self.columns)
            text = (
                f"MERGE INTO {name} t USING ({flagged}) s ON t.id = s.id "
                "WHEN MATCHED AND s.is_gone THEN DELETE "
                f"WHEN MATCHED THEN UPDATE SET {sets} "
                f"WHEN NOT MATCHED AND NOT s.is_gone THEN INSERT ({names}) VALUES ({inserted})"
            )
            return text, new, gone | old
        where, keys = self.condition(rows)
        if kind == "delete":
            return f"DELETE FROM {name} WHERE {where}", {}, keys
        column = self.rng.choice([c for c in self.columns if c.name != "id"])
        if column.name == "region":
            value = self.rng.choice(["eu", "us", None])
        else:
            value = self.value(column)
        text = f"UPDATE {name} SET {column.name} = {_sql(value, column)} WHERE {where}"
        return text, {k: {**rows[k], column.field_id: value} for k in keys}, keys

    def change_main(self, run: Callable[[str], None], name: str = "T") -> None:
        kind = self.rng.choice(["insert", "delete", "update", "update", "merge"])
        rows = self.main.rows
        text, new, gone = self.statement(kind, rows, name)
        run(text)
        self.on_main({**{k: r for k, r in rows.items() if k not in gone}, **new})

    def spark_on_main(self) -> None:
        self.change_main(self.spark)

    def spark_on_staging(self) -> None:
        if self.staging is None:
            raise Skipped
        kind = self.rng.choice(["insert", "delete", "update", "merge"])
        rows = self.staging.rows
        text, new, gone = self.statement(kind, rows, "T.branch_staging")
        self.spark(text)
        left = {**{k: r for k, r in rows.items() if k not in gone}, **new}
        self.on_staging(left, gone, new.values())

    def insert_overwrite(self) -> None:
        """Static, which is everything, or of the partitions that rows fall into."""
        on_staging = self.rng.random() < 0.5 and self.staging is not None
        rows = self.staging.rows if on_staging else self.main.rows
        new = by_key(self.fresh(self.new_keys()))
        mode = self.rng.choice(["static", "dynamic"])
        spec = self.current_spec()
        gone = set(rows)
        if mode == "dynamic":
            if any(f["transform"] not in ("identity", "void") for f in spec) or not spec:
                raise Skipped
            if self.specs_changed:
                raise Skipped
            placed = {r.get(2) for r in new.values()}
            gone = {k for k, r in rows.items() if r.get(2) in placed}
        for key in self.rng.sample(sorted(gone), min(len(gone), 2)):
            new[key] = {**self.rng.choice([*new.values()]), 1: key}
        self.shared.java.configure({"spark.sql.sources.partitionOverwriteMode": mode})
        name = "T.branch_staging" if on_staging else "T"
        self.spark(f"INSERT OVERWRITE {name} VALUES {self.values(new.values())}")
        left = {**{k: r for k, r in rows.items() if k not in gone}, **new}
        if on_staging:
            self.on_staging(left, gone, new.values())
        else:
            self.on_main(left)

    def current_spec(self) -> list[dict[str, Any]]:
        metadata = self.metadata()
        wanted = metadata["default-spec-id"]
        return next(s["fields"] for s in metadata["partition-specs"] if s["spec-id"] == wanted)

    @property
    def specs_changed(self) -> bool:
        return len(self.metadata()["partition-specs"]) > 1

    def truncate(self) -> None:
        self.spark("TRUNCATE TABLE T")
        self.on_main({})

    def replace_table(self) -> None:
        """The key goes, and with the history of main what was published."""
        text, keys = self.condition(self.main.rows)
        rows = {k: r for k, r in self.main.rows.items() if k in keys}
        columns = {each.name: each.field_id for each in self.columns}
        self.spark(
            f"REPLACE TABLE T USING iceberg AS SELECT * FROM T WHERE {text}",
            "ALTER TABLE T SET TBLPROPERTIES ('icefold.primary-key'='id')",
        )
        self.is_believed = True
        self.read_columns()
        assert {each.name: each.field_id for each in self.columns} == columns
        self.on_main(rows)
        self.wap = {}

    def same_main(self) -> None:
        """The step was to change no row."""
        if self.head("main") not in self.states:
            self.states[self.head("main")] = self.main_before

    # -- procedures --------------------------------------------------------------------------------

    def rewrite_data_files(self) -> None:
        kind = self.rng.choice(["binpack", "binpack", "sort", "zorder", "where"])
        options = ["'rewrite-all', 'true'"]
        if self.rng.random() < 0.4:
            options.append("'partial-progress.enabled', 'true'")
        if self.rng.random() < 0.4:
            options.append("'remove-dangling-deletes', 'true'")
        if self.rng.random() < 0.3:
            options.append("'use-starting-sequence-number', 'false'")
        arguments = {"options": f"map({', '.join(options)})"}
        match kind:
            case "sort":
                arguments |= {"strategy": "'sort'", "sort_order": "'amount DESC NULLS LAST'"}
            case "zorder":
                arguments |= {"strategy": "'sort'", "sort_order": "'zorder(id, amount)'"}
            case "where":
                arguments["where"] = "'id < 6'"
        self.call("rewrite_data_files", **arguments)
        self.all_new_are_same()

    def all_new_are_same(self) -> None:
        """Several commits, perhaps."""
        parents = {
            s["snapshot-id"]: s.get("parent-snapshot-id") for s in self.metadata()["snapshots"]
        }
        at = self.head("main")
        while at is not None and at not in self.states:
            self.states[at] = self.main_before
            at = parents.get(at)

    def rewrite_position_delete_files(self) -> None:
        self.call("rewrite_position_delete_files", options="map('rewrite-all', 'true')")
        self.all_new_are_same()

    def spark_rewrites_manifests(self) -> None:
        self.call("rewrite_manifests", use_caching="false")
        self.same_main()

    def spark_expires(self) -> None:
        """Where commits of Spark are all that is left of main, nothing tells what was published."""
        more = {"clean_expired_metadata": "true"} if self.rng.random() < 0.5 else {}
        self.call("expire_snapshots", older_than=EVERY_TIME, retain_last="1", **more)
        self.lost = True

    def spark_removes_orphans(self) -> None:
        self.make_old()
        self.call("remove_orphan_files", dry_run="false")

    def make_old(self) -> None:
        then = time.time() - OLD_S
        for each in local_path(self.metadata()["location"]).rglob("*"):
            if each.is_file():
                os.utime(each, (then, then))

    def compute_stats(self) -> None:
        kind = "compute_partition_stats" if self.current_spec() else "compute_table_stats"
        self.statements.append(kind)
        self.shared.java.sql(
            f"CALL {self.shared.prefix}.system.{kind}(table => '{self.shared.name}')"
        )

    def rollback(self) -> None:
        """Main, to a snapshot that it had."""
        metadata = self.metadata()
        parents = {s["snapshot-id"]: s.get("parent-snapshot-id") for s in metadata["snapshots"]}
        at, found = parents.get(self.head("main")), []
        while at in parents:
            if at in self.states:
                found.append(at)
            at = parents[at]
        if not found:
            raise Skipped
        to = self.rng.choice(found[:4])
        procedure = self.rng.choice(["rollback_to_snapshot", "set_current_snapshot"])
        self.call(procedure, snapshot_id=str(to))

    def fast_forward(self) -> None:
        if self.staging is None:
            raise Skipped
        try:
            self.call("fast_forward", branch="'main'", to="'staging'")
        except JavaIcebergError as error:
            if "is not an ancestor" not in str(error):
                raise
            self.refusals["fast_forward"] += 1

    def cherrypick(self) -> None:
        if not self.waiting:
            raise Skipped
        item = self.rng.choice(self.waiting)
        before = self.head("main")
        try:
            self.call("cherrypick_snapshot", snapshot_id=str(item.snapshot_id))
        except JavaIcebergError as error:
            self.refusals["cherrypick: " + str(error).split(":", 1)[-1][:60]] += 1
            return
        head = self.head("main")
        if head == before or head in self.states:  # fast-forward
            return
        rows = {k: r for k, r in self.main_before.rows.items() if k not in item.deletes}
        self.on_main(
            {**rows, **by_key(item.rows)}, picked=self.main_before.picked | {item.snapshot_id}
        )

    def write_for_audit(self) -> None:
        self.spark("ALTER TABLE T SET TBLPROPERTIES ('write.wap.enabled'='true')")
        name = f"w{self.number}"
        kind = self.rng.choice(["insert", "insert", "delete", "update"])
        rows = self.main.rows
        text, new, gone = self.statement(kind, rows, "T")
        known = {s["snapshot-id"] for s in self.metadata()["snapshots"]}
        self.shared.java.configure({"spark.wap.id": name})
        try:
            self.spark(text)
        finally:
            self.shared.java.configure({"spark.wap.id": None})
        left = {**{k: r for k, r in rows.items() if k not in gone}, **new}
        if self.head("main") not in known:  # a DELETE that touches metadata only heeds no id
            self.on_main(left)
            return
        for made in {s["snapshot-id"] for s in self.metadata()["snapshots"]} - known:
            self.wap[name] = Staged(made, frozenset(gone), tuple(new.values()))
            self.states[made] = replace(self.main, rows=left)

    def publish_audited(self) -> None:
        if not self.wap:
            raise Skipped
        name = self.rng.choice(sorted(self.wap))
        item = self.wap.pop(name)
        try:
            self.call("publish_changes", wap_id=f"'{name}'")
        except JavaIcebergError as error:
            self.refusals["publish: " + str(error).split(":", 1)[-1][:60]] += 1
            return
        if self.head("main") not in self.states:
            rows = {k: r for k, r in self.main_before.rows.items() if k not in item.deletes}
            self.on_main({**rows, **by_key(item.rows)})

    def add_files(self) -> None:
        """Of a folder of Parquet, without field ids: by a name mapping."""
        if self.current_spec():
            raise Skipped
        rows = self.fresh(self.new_keys())
        folder = local_path(self.metadata()["location"]) / "data" / f"added{self.number}"
        folder.mkdir(parents=True)
        plain = self.arrow(rows)
        bare = pa.table(
            plain.columns, schema=pa.schema([f.remove_metadata() for f in plain.schema])
        )
        pq.write_table(bare, folder / "part-0.parquet")
        self.call("add_files", source_table=f"'`parquet`.`{folder}`'")
        self.on_main({**self.main_before.rows, **by_key(rows)})

    # -- schema, partitions, properties, branches --------------------------------------------------

    def change_columns(self) -> None:
        extra = self.columns[3:]
        number = self.number = self.number + 1
        kind = self.rng.choice(["add", "add", "rename", "drop", "widen", "move", "comment"])
        if kind == "add" and len(extra) < 3:
            of = self.rng.choice([*TYPES])
            self.spark(f"ALTER TABLE T ADD COLUMN c{number} {of}")
        elif not extra:
            raise Skipped
        else:
            column = self.rng.choice(extra)
            match kind:
                case "rename":
                    text = f"ALTER TABLE T RENAME COLUMN {column.name} TO c{number}"
                case "drop" | "add":
                    text = f"ALTER TABLE T DROP COLUMN {column.name}"
                case "widen":
                    if column.type != "int":
                        raise Skipped
                    text = f"ALTER TABLE T ALTER COLUMN {column.name} TYPE bigint"
                case "move":
                    text = f"ALTER TABLE T ALTER COLUMN {column.name} AFTER amount"
                case _:
                    text = f"ALTER TABLE T ALTER COLUMN {column.name} COMMENT 'c{number}'"
            self.spark(text)
        self.read_columns()

    def change_partitions(self) -> None:
        fields = [f for f in self.current_spec() if f["transform"] != "void"]
        new = self.rng.choice(
            [
                "bucket(3, id)",
                "bucket(2, id)",
                "region",
                "truncate(10, amount)",
                "truncate(2, region)",
            ]
        )
        try:
            if not fields:
                self.spark(f"ALTER TABLE T ADD PARTITION FIELD {new}")
            elif self.rng.random() < 0.5:
                self.spark(f"ALTER TABLE T DROP PARTITION FIELD {fields[0]['name']}")
            else:
                old = fields[0]["name"]
                self.spark(f"ALTER TABLE T REPLACE PARTITION FIELD {old} WITH {new}")
        except JavaIcebergError as error:
            self.refusals["spec: " + str(error).split(":", 1)[-1][:60]] += 1

    def change_order(self) -> None:
        self.spark(
            self.rng.choice(
                [
                    "ALTER TABLE T WRITE ORDERED BY amount DESC, id",
                    "ALTER TABLE T WRITE LOCALLY ORDERED BY region",
                    "ALTER TABLE T WRITE DISTRIBUTED BY PARTITION",
                    "ALTER TABLE T WRITE UNORDERED",
                ]
            )
        )

    def change_properties(self) -> None:
        choices = [
            *((f"write.{each}.mode", self.mode()) for each in ("delete", "update", "merge")),
            ("commit.manifest.min-count-to-merge", self.rng.choice(["2", "100"])),
            ("commit.manifest-merge.enabled", self.rng.choice(["true", "false"])),
            ("write.delete.granularity", self.rng.choice(["file", "partition"])),
            ("write.distribution-mode", self.rng.choice(["none", "hash"])),
            ("write.metadata.metrics.default", self.rng.choice(["none", "counts", "full"])),
            ("write.object-storage.enabled", self.rng.choice(["true", "false"])),
            ("write.metadata.delete-after-commit.enabled", "true"),
            ("write.metadata.previous-versions-max", self.rng.choice(["1", "100"])),
            ("write.parquet.compression-codec", self.rng.choice(["zstd", "gzip", "snappy"])),
            ("write.parquet.page-version", self.rng.choice(["v1", "v2"])),
            ("icefold.dv-placement", self.rng.choice(["per-file", "per-cycle"])),
        ]
        if self.version == 3:
            choices += [("icefold.publish", self.rng.choice(["link", "rewrite"]))] * 3
        name, value = self.rng.choice(choices)
        self.spark(f"ALTER TABLE T SET TBLPROPERTIES ('{name}'='{value}')")

    def upgrade(self) -> None:
        if self.version == 3:
            raise Skipped
        self.spark("ALTER TABLE T SET TBLPROPERTIES ('format-version'='3')")
        self.version = 3

    def branches_and_tags(self) -> None:
        self.number += 1
        if self.staging is None:
            self.spark("ALTER TABLE T CREATE BRANCH staging")
        elif self.rng.random() < 0.7:
            self.spark(f"ALTER TABLE T CREATE TAG t{self.number} RETAIN 1 DAYS")
        else:
            ref = self.rng.choice(["main", "staging"])
            self.spark(
                f"ALTER TABLE T CREATE BRANCH b{self.number} AS OF VERSION {self.head(ref)} "
                "RETAIN 1 DAYS WITH SNAPSHOT RETENTION 2 SNAPSHOTS"
            )

    def set_key_again(self) -> None:
        if self.is_believed:
            raise Skipped
        self.spark("ALTER TABLE T DROP IDENTIFIER FIELDS id")
        if self.waiting:
            with pytest.raises(tf.TableError, match="key"):
                resolve(self.table.refresh())
        self.spark("ALTER TABLE T SET IDENTIFIER FIELDS id")

    # -- icefold -----------------------------------------------------------------------------------

    def stage(self) -> None:
        upserts = self.draw()
        seen = sorted(self.staging.rows if self.staging else self.main.rows)
        upserts |= set(self.rng.sample(seen, min(len(seen), 1)))
        deletes = self.draw(0, 2) | set(self.rng.sample(seen, min(len(seen), 1)))
        deletes -= upserts
        rows = self.fresh(upserts)
        keys = pa.table({"id": pa.array(sorted(deletes), pa.int64())}) if deletes else None
        self.statements.append(f"stage({sorted(upserts)}, {sorted(deletes)})")
        view = (self.staging or self.main).rows
        if self.staging is None:
            self.staging_before = self.main
            self.log = self.log[: self.main.cursor]
        self.table.refresh().stage(self.arrow(rows), keys)
        gone = upserts | deletes
        left = {**{k: r for k, r in view.items() if k not in gone}, **by_key(rows)}
        self.on_staging(left, gone, rows)

    def resolve_some(self) -> None:
        if not self.waiting:
            raise Skipped
        self.resolve(limit=self.rng.randint(1, len(self.waiting)))

    def resolve(self, **options: Any) -> None:
        waiting, before = self.waiting, self.main
        head = self.head("main")
        self.statements.append(f"resolve({options})")
        try:
            resolve(self.table.refresh(), **options)
        except tf.TableError as error:
            assert self.head("main") == head, "refused, and changed"
            self.refused(error, waiting)
            return
        head = self.head("main")
        cursor = before.cursor + len(waiting)
        if options.get("limit") and waiting:
            named = int(self.snapshot(head)["summary"]["equality-convert-staging-snapshot"])
            ids = [each.snapshot_id for each in self.log]
            cursor = ids.index(named) + 1
            assert cursor >= before.cursor + options["limit"], "fewer than the limit"
        if head not in self.states:
            rows = dict(before.rows)
            for each in self.log[before.cursor : cursor]:
                if each.snapshot_id not in before.picked:
                    rows = {k: r for k, r in rows.items() if k not in each.deletes}
                    rows |= by_key(each.rows)
            picked = before.picked - {e.snapshot_id for e in self.log[:cursor]}
            self.states[head] = State(rows, cursor, picked)
        if not options.get("limit"):
            self.lost = False
        self.check_engines()

    def refused(self, error: tf.TableError, waiting: list[Staged]) -> None:
        """A documented refusal has a way on, which is gone."""
        text = str(error)
        assert "\n" not in text
        self.refusals["resolve: " + text[:70]] += 1
        if isinstance(error, LostCursorError) and "--from-staging-state" in text and self.lost:
            self.resolve(from_staging_state=True)
            return
        if "--staged-after" in text and self.lost:
            raise ToldAsLost
        if "was replaced (REPLACE TABLE)" in text:
            told = int(error.context["stopped_at"])
            if self.head("staging") == told:
                self.spark("ALTER TABLE T DROP BRANCH staging")
            else:
                self.states[self.head("main")] = replace(self.main, cursor=self.states[told].cursor)
                self.resolve(from_snapshot=told, skip_unpublished=True)
            return
        if "the copies would bring these back" in text:
            at = next(n for n, e in enumerate(self.log) if str(e.snapshot_id) in text)
            assert self.log[at].copies, error
            self.go_back_to(at)
            self.resolve()
            return
        raise error

    def go_back_to(self, at: int) -> None:
        """Staging, to before the staged change `at`."""
        if at > self.main.cursor:
            self.resolve(limit=at - self.main.cursor)
        parent = self.snapshot(self.log[at].snapshot_id)["parent-snapshot-id"]
        if self.head("staging") != parent:
            self.spark(f"ALTER TABLE T REPLACE BRANCH staging AS OF VERSION {parent}")
        self.log = self.log[:at]
        self.states = {k: s for k, s in self.states.items() if s.cursor <= at}

    def compact(self) -> None:
        strategy = self.rng.choice(["bin-pack", "sort"])
        by = ("amount",) if strategy == "sort" else ()
        compact(
            self.table.refresh(),
            CompactOptions(input_files_min=2, rewrite_all=True, strategy=strategy, sort_by=by),
        )
        self.all_new_are_same()

    def expire(self) -> None:
        expire(self.table.refresh(), ExpireOptions(policy=EVERYTHING))

    def other_maintenance(self) -> None:
        kind = self.rng.choice(["vectors", "manifests", "dead", "orphans"])
        self.statements.append(kind)
        table = self.table.refresh()
        match kind:
            case "vectors":
                rewrite_vectors(table, RewriteVectorsOptions(rewrite_all=True))
            case "manifests":
                rewrite_manifests(table, RewriteManifestsOptions(rewrite_all=True))
            case "dead":
                drop_dead_deletes(table, DropDeadDeletesOptions())
            case _:
                self.make_old()
                remove_orphans(table, RemoveOrphansOptions())
        self.all_new_are_same()

    def icefold_on_main(self) -> None:
        if self.version == 2:
            raise Skipped
        rows = self.main.rows
        where, keys = self.condition(rows)
        if "%" in where:
            raise Skipped
        table = self.table.refresh()
        mode = self.mode()
        self.statements.append(f"icefold changes {where} {mode}")
        if self.rng.random() < 0.5:
            table.delete(where, mode=mode)
            self.on_main({k: r for k, r in rows.items() if k not in keys})
        else:
            self.number += 1
            table.update({"amount": str(self.number)}, where, mode=mode)
            self.on_main({k: {**r, 3: self.number} if k in keys else r for k, r in rows.items()})

    # -- what is there -----------------------------------------------------------------------------

    def check(self) -> None:
        """As DuckDB and icefold read it."""
        wanted = self.shown(self.main.rows.values())
        table = self.table.refresh()
        found = {"icefold": table.scan().to_arrow()}
        if table.current_snapshot() is not None:
            query = f"SELECT * FROM iceberg_scan('{table.metadata_location}')"
            found["DuckDB"] = duckdb_connection().execute(query).to_arrow_table()
        for reader, rows in found.items():
            _compare(reader, wanted, self.as_shown(rows))
        if self.staging is not None:
            rows = table.scan(branch="staging").to_arrow()
            _compare("staging", self.shown(self.staging.rows.values()), self.as_shown(rows))

    def as_shown(self, table: pa.Table) -> Counter[tuple[Any, ...]]:
        table = table.select([each.name for each in self.columns])
        return Counter(
            tuple(map(_plain, row))
            for row in zip(*(c.to_pylist() for c in table.columns), strict=True)
        )

    def check_engines(self) -> None:
        """As the engines read it, with the ids of rows on v3."""
        self.check()
        wanted = self.shown(self.main.rows.values())
        names = [each.name for each in self.columns]
        lineage = [*LINEAGE] if self.version == 3 else []
        listed = ", ".join([*names, *lineage])
        found = self.shared.java.query(f"SELECT {listed} FROM {self.shared.java_name}")
        _compare("Spark", wanted, self.as_shown(found))
        if lineage:
            ours = self.table.refresh().scan(columns=["id", *lineage]).to_arrow()
            assert plain_rows(found.select(["id", *lineage])) == plain_rows(ours), "lineage"
            ids = [each for each in found["_row_id"].to_pylist() if each is not None]
            assert len(ids) == len(set(ids)), f"a row id is there twice: {sorted(ids)}"

    def step(self, name: str) -> None:
        self.main_before = self.main
        self.staging_before = self.staging or State()
        getattr(self, name)()
        self.check()


def run(shared: SharedTable, seed: int, steps: int) -> EngineHistory:
    """A history; what fails names its seed, and what was done."""
    history = EngineHistory(shared, seed)
    names = history.rng.choices([*WEIGHTS], [*WEIGHTS.values()], k=steps)
    for name in [*names, "resolve"]:
        history.statements.append(f"-- {name}")
        try:
            history.step(name)
        except Skipped:
            history.statements[-1] += ": skipped"
        except ToldAsLost:
            history.refusals["told as lost"] += 1
            break
        except Exception as error:
            done = "\n".join(history.statements)
            raise AssertionError(f"seed {seed}: {error}\n{done}") from error
    return history


def local_path(location: str) -> Path:
    return Path("/" + location.removeprefix("file:").lstrip("/"))


def by_key(rows: Iterable[Row]) -> Rows:
    return {row[1]: row for row in rows}


def _compare(reader: str, wanted: Counter[Any], there: Counter[Any]) -> None:
    if wanted != there:
        raise AssertionError(
            f"{reader}: too many {dict(there - wanted)}, missing {dict(wanted - there)}"
        )


def _plain(value: Any) -> Any:
    """Comparable over engines: numbers as floats, others as text."""
    if value is None or isinstance(value, bool):
        return value
    try:
        return float(value)
    except (TypeError, ValueError):
        return str(value)


def _exact(value: Any, of: Column) -> Any:
    if value is not None and of.type.startswith("decimal"):
        return Decimal(value)
    return value


def _sql(value: Any, of: Column) -> str:
    name = {"long": "bigint", "string": "varchar(100)"}.get(of.type, of.type)
    if value is None:
        return f"CAST(NULL AS {name})"
    text = f"'{value}'" if isinstance(value, (str, date)) else str(value)
    return f"CAST({text} AS {name})"
