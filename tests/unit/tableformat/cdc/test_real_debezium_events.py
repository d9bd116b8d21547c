"""Real events against what PostgreSQL held: never a wrong value without a word."""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import json
import uuid
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from tableformat.cdc.events import EventBatch
from tableformat.cdc.ingest import write_changes
from tableformat.errors import InvalidInputError
from tableformat.table_definition import define_schema
from tests.support.change_events import batch_of, envelope, kinds_and, parse, reasons
from tests.support.debezium_events import (
    ACCOUNT,
    PLACEHOLDER,
    TOAST,
    account,
    account_schema,
    batch,
    line_schema,
    payload,
    plain_schema,
    records,
    toast_schema,
)
from tests.support.memory_tables import memory_catalog

FORMAT = "debezium-json"
SAID = {
    "encodings": "ms=ms",
    "timestamp_unit": "us",
    "time_unit": "us",
    "decimals": "precise",
    "binaries": "base64",
}
CONNECT_FALSE = "value.converter.schemas.enable=true"


def rows(topic: str, schema: Any, wanted: str = "rc", **options: str) -> list[dict[str, Any]]:
    parsed = parse(FORMAT, schema, batch(topic, wanted), **options)
    assert reasons(parsed) == []
    return sorted(parsed.changes.to_pylist(), key=lambda row: row["_ordinal"])


@pytest.mark.parametrize(
    ("topic", "wanted", "options"),
    [
        ("db.public.account", "rc", {}),
        ("db.public.account_full", "r", {}),
        ("bare.public.account", "rc", SAID),
    ],
)
def test_every_type_has_the_value_that_postgresql_has(
    topic: str, wanted: str, options: Mapping[str, str]
) -> None:
    found = rows(topic, account_schema(), wanted, **options)
    assert found
    for row in found:
        expected = account(row["id"])
        assert {name: row[name] for name in expected} == expected
        assert len(row["note"]) == 6400
        assert row["weird"] is None or row["weird"] > 0


def test_unconstrained_numeric_keeps_its_own_scale() -> None:
    sent = payload(records("db.public.account")[0])["after"]["weird"]
    (first, *_) = rows("db.public.account", account_schema())
    unscaled = int.from_bytes(base64.b64decode(sent["value"]), "big", signed=True)
    assert first["weird"] == Decimal(unscaled).scaleb(-sent["scale"])


@pytest.mark.parametrize(
    ("column", "action"),
    [
        ("updated", "timestamp-unit=..., or for this column alone encodings=updated=s|ms|us|ns"),
        ("ms", "timestamp-unit=..., or for this column alone encodings=ms=s|ms|us|ns"),
        ("tod", "time-unit=..., or for this column alone encodings=tod=s|ms|us|ns"),
        ("balance", "decimals=..., or for this column alone encodings=balance=precise"),
        ("raw", "binaries=..., or for this column alone encodings=raw=base64|hex"),
    ],
)
def test_encoding_that_bare_events_do_not_say_is_asked_for(column: str, action: str) -> None:
    schema = define_schema(pa.schema([ACCOUNT.field("id"), ACCOUNT.field(column)]), ["id"])
    events = batch("bare.public.account", "r")
    with pytest.raises(InvalidInputError) as caught:
        parse(FORMAT, schema, events, unknown_columns="ignore")
    assert caught.value.context["column"] == column
    text = str(caught.value)
    assert action in text
    assert CONNECT_FALSE in text
    assert len(text.splitlines()) == 1


def test_nested_binary_of_bare_events_is_asked_for_by_its_path() -> None:
    schema = define_schema(pa.schema([ACCOUNT.field("id"), ACCOUNT.field("loc")]), ["id"])
    events = batch("bare.public.account", "r")
    with pytest.raises(InvalidInputError, match=r"column 'loc.wkb'.*encodings=loc.wkb=base64"):
        parse(FORMAT, schema, events, unknown_columns="ignore")
    parsed = parse(FORMAT, schema, events, unknown_columns="ignore", encodings="loc.wkb=base64")
    assert parsed.changes["loc"].to_pylist() == [account(k)["loc"] for k in (1, 2, 3)]


