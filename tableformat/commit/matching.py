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
    And,
    BooleanExpression,
    BoundNotEqualTo,
    BoundNotIn,
    BoundNotStartsWith,
    BoundPredicate,
    Or,
)
from pyiceberg.expressions.visitors import _StrictMetricsEvaluator
from pyiceberg.manifest import DataFile as PyIcebergDataFile
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import DoubleType, FloatType

from tableformat.errors import InvalidInputError
from tableformat.scan.pruning import Pruner
from tableformat.scan.row_filter import bind_filter, normalize_filter
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
        self._schema = _schema_for(metadata, row_filter)
        # PyIceberg takes a literal out of the column's range for plain TRUE, also for null rows.
        self._filter = normalize_filter(row_filter, self._schema)
        self._pruner = Pruner(self._filter, self._schema, metadata.specs())
        self._proof = _proof(self._filter, self._schema, metadata)
        self._partitions = partitions
        self._partition_specs = {spec_id for spec_id, _ in partitions or ()}

    def manifest_may_match(self, manifest: ManifestFile) -> bool:
        """Whether a file in the manifest may hold a row that matches; False is a proof."""
        try:
            return self._pruner.manifest_may_match(manifest)
        except _UNDECODABLE:
            return True

    def may_match(self, file: DataFile) -> bool:
        """Whether the data file may hold a row that matches; False is a proof."""
        if isinstance(self._filter, AlwaysFalse) or not self._in_partitions(file):
            return False
        try:
            return not isinstance(self._pruner.residual(file), AlwaysFalse)
        except _UNDECODABLE:
            return True

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
        return self._proof(file)

    def _in_partitions(self, file: DataFile) -> bool:
        if self._partitions is None or file.partition_key in self._partitions:
            return True
        return file.spec_id not in self._partition_specs or not file.partition


_Proof = Callable[[DataFile], bool]


def _proof(row_filter: BooleanExpression, schema: Schema, metadata: TableMetadata) -> _Proof:
    """A function that says whether all rows of a file provably match: per comparison, combined."""
    if isinstance(row_filter, And | Or):
        left = _proof(row_filter.left, schema, metadata)
        right = _proof(row_filter.right, schema, metadata)
        if isinstance(row_filter, And):
            return lambda file: left(file) and right(file)
        return lambda file: left(file) or right(file)
    bound = bind_filter(row_filter, schema)
    if not isinstance(bound, BoundPredicate):  # always true or always false
        return lambda _: isinstance(bound, AlwaysTrue)
    return _ComparisonProof(row_filter, bound, schema, metadata)


class _ComparisonProof:
    """Proves one comparison by the partition value or by the statistics of its column."""

    def __init__(
        self,
        unbound: BooleanExpression,
        bound: BoundPredicate,
        schema: Schema,
        metadata: TableMetadata,
    ) -> None:
        self._pruner = Pruner(unbound, schema, metadata.specs())
        self._strict = _StrictMetricsEvaluator(schema, unbound)
        self._field_id = bound.term.ref().field.field_id
        self._is_float = isinstance(schema.find_type(self._field_id), FloatType | DoubleType)
        # Iceberg's !=, NOT IN and NOT LIKE hold for null, SQL's do not.
        self._needs_value = isinstance(bound, BoundNotEqualTo | BoundNotIn | BoundNotStartsWith)

    def __call__(self, file: DataFile) -> bool:
        try:
            return isinstance(self._pruner.residual(file), AlwaysTrue) or self._by_statistics(file)
        except _UNDECODABLE:
            return False

    def _by_statistics(self, file: DataFile) -> bool:
        nulls = (file.null_value_counts or {}).get(self._field_id)
        if nulls is None or (nulls and self._needs_value):
            return False  # PyIceberg takes a missing count for "no nulls"
        if self._is_float and self._field_id not in (file.nan_value_counts or {}):
            return False
        return self._strict.eval(cast("PyIcebergDataFile", file))  # the statistics' names agree


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
