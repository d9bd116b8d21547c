import io
import json
import subprocess
import sys
import uuid
from decimal import Decimal

import fastavro
import pytest

from tableformat.codec.avro.records import ROOT, WantedField, compile_record
from tableformat.codec.avro.values import MalformedAvroError


def record(*fields, name="r"):
    return {
        "type": "record",
        "name": name,
        "fields": [
            {"name": f"f{index}", "type": each, "field-id": index}
            for index, each in enumerate(fields)
        ],
    }


def encoded(schema, value):
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(json.dumps(schema))), value)
    return out.getvalue()


def decoded(schema, data, projections=None):
    value, position = compile_record(schema, projections or {}).decode(data, 0)
    assert position == len(data)
    return value


MAP = {
    "type": "array",
    "logicalType": "map",
    "items": {
        "type": "record",
        "name": "kv",
        "fields": [
            {"name": "key", "type": "int", "field-id": 117},
            {"name": "value", "type": "long", "field-id": 118},
        ],
    },
}
REVERSED_MAP = {**MAP, "items": {**MAP["items"], "fields": MAP["items"]["fields"][::-1]}}
DECIMAL = {"logicalType": "decimal", "precision": 38, "scale": 3}


@pytest.mark.parametrize(
    ("schema", "value", "expected"),
    [
        ("boolean", True, True),
        ("int", -(2**31), -(2**31)),
        ("long", 2**62, 2**62),
        ("float", 0.5, 0.5),
        ("double", -1e300, -1e300),
        ("bytes", b"\x00\xff", b"\x00\xff"),
        ("string", "Zürich 🤯", "Zürich 🤯"),
        (["null", "string"], None, None),
        (["string", "null"], "x", "x"),
        (["long"], 5, 5),
        ({"type": "fixed", "name": "f", "size": 3}, b"abc", b"abc"),
        ({"type": "array", "items": "long"}, [1, -(2**40), 3], [1, -(2**40), 3]),
        ({"type": "array", "items": ["null", "int"]}, [1, None], [1, None]),
        ({"type": "map", "values": "bytes"}, {"a": b"1"}, {"a": b"1"}),
        ({"type": "int", "logicalType": "unheard-of"}, 7, 7),
        ({"type": "long", "logicalType": "timestamp-nanos"}, 7, 7),
        (MAP, [{"key": 1, "value": 2**40}, {"key": 200, "value": -1}], {1: 2**40, 200: -1}),
        (REVERSED_MAP, [{"key": 1, "value": 20}], {1: 20}),
    ],
)  # fmt: skip
def test_value_of_every_type_is_decoded_as_fastavro_encodes_it(schema, value, expected):
    schema = record(schema)

    assert decoded(schema, encoded(schema, {"f0": value})) == (expected,)


@pytest.mark.parametrize(
    ("schema", "data", "expected"),
    [
        (
            {"type": "fixed", "name": "d", "size": 16, **DECIMAL},
            (-(10**37) - 1).to_bytes(16, "big", signed=True),
            Decimal("-10000000000000000000000000000000000.001"),
        ),
        ({"type": "bytes", **DECIMAL}, b"\x04\x05\xdc", Decimal("1.500")),
        (
            {"type": "fixed", "name": "u", "size": 16, "logicalType": "uuid"},
            bytes(range(16)),
            uuid.UUID(bytes=bytes(range(16))),
        ),
        (
            {"type": "string", "logicalType": "uuid"},
            b"\x48" + b"00010203-0405-0607-0809-0a0b0c0d0e0f",
            uuid.UUID(bytes=bytes(range(16))),
        ),
    ],
)
def test_logical_type_is_decoded_whatever_carries_it(schema, data, expected):
    assert decoded(record(schema), data) == (expected,)


def test_type_may_be_wrapped():
    assert decoded(record({"type": {"type": "long", "logicalType": "x"}}), b"\x0e") == (7,)


def test_named_type_may_be_referred_to():
    fixed = {"type": "fixed", "name": "two", "size": 2}

    assert decoded(record(fixed, ["null", "two"]), b"ab\x02cd") == (b"ab", b"cd")


def test_array_block_may_carry_its_size():
    data = b"\x03\x04\x02\x04" + b"\x00"  # -2 items, 2 bytes, 1, 2, end

    assert decoded(record({"type": "array", "items": "int"}), data) == ([1, 2],)


def test_projection_picks_by_id_in_its_own_order():
    schema = record("int", "string", "long")
    wanted = {2: WantedField("two"), 9: WantedField("nine"), 0: WantedField("zero", ("int",))}

    assert decoded(schema, b"\x02\x02x\x04", {ROOT: wanted}) == [2, None, 1]


