"""Makes number literals fit the columns they are compared with, without changing the meaning.

PyIceberg converts a literal to the column's type when it binds a filter. For numbers that is not
exact: on an int column `x > 1.5` becomes `x > 2`, on a decimal(9, 2) column `x > 1.2` is refused,
and a literal outside the type's range turns a comparison into plain TRUE, which keeps NULL rows.
Here such comparisons are rewritten first:

| x is int, comparison | becomes       |   | literal above every value of the type | becomes     |
|----------------------|---------------|---|----------------------------------------|-------------|
| x > 1.5, x >= 1.5    | x > 1         |   | x < big, x <= big, x != big            | NOT NULL    |
| x < 1.5, x <= 1.5    | x <= 1        |   | x > big, x >= big, x = big             | FALSE       |
| x = 1.5              | FALSE         |   | (below every value: the other way)     |             |
| x != 1.5             | x IS NOT NULL |   |                                        |             |

A float column is compared with the float nearest to the literal, as in Iceberg's library. PyIceberg
rounds it for some comparisons only, so that bounds said "no row is 0.1" of a file whose rows are,
and takes what is beyond every float for TRUE, FALSE or the largest float.

A text compared with a number column is the number it says. A day is compared with a moment as a
whole number with a fraction. Of a text that is a time, PyIceberg leaves out what is beyond
microseconds, and its zone: such texts are refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from decimal import ROUND_FLOOR, Decimal, InvalidOperation, localcontext
from typing import Any

import numpy as np
from pyiceberg.expressions import (
    AlwaysFalse,
    AlwaysTrue,
    And,
    BooleanExpression,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    LiteralPredicate,
    Not,
    NotEqualTo,
    NotIn,
    NotNull,
    Or,
    Reference,
    SetPredicate,
    UnboundPredicate,
)
from pyiceberg.expressions.literals import (
    DateLiteral,
    FloatLiteral,
    Literal,
    LongLiteral,
    StringLiteral,
    TimestampLiteral,
)
from pyiceberg.expressions.visitors import BooleanExpressionVisitor, visit
from pyiceberg.schema import Schema
from pyiceberg.types import (
    DateType,
    DecimalType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    TimeType,
)

from tableformat.scan.bounds import MICROS_PER_DAY

# Digits that hold any double exactly enough: 17 significant ones, exponents to 308.
PRECISION = 700
_TIME = re.compile(r"[0-9]{2}:[0-9]{2}(:[0-9]{2}([.,][0-9]{1,6})?)?")


def fit_literals(row_filter: BooleanExpression, schema: Schema) -> BooleanExpression:
    """The filter with exact number literals.

    Args:
        row_filter: Unbound and without NOT: under a NOT the rewriting would change NULL rows.
        schema: Names and types of the columns; unknown names are left for binding to refuse.
    """
    return visit(row_filter, _FitLiterals(schema))


class _FitLiterals(BooleanExpressionVisitor[BooleanExpression]):
    def __init__(self, schema: Schema) -> None:
        self._schema = schema

    def visit_true(self) -> BooleanExpression:
        return AlwaysTrue()

    def visit_false(self) -> BooleanExpression:
        return AlwaysFalse()

    def visit_not(self, child_result: BooleanExpression) -> BooleanExpression:
        return Not(child_result)

    def visit_and(
        self, left_result: BooleanExpression, right_result: BooleanExpression
    ) -> BooleanExpression:
        return And(left_result, right_result)

    def visit_or(
        self, left_result: BooleanExpression, right_result: BooleanExpression
    ) -> BooleanExpression:
        return Or(left_result, right_result)

    def visit_bound_predicate(self, predicate: object) -> BooleanExpression:
        raise AssertionError(f"the filter is bound already: {predicate}")

    def visit_unbound_predicate(self, predicate: UnboundPredicate) -> BooleanExpression:
        kind = self._type_of(predicate)
        if kind is None:
            return predicate
        name = str(predicate.term.name) if isinstance(predicate.term, Reference) else ""
        if isinstance(predicate, LiteralPredicate):
            if isinstance(kind, FloatType):
                return _fit_float(predicate, name)
            value = _as_number(predicate.literal, kind)
            return predicate if value is None else _fit(predicate, name, value, kind)
        if isinstance(predicate, SetPredicate):
            if isinstance(kind, FloatType):
                return _fit_float_set(predicate, name)
            return _fit_set(predicate, name, kind)
        return predicate

    def _type_of(self, predicate: UnboundPredicate) -> IcebergType | None:
        """The column's type if literals for it are fitted."""
        if not isinstance(predicate.term, Reference):
            return None
        try:
            kind = self._schema.find_field(predicate.term.name).field_type
        except ValueError:
            return None
        fitted = IntegerType | LongType | DecimalType | FloatType | DateType | TimeType
        return kind if isinstance(kind, fitted) else None


