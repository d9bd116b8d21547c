"""Kept joins: rounds one by one, what is refused, and what a second process does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

import tableformat as tf
from lock import LeaseUnavailableError
from maintenance import expire
from maintenance.cli.main import cli
from maintenance.tasks.options import ExpireOptions
from resolver import resolve
from tableformat import InvalidInputError, NotFoundError, Table, TableCatalog
from tableformat.codec.parquet import rows
from tableformat.commit.expiry_plan import ExpiryPolicy
from tableformat.errors import (
    CommitConflictError,
    CommitUnknownError,
    CorruptDataError,
    StoreUnavailableError,
)
from tableformat.join import delta_join, evaluate, side
from tableformat.join.definition import load_definition
from tableformat.join.delta_join import DeltaJoin, JoinRound
from tableformat.join.evaluate import key_text
from tableformat.lookup.session import Lookup
from tableformat.runtime import SystemClock
from tests.support.memory_tables import memory_catalog

ORDERS = pa.schema([("id", pa.int64()), ("status", pa.string()), ("at", pa.timestamp("us"))])
LINES = pa.schema([("order_id", pa.int64()), ("line", pa.int32()), ("price", pa.float64())])
ON = {"o.id": "l.order_id"}
NAMES = {"id": "o.id", "status": "o.status", "line": "l.line", "price": "l.price"}


def definition(how: str = "inner", **more: Any) -> dict[str, Any]:
    return {
        "into": "t.result",
        "from": {"table": "t.orders", "as": "o"},
        "join": [{"table": "t.lines", "as": "l", "how": how, "on": ON}],
        "select": NAMES,
        **({"key-column": "row_key"} if how in ("left", "full") else {"select": NAMES | KEY}),
        **more,
    }


KEY = {"order_id": "l.order_id"}


@pytest.fixture
def catalog(tmp_path: Path) -> TableCatalog:
    made = memory_catalog(str(tmp_path / "index"))
    made.create_table("t.orders", ORDERS, primary_key=["id"])
    lines = made.create_table("t.lines", LINES, primary_key=["order_id", "line"])
    lines.add_index("by_order", ["order_id"])
    put(made, "orders", {"id": 1, "status": "new"}, {"id": 2, "status": "new"})
    put(made, "lines", {"order_id": 1, "line": 1, "price": 5.0})
    return made


def put(catalog: TableCatalog, name: str, *rows: dict[str, Any], **gone: Any) -> Table:
    table = catalog.load_table(f"t.{name}")
    upserts = pa.Table.from_pylist(list(rows), schema=table.scan().arrow_schema()) if rows else None
    deletes = None
    if gone:
        fields = [table.scan().arrow_schema().field(key) for key in gone]
        deletes = pa.Table.from_pylist([gone], schema=pa.schema(fields))
    table.stage(upserts, deletes)
    resolve(table)
    return table


def after(catalog: TableCatalog, given: dict[str, Any]) -> list[tuple[Any, ...]]:
    with catalog.delta_join(given) as join:
        join.run()
    result = catalog.load_table("t.result")
    if result.state.head("staging") is not None:
        resolve(result)
    found = result.scan(columns=["id", "status", "line", "price"]).to_arrow().to_pylist()
    return sorted((tuple(row.values()) for row in found), key=str)


def peers() -> dict[str, Any]:
    """Each order with those of its status and time; an index knows the status alone."""
    return {
        "into": "t.result",
        "from": {"table": "t.orders", "as": "o"},
        "join": [{"table": "t.orders", "as": "x", "on": {"o.status": "x.status", "o.at": "x.at"}}],
        "select": {"id": "o.id", "other": "x.id"},
    }


def test_row_without_a_match_gives_way_to_the_first_one_and_comes_back_with_the_last(catalog):
    given = definition("full")
    assert after(catalog, given) == [(1, "new", 1, 5.0), (2, "new", None, None)]
    put(catalog, "lines", {"order_id": 2, "line": 1, "price": 7.0}, order_id=1, line=1)
    assert after(catalog, given) == [(1, "new", None, None), (2, "new", 1, 7.0)]
    put(catalog, "orders", id=2)
    assert after(catalog, given) == [(1, "new", None, None), (None, None, 1, 7.0)]


def test_both_sides_change_in_one_round(catalog):
    given = definition()
    after(catalog, given)
    put(catalog, "orders", {"id": 1, "status": "paid"}, {"id": 3, "status": "new"})
    put(catalog, "lines", {"order_id": 3, "line": 1, "price": 1.0}, order_id=1, line=1)
    assert after(catalog, given) == [(3, "new", 1, 1.0)]


def test_round_tells_what_it_read_and_stages_nothing_that_is_equal(catalog):
    with catalog.delta_join(definition("left")) as join:
        first = join.run()
        assert (first.batch, first.upserts, dict(first.changes)) == (0, 2, {})
        assert join.run().snapshot_id is None
        put(catalog, "orders", {"id": 2, "status": "new", "at": 5})  # a column that is not selected
        moved = join.run()
        assert (moved.changes, moved.upserts, moved.deletes) == ({"o": 0, "l": 0}, 0, 0)
        assert moved.snapshot_id is not None, "how far the join is must be told, or it expires"
        put(catalog, "orders", {"id": 2, "status": "paid"})
        found = join.run()
        assert (found.changes, found.before_images) == ({"o": 2, "l": 0}, 1)
        assert (found.batch, found.upserts, found.deletes) == (2, 1, 0)


def test_second_process_that_is_slower_stages_nothing(catalog):
    given = definition()
    points = catalog.environment.runtime.fail_points.armed
    with catalog.delta_join(given) as slow, catalog.delta_join(given) as fast:
        fast.run()
        put(catalog, "lines", {"order_id": 2, "line": 1, "price": 7.0})

        def overtake(_: str) -> None:
            points.clear()
            assert fast.run().upserts == 1

        points["join.before_commit"] = overtake
        assert slow.run().snapshot_id is None
    assert after(catalog, given) == [(1, "new", 1, 5.0), (2, "new", 1, 7.0)]


def test_lookups_use_the_indexes_of_both_sides(catalog):
    with catalog.delta_join(definition("full")) as join:
        join.run()
        put(catalog, "lines", {"order_id": 2, "line": 1, "price": 7.0})
        assert join.run().scanned == {}


def test_round_reads_a_row_once_and_not_what_its_changes_have(catalog, monkeypatch):
    put(catalog, "orders", *({"id": i, "status": "new"} for i in range(3, 9)))
    put(catalog, "lines", *({"order_id": i, "line": 1, "price": 1.0} for i in range(3, 9)))
    given, asked = definition("full"), []
    find = Lookup.find

    def watched(self: Lookup, keys: pa.Table, *args: Any, **options: Any) -> Any:
        asked.extend((options["index"], *row.values()) for row in keys.to_pylist())
        return find(self, keys, *args, **options)

    monkeypatch.setattr(Lookup, "find", watched)
    with catalog.delta_join(given) as join:
        join.run()
        put(catalog, "orders", {"id": 3, "status": "paid"}, id=4)
        put(catalog, "lines", {"order_id": 5, "line": 1, "price": 2.0})
        asked.clear()
        assert join.run().upserts == 3
    # Order 3 and line 5 are in the changes; the lines of all three orders, and order 5, are not.
    assert sorted(asked, key=str) == [("by_order", 3), ("by_order", 4), ("by_order", 5), (None, 5)]


def test_more_rows_than_are_remembered_are_all_in_the_answer(catalog, monkeypatch):
    monkeypatch.setattr(side, "KNOWN_ROWS_MAX", 1)
    given = definition("full")
    after(catalog, given)
    put(catalog, "orders", {"id": 1, "status": "paid"})  # known from the changes
    put(catalog, "lines", {"order_id": 2, "line": 1, "price": 7.0})  # order 2 is looked up
    assert after(catalog, given) == [(1, "paid", 1, 5.0), (2, "new", 1, 7.0)]


@pytest.mark.parametrize("known_rows_max", [0, 1, 1000])
def test_slices_that_share_an_index_value_have_their_own_rows(catalog, monkeypatch, known_rows_max):
    monkeypatch.setattr(evaluate, "SLICE_ROWS", 1)
    monkeypatch.setattr(side, "KNOWN_ROWS_MAX", known_rows_max)
    catalog.load_table("t.orders").add_index("by_status", ["status"])
    with catalog.delta_join(peers()) as join:
        join.run()
        rows = [{"id": i, "status": "new", "at": i // 2} for i in range(6)]
        put(catalog, "orders", *rows)
        join.run()
    result = catalog.load_table("t.result")
    resolve(result)
    found = [tuple(row.values()) for row in result.scan().to_arrow().to_pylist()]
    assert sorted(found) == [(i, j) for i in range(6) for j in range(6) if i // 2 == j // 2]


def test_columns_are_decoded_once_for_old_rows_and_for_lookups(catalog, monkeypatch):
    monkeypatch.setattr(delta_join, "CACHE_BYTES", 0)
    pages = {"write.parquet.page-row-limit": "10"}
    names = ("orders", "lines")
    for name in names:
        catalog.load_table(f"t.{name}").set_properties(pages)
    put(catalog, "orders", *({"id": i, "status": "new"} for i in range(100, 300)))
    put(
        catalog,
        "lines",
        *({"order_id": i, "line": i, "price": 1.0} for i in range(100, 300)),
    )
    decoded: list[tuple[str, str]] = []
    whole_chunk = rows._OpenFile._whole_chunk

    def watched(file: Any, group: int, leaves: Any) -> pa.Array:
        if file.data_file.record_count == 200:  # not one of the changes
            found = file.reader.metadata.schema.column(leaves[0]).path
            decoded.append((file.data_file.file_path.split("/")[-3], found))
        return whole_chunk(file, group, leaves)

    monkeypatch.setattr(rows._OpenFile, "_whole_chunk", watched)
    with catalog.delta_join(definition("full")) as join:
        join.run()
        put(catalog, "orders", *({"id": i, "status": "paid"} for i in range(100, 300, 9)))
        put(
            catalog,
            "lines",
            *({"order_id": i, "line": i, "price": 2.0} for i in range(100, 300, 7)),
        )
        decoded.clear()
        join.run()
    # What lines are joined by has to be known before orders are looked up.
    assert sorted(decoded) == [
        ("lines", "line"),
        ("lines", "order_id"),
        ("lines", "order_id"),
        ("lines", "price"),
        ("orders", "id"),
        ("orders", "status"),
    ]


def test_values_beyond_those_foreseen_add_their_own_rows_only(catalog):
    """Where the index has some of the columns, looking up one value also finds others' rows."""
    catalog.load_table("t.orders").add_index("by_status", ["status"])
    with catalog.delta_join(peers()) as join:
        join.run()
        put(catalog, "orders", *({"id": i, "status": "new", "at": i % 3} for i in range(6)))
        side = join._sides({"o": None, "x": None}, None)["x"]
    columns = ("status", "at")
    schema = pa.schema([ORDERS.field(name) for name in columns])
    values = pa.Table.from_pylist([{"status": "new", "at": i} for i in range(3)], schema=schema)
    side.fetch(columns, values.slice(0, 2))
    found = side.look_up_new(columns, values)
    assert sorted(found.rows["id"].to_pylist()) == list(range(6))


