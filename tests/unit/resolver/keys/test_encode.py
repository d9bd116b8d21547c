"""Canonical key bytes: golden bytes, refusals, and equality against Python's own (I5, G12)."""

from __future__ import annotations

import datetime as dt
import itertools
import unicodedata
import uuid
from decimal import Context, Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    FixedType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from resolver.keys import KeySchema, encode_batch, encode_keys, key_columns
from tableformat.errors import InvalidInputError

_WIDE = Context(prec=60)


def key_of(*types: IcebergType) -> KeySchema:
    fields = [NestedField(i, f"c{i}", t, required=False) for i, t in enumerate(types, start=1)]
    return KeySchema.of(Schema(*fields), range(1, len(types) + 1))


def encode(field_type: IcebergType, column: pa.Array | pa.ChunkedArray) -> list[bytes]:
    return encode_keys([column], key_of(field_type)).to_list()


ARROW: list[tuple[IcebergType, pa.DataType, st.SearchStrategy[Any]]] = [
    (BooleanType(), pa.bool_(), st.booleans()),
    (IntegerType(), pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    (LongType(), pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (DateType(), pa.date32(), st.integers(-(2**31), 2**31 - 1)),
    (TimeType(), pa.time64("us"), st.integers(0, 86_399_999_999)),
    (TimestampType(), pa.timestamp("us"), st.integers(-(2**62), 2**62)),
    (TimestamptzType(), pa.timestamp("us", "UTC"), st.integers(-(2**62), 2**62)),
    (TimestampNanoType(), pa.timestamp("ns"), st.integers(-(2**62), 2**62)),
    (TimestamptzNanoType(), pa.timestamp("ns", "UTC"), st.integers(-(2**62), 2**62)),
    (DecimalType(9, 2), pa.decimal128(9, 2), st.integers(-(10**9) + 1, 10**9 - 1)),
    (DecimalType(38, 10), pa.decimal128(38, 10), st.integers(-(10**38) + 1, 10**38 - 1)),
    (StringType(), pa.string(), st.text(max_size=6)),
    (BinaryType(), pa.binary(), st.binary(max_size=6)),
    (FixedType(3), pa.binary(3), st.binary(min_size=3, max_size=3)),
    (UUIDType(), pa.binary(16), st.binary(min_size=16, max_size=16)),
]
IDS = [str(case[0]) for case in ARROW]


def arrow_of(values: list[Any], arrow_type: pa.DataType) -> pa.Array:
    """A column of values in the type's storage: counts, unscaled integers, bytes, text."""
    if pa.types.is_decimal(arrow_type):
        scale = arrow_type.scale
        decimals = [None if v is None else Decimal(v).scaleb(-scale, _WIDE) for v in values]
        return pa.array(decimals, type=arrow_type)
    if pa.types.is_date32(arrow_type):
        return pa.array(values, type=pa.int32()).cast(arrow_type)
    if pa.types.is_temporal(arrow_type):
        return pa.array(values, type=pa.int64()).cast(arrow_type)
    return pa.array(values, type=arrow_type)


# -- golden bytes: on disk, so a change here is a new encoding version ---------------------------


@pytest.mark.parametrize(
    ("field_type", "column", "expected"),
    [
        (LongType(), pa.array([1, -1, None, 2**63 - 1, -(2**63)]), [
            "8000000000000001", "7fffffffffffffff", "00", "ffffffffffffffff", "0000000000000000",
        ]),
        (BooleanType(), pa.array([True, False]), ["8000000000000001", "8000000000000000"]),
        (DateType(), pa.array([dt.date(1970, 1, 2)]), ["8000000000000001"]),
        (TimeType(), pa.array([dt.time(0, 0, 1)], pa.time64("us")), ["80000000000f4240"]),
        (TimestampType(), pa.array([1], pa.timestamp("us")), ["8000000000000001"]),
        (TimestampNanoType(), pa.array([1], pa.timestamp("ns")), ["8000000000000001"]),
        (DecimalType(9, 2), pa.array([Decimal("1.20"), Decimal("-0.01"), None]), [
            "80000000000000000000000000000078", "7fffffffffffffffffffffffffffffff", "00",
        ]),
        (StringType(), pa.array(["", "é", None]), ["01", "01c3a9", "00"]),
        (BinaryType(), pa.array([b"", b"\x00", None]), ["01", "0100", "00"]),
        (FixedType(2), pa.array([b"ab", None], pa.binary(2)), ["016162", "00"]),
        (UUIDType(), pa.array([uuid.UUID(int=1).bytes], pa.binary(16)), ["0" * 31 + "1"]),
    ],
    ids=lambda case: str(case) if isinstance(case, IcebergType) else "",
)  # fmt: skip
def test_single_column_key_has_golden_bytes(
    field_type: IcebergType, column: pa.Array, expected: list[str]
) -> None:
    assert [key.hex() for key in encode(field_type, column)] == expected


def test_composite_key_has_golden_bytes() -> None:
    fixed = encode_keys(
        [pa.array([5, None]), pa.array([b"xyz", None], pa.binary(3))],
        key_of(LongType(), FixedType(3)),
    )
    assert [key.hex() for key in fixed.to_list()] == ["0180000000000000050178797a", "00" * 13]
    ragged = encode_keys(
        [pa.array([5, None]), pa.array(["ab", None])], key_of(LongType(), StringType())
    )
    assert [key.hex() for key in ragged.to_list()] == [
        "01800000000000000501000000026162",
        "0000000000000000000000000000",
    ]


# -- equal iff equal -----------------------------------------------------------------------------


@pytest.mark.parametrize(("field_type", "arrow_type", "values"), ARROW, ids=IDS)
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_bytes_are_equal_iff_values_are(
    field_type: IcebergType, arrow_type: pa.DataType, values: st.SearchStrategy[Any], data: Any
) -> None:
    pool = data.draw(st.lists(st.one_of(st.none(), values), min_size=1, max_size=8))
    rows = data.draw(st.lists(st.sampled_from(pool), min_size=1, max_size=20))
    keys = encode(field_type, arrow_of(rows, arrow_type))
    for (a, key_a), (b, key_b) in itertools.combinations(zip(rows, keys, strict=True), 2):
        assert (a == b) == (key_a == key_b)
    assert all(key for key in keys), "the empty key is the index header's"


@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_composite_bytes_are_equal_iff_tuples_are(data: Any) -> None:
    cases = data.draw(st.lists(st.sampled_from(ARROW), min_size=2, max_size=3))
    pools = [
        data.draw(st.lists(st.one_of(st.none(), case[2]), min_size=1, max_size=4)) for case in cases
    ]
    rows = data.draw(
        st.lists(st.tuples(*(st.sampled_from(p) for p in pools)), min_size=1, max_size=15)
    )
    columns = [arrow_of([row[i] for row in rows], case[1]) for i, case in enumerate(cases)]
    keys = encode_keys(columns, key_of(*(case[0] for case in cases))).to_list()
    for (a, key_a), (b, key_b) in itertools.combinations(zip(rows, keys, strict=True), 2):
        assert (a == b) == (key_a == key_b)


# Few different bytes, so that strings that are put together alike are common.
SHORT = st.lists(st.sampled_from([0, 1, 2, 97]), max_size=3).map(bytes)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(SHORT, SHORT), max_size=12, unique=True))
def test_neighbouring_strings_never_run_together(pairs: list[tuple[bytes, bytes]]) -> None:
    columns = [pa.array([pair[i] for pair in pairs], pa.binary()) for i in (0, 1)]
    keys = encode_keys(columns, key_of(BinaryType(), BinaryType())).to_list()
    assert len(set(keys)) == len(pairs)


