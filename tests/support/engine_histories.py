"""Steps of Spark with Iceberg's runtime, in the random histories of `table_histories`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import date
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tableformat as tf
from resolver import resolve
from tests.support.interop_engines import LINEAGE, duckdb_connection, plain_rows
from tests.support.java_iceberg import JavaIcebergError
from tests.support.table_histories import (
    Column,
    Row,
    Rows,
    Skipped,
    Staged,
    TableHistory,
    by_key,
    compare,
    local_path,
)

EVERY_TIME = "TIMESTAMP '2999-01-01'"
TYPES = ("bigint", "int", "string", "double", "date", "decimal(9,2)")

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


class EngineHistory(TableHistory):
    """Spark's steps."""

    weights = WEIGHTS

    def create(self) -> None:
        by = self.rng.choice(["", "", "region", "bucket(2, id)", "truncate(10, amount)"])
        modes = {f"write.{each}.mode": self.mode() for each in ("delete", "update", "merge")}
        listed = ", ".join(f"'{k}'='{v}'" for k, v in modes.items())
        partitioned = f"PARTITIONED BY ({by})" if by else ""
        self.spark(
            "CREATE TABLE T (id bigint NOT NULL, region string, amount bigint) USING iceberg "
            f"{partitioned} TBLPROPERTIES ('format-version'='{self.version}', {listed})",
            "ALTER TABLE T SET IDENTIFIER FIELDS id",
        )

    # -- statements --------------------------------------------------------------------------------

    def call(self, procedure: str, **arguments: str) -> list[tuple[Any, ...]]:
        self.statements.append(f"CALL {procedure}({arguments})")
        return self.shared.call(procedure, **arguments)

    def values(self, rows: Iterable[Row]) -> str:
        return ", ".join(
            "(" + ", ".join(_sql(r.get(c.field_id), c) for c in self.columns) + ")" for r in rows
        )

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

    def truncate(self) -> None:
        self.spark("TRUNCATE TABLE T")
        self.on_main({})

    def replace_table(self) -> None:
        """The key goes, and with the history of main what was published."""
        if self.main.picked:  # nothing would tell that these rows were staged, too
            raise Skipped
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
        self.wap, self.was_replaced = {}, True

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

    def compute_stats(self) -> None:
        kind = "compute_partition_stats" if self.current_spec() else "compute_table_stats"
        self.statements.append(kind)
        self.shared.java.sql(
            f"CALL {self.shared.prefix}.system.{kind}(table => '{self.shared.name}')"
        )

    def rollback(self) -> None:
        procedure = self.rng.choice(["rollback_to_snapshot", "set_current_snapshot"])
        self.call(procedure, snapshot_id=str(self.older_head()))

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
            of = self.rng.choice(TYPES)
            self.spark(f"ALTER TABLE T ADD COLUMN c{number} {of}")
        elif not extra:
            raise Skipped
        else:
            column = self.rng.choice(extra)
            match kind:
                case "rename":
                    text = f"ALTER TABLE T RENAME COLUMN {column.name} TO c{number}"
                case "drop" | "add":
                    if column.field_id in {f["source-id"] for f in self.current_spec()}:
                        raise Skipped
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
        extra = [each.name for each in self.columns[3:] if each.type != "double"]
        new = self.rng.choice(
            [
                "bucket(3, id)",
                "bucket(2, id)",
                "region",
                "truncate(10, amount)",
                "truncate(2, region)",
                *extra,
                *(f"bucket(2, {name})" for name in extra),
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
        name, value = self.other_property()
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

    # -- what is there -----------------------------------------------------------------------------

    def as_others_read(self, branch: str) -> Counter[tuple[Any, ...]] | None:
        if branch != "main" or self.table.current_snapshot() is None:
            return None
        query = f"SELECT * FROM iceberg_scan('{self.table.metadata_location}')"
        return self.as_shown(duckdb_connection().execute(query).to_arrow_table())

    def check_engines(self) -> None:
        """As the engines read it, with the ids of rows on v3."""
        self.check()
        wanted = self.shown(self.main.rows.values())
        names = [each.name for each in self.columns]
        lineage = [*LINEAGE] if self.version == 3 else []
        listed = ", ".join([*names, *lineage])
        found = self.shared.java.query(f"SELECT {listed} FROM {self.shared.java_name}")
        compare("Spark", wanted, self.as_shown(found))
        if lineage:
            ours = self.table.refresh().scan(columns=[self.called(1), *lineage]).to_arrow()
            assert plain_rows(found.select([self.called(1), *lineage])) == plain_rows(ours), (
                "lineage"
            )
            ids = [each for each in found["_row_id"].to_pylist() if each is not None]
            assert len(ids) == len(set(ids)), f"a row id is there twice: {sorted(ids)}"


def _sql(value: Any, of: Column) -> str:
    name = {"long": "bigint", "string": "varchar(100)"}.get(of.type, of.type)
    if value is None:
        return f"CAST(NULL AS {name})"
    text = f"'{value}'" if isinstance(value, (str, date)) else str(value)
    return f"CAST({text} AS {name})"