def test_join_of_a_join_is_a_chain(catalog):
    put(catalog, "lines", {"order_id": 2, "line": 1, "price": 7.0})
    after(catalog, definition())
    again = {
        "into": "t.second",
        "from": {"table": "t.result", "as": "r", "filter": "price > 6"},
        "join": [{"table": "t.orders", "as": "o", "how": "left", "on": {"r.order_id": "o.id"}}],
        "select": {"id": "r.id", "order_id": "r.order_id", "line": "r.line", "status": "o.status"},
    }
    result = catalog.load_table("t.result")
    result.add_index("by_order", ["order_id"])
    with catalog.delta_join(again) as join:
        join.run()
    second = catalog.load_table("t.second")
    resolve(second)
    assert second.scan(columns=["order_id", "status"]).to_arrow().to_pylist() == [
        {"order_id": 2, "status": "new"}
    ]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"join": []}, "key=join"),
        ({"frm": 1}, "key=frm"),
        ({"join": [{"table": "t.lines", "as": "l", "how": "outer", "on": ON}]}, "key=join.0.how"),
        ({"join": [{"table": "t.lines", "as": "l", "on": {}}]}, "key=join.0.on"),
        ({"join": [{"table": "t.lines", "as": "o", "on": {"o.id": "o.id"}}]}, "alias=o"),
        (
            {"join": [{"table": "t.lines", "as": "l", "on": {"o.nope": "l.order_id"}}]},
            "key=join.0.on, column=o.nope",
        ),
        (
            {"join": [{"table": "t.lines", "as": "l", "on": {"o.id": "l.line"}}]},
            "one primitive type",
        ),
        ({"select": {"id": "x.id"}}, "key=select.id, alias=x"),
        ({"select": {"id": "o.id"}}, "l.order_id is part of the result's key and not selected"),
        (
            {"join": [{"table": "t.lines", "as": "l", "how": "left", "on": ON}]},
            'key-column = "row_key"',
        ),
        ({"join": [{"table": "t.orders", "as": "l", "on": {"o.status": "l.status"}}],
             "select": {"id": "o.id", "other": "l.id"}},
         "icefold index add t.orders by_status status"),
        ({"from": {"table": "t.orders", "as": "o", "filter": "nope > 1"}}, "nope"),
    ],
)  # fmt: skip
def test_wrong_definition_is_refused_in_one_line(catalog, change, text):
    given = definition() | change
    with pytest.raises(InvalidInputError) as caught:
        catalog.delta_join(given)
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not catalog.table_exists("t.result")