def test_adaptive_precision_is_said_column_by_column() -> None:
    found = rows("bare.public.account", account_schema(), **SAID)
    assert {row["ms"].year for row in found} == {2024}
    assert {row["updated"].year for row in found} <= {1850, 1874}


def test_what_says_itself_how_it_is_encoded_needs_no_option() -> None:
    names = ["id", "region", "weird", "created", "day", "doc", "tags", "ints", "uid", "d", "n"]
    schema = define_schema(pa.schema([ACCOUNT.field(name) for name in names]), ["id"])
    for row in rows("bare.public.account", schema, unknown_columns="ignore"):
        expected = account(row["id"])
        checked = [name for name in names if name != "weird"]
        assert {name: row[name] for name in checked} == {n: expected[n] for n in checked}


def test_composite_key_and_flattened_rows_are_read() -> None:
    for topic, schema, options in (
        ("db.public.line", line_schema(), {}),
        ("bare.public.line", line_schema(), {"decimals": "precise"}),
        ("flat.public.line", line_schema(), {"decimals": "precise", "layout": "flattened"}),
        ("flat.public.plain", plain_schema(), {"decimals": "precise", "layout": "flattened"}),
    ):
        parsed = parse(FORMAT, schema, batch(topic, "cruder"), **options)
        assert reasons(parsed) == [], topic
        kinds = {kind for (kind,) in kinds_and(parsed)}
        assert kinds == {"+I", "+U", "-D"}, topic


def test_flattened_values_are_those_of_postgresql() -> None:
    found = rows("flat.public.plain", plain_schema(), "r", decimals="precise", layout="flattened")
    for row in found:
        k = row["id"]
        assert (row["bid"], row["filler"]) == (k, "f".ljust(84))
        assert row["day"] == dt.date(2020, 1, 1) + dt.timedelta(days=k)
        assert row["amt"] == Decimal("0.01") * k


TOASTED = ["ia", "la", "ta", "j", "b", "ua"]


@pytest.mark.parametrize("with_schema", [True, False])
@pytest.mark.parametrize("column", TOASTED)
def test_unchanged_value_is_recognised_in_the_form_of_its_type(
    column: str, with_schema: bool
) -> None:
    schema = define_schema(pa.schema([TOAST.field("id"), TOAST.field(column)]), ["id"])
    events = batch("tt.public.toast", "u") if with_schema else _bare("tt.public.toast")
    said = {"unknown_columns": "ignore"} | ({} if with_schema else {"binaries": "base64"})
    (reason,) = reasons(parse(FORMAT, schema, events, **said))
    assert f"column '{column}' is unavailable" in reason
    assert "ALTER TABLE ... REPLICA IDENTITY FULL" in reason
    assert len(reason.splitlines()) == 1
    kept = parse(FORMAT, schema, events, on_unavailable_value="null", **said)
    assert kinds_and(kept, column) == [("+U", None)]


def test_unchanged_values_are_taken_from_before() -> None:
    old = {"ia": [5], "la": [6], "ta": ["t"], "j": "[]", "b": "AAE=", "ua": ["u"]}

    def with_before(change: dict[str, Any]) -> None:
        change["before"] = {**change["after"], **old}

    parsed = parse(FORMAT, toast_schema(), batch("tt.public.toast", "u", with_before))
    assert reasons(parsed) == []
    (row,) = parsed.changes.to_pylist()
    assert {name: row[name] for name in TOASTED} == {**old, "b": b"\0\1"}
    assert row["n"] == 1


def test_unchanged_text_of_the_default_replica_identity_names_the_full_one() -> None:
    for topic, options in (("db.public.account", {}), ("bare.public.account", SAID)):
        parsed = parse(FORMAT, account_schema(), batch(topic, "u"), **options)
        assert len(reasons(parsed)) == 6
        assert all("column 'note' is unavailable" in reason for reason in reasons(parsed))
        assert all("REPLICA IDENTITY FULL" in reason for reason in reasons(parsed))


