"""Conditions of statements as Iceberg expressions, where that changes nothing about their meaning.

A conjunct is taken only if it selects the same rows as Spark's evaluation would; the others are
left out, so the result is implied by the condition. NOT is pushed down on the way: an unknown
comparison (with NULL) then selects no row under NOT either, as SQL wants it.

| column        | literals that are taken                                                |
|---------------|------------------------------------------------------------------------|
| int, long     | numbers without exponent                                               |
| decimal       | numbers without exponent                                               |
| float         | numbers a float holds exactly (Spark compares it with others as double)|
| double        | numbers                                                                |
| string        | texts; `LIKE 'abc%'`                                                   |
| boolean       | TRUE, FALSE; the column alone                                          |
| date          | `DATE '2024-02-29'` and the text alone                                 |
| timestamp     | `TIMESTAMP_NTZ '…'` and the text alone, complete to the second         |
| timestamptz   | `TIMESTAMP '…'` and the text alone, with `Z` or `+00:00`               |
| all           | IS NULL                                                                |
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from functools import reduce

import numpy as np
from pyiceberg import types as iceberg
from pyiceberg.expressions import (
    AlwaysFalse,
    AlwaysTrue,
    And,
    BooleanExpression,
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
    NotNaN,
    NotNull,
    NotStartsWith,
    Or,
    StartsWith,
)
from sqlglot import exp

from tableformat.errors import InvalidInputError
from tableformat.scan.row_filter import bind_filter
from tableformat.sql.columns import TargetColumns

_COMPARISONS: dict[type[exp.Expr], tuple[str, str]] = {  # operator, its negation
    exp.EQ: ("=", "!="),
    exp.NEQ: ("!=", "="),
    exp.LT: ("<", ">="),
    exp.LTE: ("<=", ">"),
    exp.GT: (">", "<="),
    exp.GTE: (">=", "<"),
}
_MIRRORED = {"=": "=", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_PREDICATES: dict[str, Callable[..., BooleanExpression]] = {
    "=": EqualTo,
    "!=": NotEqualTo,
    "<": LessThan,
    "<=": LessThanOrEqual,
    ">": GreaterThan,
    ">=": GreaterThanOrEqual,
}
_KNOWN_PARTS = frozenset({"this", "expression", "expressions", "low", "high", "negate", "to"})
_NUMBER = re.compile(r"\d+(\.\d*)?|\.\d+")
_DATE = re.compile(r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])")
_MOMENT = re.compile(rf"({_DATE.pattern})[ T]([01]\d|2[0-3])(:[0-5]\d){{2}}(\.\d{{1,6}})?")
_ZONE = re.compile(r"Z|\+00:00")


@dataclass(frozen=True, slots=True)
class PushedFilter:
    """What of a condition metadata and our own reader can decide.

    Attributes:
        expression: Implied by the condition; unbound.
        is_exact: It is the condition.
    """

    expression: BooleanExpression
    is_exact: bool


def push_down(condition: exp.Expr | None, columns: TargetColumns) -> PushedFilter:
    """The part of a condition that is a plain filter on the target; None is TRUE."""
    if condition is None:
        return PushedFilter(AlwaysTrue(), True)
    taken: list[BooleanExpression] = []
    is_exact = True
    for conjunct in _conjuncts(condition):
        converted = _convert(conjunct, columns, negated=False)
        if converted is not None and _binds(converted, columns):
            taken.append(converted)
        else:
            is_exact = False
    return PushedFilter(reduce(And, taken) if taken else AlwaysTrue(), is_exact)


def _conjuncts(tree: exp.Expr) -> list[exp.Expr]:
    tree = tree.unnest()
    if isinstance(tree, exp.And):
        return [*_conjuncts(tree.this), *_conjuncts(tree.expression)]
    return [tree]


def _binds(expression: BooleanExpression, columns: TargetColumns) -> bool:
    try:
        bind_filter(expression, columns.schema)
    except InvalidInputError:
        return False
    return True


def _convert(tree: exp.Expr, columns: TargetColumns, *, negated: bool) -> BooleanExpression | None:
    tree = tree.unnest()
    if not _is_plain(tree):
        return None
    negated = negated != bool(tree.args.get("negate"))  # NOT LIKE is one node, NOT IN is two
    match tree:
        case exp.Not():
            return _convert(tree.this, columns, negated=not negated)
        case exp.And() | exp.Or():
            left = _convert(tree.this, columns, negated=negated)
            right = _convert(tree.expression, columns, negated=negated)
            if left is None or right is None:
                return None
            return And(left, right) if isinstance(tree, exp.And) != negated else Or(left, right)
        case exp.Boolean():
            return AlwaysTrue() if bool(tree.this) != negated else AlwaysFalse()
        case exp.Null():
            return AlwaysFalse()
        case exp.Is():
            return _is(tree, columns, negated=negated)
        case exp.In():
            return _in(tree, columns, negated=negated)
        case exp.Between():
            return _between(tree, columns, negated=negated)
        case exp.Like():
            return _like(tree, columns, negated=negated)
        case exp.Anonymous(this=str(function), expressions=[value]) if function.lower() == "isnan":
            name = _name(value, columns, iceberg.FloatType, iceberg.DoubleType)
            return None if name is None else (_new(NotNaN, name) if negated else _new(IsNaN, name))
        case exp.NullSafeEQ():
            return _null_safe(tree, columns, negated=negated)
        case exp.Column():
            name = _name(tree, columns, iceberg.BooleanType)
            return None if name is None else _new(EqualTo, name, not negated)
    if type(tree) in _COMPARISONS:
        return _comparison(tree, columns, negated=negated)
    return None


def _is_plain(tree: exp.Expr) -> bool:
    """Whether the node has no part that is not looked at here, whatever a parser adds."""
    if isinstance(tree, exp.Column):
        return True
    return {key for key, value in tree.args.items() if value} <= _KNOWN_PARTS


def _comparison(
    tree: exp.Expr, columns: TargetColumns, *, negated: bool
) -> BooleanExpression | None:
    operator = _COMPARISONS[type(tree)][negated]
    left, right = tree.this, tree.expression
    if _field(left, columns) is None:
        left, right, operator = right, left, _MIRRORED[operator]
    return _compare(left, operator, right, columns)


def _compare(
    column: exp.Expr, operator: str, literal: exp.Expr, columns: TargetColumns
) -> BooleanExpression | None:
    found = _field(column, columns)
    if found is None:
        return _constant(column, operator, literal)
    name, kind = found
    if isinstance(literal.unnest(), exp.Null):
        return AlwaysFalse()
    value = literal_value(literal, kind)
    return None if value is None else _PREDICATES[operator](name, value)


def _constant(left: exp.Expr, operator: str, right: exp.Expr) -> BooleanExpression | None:
    """`1 = 1` and its like."""
    numbers = [_number(left), _number(right)]
    if operator not in ("=", "!=") or None in numbers:
        return None
    return AlwaysTrue() if (numbers[0] == numbers[1]) == (operator == "=") else AlwaysFalse()


def _is(tree: exp.Is, columns: TargetColumns, *, negated: bool) -> BooleanExpression | None:
    found = _field(tree.this, columns)
    other = tree.expression.unnest()
    if found is None:
        return None
    name, kind = found
    if isinstance(other, exp.Null):
        return _new(NotNull, name) if negated else _new(IsNull, name)
    if isinstance(other, exp.Boolean) and isinstance(kind, iceberg.BooleanType):
        is_value = _new(EqualTo, name, bool(other.this))
        return Or(_new(IsNull, name), _new(EqualTo, name, not other.this)) if negated else is_value
    return None


def _in(tree: exp.In, columns: TargetColumns, *, negated: bool) -> BooleanExpression | None:
    found = _field(tree.this, columns)
    if found is None or tree.args.get("query") is not None or tree.args.get("unnest") is not None:
        return None
    name, kind = found
    values: set[object] = set()
    has_null = False
    for each in tree.expressions:
        if isinstance(each.unnest(), exp.Null):
            has_null = True
            continue
        value = literal_value(each, kind)
        if value is None:
            return None
        values.add(value)
    if negated and has_null:
        return AlwaysFalse()  # at best unknown
    if not values:
        return AlwaysFalse()
    make: Callable[..., BooleanExpression] = NotIn if negated else In
    return make(name, values)


def _between(
    tree: exp.Between, columns: TargetColumns, *, negated: bool
) -> BooleanExpression | None:
    low = _compare(tree.this, "<" if negated else ">=", tree.args["low"], columns)
    high = _compare(tree.this, ">" if negated else "<=", tree.args["high"], columns)
    if low is None or high is None or _field(tree.this, columns) is None:
        return None
    return Or(low, high) if negated else And(low, high)


def _like(tree: exp.Like, columns: TargetColumns, *, negated: bool) -> BooleanExpression | None:
    name = _name(tree.this, columns, iceberg.StringType)
    pattern = tree.expression.unnest()
    if name is None or not (isinstance(pattern, exp.Literal) and pattern.is_string):
        return None
    text = str(pattern.this)
    prefix = text.removesuffix("%")
    if "%" in prefix or "_" in prefix or "\\" in prefix or not prefix:
        return None
    if prefix == text:
        return _new(NotEqualTo, name, text) if negated else _new(EqualTo, name, text)
    return _new(NotStartsWith, name, prefix) if negated else _new(StartsWith, name, prefix)


def _null_safe(
    tree: exp.NullSafeEQ, columns: TargetColumns, *, negated: bool
) -> BooleanExpression | None:
    left, right = tree.this, tree.expression
    if _field(left, columns) is None:
        left, right = right, left
    found = _field(left, columns)
    if found is None:
        return None
    name, kind = found
    if isinstance(right.unnest(), exp.Null):
        return _new(NotNull, name) if negated else _new(IsNull, name)
    value = literal_value(right, kind)
    if value is None:
        return None
    equal: Callable[..., BooleanExpression] = EqualTo
    if not negated:
        return equal(name, value)
    return Or(_new(IsNull, name), _PREDICATES["!="](name, value))


def _new(kind: Callable[..., BooleanExpression], *arguments: object) -> BooleanExpression:
    """Build a predicate; its classes take positions, which their types do not show."""
    return kind(*arguments)


def _field(tree: exp.Expr, columns: TargetColumns) -> tuple[str, iceberg.IcebergType] | None:
    """The filter name and type of a column; None where Iceberg's filters cannot name it."""
    fields = columns.find_tree(tree.unnest())
    if fields is None:
        return None
    name = ".".join(field.name for field in fields)
    try:
        named = columns.schema.find_field(name)
    except ValueError:
        return None
    if named.field_id != fields[-1].field_id:
        return None  # a name with dots in it
    return name, fields[-1].field_type