def chain(first: str, second: str) -> dict[str, Any]:
    """Orders, their lines, and orders again that are compared with the first ones."""
    return {
        "into": "t.chain",
        "from": {"table": "t.orders", "as": "o"},
        "join": [
            {"table": "t.lines", "as": "l", "how": first, "on": ON},
            {"table": "t.orders", "as": "p", "how": second, "on": {"o.id": "p.id"}},
        ],
        "select": {"id": "o.id", "order_id": "l.order_id", "p": "p.id"},
        "key-column": "row_key",
    }


def chained(catalog: TableCatalog, given: dict[str, Any]) -> list[tuple[Any, ...]]:
    with catalog.delta_join(given) as join:
        join.run()
    result = catalog.load_table("t.chain")
    if result.state.head("staging") is not None:
        resolve(result)
    rows = result.scan(columns=["id", "order_id", "p"]).to_arrow().to_pylist()
    return sorted((tuple(row.values()) for row in rows), key=str)


@pytest.mark.parametrize("how", ["right", "full"])
def test_row_counts_as_unmatched_if_the_join_before_left_its_match_out(catalog, how):
    given = chain("inner", how)
    assert chained(catalog, given) == [(1, 1, 1), (None, None, 2)]
    put(catalog, "lines", {"order_id": 2, "line": 1, "price": 7.0})
    assert chained(catalog, given) == [(1, 1, 1), (2, 2, 2)]
    put(catalog, "lines", order_id=1, line=1)
    assert chained(catalog, given) == [(2, 2, 2), (None, None, 1)]


