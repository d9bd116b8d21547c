"""Avro and JSON Schema of a registry give the rows that JSON with schemas gives."""

from __future__ import annotations

import json
import math
import pickle
import random

import pyarrow as pa
import pytest

from tableformat.cdc.connect_schema import declared_schema
from tableformat.cdc.events import EventBatch
from tableformat.cdc.many.table_making import plan_table
from tableformat.cdc.many.table_options import TableOptions
from tableformat.cdc.registry import avro_schema, json_schema
from tableformat.cdc.registry.client import RegistrySettings
from tableformat.cdc.registry.decoder import RegistryDecoder
from tableformat.errors import InvalidInputError, StoreUnavailableError, UnsupportedError
from tableformat.runtime import SystemClock
from tests.support import debezium_events as real
from tests.support.change_events import parse, reasons
from tests.support.fake_registry import Converter, avro_bytes, fake_registry, framed

SCHEMAS = {
    "db.public.account": real.account_schema,
    "db.public.account_full": real.account_schema,
    "db.public.line": real.line_schema,
    "tt.public.toast": real.toast_schema,
}
NUMBERS = {"type": "record", "name": "Row", "fields": [
    {"name": "id", "type": "long"}, {"name": "d", "type": ["null", "double"]},
]}  # fmt: skip
EVERY_OP = "crudtombstone"


@pytest.fixture
def registry():
    with fake_registry() as started:
        yield started


def decoder_of(registry, **options):
    return RegistryDecoder(RegistrySettings(registry.url, options))


def batch_of(values, keys=None):
    columns = {"value": pa.array(values, pa.binary())}
    if keys is not None:
        columns["key"] = pa.array(keys, pa.binary())
    return EventBatch(pa.record_batch(columns))


def real_batch(registry, kind, topic):
    converter = Converter(registry, kind)
    records = real.records(topic)
    values = [converter.write(each["value"]) for each in records]
    return batch_of(values, [converter.write(each["key"]) for each in records])


def without_versions(schema):
    """What a converter does not keep, or keeps once for two uses of a type."""
    if isinstance(schema, dict):
        kept = {k: each for k, each in schema.items() if k not in ("version", "doc")}
        return {name: without_versions(each) for name, each in kept.items()}
    return [without_versions(each) for each in schema] if isinstance(schema, list) else schema


@pytest.mark.parametrize("kind", ["AVRO", "JSON"])
@pytest.mark.parametrize("topic", SCHEMAS)
def test_messages_of_a_registry_give_the_rows_of_the_same_history_in_json(registry, kind, topic):
    schema = SCHEMAS[topic]()
    decoded = decoder_of(registry).decode(real_batch(registry, kind, topic))
    found = parse("debezium-json", schema, decoded)
    wanted = parse("debezium-json", schema, real.batch(topic, EVERY_OP))
    assert wanted.changes.num_rows or reasons(wanted)
    assert found.changes.equals(wanted.changes)
    assert (reasons(found), found.skipped) == (reasons(wanted), wanted.skipped)
    declared = declared_schema(json.dumps(real.records(topic)[0]["value"]))
    assert without_versions(decoded.schemas("value").of(0)) == without_versions(declared)


@pytest.mark.parametrize("kind", ["AVRO", "JSON"])
def test_table_is_made_of_a_registrys_schema_as_of_json_with_schemas(registry, kind):
    options = TableOptions.of({"columns": '{"weird": "decimal(38,9)", "loc": "string"}'})
    messages = pa.Table.from_batches([real_batch(registry, kind, "db.public.account").rows])
    made = plan_table("shop.account", messages, options, decoder_of(registry))
    records = real.records("db.public.account")
    plain = {
        name: pa.array([json.dumps(each[name]).encode() for each in records], pa.binary())
        for name in ("key", "value")
    }
    assert made.ddl() == plan_table("shop.account", pa.table(plain), options).ddl()
    assert made.key == ("id",)


@pytest.mark.parametrize("others", [[], [None]], ids=["alone", "tombstone"])
@pytest.mark.parametrize("count", [1, 1_200])
def test_table_is_not_waited_for_whose_messages_cannot_be_read(registry, others, count):
    """They are rows: "no event has had a row so far" would hide them for ever."""
    values = [*others, *[framed(99, b"row")] * count]
    messages = pa.table({"value": pa.array(values, pa.binary()), "key": [b"k"] * len(values)})
    with pytest.raises(InvalidInputError, match=r"its messages cannot be read: .* no schema 99"):
        plan_table("shop.t", messages, TableOptions.of({}), decoder_of(registry))


