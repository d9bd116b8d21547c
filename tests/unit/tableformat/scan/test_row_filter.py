from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.expressions import (
    EqualTo,
    GreaterThan,
    In,
    LessThan,
    LessThanOrEqual,
    NotEqualTo,
    NotIn,
)
from pyiceberg.schema import Schema
from pyiceberg.types import (
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimeType,
)

from tableformat.errors import InvalidInputError
from tableformat.scan.row_filter import arrow_filter, bind_filter, normalize_filter, parse_filter

SCHEMA = Schema(
    NestedField(1, "i", IntegerType(), required=False),
    NestedField(2, "l", LongType(), required=False),
    NestedField(3, "d", DecimalType(9, 2), required=False),
    NestedField(4, "x", DoubleType(), required=False),
    NestedField(5, "s", StringType(), required=False),
    NestedField(6, "f", FloatType(), required=False),
    NestedField(7, "day", DateType(), required=False),
    NestedField(8, "t", TimeType(), required=False),
)
ROWS = pa.record_batch(
    {
        "i": pa.array([1, 2, None, -3, 2**31 - 1], pa.int32()),
        "l": pa.array([1, 2**40, None, -(2**63), 2**63 - 1], pa.int64()),
        "d": pa.array(
            [Decimal("1.20"), Decimal("1.25"), None, Decimal("-9999999.99"), Decimal(0)],
            pa.decimal128(9, 2),
        ),
        "x": pa.array([1.5, math.nan, None, -math.inf, 0.1]),
        "s": pa.array(["a", "ab", None, "", "B"]),
        "f": pa.array([0.1, math.nan, None, -0.0, 0.0], pa.float32()),
        "day": pa.array([dt.date(1969, 12, 31), dt.date(2024, 2, 29), None, *[dt.date.max] * 2]),
        "t": pa.array(
            [dt.time(10), dt.time(10, 0, 0, 123456), None, dt.time(0), dt.time(23)], pa.time64("us")
        ),
    }
)


def kept(row_filter) -> list[int]:
    bound = bind_filter(parse_filter(row_filter), SCHEMA)
    numbered = ROWS.append_column("n", pa.array(range(5)))
    return numbered.filter(arrow_filter(bound, SCHEMA)).column("n").to_pylist()