def test_full_replica_identity_sends_every_value() -> None:
    parsed = parse(FORMAT, account_schema(), batch("db.public.account_full", "u"))
    assert reasons(parsed) == []
    assert all(len(row["note"]) == 6400 for row in parsed.changes.to_pylist())


def _bare(topic: str) -> EventBatch:
    return batch_of([json.dumps(payload(each)) for each in records(topic)])


LISTS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("days", pa.list_(pa.date32())),
        pa.field("uuids", pa.list_(pa.uuid())),
        pa.field("raws", pa.list_(pa.binary())),
        pa.field("floats", pa.list_(pa.float64())),
        pa.field("hstore", pa.string()),
        pa.field("number", pa.decimal128(10, 2)),
        pa.field("raw", pa.binary()),
    ]
)


def forms_of(raw: bytes) -> dict[str, Any]:
    """What Debezium's UnchangedToastedPlaceholder makes of the bytes of the placeholder."""
    signed = [byte - 256 if byte > 127 else byte for byte in raw]
    text = raw.decode(errors="replace")
    digest = bytearray(hashlib.md5(raw, usedforsecurity=False).digest())
    digest[6] = digest[6] & 0x0F | 0x30
    digest[8] = digest[8] & 0x3F | 0x80
    encoded = base64.b64encode(raw).decode()
    return {
        "days": signed,
        "floats": signed,
        "uuids": [str(uuid.UUID(bytes=bytes(digest)))],
        "raws": [encoded],
        "hstore": f'{{"{text}":"{text}"}}',
        "number": text,
        "raw": encoded,
    }


@pytest.mark.parametrize(
    ("option", "raw"),
    [
        (PLACEHOLDER, PLACEHOLDER.encode()),
        ("-- not sent --", b"-- not sent --"),
        ("hex:c3ff7f" + "aB" * 12, bytes.fromhex("c3ff7f" + "ab" * 12)),
        ("schlüssel fehlt", "schlüssel fehlt".encode()),
    ],
)
@pytest.mark.parametrize("column", [name for name in LISTS.names if name != "id"])
def test_every_form_of_any_placeholder_is_made_from_its_text(
    column: str, option: str, raw: bytes
) -> None:
    schema = define_schema(pa.schema([LISTS.field("id"), LISTS.field(column)]), ["id"])
    value = forms_of(raw)[column]
    events = batch_of([envelope("u", after={"id": 1, column: value})])
    said = {"decimals": "text", "binaries": "base64", "unavailable_value": option}
    (reason,) = reasons(parse(FORMAT, schema, events, **said))
    assert f"column '{column}' is unavailable" in reason
    if option != PLACEHOLDER and column in ("days", "floats"):
        said["unavailable_value"] = PLACEHOLDER
        assert reasons(parse(FORMAT, schema, events, **said)) == []


@pytest.mark.parametrize("column", ["days", "floats"])
def test_array_that_is_nearly_the_placeholder_is_a_value(column: str) -> None:
    form = forms_of(PLACEHOLDER.encode())[column]
    near = [form[:-1], [*form, 1], [form[0] + 1, *form[1:]], [None, *form[1:]], [], None]
    schema = define_schema(pa.schema([LISTS.field("id"), LISTS.field(column)]), ["id"])
    values = [envelope("u", after={"id": n, column: value}) for n, value in enumerate(near)]
    parsed = parse(FORMAT, schema, batch_of(values))
    assert reasons(parsed) == []
    assert [value is None for (_, value) in kinds_and(parsed, column)] == [False] * 5 + [True]


@pytest.mark.parametrize("keep", ["fail", "null"])
@pytest.mark.parametrize(
    ("event", "option"),
    [
        (envelope("c", after={"id": 1, "hstore": PLACEHOLDER}), PLACEHOLDER),
        (envelope("r", after={"id": 1, "hstore": PLACEHOLDER}), PLACEHOLDER),
        (envelope("u", after={"id": 1, "hstore": "N/A"}), "N/A"),
        (envelope("u", before={"id": 1, "hstore": "x"}, after={"id": 1, "hstore": "N/A"}), "N/A"),
        (envelope("u", after={"id": 1, "floats": [78.0]}), "N"),
    ],
)
def test_placeholder_that_may_be_a_value_is_neither_stored_nor_replaced(
    event: str, option: str, keep: str
) -> None:
    schema = define_schema(LISTS, ["id"])
    said = {"unavailable_value": option, "on_unavailable_value": keep}
    parsed = parse(FORMAT, schema, batch_of([event]), **said)
    (reason,) = reasons(parsed)
    assert "or the value itself" in reason
    assert "unavailable-value" in reason
    assert parsed.changes.num_rows == 0


