from __future__ import annotations

import base64
import datetime as dt
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from tableformat.errors import InvalidInputError
from tableformat.spec.missing_columns import MISSING
from tableformat.table_definition import define_schema
from tests.support.change_events import (
    ORDERS,
    batch_of,
    envelope,
    kinds_and,
    order,
    orders_schema,
    parse,
    reasons,
)

FORMAT = "debezium-json"
SCHEMA = orders_schema()
TWO_KEYS = orders_schema(("region", "id"))


def test_create_update_read_and_delete_become_change_rows() -> None:
    parsed = parse(
        FORMAT,
        SCHEMA,
        batch_of(
            [
                envelope("c", after=order(1, note="a")),
                envelope("u", before=order(1, note="a"), after=order(1, note="b")),
                envelope("r", after=order(2)),
                envelope("d", before=order(1, note="b")),
            ]
        ),
    )
    assert kinds_and(parsed, "id", "note", "_ordinal") == [
        ("+I", 1, "a", 0),
        ("+U", 1, "b", 1),
        ("+U", 2, None, 2),
        ("-D", 1, None, 3),
    ]
    assert not parsed.bad.num_rows


def test_all_column_types_are_read_from_debeziums_encodings() -> None:
    amount = base64.b64encode((1234).to_bytes(2, "big", signed=True)).decode()
    after = order(1, amount=amount, at="2013-01-01T10:00:00.5Z")
    parsed = parse(FORMAT, SCHEMA, batch_of([envelope("c", after=after)]), decimals="precise")
    row = parsed.changes.to_pylist()[0]
    assert row["amount"] == Decimal("12.34")
    assert row["at"] == dt.datetime(2013, 1, 1, 10, 0, 0, 500_000, tzinfo=dt.UTC)


def test_update_that_changes_the_key_deletes_the_old_one_first() -> None:
    event = envelope("u", before=order(1), after=order(2))
    parsed = parse(FORMAT, SCHEMA, batch_of([event]))
    assert kinds_and(parsed, "id") == [("-D", 1), ("+U", 2)]


def test_key_change_as_delete_tombstone_create_keeps_the_row() -> None:
    parsed = parse(
        FORMAT,
        SCHEMA,
        batch_of(
            [envelope("d", before=order(1)), None, envelope("c", after=order(2))],
            ['{"id":1}', '{"id":1}', '{"id":2}'],
        ),
    )
    assert kinds_and(parsed, "id") == [("-D", 1), ("+I", 2)]
    assert parsed.skipped == {"tombstone": 1}


@pytest.mark.parametrize("event", [None, "null", '{"schema":null,"payload":null}'])
def test_tombstone_in_any_form_is_counted_and_skipped(event: str | None) -> None:
    parsed = parse(FORMAT, SCHEMA, batch_of([event]))
    assert parsed.changes.num_rows == 0
    assert parsed.skipped == {"tombstone": 1}


def test_delete_without_before_takes_the_message_key() -> None:
    parsed = parse(FORMAT, SCHEMA, batch_of([envelope("d")], ['{"id":7}']))
    assert kinds_and(parsed, "id") == [("-D", 7)]


def test_delete_whose_before_lacks_a_key_column_takes_it_from_the_message_key() -> None:
    parsed = parse(
        FORMAT, TWO_KEYS, batch_of([envelope("d", before={"id": 7})], ['{"id":7,"region":"US"}'])
    )
    assert kinds_and(parsed, "id", "region") == [("-D", 7, "US")]


@pytest.mark.parametrize("key", [None, '"7"', "7", '{"other":7}'])
def test_delete_that_names_no_row_is_bad(key: str | None) -> None:
    parsed = parse(FORMAT, SCHEMA, batch_of([envelope("d")], [key]))
    assert reasons(parsed) == ["a delete without a value of key column 'id'"]


def test_message_key_that_contradicts_the_row_is_bad() -> None:
    values = [envelope("c", after=order(1)), envelope("d", before=order(2))]
    parsed = parse(FORMAT, SCHEMA, batch_of(values, ['{"id":9}', '{"id":9}']))
    assert reasons(parsed) == ["the message key differs from the row in column 'id'"] * 2
    assert parsed.changes.num_rows == 0


@pytest.mark.parametrize(
    "key",
    [
        '{"id":1,"region":"EU"}',
        '{"schema":{"type":"struct"},"payload":{"id":1,"region":"EU"}}',
        '{"id":1,"region":7}',
    ],
)
def test_message_keys_wider_than_the_tables_fail_the_batch_unless_that_is_meant(key: str) -> None:
    events = batch_of(
        [envelope("c", after=order(1)), envelope("c", after=order(1, region="US"))],
        ['{"id":1}', key],
    )
    with pytest.raises(InvalidInputError, match=r"one would be left.*region.*on-wider-key=ignore"):
        parse(FORMAT, SCHEMA, events)
    parsed = parse(FORMAT, SCHEMA, events, on_wider_key="ignore")
    assert kinds_and(parsed, "id") == [("+I", 1), ("+I", 1)]


@pytest.mark.parametrize("layout", ["envelope", "flattened"])
def test_message_keys_wider_by_an_ignored_column_fail_the_batch(layout: str) -> None:
    rows = [order(1), order(1, tenant=7)]
    values = [envelope("c", after=row) if layout == "envelope" else json.dumps(row) for row in rows]
    events = batch_of(values, ['{"id":1}', '{"id":1,"tenant":7}'])
    options = {"layout": layout, "unknown_columns": "ignore"}
    with pytest.raises(InvalidInputError, match=r"one would be left.*tenant.*on-wider-key=ignore"):
        parse(FORMAT, SCHEMA, events, **options)
    parsed = parse(FORMAT, SCHEMA, events, **options, on_wider_key="ignore")
    assert parsed.changes.num_rows == 2