@pytest.mark.parametrize(
    ("row_filter", "rows"),
    [
        ("i > 1.5", [1, 4]),
        ("i >= 1.5", [1, 4]),
        ("i < 1.5", [0, 3]),
        ("i <= -2.5", [3]),
        ("i >= -3.5", [0, 1, 3, 4]),
        ("i = 1.5", []),
        ("i != 1.5", [0, 1, 3, 4]),
        ("not (i = 1.5)", [0, 1, 3, 4]),
        ("i < 99999999999", [0, 1, 3, 4]),
        ("i > -99999999999", [0, 1, 3, 4]),
        ("i > 99999999999", []),
        ("i != 99999999999", [0, 1, 3, 4]),
        ("i in (1, 99999999999)", [0]),
        ("i not in (1, 99999999999)", [1, 3, 4]),
        ("i not in (88888888888, 99999999999)", [0, 1, 3, 4]),
        ("l < 99999999999999999999", [0, 1, 3, 4]),
        ("l <= 9223372036854775807", [0, 1, 3, 4]),
        ("l = -9223372036854775808", [3]),
        ("d > 1.2", [1]),
        ("d >= 1.2", [0, 1]),
        ("d = 1.2", [0]),
        ("d > 1.225", [1]),
        ("d < 1.205", [0, 3, 4]),
        ("d = 1.205", []),
        ("d < 99999999", [0, 1, 3, 4]),
        ("d > -99999999.5", [0, 1, 3, 4]),
        ("d in (1.2, 1.255)", [0]),
        ("d = 0", [4]),
        ("x > 1", [0, 1]),
        ("x >= 1.5", [0, 1]),
        ("x < 1", [3, 4]),
        ("x = 0.1", [4]),
        ("x != 0.1", [0, 1, 3]),
        ("not (x < 1)", [0, 1]),
        ("x is nan", [1]),
        ("x is not nan", [0, 2, 3, 4]),
        ("f = 0.1", [0]),
        ("f = 0", [3, 4]),
        ("f < 0", []),
        (f"f < 1{'0' * 39}", [0, 3, 4]),
        (f"f > -1{'0' * 39}", [0, 1, 3, 4]),
        (f"f != 1{'0' * 39}", [0, 1, 3, 4]),
        (f"f >= 1{'0' * 39}", [1]),
        (In("f", [1e39, 0.1]), [0]),
        ("l > 1E3", [1, 4]),
        ("l = 1099511627776e0", [1]),
        ("-25e-1 >= i", [3]),
        ("d in (12e-1, 125.0e-2, 7)", [0, 1]),
        ("x in (1.5, 1, 1e-1)", [0, 4]),
        ("x > 1e300", [1]),
        ("s = '1e3' or s in ('a, (1)', 'it''s', 'ab')", [1]),
        ("not (i in ( 1,2 ,-3)) and not l not in (1)", []),
        ("i in (1)", [0]),
        ("s = ''", [3]),
        ("s like 'a%'", [0, 1]),
        ("s not like 'a%'", [3, 4]),
        ("s not in ('a', 'B')", [1, 3]),
        ("not (s in ('a', 'B'))", [1, 3]),
        ("s is null", [2]),
        ("s is null or i > 100", [2, 4]),
        ("not (i > 1 and s = 'ab')", [0, 3, 4]),
        ("", [0, 1, 2, 3, 4]),
        (None, [0, 1, 2, 3, 4]),
        (EqualTo("i", 2), [1]),
        (In("d", [Decimal("1.2"), 0]), [0, 4]),
        (NotIn("d", [Decimal("1.2"), 1.255]), [1, 3, 4]),
        (NotEqualTo("i", 2.0), [0, 3, 4]),
        (EqualTo("i", math.inf) | EqualTo("i", 1), None),
        ("i = '2'", [1]),
        ("i = '2.7'", []),
        ("i >= '1.5'", [1, 4]),
        ("i in ('2.0', '1.5')", [1]),
        ("l != '9223372036854775807.5'", [0, 1, 3, 4]),
        ("d = '1.2'", [0]),
        ("d < '1.205'", [0, 3, 4]),
        ("f = '0.1'", [0]),
        ("f in ('0.1', '-0')", [0, 3, 4]),
        ("day = '2024-02-29'", [1]),
        (EqualTo("day", dt.datetime(2024, 2, 29, 5)), []),
        (LessThan("day", dt.datetime(2024, 2, 29, 5)), [0, 1]),
        (GreaterThan("day", dt.datetime(2024, 2, 29, 5)), [3, 4]),
        (In("day", [dt.datetime(2024, 2, 29), dt.datetime(2024, 3, 1, 1)]), [1]),
        (In("day", [dt.date(2024, 2, 29), dt.datetime(9999, 12, 31, 1)]), [1]),
        ("day not in ('2024-02-29', '9999-12-31')", [0]),
        ("t = '10:00:00.123456'", [1]),
        ("t in ('10:00:00.123456', '23:00', '00:00')", [1, 3, 4]),
        ("t not in ('10:00:00.123456', '00:00')", [0, 4]),
        (In("t", [dt.time(23), dt.time(10)]), [0, 4]),
        ("t > '10:00'", [1, 4]),
    ],
)
def test_filter_keeps_what_sql_keeps(row_filter, rows) -> None:
    if rows is None:
        with pytest.raises(InvalidInputError):
            kept(row_filter)
    else:
        assert kept(row_filter) == rows


