"""Which files a filter may, or must, match: partition values first, then column statistics.

"May" is the scan's own pruning, so a statement's conflicts are looked for exactly where its scan
would have read. "Must" proves that every row matches, so that a file can be dropped unread. A bound
that does not decode, or a statistic that is missing, never excludes a file and never proves one.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import cast

from pyiceberg.expressions import (
    AlwaysFalse,
    AlwaysTrue,
    BooleanExpression,
    BoundNotEqualTo,
    BoundNotIn,
    BoundNotStartsWith,
    BoundPredicate,
    UnboundPredicate,
)
from pyiceberg.expressions.visitors import (
    BooleanExpressionVisitor,
    _StrictMetricsEvaluator,
    rewrite_not,
    visit,
)
from pyiceberg.manifest import DataFile as PyIcebergDataFile
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import DoubleType, FloatType

from tableformat.errors import InvalidInputError
from tableformat.scan.pruning import Pruner
from tableformat.scan.row_filter import bind_filter
from tableformat.spec.data_file import DataFile, PartitionKey
from tableformat.spec.manifest_file import ManifestFile

_UNDECODABLE = (ValueError, TypeError, ArithmeticError, LookupError, struct.error)


class FileMatcher:
    """One filter, or one set of partitions, against the files of one table version."""

    def __init__(
        self,
        metadata: TableMetadata,
        row_filter: BooleanExpression,
        *,
        partitions: frozenset[PartitionKey] | None = None,
    ) -> None:
        """Bind.

        Args:
            metadata: The table.
            row_filter: Rows of interest.
            partitions: Narrows the filter to whole partitions; files of a spec that none of them
                has may hold their rows too.

        Raises:
            InvalidInputError: The filter names a column that no schema of the table has.
        """
        self._filter = rewrite_not(row_filter)
        self._schema = _schema_for(metadata, self._filter)
        self._pruner = Pruner(self._filter, self._schema, metadata.specs())
        self._strict = _StrictMetricsEvaluator(self._schema, self._filter)
        columns = visit(bind_filter(self._filter, self._schema), _Columns())
        self._must_not_be_null = {field_id for field_id, needs_value in columns if needs_value}
        self._field_ids = {field_id for field_id, _ in columns}
        self._partitions = partitions
        self._partition_specs = {spec_id for spec_id, _ in partitions or ()}

    def manifest_may_match(self, manifest: ManifestFile) -> bool:
        """Whether a file in the manifest may hold a row that matches; False is a proof."""
        return self._safely(lambda: self._pruner.manifest_may_match(manifest), otherwise=True)

    def may_match(self, file: DataFile) -> bool:
        """Whether the data file may hold a row that matches; False is a proof."""
        if isinstance(self._filter, AlwaysFalse) or not self._in_partitions(file):
            return False
        return self._safely(
            lambda: not isinstance(self._pruner.residual(file), AlwaysFalse), otherwise=True
        )

    def partition_may_match(self, file: DataFile) -> bool:
        """Whether rows of the file's partition may match; statistics are not looked at.

        This is the test for delete files: their statistics describe deletes, not rows, and an
        equality delete prunes wrongly on columns that it merely carries along (R14).
        """
        return self.may_match(_without_statistics(file))

    def must_match(self, file: DataFile) -> bool:
        """Whether all rows of the data file match, proven by its partition or its statistics.

        SQL's meaning: a row with a null in a compared column does not match.
        """
        proven = self._safely(
            lambda: isinstance(self._pruner.residual(file), AlwaysTrue), otherwise=False
        )
        return proven or self._statistics_prove(file)

    def _in_partitions(self, file: DataFile) -> bool:
        if self._partitions is None or file.partition_key in self._partitions:
            return True
        return file.spec_id not in self._partition_specs or not file.partition

    def _statistics_prove(self, file: DataFile) -> bool:
        nulls, nans = file.null_value_counts or {}, file.nan_value_counts or {}
        for field_id in self._field_ids:
            if field_id not in nulls:  # PyIceberg takes a missing count for "no nulls"
                return False
            is_float = isinstance(self._schema.find_type(field_id), FloatType | DoubleType)
            if is_float and field_id not in nans:
                return False
        if any(nulls[field_id] != 0 for field_id in self._must_not_be_null):
            return False
        view = cast("PyIcebergDataFile", file)  # the statistics have the same names
        return self._safely(lambda: self._strict.eval(view), otherwise=False)

    @staticmethod
    def _safely(test: Callable[[], bool], *, otherwise: bool) -> bool:
        try:
            return test()
        except _UNDECODABLE:
            return otherwise


def _without_statistics(file: DataFile) -> DataFile:
    return file.with_(
        value_counts=None,
        null_value_counts=None,
        nan_value_counts=None,
        lower_bounds=None,
        upper_bounds=None,
    )


def _schema_for(metadata: TableMetadata, row_filter: BooleanExpression) -> Schema:
    """The newest schema in which the filter's columns exist; the current one goes first."""
    candidates = sorted(metadata.schemas, key=lambda each: each.schema_id, reverse=True)
    failure: InvalidInputError | None = None
    for schema in (metadata.schema(), *candidates):
        try:
            bind_filter(row_filter, schema)
        except InvalidInputError as error:
            failure = failure or error
        else:
            return schema
    assert failure is not None
    raise failure


_ColumnUse = frozenset[tuple[int, bool]]


class _Columns(BooleanExpressionVisitor[_ColumnUse]):
    """Ids of the columns a bound filter compares, and whether the comparison needs a value.

    Iceberg's `!=`, NOT IN and NOT LIKE hold for null, SQL's do not.
    """

    def visit_true(self) -> _ColumnUse:
        return frozenset()

    def visit_false(self) -> _ColumnUse:
        return frozenset()

    def visit_not(self, child_result: _ColumnUse) -> _ColumnUse:
        return child_result

    def visit_and(self, left_result: _ColumnUse, right_result: _ColumnUse) -> _ColumnUse:
        return left_result | right_result

    def visit_or(self, left_result: _ColumnUse, right_result: _ColumnUse) -> _ColumnUse:
        return left_result | right_result

    def visit_unbound_predicate(self, predicate: UnboundPredicate) -> _ColumnUse:
        raise InvalidInputError("filter is not bound", filter=predicate)

    def visit_bound_predicate(self, predicate: BoundPredicate) -> _ColumnUse:
        negative = isinstance(predicate, BoundNotEqualTo | BoundNotIn | BoundNotStartsWith)
        return frozenset({(predicate.term.ref().field.field_id, negative)})
