"""`schema-evolution`: what each format adds and widens, and what strict refuses."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.types import (
    DecimalType,
    DoubleType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
)

from tableformat import CommitConflictError, InvalidInputError, Table
from tableformat.cdc import schema_evolution
from tableformat.cdc.events import EventBatch
from tableformat.cdc.ingest import IngestResult, write_changes
from tableformat.cdc.schema_changes import SchemaChanges, common_type
from tableformat.cdc.schema_evolution import evolve_table
from tableformat.cdc.sink import plan_sink
from tableformat.commit.evolution import update_schema
from tests.support.debezium_events import batch
from tests.support.memory_tables import memory_catalog

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("small", pa.int32())])
NOT_NULL = pa.schema([*SCHEMA, pa.field("name", pa.string(), nullable=False)])
KEY = {"field": "id", "type": "int64", "optional": False}


@pytest.fixture
def table() -> Table:
    return memory_catalog().create_table("t.rows", SCHEMA, primary_key=["id"])


def write(
    table: Table, events: pa.Table, mode: str, format_name: str = "debezium-json", **options: str
) -> IngestResult:
    given = {name.replace("_", "-"): text for name, text in options.items()}
    return write_changes(
        table.environment,
        table.identifier,
        events,
        format_name=format_name,
        options={**given, "schema-evolution": mode},
    )


def events(*rows: Mapping[str, Any]) -> pa.Table:
    return pa.table({"value": [json.dumps(row) for row in rows]})


def upsert(**row: Any) -> dict[str, Any]:
    return {"before": None, "after": row, "op": "u"}


def with_schema(fields: list[dict[str, Any]], **row: Any) -> dict[str, Any]:
    after = {"type": "struct", "field": "after", "fields": fields}
    return {"schema": {"type": "struct", "fields": [after]}, "payload": upsert(**row)}


def types(table: Table) -> dict[str, object]:
    return {each.name: each.field_type for each in table.refresh().schema().fields}


def staged(table: Table) -> list[dict[str, Any]]:
    rows = table.scan(branch="staging").to_arrow().to_pylist()
    return sorted(rows, key=lambda row: row["id"])


@pytest.mark.parametrize("format_name", ["debezium-json", "changelog-json", "upsert", "append"])
def test_strict_fails_the_batch_and_names_the_column(table: Table, format_name: str) -> None:
    row = {"id": 1, "extra": 2}
    given = {
        "debezium-json": events(upsert(**row)),
        "changelog-json": events({"data": row, "op": "+I"}),
        "upsert": pa.Table.from_pylist([row]),
        "append": pa.Table.from_pylist([row]),
    }[format_name]
    with pytest.raises(InvalidInputError, match="extra"):
        write(table, given, "strict", format_name)
    assert list(types(table)) == ["id", "small"]
    assert table.state.head("staging") is None


@pytest.mark.parametrize("format_name", ["debezium-json", "changelog-json", "flattened"])
def test_columns_of_bare_json_are_added_with_inferred_types(table: Table, format_name: str) -> None:
    rows = [
        {"id": 1, "n": 1, "text": "2020-01-01", "flag": True, "list": [1], "nothing": None},
        {"id": 2, "n": 2.5, "deep": {"a": "x", "b": None}, "nothing": None},
        {"id": 3, "n": 3},
    ]
    wrap = {
        "debezium-json": lambda row: upsert(**row),
        "changelog-json": lambda row: {"data": row, "op": "+I"},
        "flattened": lambda row: {**row, "__op": "u", "__source": "kept out"},
    }[format_name]
    options = {} if format_name == "changelog-json" else {"new_columns": "json"}
    options |= {"layout": "flattened"} if format_name == "flattened" else {}
    name = "debezium-json" if format_name == "flattened" else format_name
    result = write(table, events(*map(wrap, rows)), "add-columns", name, **options)
    assert result.changes == 3
    found = types(table)
    assert set(found) == {"id", "small", "n", "text", "flag", "list", "deep"}
    assert (found["n"], found["text"]) == (DoubleType(), StringType())
    assert isinstance(found["list"], ListType)
    assert isinstance(found["deep"], StructType)
    assert [row["n"] for row in staged(table)] == [1.0, 2.5, 3.0]
    assert staged(table)[1]["deep"] == {"a": "x"}
    assert not any(each.required for each in table.schema().fields[1:])


def test_integer_beyond_64_bits_makes_no_column_that_would_round_it(table: Table) -> None:
    given = events(upsert(id=1, n=2**63 + 1))
    with pytest.raises(InvalidInputError, match=r"more than 64 bits; column=n.*as a decimal"):
        write(table, given, "add-columns", new_columns="json")
    assert list(types(table)) == ["id", "small"]


def test_columns_with_a_connect_schema_are_added_with_its_types(table: Table) -> None:
    fields = [
        {"field": "id", "type": "int64"},
        {"field": "at", "type": "int64", "name": "io.debezium.time.MicroTimestamp"},
        {
            "field": "price",
            "type": "bytes",
            "name": "org.apache.kafka.connect.data.Decimal",
            "parameters": {"scale": "2", "connect.decimal.precision": "9"},
        },
        {"field": "unused", "type": "int32"},
    ]
    write(table, events(with_schema(fields, id=1, at=5, price="AfQ=")), "add-columns")
    found = types(table)
    assert found["at"] == TimestampType()
    assert found["price"] == DecimalType(9, 2)
    assert found["unused"] == IntegerType(), "declared, so it is there, whatever its values"
    (row,) = staged(table)
    assert (row["at"].microsecond, str(row["price"])) == (5, "5.00")


def test_new_column_that_nothing_can_be_made_of_is_named(table: Table) -> None:
    fields = [{"field": "id", "type": "int64"}, {"field": "m", "type": "map"}]
    with pytest.raises(InvalidInputError, match=r"no column can be made of.*column=m"):
        write(table, events(with_schema(fields, id=1, m={})), "add-columns")


def test_values_that_disagree_about_a_new_column_are_refused(table: Table) -> None:
    rows = events(upsert(id=1, x="a"), upsert(id=2, x=5))
    with pytest.raises(InvalidInputError, match=r"disagree.*column=x"):
        write(table, rows, "add-columns", new_columns="json")


@pytest.mark.parametrize("format_name", ["debezium", "connect", "upsert"])
def test_full_widens_int_to_long_and_add_columns_does_not(table: Table, format_name: str) -> None:
    row = {"id": 1, "small": 2**40}
    fields = [{"field": "id", "type": "int64"}, {"field": "small", "type": "int64"}]
    given = {
        "debezium": events(upsert(**row)),
        "connect": events(with_schema(fields, **row)),
        "upsert": pa.Table.from_pylist([row]),
    }[format_name]
    name = "upsert" if format_name == "upsert" else "debezium-json"
    with pytest.raises(InvalidInputError):
        write(table, given, "add-columns", name)
    assert types(table)["small"] == IntegerType()
    write(table, given, "full", name)
    assert types(table)["small"] == LongType()
    assert staged(table) == [row]


def test_full_never_narrows(table: Table) -> None:
    write(table, pa.table({"id": pa.array([1], pa.int32())}), "full", "upsert")
    assert types(table)["id"] == LongType()


NESTED = pa.schema(
    [
        SCHEMA.field("id"),
        pa.field("ints", pa.list_(pa.int32())),
        pa.field("deep", pa.list_(pa.list_(pa.float32()))),
        pa.field("part", pa.struct([("n", pa.int32()), ("text", pa.string())])),
        pa.field("prices", pa.list_(pa.decimal128(9, 2))),
    ]
)
_PRICE = {
    "type": "bytes",
    "name": "org.apache.kafka.connect.data.Decimal",
    "parameters": {"scale": "2"},
}


@pytest.mark.parametrize("mode", ["full", "add-columns"])
def test_items_of_lists_and_fields_of_structs_widen_like_columns(mode: str) -> None:
    table = memory_catalog().create_table("t.nested", NESTED, primary_key=["id"])
    before = types(table)
    fields: list[dict[str, Any]] = [
        KEY,
        {"field": "ints", "type": "array", "items": {"type": "int64"}},
        {
            "field": "deep",
            "type": "array",
            "items": {"type": "array", "items": {"type": "double"}},
        },
        {
            "field": "part",
            "type": "struct",
            "fields": [{"field": "n", "type": "int64"}, {"field": "text", "type": "string"}],
        },
        {"field": "prices", "type": "array", "items": _PRICE},
    ]
    row = {"ints": [1, None, 2**40], "deep": [[0.1], None], "part": {"n": 2**40, "text": "x"}}
    given = events(with_schema(fields, id=1, prices=["AfQ="], **row))
    if mode == "add-columns":
        with pytest.raises(InvalidInputError, match="ints"):
            write(table, given, mode)
        assert types(table) == before
        return
    write(table, given, mode)
    (found,) = staged(table)
    assert {name: found[name] for name in row} == row
    assert types(table)["prices"] == before["prices"], "as many digits as its column has"


@pytest.mark.parametrize("values", [[2**40], [[None, 1], None, [-(2**40)]]])
def test_bare_integers_of_a_list_widen_it(values: list[Any]) -> None:
    kind = pa.int32()
    probe = values
    while isinstance(probe, list):
        kind, probe = pa.list_(kind), probe[0]
    schema = pa.schema([SCHEMA.field("id"), pa.field("ints", kind)])
    table = memory_catalog().create_table("t.lists", schema, primary_key=["id"])
    write(table, events(upsert(id=1, ints=values)), "full")
    assert [row["ints"] for row in staged(table)] == [values]


def test_decimal_digits_widen_only_where_the_schema_says_them(table: Table) -> None:
    table.update_schema(lambda s: s.add_column("price", DecimalType(5, 2)))
    decimal = {
        "field": "price",
        "type": "bytes",
        "name": "org.apache.kafka.connect.data.Decimal",
        "parameters": {"scale": "2"},
    }
    fields = [{"field": "id", "type": "int64"}, decimal]
    write(table, events(with_schema(fields, id=1, price="AfQ=")), "full")
    assert types(table)["price"] == DecimalType(5, 2)
    decimal["parameters"] = {"scale": "2", "connect.decimal.precision": "12"}
    write(table, events(with_schema(fields, id=1, price="AfQ=")), "full")
    assert types(table)["price"] == DecimalType(12, 2)


def test_renamed_column_is_a_new_one(table: Table) -> None:
    write(table, events(upsert(id=1, small=1)), "full")
    write(table, events(upsert(id=2, tiny=2)), "full", new_columns="json")
    assert staged(table) == [
        {"id": 1, "small": 1, "tiny": None},
        {"id": 2, "small": None, "tiny": 2},
    ]


def test_typed_frames_add_nested_columns_and_skip_the_kind(table: Table) -> None:
    rows = pa.table({"id": [1], "op": ["+I"], "tags": [["a"]], "none": pa.nulls(1)})
    write(table, rows, "add-columns", "upsert", kind_column="op")
    assert list(types(table)) == ["id", "small", "tags"]


def test_ignoring_and_adding_exclude_each_other(table: Table) -> None:
    with pytest.raises(InvalidInputError, match="ignored or added, not both"):
        write(table, events(), "full", unknown_columns="ignore")


def test_column_with_a_name_of_ours_is_refused(table: Table) -> None:
    with pytest.raises(InvalidInputError, match=r"use its name themselves.*column=_kind"):
        write(table, events(upsert(id=1, _kind=1)), "add-columns", new_columns="json")
    assert list(types(table)) == ["id", "small"]


def test_column_that_somebody_adds_meanwhile_is_added_once(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def racing(environment: Any, identifier: Any, edit: Any) -> Any:
        if not calls:
            calls.append(1)
            update_schema(environment, identifier, lambda s: s.add_column("x", StringType()))
            raise CommitConflictError("the table's structure was changed by another commit")
        return update_schema(environment, identifier, edit)

    monkeypatch.setattr(schema_evolution, "update_schema", racing)
    write(table, events(upsert(id=1, x="a", y="b")), "add-columns", new_columns="json")
    assert types(table) | {"id": None} == {
        "id": None,
        "small": IntegerType(),
        "x": StringType(),
        "y": StringType(),
    }
    assert staged(table) == [{"id": 1, "small": None, "x": "a", "y": "b"}]


def test_two_drivers_that_add_the_same_column_add_it_once(table: Table) -> None:
    schema_changes = SchemaChanges(added={"x": LongType()}, widened={"small": LongType()})
    for _ in range(2):
        evolve_table(table.environment, table.identifier, schema_changes)
    assert [each.name for each in table.refresh().schema().fields] == ["id", "small", "x"]
    assert table.schema().find_field("small").field_type == LongType()


def test_schema_changes_survive_the_way_from_a_task_to_the_driver() -> None:
    nested = StructType(NestedField(0, "a", ListType(0, DecimalType(9, 2), False), required=False))
    schema_changes = SchemaChanges(
        added={"x": LongType(), "deep": nested}, widened={"y": DoubleType()}
    )
    schema_changes.declared["x"] = {"field": "x", "type": "int64", "default": "\n5"}
    schema_changes.relaxed.add("z")
    assert SchemaChanges.decode(schema_changes.encode()) == schema_changes


@pytest.mark.parametrize(
    ("one", "other", "common"),
    [
        (LongType(), IntegerType(), LongType()),
        (LongType(), DoubleType(), DoubleType()),
        (DecimalType(5, 2), DecimalType(9, 2), DecimalType(9, 2)),
    ],
)
def test_common_type_holds_both(one: Any, other: Any, common: Any) -> None:
    assert common_type(one, other, column="x") == common_type(other, one, column="x") == common


def test_writer_that_cannot_change_the_table_refuses_what_needs_it(table: Table) -> None:
    """Nothing may be taken for written that was not even parsed."""
    plan = plan_sink(
        table.environment,
        table.identifier,
        format_name="upsert",
        options={"schema-evolution": "add-columns"},
        branch="staging",
    )
    batch = EventBatch(pa.RecordBatch.from_pylist([{"id": 1, "extra": 2}]))
    with pytest.raises(InvalidInputError, match=r"cannot change it.*columns=\['extra'\]"):
        plan.writer.parse(plan.writer.build_format(), batch)


def field(column: str, kind: str, **more: Any) -> dict[str, Any]:
    return {"field": column, "type": kind, "optional": True, **more}


ID = field("id", "int64")
DEFAULTS: list[tuple[dict[str, Any], Any, Any]] = [
    (field("x", "int32", default=5), 6, 5),
    (field("x", "string", default="\u00fc"), "a", "\u00fc"),
    (field("x", "boolean", default=False), True, False),
    (field("x", "int32", optional=False, default=7), 6, 7),
    (field("x", "int32", name="io.debezium.time.Date", default=18263), 1, dt.date(2020, 1, 2)),
    (
        field("x", "int64", name="io.debezium.time.Timestamp", default=1709208000001),
        1,
        dt.datetime(2024, 2, 29, 12, 0, 0, 1000),
    ),
    (
        field(
            "x",
            "bytes",
            name="org.apache.kafka.connect.data.Decimal",
            parameters={"scale": "2", "connect.decimal.precision": "9"},
            default="AfQ=",
        ),
        "AJY=",
        Decimal("5.00"),
    ),
]


@pytest.mark.parametrize(("declared", "value", "default"), DEFAULTS)
def test_rows_from_before_a_column_read_the_default_it_was_added_with(
    table: Table,
    declared: dict[str, Any],
    value: Any,
    default: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """`ALTER TABLE ... ADD COLUMN x ... DEFAULT`: PostgreSQL fills older rows, and says nothing."""
    write(table, events(with_schema([ID], id=1)), "add-columns")
    mixed = [with_schema([ID], id=2), with_schema([ID, declared], id=3, x=value)]
    write(table, events(*mixed), "add-columns")
    write(table, events(with_schema([ID, declared], id=4, x=None)), "add-columns")
    later = {**declared, "default": value}
    write(table, events(with_schema([ID, later], id=5, x=value)), "add-columns")
    found = {row["id"]: row["x"] for row in staged(table)}
    assert (found[1], found[2], found[4]) == (default, default, None)
    assert found[3] == found[5] != default
    (warning,) = [each.getMessage() for each in caplog.records if "'x'" in each.getMessage()]
    assert "default of the events' schema" in warning


@pytest.mark.parametrize(
    "declared",
    [
        field("x", "int32"),
        field("x", "int64", optional=False, default=0),
        field(
            "x",
            "string",
            optional=False,
            name="io.debezium.time.ZonedTimestamp",
            default="1970-01-01T00:00:00.000000Z",
        ),
        field("x", "string", optional=False, default=""),
        # What Debezium 3.3 declares for expressions of columns that may be null.
        field("x", "int32", name="io.debezium.time.Date", default=0),
        field("x", "int64", name="io.debezium.time.MicroTime", default=0),
        field("x", "int64", name="io.debezium.time.MicroTimestamp", default=0),
        field("x", "string", name="io.debezium.data.Uuid", default=str(uuid.UUID(int=0))),
        # DEFAULT 'infinity'
        field("x", "int32", name="io.debezium.time.Date", default=169_560_311),
        field("x", "int32", default="five"),
        field("x", "array", items={"type": "int32"}, default=[1]),
    ],
)
def test_default_that_the_schema_does_not_carry_for_sure_is_null_with_a_warning(
    table: Table, declared: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """The zero of a NOT NULL column also stands for an expression: now(), nextval()."""
    write(table, events(with_schema([ID], id=1)), "add-columns")
    write(table, events(with_schema([ID, declared], id=2)), "add-columns")
    assert [row["x"] for row in staged(table)] == [None, None]
    (warning,) = [each.getMessage() for each in caplog.records if "'x'" in each.getMessage()]
    assert "column 'x' was added" in warning
    assert "read null" in warning


@pytest.mark.parametrize("layout", ["envelope", "flattened"])
def test_column_that_the_events_schema_no_longer_has_is_told_once(
    layout: str, caplog: pytest.LogCaptureFixture
) -> None:
    """`column.exclude.list`, a publication without generated columns: rows get null there."""
    columns = [*SCHEMA, ("plain", pa.string()), ("version", pa.int64()), ("gone", pa.bool_())]
    filled = {"sequence": "ts_ms" if layout == "envelope" else "__ts_ms",
              "sequence_column": "version", "soft_delete": "gone"}  # fmt: skip
    name = f"t.not_sent_{layout}"  # a process tells it once
    table = memory_catalog().create_table(name, pa.schema(columns), primary_key=["id"])
    small, plain = field("small", "int32"), field("plain", "string")

    def sent(fields: list[dict[str, Any]], **row: Any) -> None:
        event = with_schema(fields, **row)
        if layout == "flattened":
            fields = [*fields, field("__op", "string"), field("__ts_ms", "int64")]
            payload = {**row, "__op": "u", "__ts_ms": row["id"]}
            event = {"schema": {"type": "struct", "fields": fields}, "payload": payload}
        else:
            event["payload"]["ts_ms"] = row["id"]
        write(table, events(event), "strict", layout=layout, **filled)

    def told() -> list[str]:
        return [each.getMessage() for each in caplog.records]

    sent([ID, small, plain], id=1, small=1, plain="a")
    assert told() == []
    sent([ID, plain], id=2, plain="b")
    sent([ID, plain], id=3, plain="c")
    (warning,) = told()
    assert f"table {name}: the events' schema does not have column 'small'" in warning
    assert "rows get null" in warning


def test_column_that_a_batch_adds_is_told_to_be_gone_only_once_it_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    table = memory_catalog().create_table("t.added", SCHEMA, primary_key=["id"])
    before, after = (
        [ID, field("small", "int32")],
        [ID, field("small", "int32"), field("note", "string")],
    )
    gone = "does not have column 'note'"
    added = events(with_schema(before, id=1, small=1), with_schema(after, id=2, small=2, note="a"))
    write(table, added, "full")
    assert not [each for each in caplog.records if gone in each.getMessage()]
    write(table, events(with_schema(before, id=3, small=3)), "full")
    assert [each for each in caplog.records if gone in each.getMessage()]


def test_unit_of_a_number_that_changes_at_the_source_is_told_each_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """`ALTER COLUMN at TYPE timestamp(6)`: milliseconds become microseconds."""
    columns = [*SCHEMA, ("at", pa.int64())]
    table = memory_catalog().create_table("t.units", pa.schema(columns), primary_key=["id"])
    for number, semantic in enumerate(["Timestamp", "Timestamp", "MicroTimestamp"], 1):
        declared = field("at", "int64", name=f"io.debezium.time.{semantic}")
        small = field("small", "int32")
        write(table, events(with_schema([ID, small, declared], id=number, small=1, at=7)), "strict")
    first, second = [each.getMessage() for each in caplog.records]
    assert "table t.units: column 'at' is long" in first
    assert "io.debezium.time.Timestamp" in first
    assert "io.debezium.time.MicroTimestamp" in second


@pytest.fixture
def strict_table() -> Table:
    return memory_catalog().create_table("t.names", NOT_NULL, primary_key=["id"])


@pytest.mark.parametrize("layout", ["envelope", "flattened"])
@pytest.mark.parametrize("source", ["DROP NOT NULL", "DROP COLUMN"])
def test_required_column_that_may_be_null_at_the_source_becomes_optional_with_full(
    strict_table: Table, layout: str, source: str, caplog: pytest.LogCaptureFixture
) -> None:
    name = {"field": "name", "type": "string"}
    options = {"layout": layout}

    def event(fields: list[dict[str, Any]], **row: Any) -> dict[str, Any]:
        if layout == "envelope":
            return with_schema(fields, **row)
        return {"schema": {"type": "struct", "fields": fields}, "payload": row}

    before = event([KEY, {**name, "optional": False}], id=1, name="a")
    if source == "DROP COLUMN":
        after = event([KEY], id=2)
    else:
        after = event([KEY, {**name, "optional": True}], id=2, name=None)
    with pytest.raises(InvalidInputError, match=r"'name' has no value, and the source allows"):
        write(strict_table, events(before, after), "add-columns", **options)
    assert strict_table.refresh().schema().find_field("name").required
    write(strict_table, events(before, after), "full", **options)
    assert strict_table.refresh().schema().find_field("name").optional
    assert [row["name"] for row in staged(strict_table)] == ["a", None]
    assert "column 'name' is optional from now on" in caplog.text


@pytest.mark.parametrize("declared", [{"optional": False}, None])
def test_required_column_stays_required_where_the_source_does_not_allow_null(
    strict_table: Table, declared: dict[str, Any] | None
) -> None:
    fields = [KEY, {"field": "name", "type": "string"} | (declared or {})]
    event = with_schema(fields, id=1, name=None) if declared else upsert(id=1, name=None)
    with pytest.raises(InvalidInputError, match="required column 'name' has no value"):
        write(strict_table, events(event), "full")
    assert strict_table.refresh().schema().find_field("name").required


def test_required_column_stays_required_while_no_row_lacks_it(strict_table: Table) -> None:
    fields = [KEY, {"field": "name", "type": "string", "optional": True}]
    write(strict_table, events(with_schema(fields, id=1, name="a")), "full")
    assert strict_table.refresh().schema().find_field("name").required


def test_key_column_never_becomes_optional(strict_table: Table) -> None:
    fields = [{**KEY, "optional": True}, {"field": "name", "type": "string"}]
    with pytest.raises(InvalidInputError, match="key column 'id' has no value"):
        write(strict_table, events(with_schema(fields, id=None, name="a")), "full")


def test_events_that_disagree_about_the_default_of_a_new_column_are_refused(table: Table) -> None:
    rows = [with_schema([ID, field("x", "int32", default=n)], id=n, x=n) for n in (5, 6)]
    with pytest.raises(InvalidInputError, match=r"disagree about the default.*column=x"):
        write(table, events(*rows), "add-columns")
    assert list(types(table)) == ["id", "small"]


@pytest.mark.parametrize("value", [5, 1.5, "MDk=", [1], {"a": "b"}, ["x"]])
@pytest.mark.parametrize("layout", ["envelope", "flattened"])
def test_new_column_of_bare_events_is_refused_unless_json_is_meant(
    table: Table, value: Any, layout: str
) -> None:
    row = {"id": 1, "x": value}
    given = events(upsert(**row) if layout == "envelope" else row)
    with pytest.raises(InvalidInputError, match=r"new column 'x'.*new-columns=json"):
        write(table, given, "add-columns", layout=layout)
    assert list(types(table)) == ["id", "small"]
    write(table, given, "add-columns", layout=layout, new_columns="json")
    assert "x" in types(table)


def test_new_column_of_booleans_needs_no_schema(table: Table) -> None:
    write(table, events(upsert(id=1, x=True, y=[False, None])), "add-columns")
    assert {**staged(table)[0], "small": 0} == {"id": 1, "small": 0, "x": True, "y": [False, None]}


@pytest.mark.parametrize("format_name", ["debezium-json", "changelog-json"])
def test_number_that_no_double_holds_makes_no_column_that_would_round_it(
    table: Table, format_name: str
) -> None:
    text = '{"id": 1, "x": 12345678901234567.89}'
    debezium = format_name == "debezium-json"
    change = {"op": "u", "after": "?"} if debezium else {"op": "+I", "data": "?"}
    event = json.dumps(change).replace('"?"', text)
    options = {"new_columns": "json"} if debezium else {}
    with pytest.raises(InvalidInputError, match=r"more digits than a double.*column=x"):
        write(table, pa.table({"value": [event]}), "add-columns", format_name, **options)


def test_real_arrays_are_added_and_read(table: Table) -> None:
    def old(change: dict[str, Any]) -> None:
        change["before"] = {**change["after"], "ia": [1], "la": [2], "ta": ["t"], "j": "[1]"}
        change["before"] |= {"b": "AA==", "ua": ["00112233-4455-6677-8899-aabbccddeeff"]}

    rows = pa.Table.from_batches([batch("tt.public.toast", "u", old).rows])
    write(table, rows, "add-columns")
    (row,) = staged(table)
    assert row["ua"] == [uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")]
    assert (row["ia"], row["la"], row["num"]) == ([1], [2], Decimal("12345678901234567890.1234"))
