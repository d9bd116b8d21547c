from __future__ import annotations

import json
import uuid

import pyarrow as pa
import pytest

from tableformat.cdc.events import EventBatch
from tableformat.errors import InvalidInputError
from tableformat.table_definition import define_schema
from tests.support.change_events import ORDERS, kinds_and, order, orders_schema, parse, reasons

SCHEMA = orders_schema()


def events_of(table: pa.Table) -> EventBatch:
    [batch] = EventBatch.split(table, 1000)
    return batch


def rows(*values: dict[str, object], **columns: list[object]) -> EventBatch:
    table = pa.Table.from_pylist(list(values), schema=ORDERS)
    for name, column in columns.items():
        table = table.append_column(name, pa.array(column))
    return events_of(table)


def test_rows_without_a_kind_column_are_upserts() -> None:
    assert kinds_and(parse("upsert", SCHEMA, rows(order(1), order(2))), "id") == [
        ("+U", 1),
        ("+U", 2),
    ]


def test_kind_column_says_which_rows_are_deletes() -> None:
    batch = rows(order(1), order(2), order(3), op=["d", "u", "+I"])
    parsed = parse("upsert", SCHEMA, batch, kind_column="op")
    assert kinds_and(parsed, "id", "_ordinal") == [("-D", 1, 0), ("+U", 2, 1), ("+I", 3, 2)]


def test_kind_column_that_the_table_has_too_is_stored() -> None:
    schema = define_schema(
        pa.schema([pa.field("id", pa.int64(), False), ("op", pa.string())]), ["id"]
    )
    parsed = parse(
        "upsert", schema, events_of(pa.table({"id": [1], "op": ["u"]})), kind_column="op"
    )
    assert kinds_and(parsed, "id", "op") == [("+U", 1, "u")]


def test_column_that_is_given_twice_fails_the_batch() -> None:
    twice = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["id", "id"])
    with pytest.raises(InvalidInputError, match="column is given twice; column=id"):
        parse("append", SCHEMA, events_of(twice))


def test_delete_rows_need_their_key_only() -> None:
    table = pa.table({"id": [1], "op": ["d"]})
    parsed = parse("upsert", SCHEMA, events_of(table), kind_column="op")
    assert kinds_and(parsed, "id", "region") == [("-D", 1, None)]


def test_sequence_is_a_column_of_the_table() -> None:
    parsed = parse("upsert", SCHEMA, rows(order(5)), sequence="id")
    assert kinds_and(parsed, "_sequence_0") == [("+U", 5)]
    with pytest.raises(InvalidInputError, match=r"unknown column.*column=lsn"):
        parse("upsert", SCHEMA, rows(order(5)), sequence="lsn")
    parsed = parse("upsert", SCHEMA, rows(order(5), order(6, note="n")), sequence="note")
    assert kinds_and(parsed, "id") == [("+U", 6)]
    assert reasons(parsed) == ["the event lacks its sequence field"]


def test_wrong_kind_is_a_bad_record_that_names_column_and_value() -> None:
    batch = rows(order(1), order(2), order(3), op=["x", "d", None])
    parsed = parse("upsert", SCHEMA, batch, kind_column="op")
    assert kinds_and(parsed, "id") == [("-D", 2)]
    assert reasons(parsed) == [
        "column 'op': 'x' is not a row kind",
        "column 'op': None is not a row kind",
    ]
    assert parsed.bad.column("position").to_pylist() == ["event 0", "event 2"]
    assert json.loads(parsed.bad.column("value")[1].as_py()) == {**order(3), "op": None}
    with pytest.raises(InvalidInputError, match="no column 'kind'"):
        parse("upsert", SCHEMA, rows(order(1)), kind_column="kind")


def test_unknown_or_missing_column_fails_the_batch() -> None:
    with pytest.raises(InvalidInputError, match=r"unknown column.*extra"):
        parse("upsert", SCHEMA, rows(order(1), extra=[1]))
    with pytest.raises(InvalidInputError, match=r"required column is missing.*column=region"):
        parse("upsert", SCHEMA, events_of(pa.table({"id": [1]})))