def test_r31_pairs_that_look_alike_stay_apart() -> None:
    composite = encode_keys(
        [pa.array(["a", "ab", None, ""]), pa.array(["bc", "c", "", None])],
        key_of(StringType(), StringType()),
    )
    assert len(set(composite.to_list())) == 4
    nfc, nfd = unicodedata.normalize("NFC", "é"), unicodedata.normalize("NFD", "é")
    texts = [nfc, nfd, "a", "a ", "a\0", "a\0\0", "", "\0", None, "A"]
    assert len(set(encode(StringType(), pa.array(texts)))) == len(texts)


def test_r24_null_is_neither_zero_nor_empty() -> None:
    zeros = {pa.bool_(): False, pa.string(): "", pa.binary(): b"", pa.binary(3): bytes(3)}
    zeros[pa.binary(16)] = bytes(16)
    for field_type, arrow_type, _ in ARROW:
        null, zero = encode(field_type, arrow_of([None, zeros.get(arrow_type, 0)], arrow_type))
        assert null != zero, field_type


# -- promotions ----------------------------------------------------------------------------------


@given(st.lists(st.one_of(st.none(), st.integers(-(2**31), 2**31 - 1)), max_size=20))
def test_r20_int_and_long_have_equal_bytes(values: list[int | None]) -> None:
    as_int = encode(IntegerType(), pa.array(values, pa.int32()))
    assert as_int == encode(LongType(), pa.array(values, pa.int64()))
    assert as_int == encode(LongType(), pa.array(values, pa.int32()))
    assert key_of(IntegerType()).fingerprint == key_of(LongType()).fingerprint


