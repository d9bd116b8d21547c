"""Row filters: parsing, binding, and exact evaluation on Arrow batches.

Semantics are SQL's: a comparison with NULL is unknown, unknown rows are not returned. Floats are
ordered as in Spark and DuckDB, NaN above every number, so that a filter keeps the same rows
whoever evaluates it (`x > 5` keeps NaN; statistics leave NaN out, see pruning.py). NOT NaN is
true for NULL, as in Iceberg.
"""

from __future__ import annotations

import operator
import re
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import (
    AlwaysTrue,
    And,
    BooleanExpression,
    BoundTerm,
)
from pyiceberg.expressions.literals import Literal
from pyiceberg.expressions.parser import parse
from pyiceberg.expressions.visitors import (
    BoundBooleanExpressionVisitor,
    bind,
    extract_field_ids,
    rewrite_not,
    visit,
)
from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, FloatType
from pyparsing import ParseException

from tableformat.errors import InvalidInputError, refusing_deep_nesting
from tableformat.scan.filter_text import read_filter_text, with_lists
from tableformat.scan.literals import fit_literals
from tableformat.spec.types import arrow_type
from tableformat.spec.unicode import check_unicode

FILTER_DEPTH_MAX = 100
FILTER_SHOWN_MAX = 200  # characters of a filter in a message
# Texts and names may hold any bracket; what is left of a name that does not end is its quote. To
# the parser it does not end on another line.
_BRACKETS = re.compile(r"""'(?:[^'\\]|\\.)*+'?|"[^"\r\n]*"|[()"]""", re.DOTALL)
_QUOTES = re.compile(
    r"""(?P<text>'(?:[^'\\]|\\.)*+'?)"""
    r"""|(?:[=<>]|\b(?i:like|in|and|between))[\s(]*(?P<name>"[^"\r\n]*")(?!\s*(?:[=<>!.]|\b(?i:is|in|like|not|between)\b))"""
    r"""|"[^"\r\n]*\"""",
    re.DOTALL,
)
_UNKNOWN_FIELD = re.compile(r"Could not find field with name (.+), case_sensitive")  # PyIceberg's


@refusing_deep_nesting("filter")
def parse_filter(row_filter: str | BooleanExpression | None) -> BooleanExpression:
    """A filter as an unbound expression; None and the empty string select every row.

    Raises:
        InvalidInputError: The text is no filter.
    """
    if row_filter is None:
        return AlwaysTrue()
    if isinstance(row_filter, BooleanExpression):
        return row_filter
    if not row_filter.strip():
        return AlwaysTrue()
    check_unicode(row_filter, what="filter")
    _check_brackets(row_filter)
    read = read_filter_text(row_filter)
    try:
        return with_lists(parse(read.text), read.lists)
    except ParseException as error:
        at, why = _cause(row_filter) or (read.position(error.loc), "")
        raise InvalidInputError(
            f"cannot read the filter {_shown(row_filter)}, at character {at + 1}{why}",
            action="write it like: amount > 10 and region = 'EU'",
        ) from error
    except (ValueError, TypeError) as error:
        raise InvalidInputError(f"cannot read the filter {_shown(row_filter)}: {error}") from error


def _cause(row_filter: str) -> tuple[int, str] | None:
    """Where a mistake is that the parser tells as one of the whole comparison, and what it is."""
    for found in _QUOTES.finditer(row_filter):
        text = found["text"]
        if found["name"]:
            return found.start("name"), ": texts are in single quotes, names in double ones"
        if text and (len(text) == 1 or text[-1] != "'"):
            return found.start("text"), ": a text does not end"
        if text and ("\n" in text or "\r" in text):
            return found.start("text"), ": a text holds a line break"
    return None


def _shown(text: str) -> str:
    return repr(text if len(text) <= FILTER_SHOWN_MAX else f"{text[:FILTER_SHOWN_MAX]}…")


def _check_brackets(row_filter: str) -> None:
    """The parser takes seconds for thousands of parentheses, and for ever for an open name.

    (It tries a backslash inside a quoted name in two ways, and each after the other.)
    """
    depth = 0
    for found in _BRACKETS.findall(row_filter):
        if found == '"':
            raise InvalidInputError("cannot read the filter: a quoted name does not end")
        depth += {"(": 1, ")": -1}.get(found, 0)
        if depth > FILTER_DEPTH_MAX:
            raise InvalidInputError(
                "cannot read the filter: it is nested too deeply", depth_max=FILTER_DEPTH_MAX
            )


@refusing_deep_nesting("filter")
def normalize_filter(row_filter: BooleanExpression, schema: Schema) -> BooleanExpression:
    """The same filter without NOT and with literals that fit their columns; still unbound."""
    try:
        return fit_literals(rewrite_not(row_filter), schema)
    except (ValueError, ArithmeticError) as error:  # or beyond what decimals can be rounded to
        raise InvalidInputError(f"the filter does not fit the table: {error}") from error


@refusing_deep_nesting("filter")
def bind_filter(row_filter: BooleanExpression, schema: Schema) -> BooleanExpression:
    """The filter with columns and literals checked against `schema`, and no NOT inside.

    Raises:
        InvalidInputError: Unknown column, or a literal that cannot be of the column's type.
    """
    try:
        return bind(schema, normalize_filter(row_filter, schema), case_sensitive=True)
    except (ValueError, TypeError, ArithmeticError) as error:
        unknown = _UNKNOWN_FIELD.search(str(error))
        if unknown is not None:
            raise InvalidInputError(
                f"there is no column {unknown[1]!r}", columns=", ".join(schema.column_names)
            ) from error
        raise InvalidInputError(f"the filter does not fit the table: {error}") from error