@pytest.mark.parametrize("option", ["hex:0", "hex:zz", "hex:", ""])
def test_placeholder_that_is_none_is_refused(option: str) -> None:
    with pytest.raises(InvalidInputError, match="unavailable-value"):
        parse(FORMAT, account_schema(), batch_of([]), unavailable_value=option)


def declared(name: str | None, kind: str, **more: Any) -> dict[str, Any]:
    return {"field": "x", "type": kind, **({"name": name} if name else {}), **more}


def with_schema(field: dict[str, Any], value: Any) -> str:
    fields = [{"field": "id", "type": "int64"}, field]
    after = {"type": "struct", "field": "after", "fields": fields}
    row = {"op": "u", "before": None, "after": {"id": 1, "x": value}}
    return json.dumps({"schema": {"type": "struct", "fields": [after]}, "payload": row})


DATE, TIME = "io.debezium.time.Date", "io.debezium.time.MicroTime"
STAMP = "io.debezium.time.Timestamp"
DECIMAL = "org.apache.kafka.connect.data.Decimal"


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        (pa.timestamp("us"), declared(DATE, "int32"), 18263),
        (pa.timestamp("us"), declared(TIME, "int64"), 5),
        (pa.timestamp("us"), declared("io.debezium.time.MicroDuration", "int64"), 5),
        (pa.date32(), declared(STAMP, "int64"), 1000),
        (pa.time64("us"), declared(STAMP, "int64"), 1000),
        (pa.string(), declared(DECIMAL, "bytes", parameters={"scale": "2"}), "MDk="),
        (pa.float64(), declared(DECIMAL, "bytes", parameters={"scale": "2"}), "1234"),
        (pa.decimal128(7, 0), declared(DECIMAL, "bytes", parameters={"scale": "2046"}), "MDk="),
        (pa.string(), declared(None, "bytes"), "MDk="),
        (pa.list_(pa.string()), declared(None, "array", items={"type": "bytes"}), ["MDk="]),
    ],
)
def test_schema_that_contradicts_the_column_is_refused_by_name(
    kind: pa.DataType, field: dict[str, Any], value: Any
) -> None:
    table = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("x", kind)])
    events = batch_of([with_schema(field, value)])
    with pytest.raises(InvalidInputError, match=r"schema says that column 'x"):
        parse(FORMAT, define_schema(table, ["id"]), events)


@pytest.mark.parametrize("topic_schema", [True, False])
def test_hexadecimal_text_is_not_taken_for_base64(topic_schema: bool) -> None:
    table = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("x", pa.binary())])
    value = with_schema(declared(None, "string"), "deadbeef")
    if not topic_schema:
        value = json.dumps(json.loads(value)["payload"])
    schema = define_schema(table, ["id"])
    with pytest.raises(InvalidInputError, match=r"'x'.*binaries="):
        parse(FORMAT, schema, batch_of([value]))
    parsed = parse(FORMAT, schema, batch_of([value]), binaries="hex")
    assert parsed.changes["x"].to_pylist() == [bytes.fromhex("deadbeef")]