def test_r20_long_beyond_int_is_not_cut_for_an_int_key() -> None:
    big, small, null = encode(IntegerType(), pa.array([2**32, 0, None]))
    assert len({big, small, null}) == 3


def test_decimals_of_any_precision_have_equal_bytes() -> None:
    values = [Decimal("1.20"), Decimal("-9.99"), None, Decimal(0)]
    narrow = encode(DecimalType(3, 2), pa.array(values, pa.decimal128(3, 2)))
    for wide in (
        pa.decimal32(9, 2),
        pa.decimal64(18, 2),
        pa.decimal128(38, 2),
        pa.decimal256(50, 2),
    ):
        assert encode(DecimalType(38, 2), pa.array(values, wide)) == narrow
    assert key_of(DecimalType(3, 2)).fingerprint == key_of(DecimalType(38, 2)).fingerprint
    assert key_of(DecimalType(9, 2)).fingerprint != key_of(DecimalType(9, 3)).fingerprint


def test_r31_date_column_of_a_timestamp_key_is_promoted_and_changes_the_fingerprint() -> None:
    day = dt.date(2024, 2, 29)
    midnight = dt.datetime(2024, 2, 29)
    for key, unit in ((TimestampType(), "us"), (TimestampNanoType(), "ns")):
        promoted = encode(key, pa.array([day]))
        assert promoted == encode(key, pa.array([midnight], pa.timestamp(unit)))
        assert key_of(key).fingerprint != key_of(DateType()).fingerprint


def test_units_and_zones_are_different_keys() -> None:
    temporal = [DateType(), TimeType(), TimestampType(), TimestamptzType(), TimestampNanoType(),
                TimestamptzNanoType(), LongType(), BooleanType()]  # fmt: skip
    assert len({key_of(t).fingerprint for t in temporal}) == len(temporal)


def test_timestamptz_in_any_zone_is_the_same_instant() -> None:
    utc = pa.array([1_700_000_000_000_000], pa.timestamp("us", "UTC"))
    berlin = utc.cast(pa.timestamp("us", "Europe/Berlin"))
    assert encode(TimestamptzType(), utc) == encode(TimestamptzType(), berlin)


def test_r26_temporal_columns_in_other_units_are_converted() -> None:
    assert encode(TimeType(), pa.array([1500], pa.time32("ms"))) == encode(
        TimeType(), pa.array([1_500_000], pa.time64("us"))
    )
    seconds = pa.array([7], pa.timestamp("s"))
    assert encode(TimestampType(), seconds) == encode(
        TimestampType(), pa.array([7_000_000], pa.timestamp("us"))
    )


# -- how the column is stored does not matter ----------------------------------------------------


@pytest.mark.parametrize(("field_type", "arrow_type", "values"), ARROW, ids=IDS)
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_slices_chunks_and_dictionaries_have_the_same_bytes(
    field_type: IcebergType, arrow_type: pa.DataType, values: st.SearchStrategy[Any], data: Any
) -> None:
    rows = data.draw(st.lists(st.one_of(st.none(), values), min_size=3, max_size=10))
    column = arrow_of(rows, arrow_type)
    expected = encode(field_type, column)
    assert encode(field_type, column[1:]) == expected[1:]
    assert encode(field_type, pa.chunked_array([column[:2], column[2:]])) == expected
    assert encode(field_type, column[:0]) == []
    assert encode(field_type, pa.chunked_array([], type=arrow_type)) == []
    if not pa.types.is_boolean(arrow_type):
        assert encode(field_type, column.dictionary_encode()) == expected
    pair = encode_keys([column, column], key_of(field_type, field_type)).to_list()
    sliced = encode_keys([column[1:], column[1:]], key_of(field_type, field_type)).to_list()
    assert sliced == pair[1:]