def filter_field_ids(bound: BooleanExpression) -> frozenset[int]:
    """Ids of the fields a bound filter reads."""
    return frozenset(extract_field_ids(bound))


def split_conjunction(row_filter: BooleanExpression) -> list[BooleanExpression]:
    """The parts that must all hold."""
    if isinstance(row_filter, And):
        return split_conjunction(row_filter.left) + split_conjunction(row_filter.right)
    return [row_filter]


def arrow_filter(bound: BooleanExpression, schema: Schema) -> pc.Expression:
    """The filter as an Arrow expression over batches with the columns of `schema`.

    Null where SQL says unknown; `RecordBatch.filter` drops those rows.
    """
    return visit(bound, _ArrowFilter(schema))


def _comparing(compare: Callable[[Any, Any], Any]) -> Any:
    def visit_comparison(self: FilterBuilder, term: BoundTerm, literal: Literal[Any]) -> Any:
        return compare(self.column(term), self.literal(term, literal.value))

    return visit_comparison


def _negating(name: str) -> Any:
    return lambda self, *terms, **named: ~getattr(self, name)(*terms, **named)


class FilterBuilder(BoundBooleanExpressionVisitor[Any]):
    """A bound filter as another library's expression, by Python's operators on its columns."""

    @abstractmethod
    def column(self, term: BoundTerm) -> Any:
        """What stands for the column."""

    @abstractmethod
    def literal(self, term: BoundTerm, value: Any) -> Any:
        """What a value of the column's type is compared as."""

    def visit_not(self, child_result: Any) -> Any:
        """The opposite."""
        return ~child_result

    def visit_and(self, left_result: Any, right_result: Any) -> Any:
        """Both."""
        return left_result & right_result

    def visit_or(self, left_result: Any, right_result: Any) -> Any:
        """Either."""
        return left_result | right_result

    visit_equal: Any = _comparing(operator.eq)
    visit_not_equal: Any = _comparing(operator.ne)
    visit_less_than: Any = _comparing(operator.lt)
    visit_less_than_or_equal: Any = _comparing(operator.le)
    visit_greater_than: Any = _comparing(operator.gt)
    visit_greater_than_or_equal: Any = _comparing(operator.ge)
    visit_not_nan: Any = _negating("visit_is_nan")
    visit_not_in: Any = _negating("visit_in")
    visit_not_starts_with: Any = _negating("visit_starts_with")


class _ArrowFilter(FilterBuilder):
    """Builds the Arrow expression; PyIceberg's keeps NULL rows for NOT IN and drops NaN."""

    def __init__(self, schema: Schema) -> None:
        self._paths = {field.field_id: path for field, path in _leaf_paths(schema)}

    def visit_true(self) -> pc.Expression:
        return pc.scalar(True)

    def visit_false(self) -> pc.Expression:
        return pc.scalar(False)

    def visit_is_null(self, term: BoundTerm) -> pc.Expression:
        return self.column(term).is_null(nan_is_null=False)

    def visit_not_null(self, term: BoundTerm) -> pc.Expression:
        return self.column(term).is_valid()

    def visit_is_nan(self, term: BoundTerm) -> pc.Expression:
        return pc.is_nan(self.column(term))

    def visit_not_nan(self, term: BoundTerm) -> pc.Expression:
        return self.visit_is_null(term) | ~self.visit_is_nan(term)

    def visit_greater_than(self, term: BoundTerm, literal: Literal[Any]) -> pc.Expression:
        return self._or_nan(term, super().visit_greater_than(term, literal))

    def visit_greater_than_or_equal(self, term: BoundTerm, literal: Literal[Any]) -> pc.Expression:
        return self._or_nan(term, super().visit_greater_than_or_equal(term, literal))

    def visit_in(self, term: BoundTerm, literals: set[Any]) -> pc.Expression:
        return self.column(term).isin(_value_set(term, literals))

    def visit_not_in(self, term: BoundTerm, literals: set[Any]) -> pc.Expression:
        return self.visit_not_null(term) & ~self.visit_in(term, literals)

    def visit_starts_with(self, term: BoundTerm, literal: Literal[Any]) -> pc.Expression:
        return pc.starts_with(self.column(term), literal.value)

    def literal(self, term: BoundTerm, value: Any) -> pa.Scalar:
        return pa.scalar(value, type=_storage_type(term))

    def column(self, term: BoundTerm) -> pc.Expression:
        field = term.ref().field
        column = pc.field(*self._paths[field.field_id])
        kind = arrow_type(field.field_type)
        if isinstance(kind, pa.BaseExtensionType):  # UUID: no kernels but its storage's
            return column.cast(kind.storage_type)
        return column

    def _or_nan(self, term: BoundTerm, compared: pc.Expression) -> pc.Expression:
        if isinstance(term.ref().field.field_type, FloatType | DoubleType):
            return compared | pc.is_nan(self.column(term))
        return compared


def _storage_type(term: BoundTerm) -> pa.DataType:
    kind = arrow_type(term.ref().field.field_type)
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


def _value_set(term: BoundTerm, literals: set[Any]) -> pa.Array:
    kind = _storage_type(term)
    values = list(literals)
    if pa.types.is_floating(kind) and 0.0 in literals:
        values += [0.0, -0.0]  # equal, but not to Arrow's `isin`
    return pa.array(values, type=kind)


def _leaf_paths(schema: Schema) -> list[tuple[Any, tuple[str, ...]]]:
    """Every field below structs only, with the names that lead to it (names may hold dots)."""
    found: list[tuple[Any, tuple[str, ...]]] = []

    def walk(fields: Any, prefix: tuple[str, ...]) -> None:
        for field in fields:
            path = (*prefix, field.name)
            found.append((field, path))
            if field.field_type.is_struct:
                walk(field.field_type.fields, path)

    walk(schema.fields, ())
    return found
