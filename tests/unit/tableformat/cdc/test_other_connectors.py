"""Events of sources that no pipeline here runs, made as their documentation says: right, or told.

The tables make themselves of the events, as they would for a user who says nothing.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg import types
from pyiceberg.schema import Schema

from tableformat.cdc.events import EventBatch, ParsedEvents
from tableformat.cdc.many.table_making import EVENTS_LOOKED_AT_MAX, NoRowYetError, plan_table
from tableformat.cdc.many.table_options import TableOptions
from tableformat.cdc.registry.client import RegistrySettings
from tableformat.cdc.registry.decoder import RegistryDecoder
from tableformat.errors import InvalidInputError
from tests.support.change_events import batch_of, events_table, kinds_and, parse, reasons
from tests.support.fake_registry import Converter, fake_registry, framed

FORMAT = "debezium-json"
ID = {"field": "id", "type": "int64", "optional": False}
ZONED = "io.debezium.time.ZonedTimestamp"


def struct(*fields: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "struct", "fields": list(fields), **more}


def message(value: Any, column: Mapping[str, Any], *, id: int = 1, op: str = "c") -> str:
    """An event with one column `x` beside the key, names in the order of the alphabet."""
    row = struct(ID, {"field": "x", "optional": True, **column}, field="after")
    schema = struct(row, {"field": "op", "type": "string"})
    payload = {"after": {"id": id, "x": value}, "op": op, "ts_ns": 1, "source": {"ts_ns": 1}}
    return json.dumps({"schema": schema, "payload": payload}, sort_keys=True)


def key(id: int = 1, **more: str) -> str:
    fields = [ID, *({"field": name, "type": "string"} for name in more)]
    return json.dumps({"schema": struct(*fields), "payload": {"id": id, **more}})


def made(
    events: Sequence[str], keys: Sequence[str | None] | None = None, options: str = ""
) -> tuple[Schema, ParsedEvents]:
    """The table that makes itself of the first event, and what it takes of all."""
    keys = keys or [key(place) for place in range(len(events))]
    given = {"columns": options} if options else {}
    schema = plan_table("shop.t", events_table(events, keys), TableOptions.of(given)).schema
    return schema, parse(FORMAT, schema, batch_of(events, keys))


def values(column: Mapping[str, Any], *wire: Any, options: str = "") -> tuple[str, list[Any]]:
    """The type of the column that is made, what values become, and why others are bad."""
    events = [message(each, column, id=place) for place, each in enumerate(wire)]
    events = [each.replace('"#', "").replace('#"', "") for each in events]
    schema, parsed = made(events, None, options)
    found = [value for _, value in kinds_and(parsed, "x")]
    return str(schema.find_type("x")), found + reasons(parsed)


@pytest.mark.parametrize("items", [False, True])
def test_cockroachs_decimal_is_no_double_although_its_schema_says_float64(*, items: bool) -> None:
    """`WITH envelope=enriched, enriched_properties=schema`; numbers have all their digits."""
    column = {"type": "float64", "name": "decimal", "parameters": {"precision": "20", "scale": "2"}}
    wire: list[Any] = ["#123456789012345678.91#", "#-1.5E+2#", None]
    expected: list[Any] = [Decimal("123456789012345678.91"), Decimal("-150.00"), None]
    kind = "decimal(20, 2)"
    if items:
        column, kind = {"type": "array", "items": column}, f"list<{kind}>"
        wire, expected = ([[each] for each in some] for some in (wire, expected))
    assert values(column, *wire) == (kind, expected)


def test_cockroachs_decimal_of_any_digits_makes_no_column_by_itself() -> None:
    column = {"type": "float64", "name": "decimal", "parameters": {"precision": "0", "scale": "0"}}
    with pytest.raises(InvalidInputError, match=r"no column can be made of.*'columns'"):
        values(column, 1.5)
    found = values(column, "#1234567890123456789.125#", options='{"x": "decimal(38,6)"}')
    assert found == ("decimal(38, 6)", [Decimal("1234567890123456789.125000")])


def test_cockroachs_decimal_for_a_double_column_is_refused_until_rounding_is_meant() -> None:
    column = {"type": "float64", "name": "decimal", "parameters": {"precision": "20", "scale": "2"}}
    schema, _ = made([message(1.5, {"type": "float64"})])
    events = batch_of([message(1.25, column)])
    with pytest.raises(InvalidInputError, match=r"'x' is decimal, the table that it is double"):
        parse(FORMAT, schema, events)
    parsed = parse(FORMAT, schema, events, encodings="x=text")
    assert kinds_and(parsed, "x") == [("+I", 1.25)]


@pytest.mark.parametrize("is_bare", [False, True])
def test_cockroachs_resolved_messages_are_skipped_and_counted(*, is_bare: bool) -> None:
    """`WITH resolved`; what only looks like one is bad."""

    def resolved(at: Any) -> str:
        told = {"resolved": at}
        return json.dumps({"__crdb__": told} if is_bare else told, separators=(",", ":"))

    events = [resolved("1590612821682559000.0000000000"), message(1, {"type": "int64"})]
    schema, parsed = made(events, [None, key(1)])
    assert (kinds_and(parsed, "x"), reasons(parsed)) == ([("+I", 1)], [])
    assert parsed.skipped == {"resolved": 1}
    many = [resolved(f"{at}.0000000000") for at in range(EVENTS_LOOKED_AT_MAX)]
    with pytest.raises(NoRowYetError):
        made(many, [None] * len(many))
    assert made([*many, events[1]], [None] * len(many) + [key(1)])[0] == schema
    strange = [resolved("yes"), resolved(5), resolved(None)]
    parsed = parse(FORMAT, schema, batch_of(strange))
    assert (len(reasons(parsed)), parsed.skipped) == (3, {})


def test_flattened_rows_with_a_column_resolved_are_told_when_read_as_envelopes() -> None:
    schema, _ = made([message(1, {"type": "int64"})])
    with pytest.raises(InvalidInputError, match="flattened rows"):
        parse(FORMAT, schema, batch_of(['{"id": 1, "resolved": "1.5"}']))


def test_cockroachs_bytes_are_refused_until_they_are_said_to_be_hex() -> None:
    events = [message("\\x01fF", {"type": "bytes"}), message("\\x", {"type": "bytes"}, id=2)]
    schema, parsed = made(events, [key(1), key(2)])
    assert ["base64" in each for each in reasons(parsed)] == [True, True]
    parsed = parse(FORMAT, schema, batch_of(events), encodings="x=hex")
    assert kinds_and(parsed, "x") == [("+I", b"\1\xff"), ("+I", b"")]


@pytest.mark.parametrize("kind", ["int64", "string"])
@pytest.mark.parametrize("is_time", [False, True])
def test_digits_beyond_microseconds_are_zeros_or_told(kind: str, *, is_time: bool) -> None:
    """SQL Server's datetimeoffset and time have seven of them, Spanner's and Oracle's nine."""
    exact: Any
    finer: Any
    if kind == "int64":
        name = "NanoTime" if is_time else "NanoTimestamp"
        exact, finer = 45_296_123_456_000, 45_296_123_456_700
    else:
        name = "IsoTime" if is_time else "ZonedTimestamp"
        date = "" if is_time else "1970-01-01T"
        exact, finer = (f"{date}12:34:56.{each}Z" for each in ("123456000", "1234567"))
    moment = dt.datetime(1970, 1, 1, 12, 34, 56, 123_456)
    column = {"type": kind, "name": f"io.debezium.time.{name}"}
    options = "" if is_time or kind == "string" else '{"x": "timestamp"}'
    _, (first, second) = values(column, exact, finer, options=options)
    assert first in (moment, moment.replace(tzinfo=dt.UTC), moment.time())
    assert "digits beyond microseconds" in second
    finest = "timestamp_ns" if kind == "int64" else "timestamptz_ns"
    if not is_time:
        _, (first, second) = values(column, exact, finer, options=f'{{"x": "{finest}"}}')
        assert [each.nanosecond for each in (first, second)] == [0, 700]
    taken = {"x": "long" if kind == "int64" else "string"}
    assert values(column, finer, options=json.dumps(taken))[1] == [finer]


