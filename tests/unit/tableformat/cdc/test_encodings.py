from __future__ import annotations

import datetime as dt
import io
import random
import uuid
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.json as pj
import pytest
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampNanoType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from tableformat.cdc.encodings import (
    VARIABLE_SCALE,
    Encoding,
    EncodingDefaults,
    Hint,
    column_decoder,
    decode_rows,
)
from tableformat.errors import InvalidInputError, UnsupportedError

NOON = dt.datetime(2013, 1, 1, 12, 0, 0, 5)
NOON_UTC = NOON.replace(tzinfo=dt.UTC)
NOON_NS = pa.scalar(NOON, pa.timestamp("ns")).as_py()
BEFORE_1970 = dt.datetime(1969, 12, 31, 23, 59, 59, 999000)
UUID_TEXT = "00112233-4455-6677-8899-AABBCCDDEEFF"
DEFAULTS = EncodingDefaults(
    timestamps=Encoding.MICROS,
    times=Encoding.MICROS,
    decimals=Encoding.PRECISE,
    binaries=Encoding.BASE64,
)


def decode(
    kind: IcebergType, wire: pa.DataType, values: list[Any], hint: Encoding | None = None
) -> tuple[list[Any], dict[int, str]]:
    column = NestedField(1, "c", kind, required=False)
    decoder = column_decoder(column, None if hint is None else Hint(encoding=hint), DEFAULTS)
    assert wire in decoder.wires, (wire, decoder.wires)
    decoded, bad = decode_rows(pa.array(values, wire), decoder)
    assert decoded.type == decoder.target
    return decoded.to_pylist(), bad


CASES: list[tuple[IcebergType, pa.DataType, Encoding | None, Any, Any]] = [
    (BooleanType(), pa.bool_(), None, True, True),
    (BooleanType(), pa.int64(), None, 0, False),
    (IntegerType(), pa.int64(), None, -(2**31), -(2**31)),
    (LongType(), pa.int64(), None, 2**63 - 1, 2**63 - 1),
    (FloatType(), pa.float64(), None, 0.5, 0.5),
    (DoubleType(), pa.string(), None, "-Infinity", float("-inf")),
    (StringType(), pa.string(), None, "a\0ü ", "a\0ü "),
    (DecimalType(10, 2), pa.string(), None, "AN4=", Decimal("2.22")),
    (DecimalType(10, 2), pa.string(), None, "/w==", Decimal("-0.01")),
    (DecimalType(10, 2), pa.decimal256(76, 2), Encoding.TEXT, Decimal("1.50"), Decimal("1.50")),
    (DecimalType(10, 2), pa.float64(), Encoding.DOUBLE, 0.1 + 0.2, Decimal("0.30")),
    (DecimalType(10, 2), VARIABLE_SCALE, None, {"scale": 1, "value": "Dw=="}, Decimal("1.50")),
    (DateType(), pa.int64(), None, -1, dt.date(1969, 12, 31)),
    (DateType(), pa.string(), Encoding.ISO, "2013-02-28", dt.date(2013, 2, 28)),
    (DateType(), pa.string(), Encoding.ISO, "2013-02-28Z", dt.date(2013, 2, 28)),
    (TimeType(), pa.int64(), Encoding.MILLIS, 1_000, dt.time(0, 0, 1)),
    (TimeType(), pa.int64(), Encoding.NANOS, 1_000, dt.time(0, 0, 0, 1)),
    (TimeType(), pa.string(), Encoding.ISO, "23:59:59.999999Z", dt.time(23, 59, 59, 999999)),
    (TimestampType(), pa.int64(), None, 1_357_041_600_000_005, NOON),
    (TimestampType(), pa.int64(), Encoding.NANOS, 1_357_041_600_000_005_000, NOON),
    (TimestampType(), pa.int64(), Encoding.MILLIS, -1, BEFORE_1970),
    (TimestampType(), pa.string(), None, "2013-01-01T12:00:00.000005", NOON),
    (TimestampType(), pa.string(), Encoding.ISO, "2013-01-01T12:00:00.000005Z", NOON),
    (TimestamptzType(), pa.string(), None, "2013-01-01T14:00:00.000005+02:00", NOON_UTC),
    (TimestamptzType(), pa.int64(), None, 1_357_041_600_000_005, NOON_UTC),
    (TimestampNanoType(), pa.int64(), None, 1_357_041_600_000_005, NOON_NS),
    (UUIDType(), pa.string(), None, UUID_TEXT, uuid.UUID(UUID_TEXT)),
    (BinaryType(), pa.string(), None, "AAH/", b"\0\1\xff"),
    (FixedType(2), pa.string(), Encoding.HEX, "0aFF", b"\n\xff"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "wire", "hint", "value", "expected"), CASES)
def test_value_is_decoded_exactly_and_null_stays_null(
    kind: IcebergType, wire: pa.DataType, hint: Encoding | None, value: Any, expected: Any
) -> None:
    assert decode(kind, wire, [None, value, None], hint) == ([None, expected, None], {})


