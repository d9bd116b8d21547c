"""Which manifests and data files a filter can skip, and what is left of the filter for a file.

```
manifest   partition summaries   inclusive projection of the filter      skip | open
file       partition tuple       inclusive projection                    skip | keep
file       column statistics     bounds, null and NaN counts             skip | keep
conjunct   partition tuple       strict projection                       proven, dropped | kept
```

The visitors are PyIceberg's; what they are shown is adapted here: bounds of promoted columns are
widened (R21), upper bounds of float columns that may hold NaN are hidden (NaN is above every
number and outside of every bound), and a null or NaN partition value proves nothing. Nor does one
that `truncate` wrapped around: the smallest integers of a column are filed among the largest.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any, cast
from uuid import UUID

from pyiceberg.conversions import from_bytes
from pyiceberg.expressions import AlwaysFalse, AlwaysTrue, And, BooleanExpression
from pyiceberg.expressions.visitors import (
    _InclusiveMetricsEvaluator,
    expression_evaluator,
    inclusive_projection,
    manifest_evaluator,
    strict_projection,
)
from pyiceberg.manifest import DataFile as PyIcebergDataFile
from pyiceberg.manifest import ManifestFile as PyIcebergManifestFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import Transform, TruncateTransform
from pyiceberg.typedef import Record
from pyiceberg.types import (
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    PrimitiveType,
    UUIDType,
)

from tableformat.scan.bounds import has_usable_bounds, widen_bound
from tableformat.scan.row_filter import (
    bind_filter,
    filter_field_ids,
    normalize_filter,
    split_conjunction,
)
from tableformat.spec.data_file import DataFile, PartitionKey
from tableformat.spec.manifest_file import ManifestFile, PartitionFieldSummary
from tableformat.spec.uuid_text import UUID_BYTES


@dataclass(frozen=True, slots=True)
class _ManifestView:
    """The one attribute PyIceberg's manifest evaluator reads."""

    partitions: list[PartitionFieldSummary]


@dataclass(frozen=True, slots=True)
class _FileView:
    """The attributes PyIceberg's metrics evaluator reads, for the filter's columns only."""

    record_count: int
    value_counts: Mapping[int, int]
    null_value_counts: Mapping[int, int]
    nan_value_counts: Mapping[int, int]
    lower_bounds: Mapping[int, bytes]
    upper_bounds: Mapping[int, bytes]


@dataclass(frozen=True, slots=True)
class _SpecPruner:
    """What is prepared once for a partition spec."""

    partition_types: tuple[Any, ...]
    wrapped: tuple[tuple[int, ...], ...]
    manifest_may_match: Callable[[PyIcebergManifestFile], bool]
    partition_may_match: Callable[[Record], bool]
    proofs: tuple[tuple[BooleanExpression, Callable[[Record], bool]], ...]


class Pruner:
    """Prunes for one filter over one schema. Keeps what it worked out per spec and partition."""

    def __init__(
        self, row_filter: BooleanExpression, schema: Schema, specs: Mapping[int, PartitionSpec]
    ) -> None:
        self._filter = normalize_filter(row_filter, schema)
        self._schema = schema
        self._specs = specs
        self._by_spec: dict[int, _SpecPruner] = {}
        self._residuals: dict[PartitionKey, BooleanExpression] = {}
        self._everything = isinstance(self._filter, AlwaysTrue)
        bound = bind_filter(self._filter, schema)
        self._nothing = isinstance(bound, AlwaysFalse)
        self._statistics = StatisticsFilter(self._filter, schema)

    def manifest_may_match(self, manifest: ManifestFile) -> bool:
        """Whether a file in `manifest` may hold a matching row."""
        if self._everything:
            return True
        spec = self._spec(manifest.partition_spec_id)
        if not manifest.partitions or len(manifest.partitions) != len(spec.partition_types):
            return not self._nothing
        summaries = [
            _adapt_summary(summary, field_type)
            for summary, field_type in zip(manifest.partitions, spec.partition_types, strict=True)
        ]
        if any(map(_may_hold, summaries, spec.partition_types, spec.wrapped)):
            return not self._nothing
        view = cast("PyIcebergManifestFile", _ManifestView(summaries))
        return spec.manifest_may_match(view)

    def residual(self, data_file: DataFile) -> BooleanExpression:
        """What of the filter must still be checked row by row; `AlwaysFalse` skips the file."""
        if self._everything:
            return self._filter
        key = data_file.partition_key
        if key not in self._residuals:
            self._residuals[key] = self._partition_residual(data_file)
        residual = self._residuals[key]
        if isinstance(residual, AlwaysFalse) or not self._statistics.may_match(data_file):
            return AlwaysFalse()
        return residual

    def _spec(self, spec_id: int) -> _SpecPruner:
        if spec_id not in self._by_spec:
            spec = self._specs[spec_id]
            struct_type = spec.partition_type(self._schema)
            partition_schema = Schema(*struct_type.fields)
            inclusive = _projected(
                inclusive_projection(self._schema, spec), self._filter, otherwise=AlwaysTrue()
            )
            strictly = strict_projection(self._schema, spec)
            proofs = [
                (
                    part,
                    expression_evaluator(
                        partition_schema, _projected(strictly, part, otherwise=AlwaysFalse()), True
                    ),
                )
                for part in split_conjunction(self._filter)
            ]
            self._by_spec[spec_id] = _SpecPruner(
                partition_types=tuple(field.field_type for field in struct_type.fields),
                wrapped=tuple(
                    _wrapped(field.transform, part.field_type)
                    for field, part in zip(spec.fields, struct_type.fields, strict=True)
                ),
                manifest_may_match=manifest_evaluator(spec, self._schema, inclusive),
                partition_may_match=expression_evaluator(partition_schema, inclusive, True),
                proofs=tuple(proofs),
            )
        return self._by_spec[spec_id]

    def _partition_residual(self, data_file: DataFile) -> BooleanExpression:
        spec = self._spec(data_file.spec_id)
        values = [_comparable(value) for value in data_file.partition]
        if any(isinstance(value, float) and math.isnan(value) for value in values) or any(
            value in wrapped for wrapped, value in zip(spec.wrapped, values, strict=True)
        ):
            return self._filter
        record = Record(*values)
        if not spec.partition_may_match(record):
            return AlwaysFalse()
        if None in values:
            return self._filter
        left = [part for part, is_proven in spec.proofs if not is_proven(record)]
        return reduce(And, left) if left else AlwaysTrue()