@pytest.mark.parametrize("unknown_columns", ["fail", "ignore"])
def test_message_keys_wider_by_what_is_no_column_fail_the_batch(unknown_columns: str) -> None:
    """Debezium's topic routing says so which table a row comes from: ids of two may be the same."""
    keys = [f'{{"id":1,"__dbz__physicalTableIdentifier":"orders_{part}"}}' for part in (1, 2)]
    events = batch_of([envelope("c", after=order(1, note=part)) for part in "ab"], keys)
    options = {"unknown_columns": unknown_columns}
    with pytest.raises(InvalidInputError, match=r"one would be left.*__dbz__.*on-wider-key=ignore"):
        parse(FORMAT, SCHEMA, events, **options)
    parsed = parse(FORMAT, SCHEMA, events, **options, on_wider_key="ignore")
    assert kinds_and(parsed, "id", "note") == [("+I", 1, "a"), ("+I", 1, "b")]


def test_message_keys_of_other_names_are_read() -> None:
    """Debezium's connector for MongoDB calls `_id` so."""
    rows = [json.dumps(order(1)), json.dumps(order(2))]
    for keys in (['{"_id":"1"}', None], ['{"id":1}', '{"_id":"2"}']):
        parsed = parse(FORMAT, SCHEMA, batch_of(rows, keys), layout="flattened")
        assert kinds_and(parsed, "id") == [("+U", 1), ("+U", 2)]


@pytest.mark.parametrize("status", ["BEGIN", "END"])
def test_transaction_markers_are_skipped_although_they_have_an_id(status: str) -> None:
    event = {"status": status, "id": "571:5", "ts_ms": 7, "event_count": None}
    marker = json.dumps({**event, "data_collections": None})
    parsed = parse(FORMAT, SCHEMA, batch_of([marker]))
    assert (parsed.skipped, parsed.bad.num_rows) == ({"heartbeat": 1}, 0)


@pytest.mark.parametrize(
    ("captured", "is_whole"),
    [("NEW_ROW", True), ("NEW_ROW_AND_OLD_VALUES", True), ("NEW_VALUES", False),
     ("OLD_AND_NEW_VALUES", False)],
)  # fmt: skip
def test_row_with_its_changed_columns_only_is_a_bad_record(captured: str, is_whole: bool) -> None:
    event = json.loads(envelope("u", after=order(1)))
    event["source"] |= {"connector": "spanner", "value_capture_type": captured}
    gone = json.loads(envelope("d", before=order(2))) | {"source": event["source"]}
    parsed = parse(FORMAT, SCHEMA, batch_of([json.dumps(event), json.dumps(gone)]))
    assert kinds_and(parsed, "id") == ([("+U", 1)] if is_whole else []) + [("-D", 2)]
    assert ["changed columns only" in each for each in reasons(parsed)] == [True] * (not is_whole)


def test_payload_may_come_before_its_schema_and_without_one() -> None:
    payloads = [json.loads(envelope("c", after=order(number))) for number in (1, 2)]
    declared = {"type": "struct", "fields": []}
    for events in (
        [{"payload": each, "schema": declared} for each in payloads],
        [{"payload": each, "schema": None} for each in payloads],
        [{"payload": each} for each in payloads],
        [{"payload": payloads[0], "schema": declared}, {"payload": payloads[1]}],
        [{"payload": payloads[0], "schema": declared}, payloads[1]],
    ):
        parsed = parse(FORMAT, SCHEMA, batch_of([json.dumps(each) for each in events]))
        assert reasons(parsed) == []
        assert kinds_and(parsed, "id") == [("+I", 1), ("+I", 2)]


def test_column_called_payload_makes_no_envelope_of_its_row() -> None:
    inner = pa.struct([("a", pa.int64())])
    columns = [pa.field("payload", inner), pa.field("id", pa.int64(), nullable=False)]
    table = define_schema(pa.schema([*columns, pa.field("schema", inner)]), ["id"])
    rows = [{"payload": {"a": 1}, "id": 1, "schema": {"a": 2}}, {"payload": None, "id": 2}]
    events = batch_of([json.dumps(row) for row in rows])
    parsed = parse(FORMAT, table, events, layout="flattened")
    assert parsed.changes.select(["payload", "id"]).to_pylist() == [
        {"payload": {"a": 1}, "id": 1},
        {"payload": None, "id": 2},
    ]


def test_message_key_in_connects_envelope_is_read() -> None:
    key = '{"schema":{"type":"struct"},"payload":{"id":7}}'
    parsed = parse(FORMAT, SCHEMA, batch_of([envelope("d")], [key]))
    assert kinds_and(parsed, "id") == [("-D", 7)]


def test_broken_message_key_is_bad_even_if_the_row_is_fine() -> None:
    parsed = parse(FORMAT, SCHEMA, batch_of([envelope("c", after=order(1))], ['{"id":']))
    assert reasons(parsed) == ["message key: not a JSON object"]


def test_skipped_event_with_a_broken_key_counts_as_bad_only() -> None:
    parsed = parse(FORMAT, SCHEMA, batch_of([None, '{"ts_ms":1}', None], ["{", "{x}", None]))
    assert parsed.bad.num_rows == 2
    assert parsed.skipped == {"tombstone": 1}


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (envelope("c"), "the event has no 'after'"),
        (envelope("u", before=order(1)), "the event has no 'after'"),
        (envelope("x", after=order(1)), "the event has no known 'op'"),
        (envelope(None, after=order(1)), "the event has no known 'op'"),
        (envelope(None), "the event has no known 'op'"),
        ("{}", "the event has no known 'op'"),
        (envelope("t"), "a truncate event: all rows of the table were removed"),
        (envelope("c", after=order(1) | {"id": None}), "key column 'id' has no value"),
        (envelope("c", after=order(1) | {"region": None}), "required column 'region' has no value"),
        (envelope("c", after={"region": "EU"}), "key column 'id' has no value"),
        (envelope("c", after=order(1, amount="!")), "column 'amount': "),
        (envelope("c", after=order(1, at="yesterday")), "column 'at': "),
        ("{", "not a JSON object"),
        (
            '{"op":"c","after":{"id":"1"}}',
            "'/after/id' is a JSON string where a number is expected",
        ),
        (b'{"op":"\xff"}', "not UTF-8: invalid start byte"),
        ('{"schema":{},"payload":', "not a JSON object"),
        ('{"schema":{', "the envelope's schema is not JSON"),
        ('{"schema":{}}', "the envelope's schema is not followed by its payload"),
        ('{"payload":{', "the envelope's payload is not JSON"),
        ('{"schema":[],"payload":{}}', "the event has no known 'op'"),
    ],
)
def test_broken_event_is_a_bad_record_with_its_reason_and_the_rest_is_read(
    event: str | bytes, reason: str
) -> None:
    good = [envelope("c", after=order(number)) for number in (1, 2)]
    events = batch_of([good[0], event, good[1]])
    parsed = parse(FORMAT, SCHEMA, events, decimals="precise")
    assert [found[: len(reason)] for found in reasons(parsed)] == [reason]
    raw = event if isinstance(event, bytes) else event.encode()
    assert parsed.bad.column("value").to_pylist() == [raw]
    assert parsed.bad.column("position").to_pylist() == ["event 1"]
    assert kinds_and(parsed, "id") == [("+I", 1), ("+I", 2)]


