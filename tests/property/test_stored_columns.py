"""Stored computed columns: whoever writes rows, in every way, they are what DuckDB computes."""

from __future__ import annotations

import json
import math
import tempfile
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from maintenance.tasks.compact import compact
from maintenance.tasks.options import CompactOptions
from resolver import resolve
from tableformat.cdc.load import load_files
from tableformat.cdc.load_source import open_source
from tableformat.rowlevel.operation import begin
from tests.support.memory_tables import memory_catalog

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("n", pa.int32(), nullable=False),
        ("price", pa.float64()),
        ("fee", pa.float64()),
        ("note", pa.string()),
    ]
)
BASE = ["n", "price", "fee", "note"]
STORED = {  # the oracle's SQL is the same text
    "total": ("price * 2.5 + fee", "double", "double"),
    "wide": ("n * 1000 - id", "long", "bigint"),
    "seven": ("7 - n", "int", "int"),
    "same": ("11", "long", "bigint"),
}
KEYS = st.integers(0, 5)
DOUBLES = st.one_of(
    st.none(), st.sampled_from([0.0, -0.0, math.nan, math.inf, 1e308]), st.floats(-9, 9)
)
VALUES = {
    "n": st.integers(-1000, 1000),
    "price": DOUBLES,
    "fee": DOUBLES,
    "note": st.sampled_from([None, "a", "b"]),
}
MASKS = {"columns": "partial", "kind-column": "op", "left-out-column": "without"}
PARTITIONS = [None, ("seven", "identity"), ("wide", "bucket[2]"), ("n", "truncate[100]")]