@pytest.mark.parametrize("size", [1, 7, 64])
@pytest.mark.parametrize("format_name", ["upsert", "append"])
def test_rows_with_wrong_values_are_bad_and_the_others_are_not(size: int, format_name: str) -> None:
    fields = [
        pa.field("id", pa.int32(), nullable=False),
        pa.field("uid", pa.uuid()),
        pa.field("inner", pa.struct([pa.field("x", pa.int64(), nullable=False)])),
    ]
    schema = define_schema(pa.schema(fields), ["id"])
    events = [{"id": n, "uid": str(uuid.UUID(int=n)), "inner": {"x": n}} for n in range(size)]
    events[0]["id"] = 2**31
    events[size // 2]["uid"] = "no uuid"
    events[-1]["inner"] = {"x": None}
    kinds = [pa.field("id", pa.int64()), pa.field("uid", pa.string())]
    table = pa.Table.from_pylist(
        events, pa.schema([*kinds, pa.field("inner", pa.struct([("x", pa.int64())]))])
    )
    parsed = parse(format_name, schema, events_of(table))
    wrong = sorted({0, size // 2, size - 1})
    assert parsed.changes.column("id").to_pylist() == [n for n in range(size) if n not in wrong]
    found = parsed.changes.column("uid").to_pylist()
    assert found == [uuid.UUID(int=n) for n in range(size) if n not in wrong]
    assert parsed.bad.column("position").to_pylist() == [f"event {n}" for n in wrong]
    for reason, column in zip(reasons(parsed), ("id", "uid", "inner.x"), strict=False):
        assert f"column={column}" in reason


def test_key_without_a_value_is_a_bad_record() -> None:
    table = pa.table({"id": pa.array([None, 1], pa.int64()), "region": ["EU", "EU"]})
    for kinds in ({}, {"kind_column": "op"}):
        given = table.append_column("op", pa.array(["d", "d"])) if kinds else table
        parsed = parse("upsert", SCHEMA, events_of(given), **kinds)
        assert parsed.changes.column("id").to_pylist() == [1]
        assert reasons(parsed) == ["required column holds nulls; column=id, null_count=1"]


def test_append_produces_inserts_for_tables_with_and_without_a_key() -> None:
    assert kinds_and(parse("append", SCHEMA, rows(order(1))), "id") == [("+I", 1)]
    keyless = define_schema(ORDERS, [])
    assert kinds_and(parse("append", keyless, rows(order(1))), "id") == [("+I", 1)]
    with pytest.raises(InvalidInputError, match="needs a table with a primary key"):
        parse("upsert", keyless, rows(order(1)))


def test_views_of_arrow_are_read_as_plain_texts_and_bytes() -> None:
    """As polars and DuckDB give them; Arrow itself filters none."""
    plain = {
        "id": pa.array([1, 2, 3], pa.int64()),
        "text": pa.array(["a", None, ""]),
        "raw": pa.array([b"\x00", b"", None]),
        "texts": pa.array([["x", None], None, []], pa.list_(pa.string())),
        "part": pa.array([{"x": "y"}, None, {"x": None}], pa.struct([("x", pa.string())])),
        "map": pa.array([[("k", "v")], None, []], pa.map_(pa.string(), pa.string())),
    }
    views = {
        "text": pa.string_view(),
        "raw": pa.binary_view(),
        "texts": pa.large_list(pa.string_view()),
        "part": pa.struct([("x", pa.string_view())]),
        "map": pa.map_(pa.string(), pa.string_view()),
    }
    schema = define_schema(pa.schema([(name, each.type) for name, each in plain.items()]), ["id"])
    given = {name: each.cast(views.get(name, each.type)) for name, each in plain.items()}
    ops = pa.array(["+I", "+I", "-D"])
    found = parse(
        "upsert", schema, events_of(pa.table({**given, "op": ops.cast(pa.string_view())})),
        kind_column="op",
    )  # fmt: skip
    wanted = parse("upsert", schema, events_of(pa.table({**plain, "op": ops})), kind_column="op")
    assert reasons(found) == []
    assert found.changes.to_pylist() == wanted.changes.to_pylist()


@pytest.mark.parametrize("kind", [pa.time32("ms"), pa.time64("us"), pa.time64("ns")])
def test_time_that_is_none_of_a_day_is_a_bad_record(kind: pa.DataType) -> None:
    """Arrow takes any number; readers make different times of it."""
    in_day = {"ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}[kind.unit]
    schema = define_schema(pa.schema([("id", pa.int64()), ("at", pa.time64("us"))]), ["id"])
    numbers = [in_day, -in_day // 86_400, 0, None]
    values = pa.array(numbers, pa.int64() if kind.bit_width == 64 else pa.int32()).cast(kind)
    found = parse("upsert", schema, events_of(pa.table({"id": [1, 2, 3, 4], "at": values})))
    assert [each[1] for each in kinds_and(found, "id")] == [3, 4]
    assert all("not a time of day" in reason for reason in reasons(found))