def test_message_heartbeat_and_allowed_truncate_are_counted() -> None:
    parsed = parse(
        FORMAT,
        SCHEMA,
        batch_of([envelope("m"), '{"ts_ms":1}', '{"status":"BEGIN","ts_ms":1}', envelope("t")]),
        on_truncate="ignore",
    )
    assert parsed.skipped == {"message": 1, "heartbeat": 2, "truncate": 1}
    assert not parsed.bad.num_rows


def test_unknown_column_fails_the_batch_by_name_unless_ignored() -> None:
    events = batch_of([envelope("c", after=order(1)), envelope("c", after=order(2) | {"extra": 1})])
    with pytest.raises(InvalidInputError, match="a column 'extra' that the table does not have"):
        parse(FORMAT, SCHEMA, events)
    assert kinds_and(parse(FORMAT, SCHEMA, events, unknown_columns="ignore"), "id") == [
        ("+I", 1),
        ("+I", 2),
    ]


def test_sequence_is_read_and_its_absence_is_bad_except_for_snapshot_reads() -> None:
    parsed = parse(
        FORMAT,
        SCHEMA,
        batch_of(
            [
                envelope("c", after=order(1), lsn=5),
                envelope("r", after=order(2)),
                envelope("u", after=order(3)),
                envelope("d", before=order(4)),
            ]
        ),
        sequence="source.lsn",
    )
    assert kinds_and(parsed, "id", "_sequence_0") == [("+I", 1, 5), ("+U", 2, None)]
    assert reasons(parsed) == ["the event lacks its sequence field"] * 2


def test_sequence_of_several_fields_and_types_is_read() -> None:
    event = json.dumps(
        {"op": "c", "after": order(1), "source": {"file": "mysql.01", "pos": 4, "row": 0}}
    )
    parsed = parse(
        FORMAT, SCHEMA, batch_of([event]), sequence="source.file:text,source.pos,source.row"
    )
    assert kinds_and(parsed, "_sequence_0", "_sequence_1", "_sequence_2") == [
        ("+I", "mysql.01", 4, 0)
    ]


def test_sequence_of_digits_in_a_text_is_an_integer() -> None:
    events = [
        json.dumps({"op": "u", "after": order(number), "source": {"scn": scn}})
        for number, scn in enumerate(["99", "123", "-", 5])
    ]
    parsed = parse(FORMAT, SCHEMA, batch_of(events), sequence="source.scn")
    assert kinds_and(parsed, "_sequence_0") == [("+U", 99), ("+U", 123), ("+U", 5)]
    assert reasons(parsed) == ["the event lacks its sequence field"]


@pytest.mark.parametrize(
    "fields", ["source.pos", "source.pos,source.file:text", "source.gtid:text", "__source_pos"]
)
def test_position_without_its_file_and_gtids_are_no_order(fields: str) -> None:
    """After FLUSH LOGS positions begin again: a newer change would be taken for an older one."""
    with pytest.raises(InvalidInputError, match="gives no order"):
        parse(FORMAT, SCHEMA, batch_of([envelope("u", after=order(1))]), sequence=fields)


@pytest.mark.parametrize("path", ["source", "op.x", "after", "ts_ms:text"])
def test_sequence_of_what_gives_no_order_is_refused(path: str) -> None:
    with pytest.raises(InvalidInputError, match="sequence field"):
        parse(FORMAT, SCHEMA, batch_of([envelope("u", after=order(1))]), sequence=path)


@pytest.mark.parametrize("wire", ["double", "float64", "int32"])
def test_number_that_a_float_column_would_round_is_bad(wire: str) -> None:
    columns = [pa.field("id", pa.int64(), nullable=False), pa.field("x", pa.float32())]
    schema = define_schema(pa.schema(columns), ["id"])
    x = {"type": wire, "field": "x", "optional": True}
    declared = {"type": "struct", "fields": [{"type": "int64", "field": "id"}, x]}
    values = [16_777_217, 0.1 if wire != "int32" else 16_777_219, 0.5 if wire != "int32" else 5]
    events = batch_of(
        [
            json.dumps({"schema": declared, "payload": {"id": number, "x": value}})
            for number, value in enumerate(values)
        ]
    )
    parsed = parse(FORMAT, schema, events, layout="flattened")
    assert [reason[:33] for reason in reasons(parsed)] == ["column 'x': a number of more digi"] * 2
    assert kinds_and(parsed, "x") == [("+U", values[2])]
    rounded = parse(FORMAT, schema, events, layout="flattened", encodings="x=text")
    assert kinds_and(rounded, "x")[0] == ("+U", 16_777_216)
    wider = parse(FORMAT, schema, events, layout="flattened", schema_evolution="full")
    assert [str(kind) for kind in wider.schema_changes.widened.values()] == (
        [] if wire == "int32" else ["double"]
    )