class Tables:
    """The table, and the rows that it must hold without the computed columns."""

    def __init__(self, draw, folder: str) -> None:
        self.draw, self.folder = draw, Path(folder)
        self.table = memory_catalog(folder).create_table("t.rows", SCHEMA, primary_key=["id"])
        for name, (expression, kind, _) in STORED.items():
            self.table.add_computed_column(name, expression, kind, stored=True)
        partition = draw(st.sampled_from(PARTITIONS))
        if partition is not None:
            self.table.update_partitioning(lambda update: update.add_field(*partition))
        mode = draw(st.sampled_from(["link", "rewrite"]))
        self.table.set_properties({"icefold.publish": mode})
        self.rows: dict[int, dict[str, object]] = {}
        self.staged = False

    def drawn(self, keys, names=BASE) -> list[dict[str, object]]:
        return [{"id": key} | {name: self.draw(VALUES[name]) for name in names} for key in keys]

    def keys(self, among=None, least=1):
        keys = KEYS if among is None else st.sampled_from(among)
        return self.draw(st.lists(keys, min_size=least, max_size=4, unique=True))

    def put(self, rows) -> None:
        for row in rows:
            self.rows[row["id"]] = dict(row)

    def arrow(self, rows, names=("id", *BASE)) -> pa.Table:
        """The rows; now and then with values of a computed column, which are right or NULL."""
        found = pa.Table.from_pylist(rows, pa.schema([SCHEMA.field(name) for name in names]))
        if set(names) >= {"n", "id"} and self.draw(st.booleans()):
            wide = [self.draw(st.sampled_from([None, r["n"] * 1000 - r["id"]])) for r in rows]
            found = found.append_column("wide", pa.array(wide, pa.int64()))
        return found

    # Writes that are published at once: nothing may wait on staging, or it would win later.

    def append(self) -> None:
        self.published()
        new = [key for key in range(6) if key not in self.rows]
        if new:
            rows = self.drawn(self.keys(new))
            self.table.append(self.arrow(rows))
            self.put(rows)

    def load(self) -> None:
        self.published()
        new = [key for key in range(6) if key not in self.rows]
        if new:
            rows = self.drawn(self.keys(new))
            path = (
                self.folder / f"{self.table.refresh().metadata_location.rsplit('/', 1)[1]}.parquet"
            )
            pq.write_table(self.arrow(rows), path)
            source = open_source(str(path))
            load_files(self.table.environment, self.table.identifier, source, assume_new_keys=True)
            self.put(rows)

    def upsert(self) -> None:
        self.published()
        rows = self.drawn(self.keys())
        self.table.upsert(self.arrow(rows), mode=self.mode())
        self.put(rows)

    def update(self) -> None:
        self.published()
        key, price = self.draw(KEYS), self.draw(st.sampled_from([0.5, -7.25, None]))
        values = {"price": "NULL" if price is None else str(price), "n": "n - 1"}
        self.table.update(values, f"id >= {key}", mode=self.mode())
        for row in self.rows.values():
            if row["id"] >= key:
                row.update(price=price, n=row["n"] - 1)

    def default(self) -> None:
        self.published()
        self.table.update({"total": "DEFAULT"}, "id < 3", mode=self.mode())

    def delete(self) -> None:
        self.published()
        key = self.draw(KEYS)
        self.table.delete(f"id = {key}", mode=self.mode())
        self.rows.pop(key, None)

    def overwrite(self) -> None:
        self.published()
        rows = self.drawn(self.keys())
        self.table.overwrite(self.arrow(rows), filter="id >= 0")
        self.rows.clear()
        self.put(rows)

    def operation(self) -> None:
        """An engine of its own: it hands whole rows back, with the computed values they had."""
        self.published()
        plan = begin(self.table.refresh(), "update", updated_columns=["fee"], mode=self.mode())
        fee, names = self.draw(DOUBLES), [*self.table.schema().column_names, "_file", "_pos"]
        worker, done = plan.worker(), []
        for split in plan.splits:
            for batch in worker.read(split, [*names, "_row_id"]):
                at = batch.schema.get_field_index("fee")
                fees = pa.array([fee] * len(batch), pa.float64())
                changed = batch.set_column(at, "fee", fees)
                actions = pa.array([2] * len(batch), pa.int8())
                done.append(worker.write([changed.append_column("_action", actions)]))
        plan.finish(done)
        for row in self.rows.values():
            row["fee"] = fee

    def mode(self) -> str:
        return self.draw(st.sampled_from(["merge-on-read", "copy-on-write"]))

    # Writes that are staged.

    def stage(self) -> None:
        rows, gone = self.drawn(self.keys()), self.draw(KEYS)
        self.table.stage(self.arrow(rows), pa.table({"id": [gone]}))
        self.rows.pop(gone, None)
        self.put(rows)

    def partial(self) -> None:
        if self.rows:
            names = self.draw(st.lists(st.sampled_from(BASE), unique=True))
            rows = self.drawn(self.keys(list(self.rows)), names)
            self.table.stage(self.arrow(rows, ("id", *names)), columns="partial")
            for row in rows:
                self.rows[row["id"]] |= row

    def masks(self) -> None:
        """Several changes per key, each of which says what it leaves out."""
        changes = []
        for _ in range(self.draw(st.integers(1, 5)) if self.rows else 0):
            if not self.rows:
                break
            key = self.draw(st.sampled_from(list(self.rows)))
            if self.draw(st.integers(0, 5)) == 0:
                changes.append({"id": key, "op": "d"})
                del self.rows[key]
                continue
            names = self.draw(st.lists(st.sampled_from(BASE), unique=True))
            [row] = self.drawn([key], names)
            changes.append({**row, "op": "u", "without": list({*BASE} - {*names})})
            self.rows[key] |= row
        if changes:
            fields = [*SCHEMA, pa.field("op", pa.string()), ("without", pa.list_(pa.string()))]
            schema = pa.schema([pa.field(*f) if isinstance(f, tuple) else f for f in fields])
            schema = pa.schema([field.with_nullable(True) for field in schema])
            self.table.write_changes(pa.Table.from_pylist(changes, schema), options=MASKS)

    def debezium(self) -> None:
        finite = st.one_of(st.none(), st.floats(-9, 9))
        rows = [
            r | {n: self.draw(finite) for n in ("price", "fee")} for r in self.drawn(self.keys())
        ]
        kept = "__debezium_unavailable_value"
        events = []
        for row in rows:
            old = self.rows.get(row["id"])
            after = dict(row)
            if old is not None and self.draw(st.booleans()):
                row["note"], after["note"] = old["note"], kept
            if self.draw(st.booleans()):  # the source has the column, too
                after["seven"] = 7 - row["n"]
            events.append(json.dumps({"op": "c" if old is None else "u", "after": after}))
        options = {"on-unavailable-value": "keep"}
        table = pa.table({"value": events})
        self.table.write_changes(table, format_name="debezium-json", options=options)
        self.put(rows)

    # And what moves rows.

    def resolve(self) -> None:
        resolve(self.table, limit=self.draw(st.sampled_from([None, 1])))

    def compact(self) -> None:
        compact(self.table.refresh(), CompactOptions(rewrite_all=True))

    def published(self) -> None:
        while resolve(self.table).staged_snapshots:
            pass

    def check(self) -> None:
        self.published()
        found = self.table.refresh().scan().to_arrow()
        base = found.select(["id", *BASE])
        model = [self.rows[key] for key in sorted(self.rows)]
        assert repr(sorted(base.to_pylist(), key=lambda r: r["id"])) == repr(model)
        columns = ", ".join(f"({sql})::{kind} AS {name}" for name, (sql, _, kind) in STORED.items())
        wanted = duckdb.from_arrow(base).query("base", f"SELECT id, {columns} FROM base")
        held = found.select(["id", *STORED]).sort_by("id").to_pylist()
        assert repr(held) == repr(wanted.to_arrow_table().sort_by("id").to_pylist())
        assert self.table.check_computed_columns() == dict.fromkeys(STORED, 0)


@pytest.mark.slow
@settings(
    max_examples=40,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # shrinking is slow
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(data=st.data())
def test_stored_columns_are_what_duckdb_computes_whoever_writes(data):
    with tempfile.TemporaryDirectory() as folder:
        tables = Tables(data.draw, folder)
        steps = [tables.append, tables.load, tables.upsert, tables.update, tables.default]
        steps += [tables.delete, tables.overwrite, tables.operation, tables.stage, tables.partial]
        steps += [tables.partial, tables.masks, tables.debezium, tables.resolve, tables.compact]
        tables.stage()
        for _ in range(data.draw(st.integers(2, 10))):
            data.draw(st.sampled_from(steps))()
        tables.check()
