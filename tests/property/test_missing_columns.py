"""Changes that leave columns out, beside a dict: whatever is done between, rows equal the model."""

from __future__ import annotations

import json
import tempfile

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyiceberg.types import LongType

from maintenance.tasks.compact import compact
from maintenance.tasks.options import CompactOptions
from resolver import resolve
from tests.support.memory_tables import memory_catalog

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("region", pa.string()),
        pa.field("name", pa.string(), nullable=False),
        ("tags", pa.list_(pa.string())),
        ("n", pa.int64()),
        ("gone", pa.bool_()),
    ]
)
KEYS = st.integers(0, 4)
VALUES = {
    "region": st.sampled_from(["eu", "us", None]),
    "name": st.sampled_from(["a", "b", "a longer name"]),
    "tags": st.sampled_from([None, [], ["x"], ["y", "z"]]),
    "n": st.one_of(st.none(), st.integers(-3, 3)),
    "more": st.one_of(st.none(), st.integers(-3, 3)),
}
PLACEHOLDER = "__debezium_unavailable_value"
FORMS = {"name": PLACEHOLDER, "tags": [PLACEHOLDER]}
KEEP = {"on-unavailable-value": "keep"}
PARTIAL = {"columns": "partial", "kind-column": "op", "left-out-column": "without"}


class Tables:
    """The table, and what it must hold."""

    def __init__(self, draw, folder: str) -> None:
        self.draw = draw
        partition = draw(st.sampled_from([(), ("region",), ("bucket(2, id)",)]))
        self.table = memory_catalog(folder).create_table(
            "t.rows", SCHEMA, primary_key=["id"], partition_by=partition
        )
        self.rows: dict[int, dict[str, object]] = {}
        self.columns = ["region", "name", "tags", "n"]
        self.soft = draw(st.booleans())
        mode = draw(st.sampled_from(["link", "rewrite"]))
        self.table.set_properties({"icefold.publish": mode})

    @property
    def live(self) -> list[int]:
        return [key for key, row in self.rows.items() if not row["gone"]]

    def values(self, names) -> dict[str, object]:
        return {name: self.draw(VALUES[name]) for name in names}

    def whole(self) -> None:
        keys = self.draw(st.lists(KEYS, min_size=1, max_size=4, unique=True))
        rows = [{"id": key, **self.values(self.columns)} for key in keys]
        self.table.stage(pa.Table.from_pylist(rows, self._schema("id", *self.columns)))
        for row in rows:
            self.rows[row["id"]] = {**dict.fromkeys(self.columns), "gone": None} | row

    def partial(self) -> None:
        if not self.live:
            return
        keys = self.draw(st.lists(st.sampled_from(self.live), min_size=1, unique=True))
        names = self.draw(st.lists(st.sampled_from(self.columns), unique=True))
        rows = [{"id": key, **self.values(names)} for key in keys]
        self.table.stage(pa.Table.from_pylist(rows, self._schema("id", *names)), columns="partial")
        for row in rows:
            self.rows[row["id"]] |= row

    def masks(self) -> None:
        """Typed rows, each of which says what it leaves out, and deletes; several per key."""
        rows = []
        for _ in range(self.draw(st.integers(1, 5))):
            if not self.live:
                break
            key = self.draw(st.sampled_from(self.live))
            if self.draw(st.integers(0, 5)) == 0:
                rows.append({"id": key, "op": "d"})
                if self.soft:
                    self.rows[key]["gone"] = True
                else:
                    del self.rows[key]
                continue
            names = self.draw(st.lists(st.sampled_from(self.columns), unique=True))
            values = self.values(names)
            rows.append({"id": key, "op": "u", "without": list({*self.columns} - {*names})})
            rows[-1] |= values
            self.rows[key] |= values | ({"gone": False} if self.soft else {"gone": None})
        if rows:
            schema = self._schema("id", *self.columns)
            schema = schema.append(pa.field("op", pa.string()))
            schema = schema.append(pa.field("without", pa.list_(pa.string())))
            nullable = pa.schema([field.with_nullable(True) for field in schema])
            options = PARTIAL | ({"soft-delete": "gone"} if self.soft else {})
            self.table.write_changes(pa.Table.from_pylist(rows, nullable), options=options)

    def debezium(self) -> None:
        """Updates with placeholders, and inserts; several per key."""
        events = []
        for _ in range(self.draw(st.integers(1, 5))):
            key = self.draw(KEYS)
            values = self.values(self.columns)
            if key in self.live:
                kept = self.draw(st.lists(st.sampled_from(list(FORMS)), unique=True))
                self.rows[key] |= values | {n: self.rows[key][n] for n in kept} | {"gone": None}
                after = {"id": key, **values} | {name: FORMS[name] for name in kept}
                events.append({"op": "u", "after": after})
            else:
                self.rows[key] = {"id": key, **values, "gone": None}
                events.append({"op": "c", "after": {"id": key, **values}})
        texts = pa.table({"value": [json.dumps(each) for each in events]})
        self.table.write_changes(texts, format_name="debezium-json", options=KEEP)

    def delete(self) -> None:
        keys = self.draw(st.lists(KEYS, min_size=1, unique=True))
        self.table.stage(deletes=pa.table({"id": keys}))
        for key in keys:
            self.rows.pop(key, None)

    def grow(self) -> None:
        if "more" not in self.columns:
            self.table.update_schema(lambda update: update.add_column("more", LongType()))
            self.columns.append("more")
            for row in self.rows.values():
                row["more"] = None

    def resolve(self) -> None:
        resolve(self.table, limit=self.draw(st.sampled_from([None, 1, 2])))

    def compact(self) -> None:
        options = CompactOptions(rewrite_all=True)
        compact(self.table.refresh(), options)

    def check(self) -> None:
        while resolve(self.table).staged_snapshots:
            pass
        found = self.table.refresh().scan().to_arrow().to_pylist()
        assert {row["id"]: row for row in found} == self.rows
        assert len(found) == len(self.rows)

    def _schema(self, *names: str) -> pa.Schema:
        schema = SCHEMA.append(pa.field("more", pa.int64()))
        return pa.schema([schema.field(name) for name in names])


@pytest.mark.slow
@settings(
    max_examples=40,
    deadline=None,
    phases=[
        Phase.explicit,
        Phase.reuse,
        Phase.generate,
    ],  # a history says enough, shrinking is slow
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(data=st.data())
def test_rows_equal_a_dict_whatever_columns_changes_leave_out(data):
    with tempfile.TemporaryDirectory() as folder:
        tables = Tables(data.draw, folder)
        steps = [tables.whole, tables.partial, tables.partial, tables.masks, tables.debezium]
        steps += [tables.delete, tables.grow, tables.resolve, tables.resolve, tables.compact]
        tables.whole()
        for _ in range(data.draw(st.integers(2, 9))):
            data.draw(st.sampled_from(steps))()
        tables.check()