@pytest.mark.parametrize("name", ["schema", "payload", "source", "op", "before", "after", "ts_ms"])
def test_flattened_row_may_have_columns_that_are_called_as_parts_of_events_are(name: str) -> None:
    columns = [pa.field(name, pa.string()), pa.field("id", pa.int64(), nullable=False)]
    schema = define_schema(pa.schema(columns), ["id"])
    marks = [{"__op": "r"}, {"__op": "u"}, {"__deleted": "true"}]
    events = [
        json.dumps({name: value, "id": row, **mark})
        for row, (value, mark) in enumerate(zip(["x", None, "y"], marks, strict=True))
    ]
    parsed = parse(FORMAT, schema, batch_of(events), layout="flattened")
    assert kinds_and(parsed, "id", name) == [("+U", 0, "x"), ("+U", 1, None), ("-D", 2, None)]


@pytest.mark.parametrize(
    ("value", "is_bad"),
    [
        (None, False), ({"k": 1}, False), ({"k": None}, True), ({"l": []}, True),
        ({"k": 1, "l": [{"m": 1}, None]}, False), ({"k": 1, "l": [{"m": 1}, {}]}, True),
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", [FORMAT, "changelog-json"])
def test_required_field_without_value_is_a_bad_record(name: str, value: Any, is_bad: bool) -> None:
    inner = pa.struct([pa.field("m", pa.int32(), nullable=False)])
    fields = [pa.field("k", pa.int32(), nullable=False), pa.field("l", pa.list_(inner))]
    columns = [pa.field("id", pa.int64(), nullable=False), pa.field("s", pa.struct(fields))]
    rows = [{"id": 1, "s": {"k": 7, "l": [{"m": 1}]}}, {"id": 2, "s": value}]
    if name == FORMAT:
        events = [{"op": "c", "after": row} for row in rows]
    else:
        events = [{"op": "+I", "data": row} for row in rows]
    schema = define_schema(pa.schema(columns), ["id"])
    parsed = parse(name, schema, batch_of([json.dumps(each) for each in events]))
    assert reasons(parsed) == ["column 's': something required in it has no value"] * is_bad
    assert len(kinds_and(parsed, "id")) == 2 - is_bad


def test_list_of_numbers_and_texts_for_what_is_no_number_is_read() -> None:
    columns = [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("x", pa.list_(pa.float64())),
        pa.field("s", pa.list_(pa.string())),
    ]
    schema = define_schema(pa.schema(columns), ["id"])
    lists = [["-Infinity", 1.5, None], [2, "Infinity"], ["Infinity"], [-1e5], []]
    texts = ["NaN", '[1,"NaN"]', '"NaN"']
    events = [
        json.dumps({"op": "u", "after": {"id": row, "x": each, "s": texts}})
        for row, each in enumerate(lists)
    ]
    parsed = parse(FORMAT, schema, batch_of(events))
    found = sorted(parsed.changes.to_pylist(), key=lambda row: row["id"])
    inf = float("inf")
    assert [row["x"] for row in found] == [[-inf, 1.5, None], [2.0, inf], [inf], [-1e5], []]
    assert [row["s"] for row in found] == [texts] * len(lists)
    (nan, one) = (
        parse(FORMAT, schema, batch_of(['{"op":"u","after":{"id":1,"x":["NaN",1]}}']))
        .changes["x"][0]
        .as_py()
    )
    assert (nan != nan, one) == (True, 1.0)


def test_documents_of_mongodb_are_named() -> None:
    event = json.dumps({"op": "c", "after": '{"_id": 1}', "source": {"connector": "mongodb"}})
    with pytest.raises(InvalidInputError, match="ExtractNewDocumentState"):
        parse(FORMAT, SCHEMA, batch_of([event]))


def connect_envelope(payload: Any, amount: dict[str, Any], at: dict[str, Any]) -> str:
    row = {
        "type": "struct",
        "field": "after",
        "fields": [
            {"type": "int64", "field": "id"},
            {"type": "string", "field": "region"},
            {"field": "amount", **amount},
            {"field": "at", **at},
        ],
    }
    return json.dumps({"schema": {"type": "struct", "fields": [row]}, "payload": payload})


def test_connect_schema_decides_encodings_event_by_event() -> None:
    precise = {
        "type": "bytes",
        "name": "org.apache.kafka.connect.data.Decimal",
        "parameters": {"scale": "1"},
    }
    millis = {"type": "int64", "name": "io.debezium.time.Timestamp"}
    zoned = {"type": "string", "name": "io.debezium.time.ZonedTimestamp"}
    text = {"type": "string"}
    values = [
        connect_envelope({"op": "c", "after": order(1, amount="Dw==", at=1000)}, precise, millis),
        connect_envelope(
            {"op": "c", "after": order(2, amount="1.50", at="1970-01-01T00:00:01Z")}, text, zoned
        ),
        connect_envelope({"op": "c", "after": order(3, amount="Dw==", at=1000)}, precise, millis),
        envelope("c", after=order(4, amount="AJY=", at=1_000_000)),
    ]
    said = {"decimals": "precise", "timestamp_unit": "us"}
    parsed = parse(FORMAT, SCHEMA, batch_of(values), **said)
    assert not parsed.bad.num_rows
    at = dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC)
    rows = sorted(parsed.changes.to_pylist(), key=lambda row: row["id"])
    assert [(row["amount"], row["at"]) for row in rows] == [(Decimal("1.50"), at)] * 4


def test_user_encoding_wins_over_a_connect_schema() -> None:
    micros = {"type": "int64", "name": "io.debezium.time.MicroTimestamp"}
    value = connect_envelope({"op": "c", "after": order(1, at=1)}, {"type": "string"}, micros)
    parsed = parse(FORMAT, SCHEMA, batch_of([value]), encodings="at=s")
    assert parsed.changes.column("at").to_pylist() == [
        dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC)
    ]


def test_semantic_type_that_the_column_does_not_have_is_no_error() -> None:
    schema = define_schema(
        pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("at", pa.int64())]), ["id"]
    )
    micros = {"type": "int64", "name": "io.debezium.time.MicroTimestamp"}
    value = connect_envelope({"op": "c", "after": {"id": 1, "at": 5}}, {"type": "string"}, micros)
    parsed = parse(FORMAT, schema, batch_of([value]))
    assert parsed.changes.column("at").to_pylist() == [5]