@pytest.mark.parametrize(
    "row_filter",
    [
        "i >",
        "nope = 1",
        "i = 'x'",
        "i = 1 and",
        "s > 5 5",
        "d = 'a'",
        "i.j = 1",
        "x like 'a%'",
        "t = '10:00:00.1234567'",
        "t = '10:00+02:00'",
        "f = 'a'",
        "f = 'nan'",
        "x > 'nan'",
    ],
)
def test_filter_that_cannot_be_is_refused_in_one_line(row_filter: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        bind_filter(parse_filter(row_filter), SCHEMA)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("row_filter", "at"),
    [("i = NULL", 5), ("i in (1, null)", 10), ("s not in ('NULL', Null)", 19), ("null = i", 1)],
)
def test_comparison_with_null_is_refused_and_says_where(row_filter: str, at: int) -> None:
    with pytest.raises(InvalidInputError, match=rf"NULL at character {at} .* COLUMN IS NULL"):
        parse_filter(row_filter)


@pytest.mark.parametrize("text", ["'\\" * 50_000, "i in (" + "1" * 200_000, "'" * 50_001])
def test_text_that_matches_nothing_is_refused_at_once(text: str) -> None:
    with pytest.raises(InvalidInputError, match="cannot read the filter"):
        parse_filter(text)


def test_filter_that_cannot_be_read_says_where_in_the_text_as_given() -> None:
    with pytest.raises(InvalidInputError, match="at character 26;"):
        parse_filter("i = 1e3 or i in (1,2) or l > !")
    with pytest.raises(InvalidInputError, match="at character 6;"):
        parse_filter("l = 1_000")


@pytest.mark.parametrize(
    ("row_filter", "said"),
    [
        ('s = "a"', "at character 5: texts are in single quotes"),
        ('i = 1 and "s" = "a"', "at character 17: texts are in single quotes"),
        ('s like "a%"', "at character 8: texts are in single quotes"),
        ('s in ("a", "b")', "at character 7: texts are in single quotes"),
        ("i = 1 or s = 'a", "at character 14: a text does not end"),
        ("s = 'a\nb'", "at character 5: a text holds a line break"),
        ('"s" = \'"\' and i = !', "at character"),
    ],
)
def test_mistake_in_quotes_is_told_where_it_is(row_filter: str, said: str) -> None:
    with pytest.raises(InvalidInputError, match=said) as caught:
        parse_filter(row_filter)
    assert ("quotes" in str(caught.value)) == ("quotes" in said)


def test_list_of_many_values_is_one_predicate_and_a_wrong_one_a_short_line() -> None:
    numbers = ", ".join(map(str, range(3, 50_000)))
    found = parse_filter(f"i in (2, {numbers}) and s in ('a', 'ab')")
    assert kept(found) == [1]
    assert len(found.left.literals) == 49_998
    for wrong in ("x)", "'1')", "1_0)", ""):
        with pytest.raises(InvalidInputError, match="list at character 3 goes wrong") as caught:
            parse_filter(f"i in ({numbers}, {wrong}")
        assert len(str(caught.value)) < 400


def test_columns_in_structs_are_found_by_their_way_not_their_spelling() -> None:
    schema = Schema(
        NestedField(
            1, "s", StructType(NestedField(2, "x", LongType(), required=False)), required=False
        ),
        NestedField(3, "t.x", LongType(), required=False),
    )
    kind = pa.struct([("x", pa.int64())])
    batch = pa.record_batch(
        {
            "s": pa.array([{"x": 1}, None, {"x": None}, {"x": 4}], kind),
            "t.x": pa.array([9, 8, 7, 6]),
        }
    )
    for row_filter, rows in {
        "s.x > 1": [6],
        "s.x is null": [8, 7],
        "t.x > 8": [9],
        "t.x = 6": [6],
    }.items():
        bound = bind_filter(parse_filter(row_filter), schema)
        assert batch.filter(arrow_filter(bound, schema)).column("t.x").to_pylist() == rows, (
            row_filter
        )


@pytest.mark.parametrize("depth", [101, 400, 5_000, 200_000])
@pytest.mark.parametrize(("opener", "closer"), [("(", ")"), ("not (", ")"), ("(", "")])
def test_filter_that_is_nested_deeply_is_refused_at_once(
    opener: str, closer: str, depth: int
) -> None:
    with pytest.raises(InvalidInputError, match="nested too deeply"):
        parse_filter(f"{opener * depth}i = 1{closer * depth}")