def test_rows_of_a_full_join_without_the_compared_table_end_in_an_inner_one_only(catalog):
    put(catalog, "lines", {"order_id": 3, "line": 1, "price": 7.0})
    assert chained(catalog, chain("full", "inner")) == [(1, 1, 1), (2, None, 2)]
    given = chain("full", "left") | {"into": "t.left"}
    with catalog.delta_join(given) as join:
        assert join.run().upserts == 3


def test_right_or_full_join_in_a_chain_needs_a_computed_key(catalog):
    given = chain("inner", "right")
    del given["key-column"]
    with pytest.raises(InvalidInputError, match=r"o\.id is part .* null where a row has no match"):
        catalog.delta_join(given)


def test_result_of_others_or_of_another_definition_is_refused(catalog):
    after(catalog, definition())
    with pytest.raises(InvalidInputError, match="another definition"):
        after(catalog, definition(**{"from": {"table": "t.orders", "as": "o", "filter": "id > 1"}}))
    with pytest.raises(InvalidInputError, match="not of this join"):
        after(catalog, definition(**{"query-id": "other"}))
    with pytest.raises(InvalidInputError, match="not the one that the join makes"):
        catalog.delta_join(definition() | {"into": "t.lines"})


def test_snapshot_of_the_last_round_that_has_expired_is_named(catalog):
    after(catalog, definition())
    put(catalog, "orders", {"id": 5, "status": "new"})
    everything = ExpiryPolicy(max_snapshot_age_ms=-1, min_snapshots_to_keep=1)
    expire(catalog.load_table("t.orders"), ExpireOptions(policy=everything))
    with pytest.raises(NotFoundError, match="has expired"):
        after(catalog, definition())