def test_timestamps_may_change_their_wire_type_within_a_batch() -> None:
    values = [
        envelope("c", after=order(n, at=n * 1_000_000 if n % 2 else f"1970-01-01T00:00:0{n}Z"))
        for n in range(8)
    ]
    parsed = parse(FORMAT, SCHEMA, batch_of(values), timestamp_unit="us")
    rows = sorted(parsed.changes.to_pylist(), key=lambda row: row["id"])
    assert [row["at"].second for row in rows] == list(range(8))


PLACEHOLDER = "__debezium_unavailable_value"


def test_unavailable_value_is_taken_from_before() -> None:
    event = envelope("u", before=order(1, note="old"), after=order(1, note=PLACEHOLDER))
    assert kinds_and(parse(FORMAT, SCHEMA, batch_of([event])), "note") == [("+U", "old")]


@pytest.mark.parametrize("before", [None, order(1), order(1, note=PLACEHOLDER)])
def test_unavailable_value_that_is_nowhere_is_bad_or_null_if_wanted(before: Any) -> None:
    events = batch_of([envelope("u", before=before, after=order(1, note=PLACEHOLDER))])
    (reason,) = reasons(parse(FORMAT, SCHEMA, events))
    assert reason.startswith("column 'note' is unavailable: it did not change")
    assert "ALTER TABLE ... REPLICA IDENTITY FULL" in reason
    kept = parse(FORMAT, SCHEMA, events, on_unavailable_value="null")
    assert kinds_and(kept, "note") == [("+U", None)]


@pytest.mark.parametrize(
    ("kind", "stands", "empty"),
    [
        (pa.string(), PLACEHOLDER, ""),
        (pa.string(), json.dumps({PLACEHOLDER: PLACEHOLDER}, separators=(",", ":")), "{}"),
        (pa.binary(), base64.b64encode(PLACEHOLDER.encode()).decode(), ""),
        (pa.list_(pa.int32()), list(PLACEHOLDER.encode()), []),
        (pa.list_(pa.string()), [PLACEHOLDER], []),
    ],
)
def test_what_stands_in_a_required_column_of_an_old_row_is_no_unavailable_value(
    kind: pa.DataType, stands: Any, empty: Any
) -> None:
    """With REPLICA IDENTITY USING INDEX an old row has the index's columns, and zeros beside."""
    row = [pa.field("id", pa.int64(), nullable=False), pa.field("u", pa.int64())]
    schema = define_schema(pa.schema([*row, pa.field("v", kind, nullable=False)]), ["id"])
    before, after = {"id": 1, "u": 1, "v": empty}, {"id": 1, "u": 100, "v": stands}
    events = batch_of([envelope("u", before=before, after=after)])
    (reason,) = reasons(parse(FORMAT, schema, events, binaries="base64"))
    assert reason.startswith("column 'v' is unavailable")
    kept = parse(FORMAT, schema, events, binaries="base64", on_unavailable_value="keep")
    assert reasons(kept) == []
    assert kept.changes[MISSING].to_pylist() == ["-3"]


def test_array_of_several_dimensions_is_a_bad_record_and_no_text_of_java() -> None:
    texts = pa.list_(pa.string())
    row = [pa.field("id", pa.int64(), nullable=False), pa.field("tags", texts)]
    schema = define_schema(pa.schema(row), ["id"])
    java = ["[Ljava.lang.String;@285a80ea", "[Ljava.lang.String;@3b4a000f"]
    good = [None, [], [None], ["[a]"], ["[B@"], ["see [Ljava.lang.String;@285a80ea"]]
    rows = [*good, java, [None, "[[I@1f"]]
    events = [envelope("c", after={"id": n, "tags": tags}) for n, tags in enumerate(rows)]
    parsed = parse(FORMAT, schema, batch_of(events))
    assert parsed.changes["tags"].to_pylist() == good
    assert [reason.partition(",")[0] for reason in reasons(parsed)] == 2 * [
        "column 'tags' has an array of several dimensions"
    ]


def mangled(name: str) -> str:
    """As Debezium's decoder of `pgoutput` reads it: each byte for a character, with its sign."""
    return "".join(chr(each if each < 0x80 else 0xFF00 | each) for each in name.encode())


@pytest.mark.parametrize("name", ["é", "größe in m²", "名前", "😀", "ﾃｽﾄ"])
@pytest.mark.parametrize(
    "options", [{}, {"schema_evolution": "full"}, {"unknown_columns": "ignore"}]
)
@pytest.mark.parametrize("layout", ["envelope", "flattened"])
def test_column_that_debezium_tells_by_a_mangled_name_is_refused_by_its_own(
    name: str, options: dict[str, str], layout: str
) -> None:
    row = [pa.field("id", pa.int64(), nullable=False), pa.field(name, pa.string())]
    schema = define_schema(pa.schema(row), ["id"])

    def event(name: str) -> str:
        fields = [{"field": "id", "type": "int64"}, {"field": name, "type": "string"}]
        payload: dict[str, Any] = {"id": 1, name: "x"}
        if layout == "envelope":
            fields = [{"field": "after", "type": "struct", "fields": fields}]
            payload = {"op": "c", "after": payload}
        return json.dumps({"schema": {"type": "struct", "fields": fields}, "payload": payload})

    parsed = parse(FORMAT, schema, batch_of([event(name)]), layout=layout, **options)
    assert parsed.changes[name].to_pylist() == ["x"]
    with pytest.raises(InvalidInputError, match=f"Debezium tells column '{name}' by another name"):
        parse(FORMAT, schema, batch_of([event(mangled(name))]), layout=layout, **options)


