"""Codes against Python's own idea of equality, value by value."""

import math
import struct
from datetime import date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from tableformat.changelog.value_codes import value_codes

NAN_2 = struct.unpack("<d", struct.pack("<Q", 0x7FF8000000000001))[0]
POINT = pa.struct([("x", pa.int64()), ("y", pa.list_(pa.string()))])
CASES = {
    "bool": (pa.bool_(), [True, False, None, True]),
    "long": (pa.int64(), [1, 2, None, 1, None]),
    "text": (pa.string(), ["", None, "a", "", "b"]),
    "large text": (pa.large_string(), ["", None, "a", "a"]),
    "bytes": (pa.binary(), [b"", None, b"\x00", b"\x00"]),
    "fixed": (pa.binary(2), [b"ab", None, b"ab", b"cd"]),
    "decimal": (pa.decimal128(9, 2), [Decimal("1.10"), None, Decimal("1.10")]),
    "date": (pa.date32(), [date(2020, 1, 1), None, date(2020, 1, 1)]),
    "time": (pa.timestamp("us"), [datetime(2020, 1, 1), None, datetime(2020, 1, 1)]),
    "unknown": (pa.null(), [None, None]),
    "list": (pa.list_(pa.int64()), [[1, 2], [2, 1], [], None, [None], [1, 2], [1], []]),
    "nested list": (pa.list_(pa.list_(pa.string())), [[["a"], []], [["a"]], [["a"], []], [None]]),
    "map": (pa.map_(pa.string(), pa.int64()), [[("a", 1)], [("a", 2)], [], None, [("a", 1)]]),
    "struct": (
        POINT,
        [{"x": 1, "y": ["a"]}, {"x": 1, "y": None}, None, {"x": 1, "y": ["a"]}, {"x": None}],
    ),
}


def is_same(left, right):
    return left == right


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("sliced", [False, True])
def test_codes_are_equal_exactly_where_values_are(name, sliced):
    kind, values = CASES[name]
    array = pa.array(values, kind)
    if sliced:
        array = pa.concat_arrays([pa.array(values[::-1], kind), array])[len(values) :]
    codes = value_codes([array])
    found = array.to_pylist()
    for one, left in enumerate(found):
        for other, right in enumerate(found):
            assert (codes[one] == codes[other]) == (left == right), (left, right)


def test_floats_are_told_apart_by_sign_of_zero_and_every_nan_is_one():
    array = pa.array([0.0, -0.0, math.nan, NAN_2, None, 1.5], pa.float64())
    zero, minus, nan, nan_2, null, number = value_codes([array]).tolist()
    assert nan == nan_2
    assert len({zero, minus, nan, null, number}) == 5
    single = value_codes([array.cast(pa.float32())]).tolist()
    assert single[2] == single[3]
    assert len(set(single)) == 5


def test_what_null_lists_and_structs_hide_does_not_count():
    mask = pa.array([True, True, False])
    lists = pa.ListArray.from_arrays([0, 1, 3, 4], pa.array([1, 2, 3, 1]), mask=mask)
    assert value_codes([lists]).tolist()[:2] == [0, 0]
    structs = pa.StructArray.from_arrays([pa.array([1, 2, 1])], ["x"], mask=mask)
    codes = value_codes([structs]).tolist()
    assert codes[0] == codes[1] != codes[2]


def test_several_columns_are_compared_one_by_one():
    left = pa.array(["a", "ab", "a", "ab", None])
    right = pa.array(["bc", "c", "bc", None, "c"])
    codes = value_codes([left, right]).tolist()
    assert codes[0] == codes[2]
    assert len(set(codes)) == 4


def test_no_rows_have_no_codes():
    assert value_codes([pa.array([], pa.int64()), pa.array([], pa.string())]).size == 0