def _name(tree: exp.Expr, columns: TargetColumns, *kinds: type[iceberg.IcebergType]) -> str | None:
    found = _field(tree, columns)
    return found[0] if found is not None and isinstance(found[1], kinds) else None


def literal_value(tree: exp.Expr, kind: iceberg.IcebergType) -> object | None:
    """A literal in the form that a filter on a column of type `kind` takes; None: not exactly."""
    tree = tree.unnest()
    match kind:
        case iceberg.BooleanType():
            return bool(tree.this) if isinstance(tree, exp.Boolean) else None
        case iceberg.StringType():
            return _text(tree)
        case iceberg.IntegerType() | iceberg.LongType():
            number = _number(tree)
            return int(number) if number is not None and number == int(number) else number
        case iceberg.DecimalType():
            return _number(tree)
        case iceberg.DoubleType():
            return _double_value(tree)
        case iceberg.FloatType():
            return _float_value(tree)
        case iceberg.DateType():
            text = _typed_text(tree, exp.DType.DATE)
            return text if text is not None and _is_date(text) else None
        case iceberg.TimestampType():
            text = _typed_text(tree, exp.DType.TIMESTAMPNTZ)
            if text is None or not _MOMENT.fullmatch(text) or not _is_date(text[:10]):
                return None
            return text.replace(" ", "T")
        case iceberg.TimestamptzType():
            return _zoned_moment(tree)
    return None