@pytest.mark.parametrize("name", ["é", "größe in m²", "😀"])
@pytest.mark.parametrize("layout", ["envelope", "flattened"])
@pytest.mark.parametrize("in_ascii", [False, True])
def test_mangled_name_of_a_column_is_refused_in_bare_events_whose_other_names_are_ignored(
    name: str, layout: str, in_ascii: bool
) -> None:
    row = [pa.field("id", pa.int64(), nullable=False), pa.field(name, pa.string())]
    schema = define_schema(pa.schema(row), ["id"])

    def parsed(row: dict[str, Any]) -> Any:
        event = row if layout == "flattened" else {"op": "c", "after": row}
        text = json.dumps(event, ensure_ascii=in_ascii)
        events = batch_of([text])
        return parse(FORMAT, schema, events, layout=layout, unknown_columns="ignore")

    said = f'"{mangled(name)}": "x"'
    found = parsed({"id": 1, name: said, "other": said})
    assert found.changes[name].to_pylist() == [said]
    with pytest.raises(InvalidInputError, match=f"Debezium tells column '{name}' by another name"):
        parsed({"id": 1, mangled(name): "x"})


KEYS = [json.dumps({"id": each}) for each in (1, 2, 3)]


def deleted(id_: int) -> str:
    return envelope("d", before=order(id_), lsn=id_)


def test_tombstone_whose_delete_log_compaction_has_removed_is_the_delete() -> None:
    events = batch_of(
        [None, envelope("c", after=order(2)), "null", deleted(3), None, deleted(1), None, "null"],
        [KEYS[0], KEYS[1], KEYS[0], KEYS[2], KEYS[2], KEYS[0], KEYS[1], KEYS[2]],
    )
    parsed = parse(FORMAT, SCHEMA, events)
    assert kinds_and(parsed, "id", "_ordinal") == [
        ("-D", 1, 0), ("+I", 2, 1), ("-D", 1, 2), ("-D", 3, 3), ("-D", 1, 5), ("-D", 2, 6),
        ("-D", 3, 7),
    ]  # fmt: skip
    assert parsed.skipped == {"tombstone": 1}


@pytest.mark.parametrize("key", [None, "1", "{}", json.dumps({"other": 1})])
def test_tombstone_that_names_no_row_is_skipped(key: str | None) -> None:
    parsed = parse(FORMAT, SCHEMA, batch_of([None], [key]), unknown_columns="ignore")
    assert (parsed.changes.num_rows, parsed.skipped) == (0, {"tombstone": 1})


@pytest.mark.parametrize("options", [{"deletes": "row"}, {"sequence": "source.lsn"}])
def test_tombstone_is_no_delete_where_deletes_must_say_more(options: dict[str, str]) -> None:
    parsed = parse(FORMAT, SCHEMA, batch_of([None], KEYS[:1]), **options)
    assert (parsed.changes.num_rows, parsed.skipped) == (0, {"tombstone": 1})


def test_tombstone_behind_a_bad_delete_or_a_changed_key_is_that_of_its_own_row() -> None:
    update = envelope("u", before=order(1), after=order(2))
    events = batch_of([deleted(1), None, update, None], [KEYS[1], KEYS[1], KEYS[1], KEYS[1]])
    parsed = parse(FORMAT, SCHEMA, events)
    assert kinds_and(parsed, "id") == [("-D", 1), ("+U", 2), ("-D", 2)]
    assert (parsed.bad.num_rows, parsed.skipped) == (1, {"tombstone": 1})


def test_unavailable_decimal_carries_the_placeholder_as_base64() -> None:
    encoded = base64.b64encode(PLACEHOLDER.encode()).decode()
    event = envelope("u", before=order(1, amount="AJY="), after=order(1, amount=encoded))
    parsed = parse(FORMAT, SCHEMA, batch_of([event]), decimals="precise")
    assert kinds_and(parsed, "amount") == [("+U", Decimal("1.50"))]


def test_unavailable_list_is_bad() -> None:
    schema = define_schema(
        pa.schema(
            [pa.field("id", pa.int64(), nullable=False), pa.field("tags", pa.list_(pa.string()))]
        ),
        ["id"],
    )
    values = [
        envelope("u", after={"id": 1, "tags": [PLACEHOLDER]}),
        envelope("u", after={"id": 2, "tags": ["a", "b"]}),
    ]
    parsed = parse(FORMAT, schema, batch_of(values))
    assert kinds_and(parsed, "id", "tags") == [("+U", 2, ["a", "b"])]
    assert len(reasons(parsed)) == 1


def test_delete_keeps_other_columns_only_when_declared_to_have_them() -> None:
    events = batch_of([envelope("d", before=order(1, region="US", note="x"))])
    assert kinds_and(parse(FORMAT, SCHEMA, events), "region", "note") == [("-D", None, None)]
    whole = parse(FORMAT, SCHEMA, events, deletes="row")
    assert kinds_and(whole, "region", "note") == [("-D", "US", "x")]


def flat(id: int, **more: Any) -> str:
    return json.dumps(order(id) | more)


def test_flattened_rows_are_read_with_op_or_deleted_mark() -> None:
    parsed = parse(
        FORMAT,
        SCHEMA,
        batch_of(
            [
                flat(1, __op="c", __lsn=1),
                flat(2, __op="u", __lsn=2),
                flat(3, __deleted="true", __lsn=3),
                flat(4, __deleted="false", __lsn=4),
                flat(5, __op="d", __lsn=5),
                flat(6, __lsn=6, __db="shop"),
            ]
        ),
        layout="flattened",
        sequence="__lsn",
    )
    assert kinds_and(parsed, "id", "_sequence_0") == [
        ("+I", 1, 1),
        ("+U", 2, 2),
        ("-D", 3, 3),
        ("+U", 4, 4),
        ("-D", 5, 5),
        ("+U", 6, 6),
    ]


def test_flattened_mark_may_be_a_boolean() -> None:
    events = batch_of([flat(1, __deleted=True), flat(2, __deleted=False)])
    parsed = parse(FORMAT, SCHEMA, events, layout="flattened")
    assert kinds_and(parsed, "id") == [("-D", 1), ("+U", 2)]


def test_flattened_mark_that_is_neither_true_nor_false_is_bad() -> None:
    """It may be a delete: a row that stays is as wrong as one that goes."""
    events = [flat(1, __deleted="1"), flat(2, __deleted="TRUE"), flat(3, __op="d", __deleted="t")]
    parsed = parse(FORMAT, SCHEMA, batch_of(events), layout="flattened")
    assert kinds_and(parsed, "id") == [("-D", 2)]
    assert reasons(parsed) == ["the event's '__deleted' is neither true nor false"] * 2