def _fit(
    predicate: LiteralPredicate, name: str, value: Decimal, kind: IcebergType
) -> BooleanExpression:
    lowest, highest, step = _range(kind)
    with localcontext(prec=PRECISION):
        floor = value.quantize(step, rounding=ROUND_FLOOR)
    if value > highest or value < lowest:
        holds_for_all = (
            (LessThan, LessThanOrEqual) if value > 0 else (GreaterThan, GreaterThanOrEqual)
        )
        if isinstance(predicate, (*holds_for_all, NotEqualTo)):
            return _new(NotNull, name)
        return AlwaysFalse()
    if floor == value:
        return _new(type(predicate), name, _as_literal(floor, kind))
    if isinstance(predicate, GreaterThan | GreaterThanOrEqual):
        return _new(GreaterThan, name, _as_literal(floor, kind))
    if isinstance(predicate, LessThan | LessThanOrEqual):
        return _new(LessThanOrEqual, name, _as_literal(floor, kind))
    return AlwaysFalse() if isinstance(predicate, EqualTo) else _new(NotNull, name)


def _fit_set(predicate: SetPredicate, name: str, kind: IcebergType) -> BooleanExpression:
    if isinstance(kind, IntegerType | LongType) and all(
        isinstance(literal, LongLiteral) and kind.min <= literal.value <= kind.max
        for literal in predicate.literals
    ):
        return predicate  # lists are long, and fitted once more by each part of a scan
    values = [(literal, _as_number(literal, kind)) for literal in predicate.literals]
    if all(value is None for _, value in values):
        return predicate
    lowest, highest, step = _range(kind)
    kept: set[object] = set()
    for literal, value in values:
        if value is None:
            kept.add(literal)
            continue
        with localcontext(prec=PRECISION):
            floor = value.quantize(step, rounding=ROUND_FLOOR)
        if floor == value and lowest <= value <= highest:
            kept.add(_as_literal(floor, kind))
    if isinstance(predicate, NotIn):
        return _new(NotIn, name, kept) if kept else _new(NotNull, name)
    return _new(In, name, kept) if kept else AlwaysFalse()


def _fit_float(predicate: LiteralPredicate, name: str) -> BooleanExpression:
    value = _as_double(predicate.literal.value)
    if value is None:
        return predicate
    nearest = _nearest_float(value)
    if nearest is not None:
        return _new(type(predicate), name, FloatLiteral(nearest))
    beyond = FloatLiteral(math.copysign(math.inf, value))  # and of floats, only this is as far out
    if isinstance(predicate, LessThan | LessThanOrEqual):
        return _new(LessThan if value > 0 else LessThanOrEqual, name, beyond)
    if isinstance(predicate, GreaterThan | GreaterThanOrEqual):
        return _new(GreaterThanOrEqual if value > 0 else GreaterThan, name, beyond)
    return AlwaysFalse() if isinstance(predicate, EqualTo) else _new(NotNull, name)


def _fit_float_set(predicate: SetPredicate, name: str) -> BooleanExpression:
    values = [_as_double(literal.value) for literal in predicate.literals]
    if None in values:
        return predicate
    nearest = map(_nearest_float, (value for value in values if value is not None))
    kept = {FloatLiteral(value) for value in nearest if value is not None}
    if isinstance(predicate, NotIn):
        return _new(NotIn, name, kept) if kept else _new(NotNull, name)
    return _new(In, name, kept) if kept else AlwaysFalse()


def _new(kind: Callable[..., BooleanExpression], *arguments: object) -> BooleanExpression:
    """Build a predicate; its classes take positions, which their pydantic types do not show."""
    return kind(*arguments)


def _as_number(literal: Literal[Any], kind: IcebergType) -> Decimal | None:
    """What is compared with the column's numbers; None: it needs no fitting, or has no number."""
    if isinstance(kind, TimeType):
        if isinstance(literal, StringLiteral) and not _TIME.fullmatch(literal.value):
            raise ValueError(f"not a time of day to the microsecond: {literal.value}")
        return None
    if isinstance(kind, DateType):
        moment = isinstance(literal, TimestampLiteral)
        return Decimal(literal.value) / MICROS_PER_DAY if moment else None
    return _as_decimal(literal.value)


def _as_decimal(value: object) -> Decimal | None:
    """The number as written; a float is meant as it prints (0.1 is one tenth)."""
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal | str):
        return None
    try:
        number = Decimal(str(value))
    except InvalidOperation:
        return None
    return number if number.is_finite() else None


def _as_double(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal | str):
        return None
    try:
        return float(value)
    except ValueError:
        return None


def _nearest_float(value: float) -> float | None:
    """The nearest number that a float column can hold; None: the value is beyond all of them."""
    with np.errstate(over="ignore"):
        nearest = float(np.float32(value))
    return None if math.isinf(nearest) and not math.isinf(value) else nearest


def _as_literal(value: Decimal, kind: IcebergType) -> object:
    if isinstance(kind, DateType):
        return DateLiteral(int(value))
    return value if isinstance(kind, DecimalType) else int(value)


def _range(kind: IcebergType) -> tuple[Decimal, Decimal, Decimal]:
    """Smallest and largest value of a type, and the distance between neighbours."""
    if isinstance(kind, DecimalType):
        step = Decimal(1).scaleb(-kind.scale)
        with localcontext(prec=PRECISION):
            highest = (Decimal(10) ** kind.precision - 1) * step
        return -highest, highest, step
    if isinstance(kind, DateType):
        kind = IntegerType()
    assert isinstance(kind, IntegerType | LongType)
    return Decimal(kind.min), Decimal(kind.max), Decimal(1)