@pytest.mark.parametrize(
    "text",
    [
        '"' + "\\\\" * 60,
        'i = 1 and "' + "a\\\\b" * 2000,
        "s = '' and \"x",
        '"' + "\\\\" * 60 + '\r" = 1',
        '"' + "\\\\" * 60 + '\n" = 1',
    ],
)
def test_quoted_name_that_does_not_end_is_refused_at_once(text: str) -> None:
    with pytest.raises(InvalidInputError, match="a quoted name does not end"):
        parse_filter(text)


@pytest.mark.parametrize("number", ["9" * 5000, "1e999999999", "1e-999999999", "1e" + "9" * 99])
def test_number_that_no_decimal_holds_is_refused(number: str) -> None:
    schema = Schema(NestedField(1, "p", DecimalType(9, 2), required=False))
    with pytest.raises(InvalidInputError, match=r"does not fit the table|cannot read"):
        normalize_filter(parse_filter(f"p > {number}"), schema)


@pytest.mark.parametrize("text", ["foo = 1", "not (p > 1 and foo is null)", "foo like 'a%'"])
def test_unknown_column_is_named_beside_those_there_are(text: str) -> None:
    schema = Schema(
        NestedField(1, "p", DecimalType(9, 2), required=False),
        NestedField(2, "s", StringType(), required=False),
    )
    with pytest.raises(InvalidInputError, match=r"^there is no column 'foo'; columns=p, s$"):
        bind_filter(parse_filter(text), schema)


def test_quotes_in_texts_and_names_end_where_they_do() -> None:
    assert parse_filter("s = 'say \"x' and i = 1")
    assert parse_filter('"it\'s" = 1')


def test_brackets_in_texts_and_names_are_no_nesting() -> None:
    assert parse_filter(f"s = '{'(' * 500}' and \"{'(' * 500}\" = 1")
    assert parse_filter(" or ".join(f"(i = {number})" for number in range(500)))


@pytest.mark.parametrize("literals", [{0.0, 3.0}, {-0.0, 3.0}])
@pytest.mark.parametrize("name", ["f", "z"])
def test_both_zeros_are_in_a_list_with_one_of_them_as_they_equal_it(name, literals) -> None:
    schema = Schema(NestedField(1, "f", FloatType()), NestedField(2, "z", DoubleType()))
    zeros = [-0.0, 0.0, 1.5, None]
    batch = pa.record_batch({"f": pa.array(zeros, pa.float32()), "z": pa.array(zeros)})
    for row_filter, rows in ((In(name, literals), 2), (NotIn(name, literals), 1)):
        expression = arrow_filter(bind_filter(row_filter, schema), schema)
        assert batch.filter(expression).num_rows == rows


@pytest.mark.parametrize(
    ("row_filter", "rows"),
    [
        (EqualTo("f", math.inf), [1]),
        (EqualTo("f", 1e39), []),
        (NotEqualTo("f", -math.inf), [0, 1]),
        (In("f", [1e39, 1.0]), []),
        (NotIn("f", [1e39]), [0, 1, 2]),
        (LessThan("f", 1e39), [0, 2]),
        (LessThanOrEqual("f", 1e39), [0, 2]),
        (LessThanOrEqual("f", -1e39), [2]),
        (GreaterThan("f", -1e39), [0, 1]),
    ],
    ids=str,
)
def test_number_beyond_every_float_is_neither_the_largest_one_nor_infinity(
    row_filter, rows
) -> None:
    schema = Schema(NestedField(1, "f", FloatType()))
    largest = float(np.finfo(np.float32).max)
    batch = pa.record_batch({"f": pa.array([largest, math.inf, -math.inf, None], pa.float32())})
    expression = arrow_filter(bind_filter(row_filter, schema), schema)
    kept = batch.append_column("n", pa.array(range(4))).filter(expression)
    assert kept.column("n").to_pylist() == rows