def test_projection_reaches_records_in_lists_and_unions():
    inner = record("int", "int", name="inner")
    schema = record(["null", {"type": "array", "items": inner, "element-id": 508}])

    value = decoded(schema, b"\x02\x02\x02\x04\x00", {508: {1: WantedField("one")}})

    assert value == ([[2]],)


@pytest.mark.parametrize(
    ("wanted", "data", "problem"),
    [
        ({0: WantedField("x", ("str",))}, b"\x00", "x is a long"),
        ({7: WantedField("x", required=True)}, b"\x00", "x is not in the schema"),
        ({0: WantedField("x", required=True)}, b"\x00", "x is null"),
    ],
)
def test_field_that_breaks_the_rules_is_refused(wanted, data, problem):
    with pytest.raises(MalformedAvroError, match=problem):
        decoded(record(["null", "long"]), data, {ROOT: wanted})


DOUBLING = [record(name="n0")] + [
    record(*([f"n{i}"] * 2), name=f"n{i + 1}") for i in range(60)
]  # 2**60 records without a byte


@pytest.mark.parametrize(
    "schema",
    [
        None,
        5,
        "long",
        "r",
        [],
        {"type": "record"},
        {"type": "record", "fields": [{"type": "int"}]},
        {"type": "record", "fields": ["x"]},
        {"type": "record", "fields": [{"name": "a", "type": "int", "field-id": "1"}]},
        {"type": "record", "fields": [{"name": "a", "type": "int", "field-id": 1}] * 2},
        {"type": "enum", "name": "e", "symbols": ["A"]},
        record("unknown-type"),
        record(None),
        record(["int", "string"]),
        record([]),
        record("r"),
        record({"type": "array"}),
        record({"type": "array", "items": "null"}),
        record({"type": "array", "items": record(name="empty")}),
        record({"type": "array", "items": {"type": "fixed", "name": "z", "size": 0}}),
        record({"type": "array", "items": "int", "logicalType": "map"}),
        record({"type": "fixed", "name": "f", "size": -1}),
        record({"type": "fixed", "name": "f"}),
        record({"type": "bytes", "logicalType": "decimal", "scale": "2"}),
        ["null", record()],
        record(*DOUBLING),
    ],
    ids=lambda schema: str(schema)[:60],
)
def test_schema_that_is_none_of_ours_is_refused(schema):
    with pytest.raises(MalformedAvroError):
        compile_record(schema, {})


def test_schema_nested_too_deeply_is_refused():
    schema = "int"
    for _ in range(100):
        schema = {"type": "array", "items": schema}

    with pytest.raises(MalformedAvroError, match="deeply"):
        compile_record(record(schema), {})


@pytest.mark.parametrize(
    ("schema", "data"),
    [
        ("int", b"\x80\x80\x80\x80\x20"),
        ("boolean", b"\x02"),
        ("string", b"\x02\xff"),
        ("bytes", b"\x10abc"),
        ("bytes", b"\x01"),
        ("float", b"\x00\x00"),
        ("double", b"\x00" * 7),
        ({"type": "fixed", "name": "f", "size": 4}, b"abc"),
        (["null", "int"], b"\x04\x02"),
        (["null", "int"], b"\x01"),
        (["null", "int"], b"\x01\x02"),
        ({"type": "array", "items": "int"}, b"\xfe\xff\xff\xff\x0f\x02"),
        ({"type": "array", "items": "int"}, b"\x03\x7f\x02\x02\x00"),
        ({"type": "array", "items": "int"}, b"\x03\x01\x02\x02\x00"),
        (MAP, b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f\x02"),
        (MAP, b"\x01"),
        ({"type": "fixed", "name": "d", "size": 17, **DECIMAL}, bytes(17)),
    ],
)
def test_impossible_value_is_refused(schema, data):
    with pytest.raises((MalformedAvroError, IndexError, UnicodeDecodeError)):
        decoded(record(schema), data)


def test_array_that_claims_more_items_than_bytes_is_refused_at_once():
    schema = record({"type": "array", "items": "int"})

    with pytest.raises(MalformedAvroError, match="claims 4611686018427387904 items"):
        decoded(schema, b"\x80" * 8 + b"\x80\x01" + b"\x02" * 50)


def test_pyicebergs_compiled_decoder_dies_of_a_wrong_count():
    # The reason why it is not used. When this fails, it has learnt to check, and may be.
    code = (
        "from pyiceberg.avro.decoder_fast import CythonBinaryDecoder as D;"
        "D(b'\\x02\\x80\\x80\\x80\\x80\\x01abc').read_int_bytes_dict(1, {})"
    )

    result = subprocess.run([sys.executable, "-c", code], capture_output=True)

    assert result.returncode != 0
    assert b"EOFError" not in result.stderr
