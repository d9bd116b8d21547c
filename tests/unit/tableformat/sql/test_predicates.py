"""What of a condition is a filter, and that it is never more than the condition."""

from __future__ import annotations

import pytest
from pyiceberg.expressions import (
    AlwaysFalse,
    AlwaysTrue,
    And,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNaN,
    IsNull,
    LessThan,
    LessThanOrEqual,
    NotEqualTo,
    NotIn,
    NotNull,
    NotStartsWith,
    Or,
    StartsWith,
)
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
)

from tableformat.sql.columns import TargetColumns
from tableformat.sql.predicates import push_down
from tableformat.sql.statement import Assignment, parse_expression
from tableformat.sql.values import local_value

SCHEMA = Schema(
    NestedField(1, "n", LongType()),
    NestedField(2, "s", StringType()),
    NestedField(3, "b", BooleanType()),
    NestedField(4, "f", DoubleType()),
    NestedField(5, "g", FloatType()),
    NestedField(6, "d", DecimalType(9, 2)),
    NestedField(7, "day", DateType()),
    NestedField(8, "at", TimestampType()),
    NestedField(9, "zoned", TimestamptzType()),
    NestedField(10, "st", StructType(NestedField(11, "x", LongType()))),
    NestedField(12, "dot.ted", LongType()),
)
COLUMNS = TargetColumns(SCHEMA, "t", ("shop", "t"))

EXACT = [
    ("n = 3", EqualTo("n", 3)),
    ("3 < n", GreaterThan("n", 3)),
    ("t.n = 3 AND shop.t.N >= 4", And(EqualTo("n", 3), GreaterThanOrEqual("n", 4))),
    ("NOT (n = 3)", NotEqualTo("n", 3)),
    ("NOT (n > 3 AND b)", Or(LessThanOrEqual("n", 3), EqualTo("b", False))),
    ("NOT NOT (n < 3)", LessThan("n", 3)),
    ("n = NULL", AlwaysFalse()),
    ("NOT (n = NULL)", AlwaysFalse()),
    ("NOT NULL", AlwaysFalse()),
    ("n IN (1, NULL, 2)", In("n", {1, 2})),
    ("n NOT IN (1, 2)", NotIn("n", {1, 2})),
    ("n NOT IN (1, NULL)", AlwaysFalse()),
    ("n IS NULL", IsNull("n")),
    ("n IS NOT NULL", NotNull("n")),
    ("n <=> NULL", IsNull("n")),
    ("NOT (n <=> 3)", Or(IsNull("n"), NotEqualTo("n", 3))),
    ("n BETWEEN 1 AND 2", And(GreaterThanOrEqual("n", 1), LessThanOrEqual("n", 2))),
    ("n NOT BETWEEN 1 AND 2", Or(LessThan("n", 1), GreaterThan("n", 2))),
    ("s LIKE 'ab%'", StartsWith("s", "ab")),
    ("s NOT LIKE 'ab%'", NotStartsWith("s", "ab")),
    ("s LIKE 'ab'", EqualTo("s", "ab")),
    ("s = 'O''Brien'", EqualTo("s", "O'Brien")),
    ("b IS NOT TRUE", Or(IsNull("b"), EqualTo("b", False))),
    ("isnan(f)", IsNaN("f")),
    ("g = 0.5", EqualTo("g", 0.5)),
    ("day = DATE '2024-02-29'", EqualTo("day", "2024-02-29")),
    ("at > '2024-02-29 01:02:03'", GreaterThan("at", "2024-02-29T01:02:03")),
    ("zoned > TIMESTAMP '2024-02-29 01:02:03Z'",
     GreaterThan("zoned", "2024-02-29T01:02:03+00:00")),
    ("st.x = 1", EqualTo("st.x", 1)),
    ("1 = 1", AlwaysTrue()),
    ("1 = 0", AlwaysFalse()),
]  # fmt: skip

LEFT_TO_SPARK = [
    "n = s", "n + 1 = 2", "n = '3'", "s = 3", "s > 1.5", "n = 1e3", "g = 0.1", "s LIKE '%b'",
    "f < 1e400", "g > -1e400",
    "s LIKE 'a_b%'", "s LIKE 'a\\\\%'", "s LIKE 'a!%' ESCAPE '!'", "s ILIKE 'a%'",
    "day = '2024-02-30'", "day = '2024-2-3'", "at > TIMESTAMP '2024-02-29 01:02:03'",
    "zoned > TIMESTAMP '2024-02-29 01:02:03'", "at > '2024-02-29'", "d > 1e2", "nope = 1",
    "n IN (SELECT 1)", "n BETWEEN SYMMETRIC 2 AND 1", "b = 1", "n IS TRUE",
    "CASE WHEN n = 1 THEN b END", "coalesce(n, 0) = 1",
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), EXACT, ids=[text for text, _ in EXACT])
def test_plain_condition_is_pushed_exactly(text, expected) -> None:
    pushed = push_down(parse_expression(text, what="condition"), COLUMNS)
    assert pushed.is_exact
    assert pushed.expression == expected


@pytest.mark.parametrize("text", LEFT_TO_SPARK)
def test_other_condition_is_left_to_spark(text) -> None:
    for negated in (text, f"NOT ({text})"):
        pushed = push_down(parse_expression(negated, what="condition"), COLUMNS)
        assert not pushed.is_exact, negated
        assert pushed.expression == AlwaysTrue()


def test_conjuncts_are_pushed_one_by_one() -> None:
    pushed = push_down(parse_expression("n > 1 AND abs(n) = 2 AND b", what="condition"), COLUMNS)
    assert not pushed.is_exact
    assert pushed.expression == And(GreaterThan("n", 1), EqualTo("b", True))


def test_disjunction_is_pushed_as_a_whole_or_not() -> None:
    pushed = push_down(parse_expression("n > 1 OR abs(n) = 2", what="condition"), COLUMNS)
    assert pushed.expression == AlwaysTrue()
    assert not pushed.is_exact


def test_condition_of_a_merge_needs_qualified_names() -> None:
    columns = TargetColumns(SCHEMA, "t", ("shop", "t"), is_qualified=True)
    pushed = push_down(parse_expression("n = 1 AND t.n > 2 AND t.n = s.n", what="x"), columns)
    assert pushed.expression == GreaterThan("n", 2)


@pytest.mark.parametrize(
    ("text", "is_local"),
    [("f + 0.1", True), ("0.1 + f + 0.2", True), ("0.1 + 0.2", False), ("f + (0.1 + 0.2)", False)],
)
def test_literals_alone_are_no_doubles(text, is_local) -> None:
    """Spark adds 0.1 and 0.2 as decimals: 0.3, not 0.30000000000000004."""
    value = local_value(Assignment(("f",), parse_expression(text, what="value")), COLUMNS)
    assert (value is not None) == is_local