@pytest.mark.parametrize(
    ("kind", "unit", "value"),
    [
        (pa.timestamp("us"), "us", 9223372036825200000),
        (pa.timestamp("us"), "us", -9223372036832400000),
        (pa.timestamp("us"), "ms", 9223372036825200),
        (pa.timestamp("us"), "ms", -9223372036832400),
        (pa.timestamp("ns"), "ns", 2**63 - 1),
        (pa.timestamp("ns"), "ns", -(2**63)),
        # PostgreSQL's with time.precision.mode=nanoseconds: they overflow into 1969 and 1970
        (pa.timestamp("us"), "ns", -29575808000),
        (pa.timestamp("ns"), "ns", 22375808000),
        (pa.list_(pa.timestamp("ns")), "ns", [22375808001, -29575808000]),
        (pa.timestamp("us", tz="UTC"), "us", "infinity"),
        (pa.timestamp("us", tz="UTC"), "us", "-infinity"),
        # with time.precision.mode=isostring
        (pa.timestamp("us"), "us", "+292278994-08-16T23:00:00"),
        (pa.date32(), "us", "+292278994-08-17"),
        (pa.timestamp("ns", tz="UTC"), "ns", "+10000-01-01T00:00:00Z"),
        (pa.date32(), "us", -2147472693),
        (pa.date32(), "us", -2147472692),
        (pa.date32(), "us", 2**31 - 1),
    ],
)
def test_infinity_is_a_bad_record_and_no_distant_day(
    kind: pa.DataType, unit: str, value: Any
) -> None:
    table = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("x", kind)])
    events = batch_of([envelope("u", after={"id": 1, "x": value})])
    parsed = parse(FORMAT, define_schema(table, ["id"]), events, timestamp_unit=unit)
    (reason,) = reasons(parsed)
    assert "infinity, or out of range" in reason
    assert parsed.changes.num_rows == 0


def test_local_time_with_a_z_is_read_where_it_is_said_to_be_local() -> None:
    """Debezium's `isostring` writes it so; a bare event says nothing of it."""
    table = pa.schema(
        [pa.field("id", pa.int64(), nullable=False), pa.field("x", pa.timestamp("us"))]
    )
    schema = define_schema(table, ["id"])
    events = batch_of([envelope("u", after={"id": 1, "x": "2000-01-01T00:00:00.5Z"})])
    (reason,) = reasons(parse(FORMAT, schema, events))
    assert "encodings=COLUMN=iso" in reason
    parsed = parse(FORMAT, schema, events, encodings="x=iso")
    assert parsed.changes["x"].to_pylist() == [dt.datetime(2000, 1, 1, 0, 0, 0, 500_000)]


def test_digits_in_a_text_are_no_float_unless_it_is_said() -> None:
    table = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("x", pa.float64())])
    schema = define_schema(table, ["id"])
    events = batch_of([envelope("u", after={"id": 1, "x": "1234"})])  # base64 of 3 bytes
    (reason,) = reasons(parse(FORMAT, schema, events))
    assert "base64" in reason
    parsed = parse(FORMAT, schema, events, encodings="x=text")
    assert parsed.changes["x"].to_pylist() == [1234.0]
    finite = batch_of([envelope("u", after={"id": 1, "x": x}) for x in ("NaN", "-Infinity", 1.5)])
    assert reasons(parse(FORMAT, schema, finite)) == []


def test_message_key_is_read_with_its_own_schema() -> None:
    """The delete of a key-only event names its row in the key alone."""
    table = pa.schema(
        [pa.field("at", pa.timestamp("us"), nullable=False), pa.field("v", pa.int64())]
    )
    key = {
        "schema": {"type": "struct", "fields": [{**declared(STAMP, "int64"), "field": "at"}]},
        "payload": {"at": 1709208000001},
    }
    events = batch_of([envelope("d")], [json.dumps(key)])
    parsed = parse(FORMAT, define_schema(table, ["at"]), events)
    assert kinds_and(parsed, "at") == [("-D", dt.datetime(2024, 2, 29, 12, 0, 0, 1000))]


def test_lists_are_decoded_like_columns() -> None:
    row = {
        "id": 1,
        "days": [0, None, 18263],
        "uuids": [str(uuid.UUID(int=5)), None],
        "raws": ["AAE="],
        "floats": [1, 2.5],
        "number": "1.50",
    }
    events = batch_of([envelope("u", after=row), envelope("u", after={"id": 2, "days": None})])
    said = {"decimals": "text", "encodings": "raws=base64"}
    parsed = parse(FORMAT, define_schema(LISTS, ["id"]), events, **said)
    assert reasons(parsed) == []
    found = parsed.changes.to_pylist()[0]
    assert found["days"] == [dt.date(1970, 1, 1), None, dt.date(2020, 1, 2)]
    assert found["uuids"] == [uuid.UUID(int=5), None]
    assert (found["raws"], found["floats"]) == ([b"\0\1"], [1.0, 2.5])
    assert parsed.changes["days"].to_pylist()[1] is None