def test_key_texts_differ_where_parts_do():
    columns = [pa.array(["a", "a,1:b", None, "", "-"]), pa.array([1, 1, 1, None, None])]
    texts = key_text(columns).to_pylist()
    assert texts == ["1:a,1:1", "5:a,1:b,1:1", "-,1:1", "0:,-", "1:-,-"]
    assert len(set(texts)) == len(texts)


def test_command_runs_rounds_of_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    local = tf.open_catalog("local", warehouse="warehouse")
    local.create_table("t.orders", ORDERS, primary_key=["id"])
    lines = local.create_table("t.lines", LINES, primary_key=["order_id", "line"])
    lines.add_index("by_order", ["order_id"])
    put(local, "orders", {"id": 1, "status": "new"})
    put(local, "lines", {"order_id": 1, "line": 1, "price": 5.0})
    (tmp_path / "join.json").write_text(json.dumps(definition()))
    runs = [CliRunner().invoke(cli, ["join", "join.json", "--resolve"]) for _ in range(2)]
    assert [run.exit_code for run in runs] == [0, 0], runs[0].stderr
    assert "round 0: all rows; 1 row and 0 deletes staged" in runs[0].stdout
    assert runs[1].stdout == "round 0: nothing has changed\n"
    assert local.load_table("t.result").scan().count() == 1
    put(local, "lines", {"order_id": 1, "line": 2, "price": 6.0})
    runs = [CliRunner().invoke(cli, ["join", "join.json", *last]) for last in ([], ["--resolve"])]
    assert runs[1].stdout == "round 1: nothing has changed\n"
    assert local.load_table("t.result").scan().count() == 2, "staged by a process that died"
    (tmp_path / "join.toml").write_text('into = "t.x"\nfrom = 1\n')
    with pytest.raises(InvalidInputError, match=r"key=from, file=.*join\.toml"):
        load_definition(tmp_path / "join.toml")
    (tmp_path / "join.toml").write_text("into = ")
    with pytest.raises(InvalidInputError, match="cannot read the definition"):
        load_definition(tmp_path / "join.toml")
    (tmp_path / "deep.json").write_text("[" * 100_000)
    with pytest.raises(InvalidInputError, match="cannot read the definition"):
        load_definition(tmp_path / "deep.json")


def test_rounds_that_follow_outlast_what_passes_and_end_with_what_does_not(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    local = tf.open_catalog("local", warehouse="warehouse")
    local.create_table("t.orders", ORDERS, primary_key=["id"])
    lines = local.create_table("t.lines", LINES, primary_key=["order_id", "line"])
    lines.add_index("by_order", ["order_id"])
    put(local, "orders", {"id": 1, "status": "new"})
    put(local, "lines", {"order_id": 1, "line": 1, "price": 5.0})
    (tmp_path / "join.json").write_text(json.dumps(definition()))
    waits: list[float] = []
    errors = [
        StoreUnavailableError("the store does not answer"),
        CommitUnknownError("the answer was lost"),
        None,
        CommitConflictError("another was faster"),
        LeaseUnavailableError("somebody else has the lock"),
        CorruptDataError("bad bytes"),
    ]
    run = DeltaJoin.run

    def troubled(self: DeltaJoin) -> JoinRound:
        error = errors.pop(0)
        if error is not None:
            raise error
        return run(self)

    monkeypatch.setattr(DeltaJoin, "run", troubled)
    monkeypatch.setattr(SystemClock, "sleep_ms", lambda _, wait_ms: waits.append(wait_ms))
    done = CliRunner().invoke(cli, ["join", "join.json", "--follow", "--resolve", "--every", "7s"])
    assert done.exit_code == 1
    assert done.stdout.count("round 0: all rows; 1 row and 0 deletes staged") == 1
    assert local.load_table("t.result").scan().count() == 1
    told = done.stderr.splitlines()
    assert [line.count("tried again in") for line in told] == [1, 1, 1, 1, 0]
    assert told[-1] == "icefold: corrupt-data: bad bytes"
    assert [round(wait_ms / 1e3) for wait_ms in waits] == [1, 2, 7, 1, 2]