def test_flattened_tombstone_is_the_delete_of_its_key() -> None:
    parsed = parse(
        FORMAT,
        SCHEMA,
        batch_of([flat(1), None, None], [None, '{"id":5}', None]),
        layout="flattened",
    )
    assert kinds_and(parsed, "id") == [("+U", 1), ("-D", 5)]
    assert reasons(parsed) == ["a delete without a value of key column 'id'"]


def test_flattened_unknown_column_fails_the_batch_but_metadata_fields_do_not() -> None:
    events = batch_of([flat(1, __source_ts_ms=1, extra=2)])
    with pytest.raises(InvalidInputError, match=r"'extra'.*columns=\['extra'\]"):
        parse(FORMAT, SCHEMA, events, layout="flattened")


def test_table_without_key_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="needs a table with a primary key"):
        parse(FORMAT, define_schema(ORDERS, []), batch_of([]))


def test_encoding_of_unknown_column_is_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"unknown column.*column=nope"):
        parse(FORMAT, SCHEMA, batch_of([]), encodings="nope=ms")


def test_events_without_value_column_are_refused() -> None:
    batch = batch_of([])
    renamed = batch.rows.rename_columns(["payload"])
    with pytest.raises(InvalidInputError, match="no column 'value'"):
        parse(FORMAT, SCHEMA, type(batch)(renamed))


def test_empty_batch_has_no_changes_but_their_columns() -> None:
    parsed = parse(FORMAT, SCHEMA, batch_of([]))
    assert parsed.changes.column_names == [*ORDERS.names, "_ordinal", "_kind"]
    assert parsed.changes.num_rows == parsed.bad.num_rows == 0


NESTED = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field(
            "place", pa.struct([("city", pa.string()), ("at", pa.struct([("x", pa.int64())]))])
        ),
        pa.field("parts", pa.list_(pa.struct([("no", pa.int64())]))),
    ]
)


@pytest.mark.parametrize("evolution", ["strict", "add-columns", "full"])
@pytest.mark.parametrize(
    ("inner", "name"),
    [
        ({"place": {"city": "a", "zip": 1}}, "place.zip"),
        ({"place": {"at": {"x": 1, "y": 2}}}, "place.at.y"),
        ({"parts": [{"no": 1}, {"no": 2, "sold": True}]}, "parts.element.sold"),
    ],
)
@pytest.mark.parametrize("changing", [False, True])
def test_unknown_field_inside_a_column_fails_the_batch_and_is_never_lost(
    inner: dict[str, Any], name: str, evolution: str, changing: bool
) -> None:
    schema = define_schema(NESTED, ["id"])
    rows = [{"id": 1, "parts": [{"no": 3}]}, {"id": 2, **inner}]
    if changing:  # Arrow cannot infer such a field, so events are looked at singly
        rows += [{"id": 3, "odd": value} for value in (1, "one")]
    events = batch_of([envelope("c", after=row) for row in rows])
    with pytest.raises(InvalidInputError, match=f"a column '{name}' that the table does not have"):
        parse(FORMAT, schema, events, schema_evolution=evolution)
    ignoring = parse(FORMAT, schema, events, unknown_columns="ignore")
    assert len(ignoring.changes) == len(rows)


@pytest.mark.parametrize("scale", ["²", "--1", "9" * 5000, "1" * 12, None, "x"])
@pytest.mark.parametrize("evolution", ["strict", "full"])
def test_connect_decimal_without_a_usable_scale_is_no_hint(scale: Any, evolution: str) -> None:
    declared = {
        "type": "bytes",
        "name": "org.apache.kafka.connect.data.Decimal",
        "parameters": {"scale": scale, "connect.decimal.precision": "²"},
    }
    value = connect_envelope(
        {"op": "c", "after": order(1, amount="AJY=")}, declared, {"type": "string"}
    )
    with pytest.raises(InvalidInputError, match="nothing says how the events encode"):
        parse(FORMAT, SCHEMA, batch_of([value]), schema_evolution=evolution)
    said = {"decimals": "precise", "schema_evolution": evolution}
    parsed = parse(FORMAT, SCHEMA, batch_of([value]), **said)
    assert parsed.changes.column("amount").to_pylist() == [Decimal("1.50")]


@pytest.mark.parametrize("declared", [[], [5], [{"type": "int64"}], [{"field": "a"}], [None]])
def test_connect_struct_without_usable_fields_is_refused_as_a_new_column(declared: Any) -> None:
    row = {
        "field": "after",
        "fields": [{"field": "new", "type": "struct", "fields": declared}],
    }
    value = json.dumps(
        {"schema": {"fields": [row]}, "payload": {"op": "c", "after": {**order(1), "new": {}}}}
    )
    with pytest.raises(InvalidInputError, match="no column can be made of"):
        parse(FORMAT, SCHEMA, batch_of([value]), schema_evolution="add-columns")


def test_reason_of_a_bad_event_is_one_line_of_bounded_length() -> None:
    events = [envelope("c", after=order(1, amount={"a": "\u2028\r\x1b" + "x" * 100_000}))]
    (reason,) = reasons(parse(FORMAT, SCHEMA, batch_of(events), decimals="text"))
    assert reason.isprintable()
    assert len(reason) < 2_000