def payloads(registry, *messages, keys=None):
    decoded = decoder_of(registry).decode(batch_of(messages, keys))
    texts = decoded.required("value").to_pylist()
    found = [None if text is None else json.loads(text) for text in texts]
    return found, dict(decoded.decoded.bad)


def test_messages_of_several_schemas_keep_their_order(registry):
    wide = {**NUMBERS, "fields": [*NUMBERS["fields"], {"name": "n", "type": "int", "default": 0}]}
    old, new = registry.register(NUMBERS), registry.register(wide)
    messages, wanted = [], []
    for number in range(40):
        row = {"id": number, "d": number / 7}
        if number % 3 == 0:
            messages.append(None)
            wanted.append(None)
        elif number % 3 == 1:
            messages.append(framed(old, avro_bytes(NUMBERS, row)))
            wanted.append(row)
        else:
            messages.append(framed(new, avro_bytes(wide, row | {"n": -1})))
            wanted.append(row | {"n": -1})
    assert payloads(registry, *messages) == (wanted, {})
    asked = [path for path in registry.requests if path.startswith("/schemas/ids/")]
    assert len(asked) == len(set(asked)) == 2
    sliced = batch_of(messages).rows.slice(5, 20)
    decoded = decoder_of(registry).decode(EventBatch(sliced)).required("value").to_pylist()
    assert [None if text is None else json.loads(text) for text in decoded] == wanted[5:25]


def test_schemas_are_numbered_as_they_come_not_as_they_were_registered(registry):
    """Which default of a new column was the first one is told by that."""
    wide = {**NUMBERS, "fields": [*NUMBERS["fields"], {"name": "n", "type": "int", "default": 0}]}
    old, new = registry.register(NUMBERS), registry.register(wide)
    row = {"id": 1, "d": 0.5}
    messages = [
        framed(new, avro_bytes(wide, row | {"n": 1})),
        framed(old, avro_bytes(NUMBERS, row)),
    ]
    decoded = decoder_of(registry).decode(EventBatch(batch_of(messages).rows, in_order=True))
    assert decoded.schemas("value").numbers.tolist() == [0, 1]
    assert decoded.in_order


def test_numbers_that_json_lacks_are_texts_as_connect_writes_them(registry):
    number = registry.register(NUMBERS)
    values = [math.nan, math.inf, -math.inf, 0.1]
    messages = [framed(number, avro_bytes(NUMBERS, {"id": 1, "d": each})) for each in values]
    found, _ = payloads(registry, *messages)
    assert [each["d"] for each in found] == ["NaN", "Infinity", "-Infinity", 0.1]


def test_damaged_messages_are_bad_alone_and_say_why(registry):
    number = registry.register(NUMBERS)
    whole = framed(number, avro_bytes(NUMBERS, {"id": 300, "d": 0.5}))
    found, bad = payloads(
        registry, whole, whole[:-3], b'{"id": 1}', whole + b"x", framed(77, b"\0"),
        b"\0\0\0\0\0\0\0\0\7more", b"\0\0", b"", None,
    )  # fmt: skip
    assert found == [{"id": 300, "d": 0.5}, *[None] * 8]
    assert bad.keys() == {1, 2, 3, 4, 5, 6, 7}
    assert bad[1].startswith(f"the message is not what schema {number} says: ")
    assert bad[2] == bad[6] == bad[7] == (
        "the message is not of a schema registry: it does not begin with a zero byte and the id "
        "of a schema"
    )  # fmt: skip
    assert "1 bytes are left over" in bad[3]
    assert bad[4].startswith("the schema registry has no schema 77; the id must be in the four")
    assert "as-confluent=true" in bad[5]
    assert all("\n" not in reason for reason in bad.values())


def test_noise_behind_a_good_head_is_a_row_or_a_bad_record_and_nothing_else(registry):
    number = registry.register(
        {"type": "record", "name": "R", "fields": [
            {"name": "t", "type": {"type": "array", "items": ["null", "string"]}},
            {"name": "b", "type": ["null", "bytes"]},
            {"name": "e", "type": {"type": "enum", "name": "E", "symbols": ["x"]}},
        ]})  # fmt: skip
    drawn = random.Random(7)
    noise = [framed(number, drawn.randbytes(drawn.randint(0, 24))) for _ in range(2_000)]
    found, bad = payloads(registry, *noise)
    assert [row for row, each in enumerate(found) if each is None] == sorted(bad)
    assert len(bad) > 1_000