@pytest.mark.parametrize("evolution", ["strict", "add-columns"])
@pytest.mark.parametrize("unknown", ["fail", "ignore"])
@pytest.mark.parametrize(
    ("topic", "format_name", "options", "words"),
    [
        ("flat.public.line", FORMAT, {}, "flattened rows.*use the format.*layout=flattened"),
        ("bare.public.line", FORMAT, {"layout": "flattened"}, "are envelopes of Debezium"),
        ("db.public.line", FORMAT, {"layout": "flattened"}, "are envelopes of Debezium"),
        ("bare.public.line", "changelog-json", {}, "are envelopes of Debezium"),
        ("bare.public.line", "changelog-json", {"layout": "flat"}, "are envelopes of Debezium"),
        ("flat.public.line", "changelog-json", {}, "are flattened rows"),
    ],
)
def test_other_format_is_named_in_one_line(
    topic: str, format_name: str, options: dict[str, str], words: str, evolution: str, unknown: str
) -> None:
    if (evolution, unknown) == ("add-columns", "ignore"):
        evolution = "strict"
    said = {"schema_evolution": evolution, "unknown_columns": unknown, **options}
    with pytest.raises(InvalidInputError, match=words) as caught:
        parse(format_name, line_schema(), batch(topic, "rcu"), **said)
    assert len(str(caught.value).splitlines()) == 1


def test_rows_of_a_changelog_are_named() -> None:
    events = batch_of([json.dumps({"op": "+I", "data": {"order_id": 1, "line_no": 1}})])
    with pytest.raises(
        InvalidInputError, match=r"are changelog rows.*use the format changelog-json"
    ):
        parse(FORMAT, line_schema(), events)


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (b"\0\0\0\0\x05\x02\x10", "not JSON but binary"),
        (json.dumps(envelope("c", after={"order_id": 1})), "JSON inside a JSON text"),
    ],
)
def test_events_that_are_no_json_objects_are_named(event: Any, words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        parse(FORMAT, line_schema(), batch_of([event]))


def test_flattened_row_with_a_time_is_no_heartbeat() -> None:
    table = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("ts_ms", pa.int64())])
    events = batch_of(['{"id": 1, "ts_ms": 5}'])
    with pytest.raises(InvalidInputError, match="flattened rows"):
        parse(FORMAT, define_schema(table, ["id"]), events)
    beat = parse(FORMAT, define_schema(table, ["id"]), batch_of(['{"ts_ms": 5}']))
    assert beat.skipped == {"heartbeat": 1}


def test_stray_event_of_another_format_is_a_bad_record_among_good_ones() -> None:
    good = envelope("u", after={"order_id": 1, "line_no": 1})
    parsed = parse(FORMAT, line_schema(), batch_of([good, '{"order_id": 1, "line_no": 2}']))
    assert reasons(parsed) == ["the event has no known 'op'"]
    assert parsed.changes.num_rows == 1


def test_snapshot_reads_are_inserts_and_those_of_an_incremental_one_are_not() -> None:
    assert (
        kinds_and(parse(FORMAT, account_schema(), batch("db.public.account", "r"))) == [("+I",)] * 3
    )

    def incremental(change: dict[str, Any]) -> None:
        change["source"]["snapshot"] = "incremental"

    events = batch("db.public.account", "r", incremental)
    assert kinds_and(parse(FORMAT, account_schema(), events)) == [("+U",)] * 3