def test_digits_beyond_microseconds_of_a_year_with_a_sign_are_zeros_or_told() -> None:
    column = {"type": "string", "name": ZONED}
    events = [
        message(f"+12024-01-01T00:00:00.{digits}Z", column, id=place)
        for place, digits in enumerate(("123456000", "1234567"))
    ]
    _, parsed = made(events)
    (found,) = parsed.changes.column("x").cast(pa.int64()).to_pylist()
    assert found % 1_000_000 == 123_456
    assert ["digits beyond" in each for each in reasons(parsed)] == [True]


def test_key_of_topic_routing_makes_no_table_by_itself() -> None:
    """`ByLogicalTableRouter` adds a field to keys, as ids of two tables may be the same."""
    events = [message(each, {"type": "string"}) for each in "ab"]
    keys = [key(__dbz__physicalTableIdentifier=each) for each in "ab"]
    with pytest.raises(InvalidInputError, match=r"rows do not have.*__dbz__.*'key'"):
        made(events, keys)
    options = TableOptions.of({"key": "id"})
    schema = plan_table("shop.t", events_table(events, keys), options).schema
    assert schema.identifier_field_names() == {"id"}


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        ({"after": '{"_id": 1}', "op": "c", "source": {}, "ts_ms": 1}, "documents as text"),
        ({"ts_ms": 1}, "no schema of a row"),
        ({"source": {}, "ts_ms": 1, "ddl": "CREATE TABLE t", "tableChanges": []}, "no schema of a"),
    ],
)
def test_topic_without_rows_makes_no_table(payload: dict[str, Any], reason: str) -> None:
    """MongoDB's documents, heartbeats, and the DDL of a source that tells it."""
    schema = struct({"field": "ts_ms", "type": "int64"}, {"field": "after", "type": "string"})
    event = json.dumps({"schema": schema, "payload": payload})
    with pytest.raises(InvalidInputError, match=reason):
        made([event])