def test_keys_that_are_not_of_the_registry_are_taken_as_they_are(registry):
    number = registry.register(NUMBERS)
    value = framed(number, avro_bytes(NUMBERS, {"id": 1, "d": None}))
    keys = [b'{"id": 1}', b"plain", None, framed(number, avro_bytes(NUMBERS, {"id": 1, "d": 2.0})),
            framed(99, b"")]  # fmt: skip
    decoded = decoder_of(registry).decode(batch_of([value] * 5, keys))
    texts = decoded.optional("key").to_pylist()
    assert texts == [b'{"id": 1}', b"plain", None, b'{"id":1,"d":2.0}', None]
    ((row, reason),) = decoded.decoded.bad.items()
    assert row == 4
    assert reason.startswith("message key: the schema registry has no schema 99")


def test_dead_letters_hold_the_message_as_it_came(registry):
    number = registry.register(NUMBERS)
    message = framed(number, b"\2")
    decoded = decoder_of(registry).decode(batch_of([message], [b"k"]))
    (letter,) = decoded.bad_records(decoded.decoded.bad).to_pylist()
    assert (letter["value"], letter["key"]) == (message, b"k")


def test_schema_that_names_other_subjects_is_put_together(registry):
    money = {"type": "record", "name": "Money", "namespace": "lib", "fields": [
        {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "scale": 2,
                                    "precision": 9}}]}  # fmt: skip
    registry.subjects["money", 3] = registry.register(money)
    order = {"type": "record", "name": "Order", "fields": [
        {"name": "id", "type": "int"}, {"name": "paid", "type": "lib.Money"}]}  # fmt: skip
    references = [{"name": "lib.Money", "subject": "money", "version": 3}]
    number = registry.register(order, references=references)
    whole = {**order, "fields": [order["fields"][0], {"name": "paid", "type": money}]}
    message = framed(number, avro_bytes(whole, {"id": 1, "paid": {"amount": b"\1\0"}}))
    decoded = decoder_of(registry).decode(batch_of([message]))
    assert decoded.required("value").to_pylist() == [b'{"id":1,"paid":{"amount":"AQA="}}']
    paid = decoded.schemas("value").of(0)["fields"][1]
    assert paid["fields"][0]["parameters"]["scale"] == "2"


def test_protobuf_is_refused_in_one_line(registry):
    number = registry.register('syntax = "proto3"; message R { int64 id = 1; }', "PROTOBUF")
    with pytest.raises(UnsupportedError, match="not as PROTOBUF") as refused:
        decoder_of(registry).decode(batch_of([framed(number, b"\0\x08\1")]))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("schema", ["{no json", '{"type": "record"}', '{"type": "nothing"}', "[]"])
def test_schema_that_cannot_be_read_makes_its_messages_bad(registry, schema):
    number = registry.register(None)
    registry.schemas[number]["schema"] = schema
    _, bad = payloads(registry, framed(number, b"\2"))
    if schema != "[]":
        assert f"schema {number} of the registry cannot be read" in bad[0]
    assert len(bad) == 1


def test_registry_that_is_down_is_told_without_credentials_and_asked_again(registry):
    number = registry.register(NUMBERS)
    registry.user_info = "me:hunter2"
    decoder = decoder_of(registry, **{"basic.auth.user.info": "me:hunter2", "max.retries": "0"})
    assert "hunter2" not in repr(decoder)
    batch = batch_of([framed(number, avro_bytes(NUMBERS, {"id": 1, "d": None}))])
    table = pa.Table.from_batches([batch.rows])
    registry.down = True
    for attempt in (lambda: decoder.decode(batch), lambda: decoder.learn([table]),
                    decoder.registry.check):  # fmt: skip
        with pytest.raises(StoreUnavailableError, match="does not answer: HTTP 503") as down:
            attempt()
        assert "hunter2" not in str(down.value)
        assert "\n" not in str(down.value)
    registry.down = False
    decoder.registry.check()
    decoder.learn([table])
    registry.down = True
    assert decoder.decode(batch).decoded.bad == {}
    again = pickle.loads(pickle.dumps(decoder))
    assert again.decode(batch).decoded.bad == {}