@pytest.mark.parametrize(
    ("kind", "wire", "hint", "value"),
    [
        (BooleanType(), pa.int64(), None, 2),
        (IntegerType(), pa.int64(), None, 2**31),
        (FloatType(), pa.float64(), None, -1e300),
        (DoubleType(), pa.string(), None, "one"),
        (DecimalType(4, 2), pa.string(), None, "D0JA"),
        (DecimalType(4, 2), pa.string(), None, "not base64"),
        (DecimalType(4, 2), VARIABLE_SCALE, None, {"scale": 3, "value": "AQ=="}),
        (DecimalType(4, 2), VARIABLE_SCALE, None, {"scale": None, "value": "AQ=="}),
        (DecimalType(4, 2), pa.float64(), Encoding.DOUBLE, float("nan")),
        (DateType(), pa.int64(), None, 2**40),
        (DateType(), pa.string(), None, "2013-02-30"),
        (TimeType(), pa.int64(), None, 86_400_000_000),
        (TimeType(), pa.int64(), None, -1),
        (TimeType(), pa.int64(), Encoding.NANOS, 1),
        (TimeType(), pa.string(), Encoding.ISO, "10:00:00+02:00"),
        (TimestampType(), pa.string(), None, "2013-01-01T12:00:00Z"),
        (TimestampType(), pa.string(), Encoding.ISO, "2013-01-01T12:00:00+02:00"),
        (TimestampType(), pa.int64(), Encoding.NANOS, 1),
        (TimestampType(), pa.int64(), Encoding.SECONDS, 2**62),
        (TimestamptzType(), pa.string(), None, "2013-01-01T12:00:00"),
        (TimestamptzType(), pa.string(), None, "2013-01-01T12:00:00.0000001Z"),
        (UUIDType(), pa.string(), None, "0011"),
        (FixedType(2), pa.string(), None, "AA=="),
    ],
)
def test_value_that_the_column_cannot_hold_is_bad_and_the_others_are_not(
    kind: IcebergType, wire: pa.DataType, hint: Encoding | None, value: Any
) -> None:
    decoded, bad = decode(kind, wire, [None] * 3 + [value] + [None] * 4, hint)
    assert list(bad) == [3]
    assert bad[3].startswith("column 'c': ")
    assert ("offset from UTC" in bad[3]) == (value == "10:00:00+02:00")
    assert decoded == [None] * 8


def test_good_values_around_bad_ones_are_kept() -> None:
    values = [n if n % 5 else 2**40 for n in range(100)]
    decoded, bad = decode(IntegerType(), pa.int64(), values)
    assert sorted(bad) == list(range(0, 100, 5))
    assert decoded == [n if n % 5 else None for n in range(100)]


def test_declared_encoding_excludes_the_other_wire_types() -> None:
    column = NestedField(1, "c", TimestampType(), required=False)
    assert column_decoder(column, Hint(encoding=Encoding.MILLIS), DEFAULTS).wires == (pa.int64(),)
    assert column_decoder(column, Hint(encoding=Encoding.ISO), DEFAULTS).wires == (pa.string(),)


def test_encoding_of_another_type_is_refused_with_those_that_fit() -> None:
    column = NestedField(1, "c", TimestampType(), required=False)
    with pytest.raises(InvalidInputError, match=r"'base64' does not fit.*use one of s, ms, us"):
        column_decoder(column, Hint(encoding=Encoding.BASE64), DEFAULTS)


def test_nested_plain_values_are_taken_as_they_are() -> None:
    kind = StructType(
        NestedField(2, "x", LongType(), required=False),
        NestedField(3, "l", ListType(4, StringType(), element_required=False), required=False),
    )
    column = NestedField(1, "c", kind, required=False)
    decoder = column_decoder(column, None, DEFAULTS)
    value = {"x": 1, "l": ["a", None]}
    assert decode_rows(pa.array([value], decoder.wires[0]), decoder)[0].to_pylist() == [value]


@pytest.mark.parametrize(
    "kind",
    [
        MapType(2, StringType(), 3, StringType()),
        ListType(2, MapType(3, StringType(), 4, StringType()), element_required=False),
    ],
)
def test_nested_type_without_a_json_form_is_refused_by_name(kind: IcebergType) -> None:
    with pytest.raises(UnsupportedError, match="column=c"):
        column_decoder(NestedField(1, "c", kind, required=False), None, DEFAULTS)


@pytest.mark.parametrize("encoding", [Encoding.TEXT, Encoding.PRECISE])
@pytest.mark.parametrize(("precision", "scale"), [(10, 2), (38, 0), (38, 10), (38, 38)])
def test_decimal_that_is_a_json_number_is_that_number_or_refused(encoding, precision, scale):
    """`decimal.format=NUMERIC`: 128 bits overflow unseen in Arrow's reader."""
    rng, read = random.Random(scale), 0
    column = NestedField(1, "c", DecimalType(precision, scale), required=False)
    decoder = column_decoder(column, Hint(encoding=encoding), DEFAULTS)
    schema = pa.schema([("c", next(w for w in decoder.wires if pa.types.is_decimal(w)))])
    for _ in range(300):
        digits = rng.randint(0, 10 ** rng.randint(0, 76))
        text = f"{digits}{rng.choice(['', '.0', '.25', 'e3', 'E-2', '0' * 20])}"
        try:
            table = pj.read_json(
                io.BytesIO(b'{"c":%s}' % text.encode()),
                parse_options=pj.ParseOptions(explicit_schema=schema),
            )
        except pa.ArrowInvalid:
            continue  # which makes a bad record of it
        decoded, bad = decode_rows(table.column(0).combine_chunks(), decoder)
        number = Decimal(text)
        fits = abs(number) < Decimal(10) ** (precision - scale)
        assert (decoded.to_pylist() == [number]) == fits, text
        assert bool(bad) != fits
        read += fits
    assert read > 5