@pytest.mark.parametrize("is_told", [False, True])
def test_unsigned_long_below_zero_is_bad_where_the_source_type_is_told(*, is_told: bool) -> None:
    """MySQL, with `column.propagate.source.type`; else nothing tells -1 from 2^64 - 1."""
    told = {"__debezium.source.column.type": "BIGINT UNSIGNED"}
    column = {"type": "int64", "parameters": told} if is_told else {"type": "int64"}
    kind, (*found, last) = values(column, 0, 2**63 - 1, None, -1)
    assert (kind, found) == ("long", [0, 2**63 - 1, None])
    assert "bigint.unsigned.handling.mode" in last if is_told else last == -1


@pytest.mark.parametrize("registered", [None, "AVRO", "JSON"])
def test_field_of_a_struct_that_was_added_is_its_default_in_rows_of_before(
    registered: str | None,
) -> None:
    nested = types.NestedField(4, "y", types.LongType(), required=False, initial_default=7)
    inner = types.StructType(types.NestedField(3, "x", types.LongType(), required=False), nested)
    schema = Schema(
        types.NestedField(1, "id", types.LongType(), required=True),
        types.NestedField(2, "s", inner, required=False),
        identifier_field_ids=[1],
    )
    x, y = ({"field": name, "type": "int64", "optional": True} for name in "xy")
    messages = [
        {
            "schema": struct(ID, struct(*fields, field="s", optional=True)),
            "payload": {"id": place, "s": value},
        }
        for place, (fields, value) in enumerate(
            [
                ([x], {"x": 1}),
                ([x], None),
                ([x, y], {"x": 2, "y": None}),
                ([x, y], {"x": 3, "y": 4}),
            ]
        )
    ]
    events = batch_of([json.dumps(each) for each in messages])
    if registered is not None:
        with fake_registry() as registry:
            written = [Converter(registry, registered).write(each) for each in messages]
            events = RegistryDecoder(RegistrySettings(registry.url)).decode(batch_of(written))
    parsed = parse(FORMAT, schema, events, layout="flattened")
    assert reasons(parsed) == []
    assert parsed.changes.column("s").to_pylist() == [
        {"x": 1, "y": 7}, None, {"x": 2, "y": None}, {"x": 3, "y": 4},
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("decimal(20,2)", [Decimal("123456789012345678.91"), Decimal("-150.00")]),
        ("double", [123456789012345678.91, -150.0]),
        ("", [123456789012345678.91, -150.0]),
    ],
)
def test_number_of_a_json_schema_keeps_its_digits_in_a_decimal(kind: str, expected: Any) -> None:
    row = {"type": "object", "properties": {"id": {"type": "integer"}, "x": {"type": "number"}}}
    schema = {"type": "object", "properties": {"after": row, "op": {"type": "string"}}}
    with fake_registry() as registry:
        number = registry.register(schema, "JSON")
        texts = ["123456789012345678.91", "-1.5E+2", "1.2345678901234567890"]
        events = [b'{"after":{"id":1,"x":%s},"op":"c"}' % text.encode() for text in texts]
        decoder = RegistryDecoder(RegistrySettings(registry.url))
        given = events_table([framed(number, each) for each in events], [key(1)] * 3)
        options = TableOptions.of({"columns": json.dumps({"x": kind})} if kind else {})
        table = plan_table("shop.t", given, options, decoder).schema
        parsed = parse(FORMAT, table, decoder.decode(EventBatch(given.to_batches()[0])))
    found = [value for _, value in kinds_and(parsed, "x")]
    assert found[:2] == expected
    assert ["requires scale 19" in each for each in reasons(parsed)] == [True] * (3 - len(found))
    assert len(found) == (2 if kind.startswith("decimal") else 3)