def test_task_waits_for_a_registry_as_long_as_it_is_told(registry, monkeypatch):
    number = registry.register(NUMBERS)
    batch = batch_of([framed(number, avro_bytes(NUMBERS, {"id": 1, "d": None}))])
    decoder = decoder_of(registry, **{"max.retries": "0"})
    assert decoder.waiting(follow=False) == decoder
    registry.down = True
    slept = []

    class Clock(SystemClock):
        def sleep_ms(self, duration_ms):
            slept.append(duration_ms)
            registry.down = len(slept) < 3

    monkeypatch.setattr("tableformat.cdc.registry.decoder.SystemClock", Clock)
    assert decoder.waiting(follow=True).decode(batch).decoded.bad == {}
    assert len(slept) == 3


def test_registry_that_refuses_us_is_told_before_anything_begins(registry):
    registry.user_info = "me:hunter2"
    settings = {"basic.auth.user.info": "me:wrong", "max.retries": "0"}
    with pytest.raises(InvalidInputError, match="HTTP 401") as refused:
        decoder_of(registry, **settings).registry.check()
    assert "wrong" not in str(refused.value)
    with pytest.raises(InvalidInputError, match="no credentials") as refused:
        RegistrySettings("http://me:hunter2@registry:8081")
    assert "hunter2" not in str(refused.value)
    with pytest.raises(InvalidInputError, match="refuses a setting"):
        decoder_of(registry, **{"no.such.setting": "1"}).registry.check()
    registry.user_info = None
    nothing = RegistrySettings(f"{registry.url}/elsewhere", {"max.retries": "0"})
    with pytest.raises(InvalidInputError, match="HTTP 404"):
        RegistryDecoder(nothing).registry.check()


def test_avro_of_other_writers_has_the_connect_types_of_the_same_meaning():
    schema = {"type": "record", "name": "R", "doc": "rows", "fields": [
        {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}],
         "doc": "when"},
        {"name": "either", "type": ["null", "int", "string"]},
        {"name": "self", "type": ["null", "R"]},
        {"name": "raw", "type": {"type": "fixed", "name": "F", "size": 2},
         "default": "\u00ff\u0001"},
        {"name": "same", "type": "F"},
        {"name": "pairs", "type": {"type": "map", "values": "int"}},
    ]}  # fmt: skip
    found = avro_schema.connect_schema([schema])
    assert found["doc"] == "rows"
    assert found["fields"] == [
        {"field": "at", "type": "int64", "optional": True, "doc": "when",
         "name": "io.debezium.time.MicroTimestamp"},
        {"field": "either", "type": "union", "optional": True},
        {"field": "self", "type": "R", "optional": True},
        {"field": "raw", "type": "bytes", "optional": False, "default": "/wE="},
        {"field": "same", "type": "bytes", "optional": False},
        {"field": "pairs", "type": "map", "optional": False},
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "logical", "name"),
    [
        ("long", "timestamp-nanos", "io.debezium.time.NanoTimestamp"),
        ("long", "local-timestamp-nanos", "io.debezium.time.NanoTimestamp"),
        ("string", "uuid", "io.debezium.data.Uuid"),
        # Avro ignores a logical type on a type that it does not belong to.
        ("long", "date", None),
        ("int", "timestamp-millis", None),
        # 16 bytes, which no text of a UUID is
        ({"type": "fixed", "name": "U", "size": 16}, "uuid", None),
    ],
)
def test_logical_type_belongs_to_its_avro_type(kind, logical, name):
    typed = {"type": kind} if isinstance(kind, str) else kind
    field = {"name": "v", "type": {**typed, "logicalType": logical}}
    schema = {"type": "record", "name": "R", "fields": [field]}
    assert avro_schema.connect_schema([schema])["fields"][0].get("name") == name


def test_json_schema_of_other_writers_says_what_may_be_null():
    schema = {"type": "object", "required": ["id", "both"], "properties": {
        "id": {"type": "integer"}, "note": {"type": "string"},
        "both": {"type": ["null", "number"]}, "at": {"$ref": "#/$defs/at"},
        "self": {"$ref": "#"}, "loop": {"$ref": "#/$defs/loop"},
    }, "$defs": {"at": {"type": "boolean"}, "loop": {"type": "array", "items": {
        "$ref": "#/$defs/loop"}}}}  # fmt: skip
    fields = {each["field"]: each for each in json_schema.connect_schema(schema)["fields"]}
    assert {name: (each["type"], each["optional"]) for name, each in fields.items()} == {
        "id": ("int64", False), "note": ("string", True), "both": ("number", True),
        "at": ("boolean", True), "self": ("None", True), "loop": ("array", True),
    }  # fmt: skip