@pytest.mark.parametrize(
    ("mark", "kind"),
    [("true", "+I"), ("last", "+I"), ("incremental", "+U"), ("false", "+U"), (None, "+U")],
)
def test_flattened_snapshot_read_is_an_insert_where_it_says_so(mark: Any, kind: str) -> None:
    row = {"id": 1, "__op": "r", "__source_snapshot": mark}
    parsed = parse(FORMAT, plain_schema(), batch_of([json.dumps(row)]), layout="flattened")
    assert kinds_and(parsed) == [(kind,)]


@pytest.mark.parametrize(
    ("topic", "options"), [("db.public.account", {}), ("bare.public.account", SAID)]
)
def test_delete_that_knows_its_key_only_is_no_whole_row_of_zeros(
    topic: str, options: Mapping[str, str]
) -> None:
    """Debezium puts '' and 1970 into NOT NULL columns of which it has nothing."""
    table = memory_catalog().create_table("t.account", ACCOUNT, primary_key=["id"])
    given = {name.replace("_", "-"): text for name, text in options.items()}
    deletes = pa.Table.from_batches([batch(topic, "d").rows])
    assert '"region": ""' in deletes["value"][0].as_py().decode()
    with pytest.raises(InvalidInputError, match="the delete holds its key only"):
        write_changes(
            table.environment, table.identifier, deletes, options={**given, "deletes": "row"}
        )
    result = write_changes(table.environment, table.identifier, deletes, options=given)
    assert result.changes == 2


def test_delete_of_the_full_replica_identity_is_whole() -> None:
    table = memory_catalog().create_table("t.account", ACCOUNT, primary_key=["id"])
    deletes = pa.Table.from_batches([batch("db.public.account_full", "d").rows])
    options = {"deletes": "row"}
    assert write_changes(table.environment, table.identifier, deletes, options=options).changes == 1


@pytest.mark.parametrize("value", [-29575808001, -29575808000 + 1000, 0, 22375807999])
def test_moment_beside_an_overflown_infinity_is_a_value(value: int) -> None:
    table = pa.schema(
        [pa.field("id", pa.int64(), nullable=False), pa.field("x", pa.timestamp("ns"))]
    )
    events = batch_of([envelope("u", after={"id": 1, "x": value})])
    parsed = parse(FORMAT, define_schema(table, ["id"]), events, timestamp_unit="ns")
    assert parsed.changes["x"].cast(pa.int64()).to_pylist() == [value]


def test_delete_of_zeros_of_every_type_is_no_whole_row() -> None:
    """What Debezium wrote for a row of which it had the key."""
    point = pa.struct([("x", pa.float64()), ("y", pa.float64()), ("wkb", pa.binary())])
    kinds: dict[str, pa.DataType] = {
        "t": pa.string(),
        "ia": pa.list_(pa.int32()),
        "jb": pa.string(),
        "p": point,
        "h": pa.string(),
        "ts": pa.timestamp("us", tz="UTC"),
        "b": pa.binary(),
    }
    zeros = {
        "t": "",
        "ia": [],
        "jb": "",
        "p": {"x": 0.0, "y": 0.0, "wkb": "AQEAAAAAAAAAAAAAAAAAAAAAAAAA"},
        "h": "{}",
        "ts": "1970-01-01T00:00:00Z",
        "b": "",
    }
    fields = [pa.field(name, kind, nullable=False) for name, kind in kinds.items()]
    key = pa.field("id", pa.int32(), nullable=False)
    table = memory_catalog().create_table(
        "t.nn", pa.schema([key, *fields, pa.field("o", pa.int32())]), primary_key=["id"]
    )
    options = {"deletes": "row", "binaries": "base64"}

    def write(**values: Any) -> int:
        before = {"id": 3, **zeros, "o": None, **values}
        deletes = pa.table({"value": [envelope("d", before=before)]})
        return write_changes(table.environment, table.identifier, deletes, options=options).changes

    with pytest.raises(InvalidInputError, match="the delete holds its key only"):
        write()
    with pytest.raises(InvalidInputError, match="the delete holds its key only"):
        write(o=0)  # of no null, but nothing is of 1970
    assert write(o=0, ts="1970-01-01T00:00:01Z") == 1
    assert write(ia=[0]) == 1
    assert write(h='{"a":"1"}') == 1