@pytest.mark.parametrize(("kind", "wire"), [("int64", 90), ("float64", 90.5), ("string", "90")])
def test_interval_for_a_decimal_column_is_refused_until_it_is_meant(kind: str, wire: Any) -> None:
    """As after ALTER COLUMN ... TYPE interval: microseconds are no amounts."""
    schema, _ = made([message(1, {"type": "int64"})], options='{"x": "decimal(9,2)"}')
    events = batch_of([message(wire, {"type": kind, "name": "io.debezium.time.MicroDuration"})])
    with pytest.raises(InvalidInputError, match=r"'x' is io\.debezium\.time\.MicroDuration, the"):
        parse(FORMAT, schema, events)
    parsed = parse(FORMAT, schema, events, encodings="x=double" if kind == "float64" else "x=text")
    assert kinds_and(parsed, "x") == [("+I", Decimal(str(wire)))]


def test_type_whose_name_is_no_text_is_a_plain_one() -> None:
    assert values({"type": "int64", "name": [[]]}, 5) == ("long", [5])


@pytest.mark.parametrize("schema", [1.5, "x", [1]])
def test_schema_behind_the_payload_that_is_none_is_a_column(schema: Any) -> None:
    event = json.dumps({"payload": {"after": {"id": 1}, "op": "c"}, "schema": schema})
    table, _ = made([message(1, {"type": "int64"})])
    assert reasons(parse(FORMAT, table, batch_of([event]))) == ["the event has no known 'op'"]


@pytest.mark.parametrize("depth", [100, 150])
def test_new_column_that_is_nested_too_deeply_is_told(depth: int) -> None:
    table, _ = made([message(1, {"type": "int64"})])
    deep = '{"a":' * depth + "1" + "}" * depth
    event = f'{{"after":{{"id":1,"x":2,"new":{deep}}},"op":"c"}}'
    with pytest.raises(InvalidInputError, match=r"nested too deeply|have a new column 'new'"):
        parse(FORMAT, table, batch_of([event]), **{"schema-evolution": "add-columns"})