@pytest.mark.parametrize(
    ("event", "what"),
    [
        ({"specversion": "1.0", "id": 1, "source": "/x", "data": {"op": "c"}}, "CloudEvents"),
        ({"id": 1, "database": "a", "table": "b", "type": "INSERT", "isDdl": False,
          "data": [{"id": "7"}]}, "of Canal"),
        ({"database": "a", "table": "b", "type": "insert", "ts": 1, "data": {"id": 7}},
         "of Maxwell"),
        ({"table": "a", "op_type": "D", "op_ts": "t", "pos": "1", "id": 7}, "of GoldenGate"),
        ({"data": {"id": 7}, "metadata": {"operation": "insert"}}, "of AWS DMS"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("layout", ["envelope", "flattened"])
def test_events_of_other_tools_are_refused_by_name_and_not_half_taken(
    event: dict[str, Any], what: str, layout: str
) -> None:
    table = define_schema(pa.schema([pa.field("id", pa.int64(), nullable=False)]), ["id"])
    events = batch_of([json.dumps(event)])
    with pytest.raises(InvalidInputError, match=f"the events are {what}, which"):
        parse(FORMAT, table, events, layout=layout, unknown_columns="ignore")


def test_rows_with_columns_that_other_tools_names_are_rows() -> None:
    columns = [pa.field("id", pa.int64(), nullable=False)]
    table = define_schema(pa.schema(columns), ["id"])
    row = {"id": 1, "data": "x", "metadata": "y"}
    said = {"layout": "flattened", "unknown_columns": "ignore"}
    assert kinds_and(parse(FORMAT, table, batch_of([json.dumps(row)]), **said), "id") == [("+U", 1)]
    own = ["specversion", "source"]
    table = define_schema(
        pa.schema([*columns, *(pa.field(name, pa.string()) for name in own)]), ["id"]
    )
    row = {"id": 1, "more": 1, **dict.fromkeys(own, "x")}
    assert kinds_and(parse(FORMAT, table, batch_of([json.dumps(row)]), **said), "id") == [("+U", 1)]


def declared_events(kind: str, *values: Any) -> Any:
    fields = [{"field": "id", "type": "int64"}, {"field": "v", "type": kind, "optional": True}]
    schema = {"type": "struct", "fields": fields}
    payloads = [{"id": number, "v": value} for number, value in enumerate(values)]
    return batch_of([json.dumps({"schema": schema, "payload": each}) for each in payloads])


@pytest.mark.parametrize(
    ("digits", "value", "kind", "fits"),
    [
        ((20, 0), 0.1, "double", False),
        ((10, 2), 123456.789, "double", False),
        ((10, 2), 0.1, "double", True),
        ((38, 6), 1234567890123456.25, "double", True),
        ((38, 20), 0.1, "double", True),
        ((10, 2), 0.10000000149011612, "float", True),  # Avro's
        ((10, 0), 1.5, "float", False),
    ],
)
def test_double_that_a_decimal_column_would_round_is_a_bad_record(
    digits: tuple[int, int], value: float, kind: str, *, fits: bool
) -> None:
    columns = [pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.decimal128(*digits))]
    table = define_schema(pa.schema(columns), ["id"])
    events = declared_events(kind, value, None)
    parsed = parse(FORMAT, table, events, layout="flattened")
    assert ["more digits than the column has" in each for each in reasons(parsed)] == (
        [] if fits else [True]
    )
    rounded = parse(FORMAT, table, events, layout="flattened", encodings="v=double")
    assert reasons(rounded) == []


@pytest.mark.parametrize("column", ["price", "prices", "inner"])
@pytest.mark.parametrize(("text", "number"), [("1234", "-26588.24"), ("1E12", "-28637.54")])
def test_base64_that_looks_like_a_number_is_none_behind_one(
    column: str, text: str, number: str
) -> None:
    """`decimal.format` of the converter was changed while the topic was read."""
    price = pa.decimal128(18, 2)
    forms = {
        "price": (price, lambda each: each),
        "prices": (pa.list_(price), lambda each: [None, each]),
        "inner": (pa.struct([("p", price), ("t", pa.string())]), lambda each: {"p": each, "t": ""}),
    }
    kind, form = forms[column]
    columns = [pa.field("id", pa.int64(), nullable=False), pa.field(column, kind)]
    table = define_schema(pa.schema(columns), ["id"])
    values = enumerate((1.5, text, 2))
    rows = [json.dumps({"id": row, column: form(value)}) for row, value in values]
    for events in (rows, rows[::-1]):
        parsed = parse(FORMAT, table, batch_of(events), layout="flattened", decimals="precise")
        assert reasons(parsed) == []
        found = {row: value for _, row, value in kinds_and(parsed, "id", column)}
        wanted = enumerate(("1.50", number, "2.00"))
        assert found == {row: form(Decimal(value)) for row, value in wanted}


def test_integer_that_the_schema_does_not_call_a_date_is_none() -> None:
    columns = [pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.date32())]
    table = define_schema(pa.schema(columns), ["id"])
    with pytest.raises(InvalidInputError, match="column 'v' is int32, the table that it is date"):
        parse(FORMAT, table, declared_events("int32", 70_000), layout="flattened")
    events = declared_events("int32", 1)
    parsed = parse(FORMAT, table, events, layout="flattened", encodings="v=days")
    assert parsed.changes["v"].to_pylist() == [dt.date(1970, 1, 2)]


@pytest.mark.parametrize(
    ("column", "value", "fits"),
    [
        (pa.float64(), 2**53 + 1, False),
        (pa.float64(), 2**53, True),
        (pa.float64(), 2**63 - 1, False),
        (pa.float64(), -(2**63), True),
        (pa.float32(), 2**53 + 1, False),
        (pa.float32(), 2**24 + 1, False),
        (pa.float32(), 2**60, True),
    ],
)
def test_integer_that_a_float_column_would_round_is_a_bad_record(
    column: pa.DataType, value: int, *, fits: bool
) -> None:
    columns = [pa.field("id", pa.int64(), nullable=False), pa.field("v", column)]
    table = define_schema(pa.schema(columns), ["id"])
    fields = [{"field": name, "type": "int64", "optional": name == "v"} for name in ("id", "v")]
    schema = {"type": "struct", "fields": fields}
    events = batch_of(
        [
            json.dumps({"schema": schema, "payload": {"id": number, "v": each}})
            for number, each in enumerate((value, None, 1))
        ]
    )
    parsed = parse(FORMAT, table, events, layout="flattened")
    assert [each.split(";")[0] for each in reasons(parsed)] == (
        [] if fits else [f"column 'v': a number of more digits than a {column} has"]
    )
    found = [None if each is None else int(each) for each in parsed.changes["v"].to_pylist()]
    assert found == ([value] if fits else []) + [None, 1]
