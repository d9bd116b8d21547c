"""Joins that are kept round by round equal DuckDB's join of the tables, whatever happens to them.

Random inserts, updates (join columns and keys among them), deletes, compactions and kills on three
tables like TPC-H's; after every round the published result is compared with the full join. Chains
are drawn as well: two or three joins of any kind, each on any table before it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from maintenance import compact
from resolver import resolve
from tableformat import Table, TableCatalog
from tableformat.join import evaluate, fetch, side
from tableformat.join.delta_join import DeltaJoin
from tests.support.memory_tables import memory_catalog

CUSTOMER = pa.schema([("id", pa.int64()), ("name", pa.string()), ("level", pa.int32())])
ORDERS = pa.schema([("id", pa.int64()), ("customer", pa.int64()), ("status", pa.string())])
LINES = pa.schema(
    [("order_id", pa.int64()), ("line", pa.int32()), ("part", pa.string()), ("price", pa.int64())]
)
KEYS = {"customer": ["id"], "orders": ["id"], "lines": ["order_id", "line"]}
SCHEMAS = {"customer": CUSTOMER, "orders": ORDERS, "lines": LINES}
# 45 seeds of ten joins: 450 histories of twelve rounds, 40 % of the rounds killed once.
SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 45))]
SMALL = 12  # ids, so that rows meet


def table(name: str, alias: str, **more: Any) -> dict[str, Any]:
    return {"table": f"t.{name}", "as": alias, **more}


def two(how: str, **more: Any) -> dict[str, Any]:
    return {
        "from": table("orders", "o"),
        "join": [table("lines", "l", how=how, on={"o.id": "l.order_id"})],
        **more,
    }


Select = Mapping[str, tuple[str, str]]
KEYED = {"key-column": "row_key"}
JOINS: dict[str, tuple[dict[str, Any], str]] = {
    "inner": (two("inner"), "orders o JOIN lines l ON o.id = l.order_id"),
    "left": (two("left", **KEYED), "orders o LEFT JOIN lines l ON o.id = l.order_id"),
    "right": (two("right"), "orders o RIGHT JOIN lines l ON o.id = l.order_id"),
    "full": (two("full", **KEYED), "orders o FULL JOIN lines l ON o.id = l.order_id"),
    "filters": (
        {
            "from": table("orders", "o", filter="status <> 'void'"),
            "join": [
                table("lines", "l", how="left", filter="price > 3", on={"o.id": "l.order_id"})
            ],
            **KEYED,
        },
        "(FROM orders WHERE status <> 'void') o LEFT JOIN (FROM lines WHERE price > 3) l "
        "ON o.id = l.order_id",
    ),
    "two conditions": (
        {
            "from": table("orders", "o"),
            "join": [
                table("lines", "l", how="full", on={"o.status": "l.part", "o.id": "l.order_id"})
            ],
            **KEYED,
        },
        "orders o FULL JOIN lines l ON o.status = l.part AND o.id = l.order_id",
    ),
    "many to many": (
        {
            "from": table("orders", "o"),
            "join": [table("lines", "l", how="full", on={"o.status": "l.part"})],
            **KEYED,
        },
        "orders o FULL JOIN lines l ON o.status = l.part",
    ),
    "chain": (
        {
            "from": table("lines", "l"),
            "join": [
                table("orders", "o", how="inner", on={"l.order_id": "o.id"}),
                table("customer", "c", how="left", on={"o.customer": "c.id"}),
            ],
            "select": {
                "order_id": "l.order_id",
                "line": "l.line",
                "price": "l.price",
                "status": "o.status",
                "name": "c.name",
            },
        },
        "lines l JOIN orders o ON l.order_id = o.id LEFT JOIN customer c ON o.customer = c.id",
    ),
    "chain from the one to the many": (
        {
            "from": table("customer", "c", filter="level < 3"),
            "join": [
                table("orders", "o", how="left", on={"c.id": "o.customer"}),
                table("lines", "l", how="left", on={"o.id": "l.order_id"}),
            ],
            "select": {"c": "c.id", "o": "o.id", "line": "l.line", "price": "l.price"},
            **KEYED,
        },
        "(FROM customer WHERE level < 3) c LEFT JOIN orders o ON c.id = o.customer "
        "LEFT JOIN lines l ON o.id = l.order_id",
    ),
    "with itself": (
        {
            "from": table("orders", "o"),
            "join": [table("orders", "x", how="left", on={"o.customer": "x.id"})],
            "select": {"id": "o.id", "status": "o.status", "other": "x.status"},
        },
        "orders o LEFT JOIN orders x ON o.customer = x.id",
    ),
}


# What tables may be compared by: indexed columns of one type.
COMPARED = {
    "customer": {"int": ["id"]},
    "orders": {"int": ["id", "customer"], "text": ["status"]},
    "lines": {"int": ["order_id"], "text": ["part"]},
}
# One chain per kind of the first two joins; the third is drawn, as all else.
HOWS = [(one, two) for one in ("full", "left", "inner", "right") for two in ("full", "right")]
HOWS += [("full", "inner"), ("full", "left"), ("right", "inner"), ("right", "left")]


def chain(draw: random.Random, number: int) -> tuple[dict[str, Any], str]:
    """The definition of a chain, and what it is in SQL."""
    names = {alias: draw.choice(list(SCHEMAS)) for alias in "abcd"[: draw.choice([3, 4])]}
    [_, *later] = names
    hows = [*HOWS[number], draw.choice(["inner", "left", "right", "full"])]
    definition: dict[str, Any] = {
        "into": f"t.chain{number}",
        "from": table(names["a"], "a"),
        "join": [],
        "select": {f"{a}_{c}": f"{a}.{c}" for a in names for c in SCHEMAS[names[a]].names},
        **KEYED,
    }
    query = f"{names['a']} a"
    for place, (alias, how) in enumerate(zip(later, hows, strict=False)):
        parent = draw.choice("abc"[: place + 1])
        ours, theirs = COMPARED[names[alias]], COMPARED[names[parent]]
        kind = draw.choice([kind for kind in ours if kind in theirs])
        one, other = f"{parent}.{draw.choice(theirs[kind])}", f"{alias}.{draw.choice(ours[kind])}"
        definition["join"].append(table(names[alias], alias, how=how, on={one: other}))
        query += f" {how} JOIN {names[alias]} {alias} ON {one} = {other}"
    return definition, query


class KilledError(Exception):
    """Stands for a process that ends where it stands."""


class World:
    """The tables, and the rows that they should have."""

    def __init__(self, folder: str, seed: int) -> None:
        self.random = random.Random(seed)
        self.catalog: TableCatalog = memory_catalog(folder)
        self.tables: dict[str, Table] = {}
        self.rows: dict[str, dict[tuple[Any, ...], dict[str, Any]]] = {}
        for name, schema in SCHEMAS.items():
            self.tables[name] = self.catalog.create_table(
                f"t.{name}", schema, primary_key=KEYS[name]
            )
            self.rows[name] = {}
        self.tables["orders"].add_index("by_customer", ["customer"])
        self.tables["orders"].add_index("by_status", ["status"])
        self.tables["lines"].add_index("by_order", ["order_id"])
        self.tables["lines"].add_index("by_part", ["part"])

    def new_row(self, name: str) -> dict[str, Any]:
        draw = self.random.randrange
        word = self.random.choice(["new", "paid", "void", "sent", None])
        if name == "customer":
            return {"id": draw(SMALL), "name": f"n{draw(99)}", "level": draw(5)}
        if name == "orders":
            owner = self.random.choice([None, *range(SMALL)])
            return {"id": draw(SMALL), "customer": owner, "status": word}
        return {"order_id": draw(SMALL), "line": draw(4), "part": word, "price": draw(9)}

    def change(self) -> None:
        """One commit on a random table, published."""
        name = self.random.choice(list(SCHEMAS))
        table, rows, key = self.tables[name], self.rows[name], KEYS[name]
        if self.random.random() < 0.15 and rows:
            compact(table)
            return
        came = {
            tuple(row[k] for k in key): row
            for row in (self.new_row(name) for _ in range(self.random.randrange(5)))
        }
        left = [k for k in rows if self.random.random() < 0.2 and k not in came]
        if not (came or left):
            return
        rows.update(came)
        for k in left:
            del rows[k]
        keys = [dict(zip(key, k, strict=True)) for k in left]
        schema = pa.schema([SCHEMAS[name].field(k) for k in key])
        table.stage(
            pa.Table.from_pylist(list(came.values()), schema=SCHEMAS[name]) if came else None,
            pa.Table.from_pylist(keys, schema=schema) if left else None,
        )
        resolve(table)

    def expected(self, query: str, columns: list[str]) -> list[tuple[Any, ...]]:
        with duckdb.connect() as connection:
            for name, rows in self.rows.items():
                given = pa.Table.from_pylist(list(rows.values()), schema=SCHEMAS[name])
                connection.register(name, given)
            return connection.sql(f"SELECT {', '.join(columns)} FROM {query}").fetchall()


def text_of(value: Any) -> str:
    return "" if value is None else f"={value}"


def ordered(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return sorted(rows, key=lambda row: [text_of(value) for value in row])


POINTS = ("join.before_commit", "commit.before_swap", "catalog.after_swap", "join.after_commit")


def run_round(world: World, join: Callable[[], DeltaJoin]) -> None:
    """A round, and after a kill the same again in what stands for another process."""
    armed = world.catalog.environment.runtime.fail_points.armed

    def die(_: str) -> None:
        raise KilledError

    if world.random.random() < 0.4:
        armed[world.random.choice(POINTS)] = die
        try:
            with join() as first:
                first.run()
        except KilledError:
            pass
        armed.clear()
        if world.random.random() < 0.5:
            world.change()
    with join() as again:
        again.run()
        assert again.run().snapshot_id is None, "nothing has moved, and a round staged something"


@pytest.mark.slow
@pytest.mark.parametrize("name", JOINS)
@pytest.mark.parametrize("seed", SEEDS)
def test_result_equals_the_full_join_after_every_round(tmp_path, monkeypatch, name, seed) -> None:
    given, query = JOINS[name]
    world = World(str(tmp_path), seed)
    definition = {"into": "t.result", **given}

    def join() -> DeltaJoin:
        return world.catalog.delta_join(definition)

    world.change()
    with join() as planned:
        select = planned.plan.select
    for number in range(12):
        for _ in range(world.random.randrange(1, 4)):
            world.change()
        monkeypatch.setattr(evaluate, "SLICE_ROWS", world.random.choice([1, 3, 1000]))
        monkeypatch.setattr(side, "KNOWN_ROWS_MAX", world.random.choice([0, 5, 1000]))
        monkeypatch.setattr(fetch, "FETCH_ROWS_MAX", world.random.choice([0, 1000, 1000]))
        run_round(world, join)
        result = world.catalog.load_table("t.result")
        if world.random.random() < 0.7 or number == 11:
            resolve(result)
            found = result.scan(columns=list(select)).to_arrow()
        else:
            found = result.scan(columns=list(select), branch="staging").to_arrow()
        assert_equal(world, query, select, found, f"round {number}")


def assert_equal(world: World, query: str, select: Select, found: pa.Table, where: str) -> None:
    expected = world.expected(query, [f"{alias}.{column}" for alias, column in select.values()])
    got = [tuple(row.values()) for row in found.to_pylist()]
    assert ordered(got) == ordered(expected), where


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_chains_of_all_joins_equal_the_full_join_after_every_round(
    tmp_path, monkeypatch, seed
) -> None:
    world = World(str(tmp_path), seed)
    chains = [chain(world.random, number) for number in range(len(HOWS))]
    for number in range(6):
        for _ in range(world.random.randrange(1, 5)):
            world.change()
        monkeypatch.setattr(evaluate, "SLICE_ROWS", world.random.choice([1, 3, 1000]))
        monkeypatch.setattr(side, "KNOWN_ROWS_MAX", world.random.choice([0, 5, 1000]))
        monkeypatch.setattr(fetch, "FETCH_ROWS_MAX", world.random.choice([0, 1000, 1000]))
        for definition, query in chains:
            with world.catalog.delta_join(definition) as join:
                join.run()
                select = join.plan.select
            result = world.catalog.load_table(definition["into"])
            found = result.scan(columns=list(select), branch="staging").to_arrow()
            assert_equal(world, query, select, found, f"round {number}: {query}")