def _projected(
    project: Callable[[BooleanExpression], BooleanExpression],
    row_filter: BooleanExpression,
    *,
    otherwise: BooleanExpression,
) -> BooleanExpression:
    try:
        return project(row_filter)
    except OverflowError:  # PyIceberg steps over the first or the last day that Python has
        return otherwise


class StatisticsFilter:
    """Judges files, or single row groups described as files, by column statistics alone."""

    def __init__(self, row_filter: BooleanExpression, schema: Schema) -> None:
        self._field_types = {
            field_id: schema.find_type(field_id)
            for field_id in filter_field_ids(bind_filter(row_filter, schema))
        }
        self._metrics = _InclusiveMetricsEvaluator(schema, normalize_filter(row_filter, schema))

    def may_match(self, data_file: DataFile) -> bool:
        """Whether a row may pass the filter."""
        lower, upper = data_file.lower_bounds or {}, data_file.upper_bounds or {}
        nan_counts = data_file.nan_value_counts or {}
        lowers: dict[int, bytes] = {}
        uppers: dict[int, bytes] = {}
        nans: dict[int, int] = {}
        for field_id, field_type in self._field_types.items():
            if not isinstance(field_type, PrimitiveType):
                continue
            may_hold_nan = _is_float(field_type) and nan_counts.get(field_id) != 0
            if not may_hold_nan and field_id in nan_counts:
                nans[field_id] = nan_counts[field_id]
            if not has_usable_bounds(field_type, data_file):
                continue
            if field_id in lower:
                lowers[field_id] = widen_bound(field_type, lower[field_id])
            if field_id in upper and not may_hold_nan:
                uppers[field_id] = widen_bound(field_type, upper[field_id])
        view = _FileView(
            record_count=data_file.record_count,
            value_counts=data_file.value_counts or {},
            null_value_counts=data_file.null_value_counts or {},
            nan_value_counts=nans,
            lower_bounds=lowers,
            upper_bounds=uppers,
        )
        return self._metrics.eval(cast("PyIcebergDataFile", view))


def _wrapped(transform: Transform[Any, Any], kind: IcebergType) -> tuple[int, ...]:
    """Where `truncate` puts integers below the smallest multiple of its width.

    Of a long also those that were filed when it was an int.
    """
    if not isinstance(transform, TruncateTransform) or not isinstance(kind, IntegerType | LongType):
        return ()
    kinds: list[IntegerType | LongType] = [kind]
    if isinstance(kind, LongType):
        kinds.append(IntegerType())
    below = [(each.max, each.min % transform.width) for each in kinds]
    return tuple(largest + 1 - rest for largest, rest in below if rest)


def _may_hold(summary: PartitionFieldSummary, kind: Any, values: tuple[int, ...]) -> bool:
    """Whether one of these partition values is within a manifest's bounds."""
    if not values or summary.lower_bound is None or summary.upper_bound is None:
        return False
    low = cast("int", from_bytes(kind, summary.lower_bound))
    high = cast("int", from_bytes(kind, summary.upper_bound))
    return any(low <= each <= high for each in values)


def _adapt_summary(summary: PartitionFieldSummary, field_type: Any) -> PartitionFieldSummary:
    lower, upper = summary.lower_bound, summary.upper_bound
    if isinstance(field_type, PrimitiveType):
        lower = None if lower is None else widen_bound(field_type, lower)
        upper = None if upper is None else widen_bound(field_type, upper)
    if isinstance(field_type, UUIDType) and lower is not None:
        lower, upper = b"\x00" * UUID_BYTES, b"\xff" * UUID_BYTES  # see `has_usable_bounds`
    if _is_float(field_type) and summary.contains_nan is not False:
        layout = "<d" if isinstance(field_type, DoubleType) else "<f"
        lower = struct.pack(layout, -math.inf) if lower is None else lower
        upper = struct.pack(layout, math.inf)
    return PartitionFieldSummary(
        contains_null=summary.contains_null,
        contains_nan=summary.contains_nan,
        lower_bound=lower,
        upper_bound=upper,
    )


def _is_float(field_type: Any) -> bool:
    return isinstance(field_type, FloatType | DoubleType)


def _comparable(value: Any) -> Any:
    """A partition value in the form of PyIceberg's literals."""
    return value.bytes if isinstance(value, UUID) else value
