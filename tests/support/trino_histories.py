"""Random histories of icefold and of Trino on one table, beside the model of `engine_histories`."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import tableformat as tf
from tests.support.engine_histories import EngineHistory
from tests.support.interop_java_tables import SharedTable
from tests.support.table_histories import Skipped, ToldAsLost, by_key, local_path
from tests.support.trino import CATALOG, Trino, TrinoError

SCHEMA = pa.schema([("id", pa.int64()), ("region", pa.string()), ("amount", pa.int64())])
WEIGHTS = {
    "stage": 7, "resolve": 5, "resolve_some": 2, "trino_on_main": 7, "optimize": 3,
    "optimize_manifests": 1, "trino_expires": 1.5, "trino_removes_orphans": 1, "rollback": 1,
    "truncate": 0.3, "replace_table": 0.4, "add_files": 0.7, "change_columns": 1.5,
    "change_partitions": 1.5, "change_order": 0.7, "change_properties": 1, "upgrade": 0.5,
    "compact": 1, "expire": 1, "other_maintenance": 2, "icefold_on_main": 1.5,
}  # fmt: skip
TYPES = ["bigint", "integer", "varchar", "double", "date", "decimal(9,2)"]
PARTITIONS = ["bucket(id, 3)", "bucket(id, 2)", "region", "truncate(amount, 10)"]
ORDERS = ["amount DESC NULLS FIRST", "region", "id ASC NULLS LAST"]


class TrinoHistory(EngineHistory):
    """One table, both tools, and the model; a step is a method."""

    def __init__(self, trino: Trino, catalog: tf.TableCatalog, seed: int) -> None:
        self.trino, self.name = trino, f"shop.t{seed}"
        self.has_expired = False
        super().__init__(SharedTable(java=None, catalog=catalog, prefix="", name=self.name), seed)

    def spark(self, *texts: str) -> None:
        """What the model says in SQL; the table is made by icefold."""
        if not hasattr(self, "table"):
            by = self.rng.choice([[], [], ["region"], ["bucket(2, id)"], ["truncate(10, amount)"]])
            properties = {"format-version": str(self.version)}
            self.shared.catalog.create_table(
                self.name, SCHEMA, primary_key=["id"], partition_by=by, properties=properties
            )
            return
        for text in texts:
            if text == "ALTER TABLE T DROP BRANCH staging":
                self.statements.append(text)
                self.table.refresh().refs.drop("staging")
            else:
                self.ask(text)

    def ask(self, text: str, **session: str) -> list[tuple[Any, ...]]:
        self.statements.append(text)
        words = [f"{CATALOG}.{self.name}" if each == "T" else each for each in text.split(" ")]
        return self.trino.query(" ".join(words), **session)

    def execute(self, procedure: str, **session: str) -> None:
        self.ask(f"ALTER TABLE T EXECUTE {procedure}", **session)

    def may_refuse(self, text: str) -> None:
        """What Trino does not know of this version."""
        try:
            self.ask(text)
        except TrinoError as error:
            self.refusals[str(error)[:80]] += 1
            raise Skipped from None

    # -- Trino -------------------------------------------------------------------------------------

    def trino_on_main(self) -> None:
        self.change_main(self.spark)

    def optimize(self) -> None:
        where = self.rng.choice(["", "", "(file_size_threshold => '1kB')"])
        self.execute(f"optimize{where}")
        self.all_new_are_same()

    def optimize_manifests(self) -> None:
        self.execute("optimize_manifests")
        self.same_main()

    def trino_expires(self) -> None:
        self.execute(
            "expire_snapshots(retention_threshold => '0s')", expire_snapshots_min_retention="0s"
        )
        self.lost = self.has_expired = True

    def expire(self) -> None:
        super().expire()
        self.lost = self.has_expired = True

    def resolve(self, **options: Any) -> None:
        """What has expired may be missed again, after a rollback of `main`."""
        super().resolve(**options)
        self.lost = self.has_expired

    def trino_removes_orphans(self) -> None:
        self.make_old()
        self.execute(
            "remove_orphan_files(retention_threshold => '1d')",
            remove_orphan_files_min_retention="0s",
        )

    def call(self, procedure: str, **arguments: str) -> list[tuple[Any, ...]]:
        """Of the model: a rollback."""
        self.execute(f"rollback_to_snapshot({arguments['snapshot_id']})")
        return []

    def replace_table(self) -> None:
        """Columns get other ids, and the key goes."""
        text, keys = self.condition(self.main.rows)
        names = {each.field_id: each.name for each in self.columns}
        rows = [{names[i]: v for i, v in r.items() if i in names}
                for k, r in self.main.rows.items() if k in keys]  # fmt: skip
        missing = [c for c in self.columns if c.default is not None]
        self.ask(
            f"CREATE OR REPLACE TABLE T WITH (format_version = {self.version}) "
            f"AS SELECT * FROM T WHERE {text}"
        )
        assert not missing
        self.table.refresh().set_properties({"icefold.primary-key": "id"})
        self.is_believed, self.wap = True, {}
        self.lost = self.has_expired = True
        self.read_columns()
        ids = {each.name: each.field_id for each in self.columns}
        self.version = int(self.metadata()["format-version"])
        assert [ids[each] for each in ("id", "region", "amount")] == [1, 2, 3], ids
        self.on_main(by_key([{ids[n]: v for n, v in row.items()} for row in rows]))

    def add_files(self) -> None:
        if self.current_spec():
            raise Skipped
        rows = self.fresh(self.new_keys())
        folder = local_path(self.metadata()["location"]) / "data" / f"added{self.number}"
        folder.mkdir(parents=True)
        columns = dict(zip(self.arrow(rows).column_names, self.arrow(rows).columns, strict=True))
        pq.write_table(pa.table(columns), folder / "part-0.parquet")  # without field ids
        self.may_refuse(
            f"ALTER TABLE T EXECUTE add_files(location => 'file://{folder}', format => 'PARQUET')"
        )
        self.on_main({**self.main_before.rows, **by_key(rows)})

    # -- structure ---------------------------------------------------------------------------------

    def change_columns(self) -> None:
        extra, number = self.columns[3:], self.number + 1
        self.number = number
        kind = self.rng.choice(["add", "add", "rename", "drop", "widen"])
        if kind == "add" and len(extra) < 3:
            text = f"ADD COLUMN c{number} {self.rng.choice(TYPES)}"
        elif not extra:
            raise Skipped
        else:
            column = self.rng.choice(extra)
            text = f"DROP COLUMN {column.name}"
            if kind == "rename":
                text = f"RENAME COLUMN {column.name} TO c{number}"
            if kind == "widen" and column.type == "int":
                text = f"ALTER COLUMN {column.name} SET DATA TYPE bigint"
        self.may_refuse(f"ALTER TABLE T {text}")
        self.read_columns()

    def change_partitions(self) -> None:
        some = self.rng.sample(PARTITIONS, self.rng.randint(0, 2))
        listed = ", ".join(f"'{each}'" for each in some)
        self.may_refuse(f"ALTER TABLE T SET PROPERTIES partitioning = ARRAY[{listed}]")

    def change_order(self) -> None:
        listed = ", ".join(f"'{each}'" for each in self.rng.sample(ORDERS, 2))
        self.may_refuse(f"ALTER TABLE T SET PROPERTIES sorted_by = ARRAY[{listed}]")

    def change_properties(self) -> None:
        choices = [("icefold.dv-placement", self.rng.choice(["per-file", "packed"]))]
        if self.version == 3:
            choices.append(("icefold.publish", self.rng.choice(["link", "rewrite"])))
        self.table.refresh().set_properties(dict([self.rng.choice(choices)]))

    def upgrade(self) -> None:
        if self.version == 3:
            raise Skipped
        self.ask("ALTER TABLE T SET PROPERTIES format_version = 3")
        self.version = 3

    # -- what is there -----------------------------------------------------------------------------

    def check(self) -> None:
        super().check()
        names = [each.name for each in self.columns]
        rows = self.trino.query(f"SELECT {', '.join(names)} FROM {CATALOG}.{self.name}")
        columns = [*map(list, zip(*rows, strict=True))] or [[]] * len(names)
        there = self.as_shown(pa.table(columns, names=names))
        wanted = self.shown(self.main.rows.values())
        assert there == wanted, f"Trino: too many {there - wanted}, missing {wanted - there}"

    def check_engines(self) -> None:
        """With the ids of rows on v3."""
        self.check()
        if self.version == 3:
            columns = 'id, "$row_id", "$last_updated_sequence_number"'
            theirs = self.trino.query(f"SELECT {columns} FROM {CATALOG}.{self.name}")
            scan = self.table.refresh().scan(
                columns=["id", "_row_id", "_last_updated_sequence_number"]
            )
            ours = [tuple(row.values()) for row in scan.to_arrow().to_pylist()]
            assert sorted(theirs) == sorted(ours), "lineage"
            assert len({row[1] for row in ours}) == len(ours), "a row id is there twice"


def run(trino: Trino, catalog: tf.TableCatalog, seed: int, steps: int) -> Counter[str]:
    """A history; what was refused. What fails names its seed, and what was done."""
    history = TrinoHistory(trino, catalog, seed)
    names = history.rng.choices([*WEIGHTS], [*WEIGHTS.values()], k=steps)
    for name in [*names, "resolve"]:
        history.statements.append(f"-- {name}")
        try:
            history.step(name)
        except Skipped:
            history.statements[-1] += ": skipped"
        except ToldAsLost:
            break
        except Exception as error:
            done = "\n".join(history.statements)
            raise AssertionError(f"seed {seed}, v{history.version}: {error}\n{done}") from error
    return history.refusals