def test_large_view_and_extension_columns_have_the_same_bytes() -> None:
    texts = ["x", None, "yy"]
    expected = encode(StringType(), pa.array(texts))
    assert encode(StringType(), pa.array(texts, pa.large_string())) == expected
    assert encode(StringType(), pa.array(texts, pa.string_view())) == expected
    blobs = [b"x", None, b"yy"]
    for arrow_type in (pa.large_binary(), pa.binary_view()):
        assert encode(BinaryType(), pa.array(blobs, arrow_type)) == encode(
            BinaryType(), pa.array(blobs)
        )
    ids = [uuid.UUID(int=7).bytes, None]
    extension = pa.ExtensionArray.from_storage(pa.uuid(), pa.array(ids, pa.binary(16)))
    assert encode(UUIDType(), extension) == encode(UUIDType(), pa.array(ids, pa.binary(16)))


def test_column_of_type_null_is_all_nulls() -> None:
    for field_type, _, _ in ARROW:
        assert encode(field_type, pa.nulls(2)) == [b"\x00", b"\x00"]


def test_garbage_under_nulls_does_not_leak_into_composite_keys() -> None:
    words = np.array([[1, 2, 3], [4, 5, 6]], dtype=np.uint8)
    mask = pa.py_buffer(b"\x00")
    column = pa.FixedSizeBinaryArray.from_buffers(pa.binary(3), 2, [mask, pa.py_buffer(words)])
    longs = pa.Array.from_buffers(pa.int64(), 2, [mask, pa.py_buffer(np.array([7, 8]))])
    keys = encode_keys([column, longs], key_of(FixedType(3), LongType())).to_list()
    assert keys[0] == keys[1] == bytes(13)


# -- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field_type", "column"),
    [
        (LongType(), pa.array(["1"])),
        (LongType(), pa.array([1.0])),
        (LongType(), pa.array([2**63], pa.uint64())),
        (StringType(), pa.array([b"x"])),
        (BinaryType(), pa.array(["x"])),
        (UUIDType(), pa.array([str(uuid.UUID(int=1))])),
        (UUIDType(), pa.array([b"x" * 15], pa.binary(15))),
        (FixedType(3), pa.array([b"xx"], pa.binary(2))),
        (TimestampType(), pa.array([1], pa.timestamp("us", "UTC"))),
        (TimestamptzType(), pa.array([1], pa.timestamp("us"))),
        (TimestamptzType(), pa.array([dt.date(2020, 1, 1)])),
        (TimestampType(), pa.array([1], pa.timestamp("ns"))),
        (DateType(), pa.array([1], pa.timestamp("us"))),
        (DecimalType(9, 2), pa.array([Decimal("1.234")])),
        (DecimalType(9, 2), pa.array([1])),
        (DecimalType(38, 10), pa.array([Decimal(28335866171888863528086874558239339319)])),
        (BooleanType(), pa.array([1])),
    ],
)
def test_column_of_another_type_is_refused(field_type: IcebergType, column: pa.Array) -> None:
    with pytest.raises(InvalidInputError, match="c1"):
        encode(field_type, column)


def test_wrong_number_or_length_of_columns_is_refused() -> None:
    key = key_of(LongType(), LongType())
    with pytest.raises(InvalidInputError):
        encode_keys([pa.array([1])], key)
    with pytest.raises(InvalidInputError):
        encode_keys([pa.array([1]), pa.array([1, 2])], key)


# -- columns of a batch --------------------------------------------------------------------------


def test_r13_key_columns_are_found_by_name_wherever_they_stand() -> None:
    schema = Schema(
        NestedField(1, "v", StringType()), NestedField(2, "b", StringType()),
        NestedField(3, "a", LongType()),
    )  # fmt: skip
    key = KeySchema.of(schema, [3, 2])
    one = pa.record_batch({"v": ["x"], "b": ["k"], "a": [9]})
    two = pa.record_batch({"a": [9], "z": [0], "b": ["k"]})
    assert encode_batch(one, key).to_list() == encode_batch(two, key).to_list()
    with pytest.raises(InvalidInputError, match="missing"):
        encode_batch(pa.record_batch({"a": [9]}), key)


def test_null_struct_has_null_leaves() -> None:
    schema = Schema(
        NestedField(1, "s", StructType(NestedField(2, "id", LongType())), required=False)
    )
    key = KeySchema.of(schema, [2])
    column = pa.array([{"id": 1}, None, {"id": None}], pa.struct([("id", pa.int64())]))
    batch = pa.record_batch({"s": column})
    (leaf,) = key_columns(batch, key)
    assert leaf.to_pylist() == [1, None, None]
    assert encode_batch(batch, key).to_list()[1] == b"\x00"
    assert encode_batch(batch.slice(1), key).to_list() == [b"\x00", b"\x00"]
    with pytest.raises(InvalidInputError, match=r"s\.id"):
        encode_batch(pa.record_batch({"s": [1]}), key)