def _double_value(tree: exp.Expr) -> float | None:
    number = _number(tree, exponent=True)
    value = math.nan if number is None else float(number)
    return value if math.isfinite(value) else None  # 1e400 is infinity here, an error in Spark


def _float_value(tree: exp.Expr) -> float | None:
    value = _double_value(tree)
    if value is None:
        return None
    with np.errstate(over="ignore"):
        return value if float(np.float32(value)) == value else None


def _zoned_moment(tree: exp.Expr) -> str | None:
    kinds = (exp.DType.TIMESTAMPTZ, exp.DType.TIMESTAMPLTZ)
    text = _typed_text(tree, *kinds)
    if text is None:
        return None
    moment = _MOMENT.match(text)
    if moment is None or not _ZONE.fullmatch(text[moment.end() :]) or not _is_date(text[:10]):
        return None
    return f"{moment.group().replace(' ', 'T')}+00:00"


def _is_date(text: str) -> bool:
    if not _DATE.fullmatch(text):
        return False
    try:
        np.datetime64(text, "D")
    except ValueError:
        return False
    return not text.startswith("0000")


def _number(tree: exp.Expr, *, exponent: bool = False) -> Decimal | None:
    tree = tree.unnest()
    if isinstance(tree, exp.Neg):
        number = _number(tree.this, exponent=exponent)
        return None if number is None else -number
    if not isinstance(tree, exp.Literal) or tree.is_string:
        return None
    text = str(tree.this)
    if not exponent and not _NUMBER.fullmatch(text):
        return None
    try:
        number = Decimal(text)
    except InvalidOperation:
        return None
    return number if number.is_finite() else None


def _text(tree: exp.Expr) -> str | None:
    return str(tree.this) if isinstance(tree, exp.Literal) and tree.is_string else None


def _typed_text(tree: exp.Expr, *kinds: exp.DType) -> str | None:
    """The text of `TYPE 'text'`, or of a text that a comparison makes one."""
    if isinstance(tree, exp.Cast) and not isinstance(tree, exp.TryCast) and _is_plain(tree):
        return _text(tree.this) if tree.to.this in kinds else None
    return _text(tree)
