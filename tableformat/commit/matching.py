"""Which files a filter may, or must, match: partition values first, then column statistics.

PyIceberg's projections and metrics evaluators do the work. What this module adds is caution: a
bound that does not decode under the current type (R21), or a statistic that is missing, never
excludes a file and never proves one.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import Any
from uuid import UUID

from pyiceberg.expressions import (
    AlwaysFalse,
    AlwaysTrue,
    BooleanExpression,
    BoundPredicate,
    NotEqualTo,
    NotIn,
    NotStartsWith,
    UnboundPredicate,
)
from pyiceberg.expressions.visitors import (
    BooleanExpressionVisitor,
    _InclusiveMetricsEvaluator,
    _StrictMetricsEvaluator,
    bind,
    expression_evaluator,
    extract_field_ids,
    inclusive_projection,
    rewrite_not,
    strict_projection,
    visit,
)
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import Record
from pyiceberg.types import DoubleType, FloatType

from tableformat.errors import InvalidInputError
from tableformat.files.partition_values import partition_type, schema_for_spec
from tableformat.spec.data_file import DataFile

_UNDECODABLE = (ValueError, TypeError, ArithmeticError, LookupError, struct.error)

_PartitionTest = Callable[[tuple[Any, ...]], bool]


class FileMatcher:
    """One filter against the files of one table version."""

    def __init__(self, metadata: TableMetadata, row_filter: BooleanExpression) -> None:
        """Bind `row_filter`.

        Raises:
            InvalidInputError: It names a column that no schema of the table has.
        """
        self._metadata = metadata
        self._filter = rewrite_not(row_filter)
        self._schema = _schema_for(metadata, self._filter)
        self._inclusive = _InclusiveMetricsEvaluator(self._schema, self._filter)
        self._strict = _StrictMetricsEvaluator(self._schema, self._filter)
        self._field_ids = _bound_field_ids(self._schema, self._filter)
        self._negative_ids = visit(self._filter, _NegativeColumns(self._schema))
        self._float_ids = {
            field_id
            for field_id in self._field_ids
            if isinstance(self._schema.find_type(field_id), FloatType | DoubleType)
        }
        self._inclusive_by_spec: dict[int, _PartitionTest] = {}
        self._strict_by_spec: dict[int, _PartitionTest] = {}

    def may_match(self, file: DataFile) -> bool:
        """Whether the data file may hold a row that matches; False is a proof."""
        if isinstance(self._filter, AlwaysTrue):
            return True
        if isinstance(self._filter, AlwaysFalse) or not self.partition_may_match(file):
            return False
        try:
            return self._inclusive.eval(file)  # type: ignore[arg-type] # same field names
        except _UNDECODABLE:
            return True

    def partition_may_match(self, file: DataFile) -> bool:
        """Whether rows of the file's partition may match; statistics are not looked at.

        This is the test for delete files: their statistics describe deletes, not rows, and an
        equality delete prunes wrongly on columns that it merely carries along (R14).
        """
        if isinstance(self._filter, AlwaysTrue):
            return True
        test = self._inclusive_by_spec.get(file.spec_id)
        if test is None:
            test = self._partition_test(file.spec_id, inclusive_projection)
            self._inclusive_by_spec[file.spec_id] = test
        try:
            return test(file.partition)
        except _UNDECODABLE:
            return True

    def must_match(self, file: DataFile) -> bool:
        """Whether all rows of the data file match, proven by its partition or its statistics.

        A row with a null in a column compared by `!=`, `NOT IN` or `NOT LIKE` does not match (SQL),
        so such a column must be proven free of nulls.
        """
        if isinstance(self._filter, AlwaysTrue):
            return True
        if any((file.null_value_counts or {}).get(each) != 0 for each in self._negative_ids):
            return False
        return self._partition_must_match(file) or self._metrics_must_match(file)

    def _partition_must_match(self, file: DataFile) -> bool:
        test = self._strict_by_spec.get(file.spec_id)
        if test is None:
            test = self._partition_test(file.spec_id, strict_projection)
            self._strict_by_spec[file.spec_id] = test
        try:
            return test(file.partition)
        except _UNDECODABLE:
            return False

    def _metrics_must_match(self, file: DataFile) -> bool:
        nulls, nans = file.null_value_counts or {}, file.nan_value_counts or {}
        if any(each not in nulls for each in self._field_ids):
            return False  # PyIceberg takes a missing null count for "no nulls"
        if any(each not in nans for each in self._float_ids):
            return False
        try:
            return self._strict.eval(file)  # type: ignore[arg-type] # same field names
        except _UNDECODABLE:
            return False

    def _partition_test(self, spec_id: int, projection: Callable[..., Any]) -> _PartitionTest:
        spec = self._metadata.specs()[spec_id]
        typed_by = schema_for_spec(spec, self._schema, self._metadata.schemas)
        projected = projection(self._schema, spec)(self._filter)
        fields = partition_type(spec, typed_by).fields
        evaluate = expression_evaluator(Schema(*fields), projected, case_sensitive=True)
        return lambda values: evaluate(Record(*(_literal_form(value) for value in values)))


def _literal_form(value: Any) -> Any:
    """PyIceberg's UUID literals are bytes, its UUID partition values are not."""
    return value.bytes if isinstance(value, UUID) else value


def _schema_for(metadata: TableMetadata, row_filter: BooleanExpression) -> Schema:
    """The newest schema in which the filter's columns exist; the current one goes first."""
    candidates = sorted(metadata.schemas, key=lambda each: each.schema_id, reverse=True)
    failure: Exception | None = None
    for schema in (metadata.schema(), *candidates):
        try:
            bind(schema, row_filter, case_sensitive=True)
        except (ValueError, TypeError) as error:
            failure = failure or error
        else:
            return schema
    raise InvalidInputError(f"filter does not fit the table: {failure}", filter=row_filter)


def _bound_field_ids(schema: Schema, row_filter: BooleanExpression) -> set[int]:
    bound = bind(schema, row_filter, case_sensitive=True)
    if isinstance(bound, AlwaysTrue | AlwaysFalse):
        return set()
    return extract_field_ids(bound)


class _NegativeColumns(BooleanExpressionVisitor[frozenset[int]]):
    """Field ids of the columns that a negative comparison looks at."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema

    def visit_true(self) -> frozenset[int]:
        return frozenset()

    def visit_false(self) -> frozenset[int]:
        return frozenset()

    def visit_not(self, child_result: frozenset[int]) -> frozenset[int]:
        return child_result

    def visit_and(
        self, left_result: frozenset[int], right_result: frozenset[int]
    ) -> frozenset[int]:
        return left_result | right_result

    def visit_or(self, left_result: frozenset[int], right_result: frozenset[int]) -> frozenset[int]:
        return left_result | right_result

    def visit_unbound_predicate(self, predicate: UnboundPredicate) -> frozenset[int]:
        if not isinstance(predicate, NotEqualTo | NotIn | NotStartsWith):
            return frozenset()
        bound = predicate.bind(self._schema)
        return frozenset(_ids_of([bound]))

    def visit_bound_predicate(self, predicate: BoundPredicate) -> frozenset[int]:
        return frozenset(_ids_of([predicate]))


def _ids_of(predicates: Iterable[BooleanExpression]) -> set[int]:
    return {
        each.term.ref().field.field_id for each in predicates if isinstance(each, BoundPredicate)
    }
