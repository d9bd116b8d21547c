"""Pruning may keep too much, never too little: checked row by row over every transform."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from datetime import datetime, timedelta
from decimal import Decimal
from uuid import UUID

import pyarrow as pa
import pytest
from pyiceberg.conversions import to_bytes
from pyiceberg.expressions import AlwaysFalse, AlwaysTrue
from pyiceberg.expressions.visitors import expression_evaluator
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    TruncateTransform,
    VoidTransform,
    YearTransform,
)
from pyiceberg.typedef import Record
from pyiceberg.types import (
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    NestedField,
    PrimitiveType,
    StringType,
    TimestampType,
    TimestamptzType,
    UUIDType,
)

from tableformat.scan.pruning import Pruner, StatisticsFilter
from tableformat.scan.row_filter import (
    arrow_filter,
    bind_filter,
    normalize_filter,
    parse_filter,
)
from tableformat.spec.data_file import DataFile, FileContent
from tableformat.spec.manifest_file import ManifestContent, ManifestFile, PartitionFieldSummary

HOUR = 3_600_000_000
MOMENTS = [
    -1,
    0,
    1,
    HOUR - 1,
    HOUR,
    24 * HOUR,
    24 * HOUR - 1,
    -24 * HOUR,
    31 * 24 * HOUR,
    400 * 24 * HOUR,
]
STRINGS = ["", "a", "ab", "abc", "abd", "abcd", "b", "\u00e9t", "\U0001f600xyz"]


def text(moment: int, zone: str) -> str:
    return (datetime(1970, 1, 1) + timedelta(microseconds=moment)).isoformat() + zone


IDENTITY, BUCKET = IdentityTransform(), BucketTransform(3)

# Type, transforms, values in internal form, values as they stand in a filter.
AXES: list[tuple[PrimitiveType, list[Transform], list, list[str]]] = [
    (
        IntegerType(),
        [IDENTITY, BUCKET, TruncateTransform(10)],
        [-11, -10, -1, 0, 5, 9, 10, 19, 20],
        ["-10", "0", "9", "10", "9.5", "99999999999"],
    ),
    (
        LongType(),
        [IDENTITY, BUCKET, TruncateTransform(7)],
        [-8, -7, -1, 0, 6, 7, 13, 2**40],
        ["-7", "0", "6", "7"],
    ),
    (
        DecimalType(9, 2),
        [IDENTITY, BUCKET, TruncateTransform(50)],
        [Decimal(v).scaleb(-2) for v in (-101, -50, -1, 0, 49, 50, 99, 100)],
        ["-0.5", "0.00", "0.49", "0.5", "0.505", "99999999.0"],
    ),
    (
        StringType(),
        [IDENTITY, BUCKET, TruncateTransform(2)],
        STRINGS,
        [f"'{v}'" for v in STRINGS],
    ),
    (
        DateType(),
        [IDENTITY, BUCKET, YearTransform(), MonthTransform(), DayTransform()],
        [-366, -365, -31, -1, 0, 1, 30, 31, 365],
        ["'1970-01-01'", "'1969-12-31'", "'1970-02-01'", "'1969-01-01'"],
    ),
    (
        TimestampType(),
        [IDENTITY, BUCKET, YearTransform(), MonthTransform(), DayTransform(), HourTransform()],
        MOMENTS,
        [f"'{text(m, '')}'" for m in MOMENTS],
    ),
    (
        TimestamptzType(),
        [YearTransform(), MonthTransform(), DayTransform(), HourTransform()],
        MOMENTS,
        [f"'{text(m, '+00:00')}'" for m in MOMENTS],
    ),
    (
        DoubleType(),
        [IDENTITY],
        [-1.5, -0.0, 0.0, 2.5, math.inf, -math.inf, math.nan],
        ["-1.5", "0.0", "2.4"],
    ),
    (FloatType(), [IDENTITY], [-1.5, 0.0, 2.5, math.nan], ["-1.5", "0.0", "3.5"]),
    (
        UUIDType(),
        [IDENTITY, BUCKET],
        [UUID(int=1), UUID(int=2**127), UUID(int=5)],
        [f"'{UUID(int=1)}'", f"'{UUID(int=2**127)}'"],
    ),
]


def filters_on(kind: PrimitiveType, literals: list[str]) -> list[str]:
    operators = ["<", "<=", ">", ">=", "=", "!="]
    found = [f"x {operator} {literal}" for operator in operators for literal in literals]
    found += [f"not (x {operator} {literals[0]})" for operator in operators]
    some = f"({literals[0]}, {literals[1]})"
    found += [f"x in {some}", f"x not in {some}"]
    found += ["x is null", "x is not null"]
    found += [f"x > {a} and x <= {b}" for a, b in itertools.pairwise(literals)]
    found += [f"x < {a} or x >= {b}" for a, b in itertools.pairwise(literals)]
    if isinstance(kind, StringType):
        found += [f"x like '{v}%'" for v in STRINGS if v]
        found += [f"x not like '{v}%'" for v in STRINGS if v]
    if isinstance(kind, FloatType | DoubleType):
        found += ["x is nan", "x is not nan"]
    return found


def row_matcher(row_filter: str, schema: Schema) -> Callable[[object], bool]:
    """SQL's answer for one value: comparisons with NULL are not true, NaN is above all."""
    fitted = normalize_filter(parse_filter(row_filter), schema)
    evaluate = expression_evaluator(schema, fitted, True)

    def matches(value: object) -> bool:
        if value is None:
            # Every comparison is unknown; only the null tests can be true.
            return "is null" in row_filter or "is not nan" in row_filter
        if isinstance(value, float) and math.isnan(value) and "nan" not in row_filter:
            value = math.inf if ">" not in row_filter else 1e308
        return evaluate(Record(value.bytes if isinstance(value, UUID) else value))

    return matches


def file_of(partition: object, values: list, kind: PrimitiveType, *, bounds: bool) -> DataFile:
    plain = [v for v in values if v is not None and v == v]
    ordered = sorted(plain, key=lambda v: v.bytes if isinstance(v, UUID) else v)
    has = bounds and plain
    return DataFile(
        content=FileContent.DATA,
        file_path="f",
        file_format="PARQUET",
        spec_id=1,
        partition=(partition,),
        record_count=len(values),
        file_size_in_bytes=1,
        value_counts={1: len(values)} if bounds else None,
        null_value_counts={1: values.count(None)} if bounds else None,
        nan_value_counts=None,
        lower_bounds={1: bound(kind, ordered[0])} if has else None,
        upper_bounds={1: bound(kind, ordered[-1])} if has else None,
    )


def bound(kind: PrimitiveType, value: object) -> bytes:
    return value.bytes if isinstance(value, UUID) else to_bytes(kind, value)


def manifest_of(partitions: list, kind: PrimitiveType) -> ManifestFile:
    known = [
        p for p in partitions if p is not None and not (isinstance(p, float) and math.isnan(p))
    ]
    ordered = sorted(known, key=lambda p: p.bytes if isinstance(p, UUID) else p)
    summary = PartitionFieldSummary(
        contains_null=None in partitions,
        contains_nan=any(p != p for p in partitions),
        lower_bound=bound(kind, ordered[0]) if ordered else None,
        upper_bound=bound(kind, ordered[-1]) if ordered else None,
    )
    return ManifestFile(
        manifest_path="m",
        manifest_length=1,
        partition_spec_id=1,
        content=ManifestContent.DATA,
        sequence_number=1,
        min_sequence_number=1,
        added_snapshot_id=1,
        added_files_count=1,
        existing_files_count=0,
        deleted_files_count=0,
        added_rows_count=1,
        existing_rows_count=0,
        deleted_rows_count=0,
        partitions=(summary,),
    )


CASES = [
    pytest.param(kind, transform, values, literals, id=f"{kind}-{transform}")
    for kind, transforms, values, literals in AXES
    for transform in [*transforms, VoidTransform()]
]


@pytest.mark.parametrize(("kind", "transform", "values", "literals"), CASES)
def test_pruning_keeps_every_file_with_a_matching_row(kind, transform, values, literals) -> None:
    schema = Schema(NestedField(1, "x", kind, required=False))
    spec = PartitionSpec(PartitionField(1, 1000, transform, "p"), spec_id=1)
    partition_kind = spec.partition_type(schema).fields[0].field_type
    apply = transform.transform(kind)
    groups: dict[object, list] = {}
    for value in [*values, None]:
        partition = None if value is None else apply(value)
        groups.setdefault(repr(partition), [partition]).append(value)
    for row_filter in filters_on(kind, literals):
        pruner = Pruner(parse_filter(row_filter), schema, {1: spec})
        matches = row_matcher(row_filter, schema)
        manifest_wanted = False
        for partition, *members in groups.values():
            matching = [v for v in members if matches(v)]
            manifest_wanted |= bool(matching)
            for bounds in (False, True):
                residual = pruner.residual(file_of(partition, members, kind, bounds=bounds))
                if matching:
                    assert residual != AlwaysFalse(), (row_filter, partition, matching)
                if residual == AlwaysTrue():
                    assert matching == members, (row_filter, partition, members)
            manifest = manifest_of([partition], partition_kind)
            assert pruner.manifest_may_match(manifest) or not matching, (row_filter, partition)
        everything = manifest_of([group[0] for group in groups.values()], partition_kind)
        assert pruner.manifest_may_match(everything) or not manifest_wanted, row_filter


@pytest.mark.parametrize("literal", ["0.1", "0.3", "16777217.0", "-0.1"])
def test_float_files_are_kept_where_the_row_filter_keeps_a_row(literal: str) -> None:
    schema = Schema(NestedField(1, "x", FloatType(), required=False))
    spec = PartitionSpec(PartitionField(1, 1000, IDENTITY, "p"), spec_id=1)
    for row_filter in filters_on(FloatType(), [literal, "7.5"]):
        pruner = Pruner(parse_filter(row_filter), schema, {1: spec})
        expression = arrow_filter(bind_filter(parse_filter(row_filter), schema), schema)
        for value in pa.array([0.1, 0.3, 16777216, -0.1, 7.5], pa.float32()):
            rows = pa.record_batch({"x": pa.array([value.as_py()], pa.float32())})
            residual = pruner.residual(
                file_of(value.as_py(), [value.as_py()], FloatType(), bounds=True)
            )
            kept = rows.filter(expression).num_rows
            assert (residual != AlwaysFalse()) >= bool(kept), (row_filter, value)
            assert (residual == AlwaysTrue()) <= bool(kept), (row_filter, value)


def test_pruning_does_prune() -> None:
    schema = Schema(NestedField(1, "x", LongType(), required=False))
    spec = PartitionSpec(PartitionField(1, 1000, TruncateTransform(10), "p"), spec_id=1)
    pruner = Pruner(parse_filter("x >= 25 and x < 40"), schema, {1: spec})
    assert not pruner.manifest_may_match(manifest_of([0, 10], LongType()))
    assert pruner.manifest_may_match(manifest_of([0, 20], LongType()))
    residuals = {
        partition: pruner.residual(file_of(partition, [partition], LongType(), bounds=False))
        for partition in (10, 20, 30, 40)
    }
    assert residuals[10] == residuals[40] == AlwaysFalse()
    assert residuals[30] == AlwaysTrue()
    assert residuals[20] == parse_filter("x >= 25")


def test_statistics_of_a_narrower_type_are_widened() -> None:
    """R21: bounds keep the bytes of the type they were written with."""
    schema = Schema(
        NestedField(1, "i", LongType(), required=False),
        NestedField(2, "d", DoubleType(), required=False),
        NestedField(3, "t", TimestampType(), required=False),
    )
    narrow = [(1, IntegerType(), -5, 7), (2, FloatType(), 0.5, 1.5), (3, DateType(), 0, 1)]
    file = file_of(0, [1], LongType(), bounds=False).with_(
        lower_bounds={i: to_bytes(kind, low) for i, kind, low, _ in narrow},
        upper_bounds={i: to_bytes(kind, high) for i, kind, _, high in narrow},
        nan_value_counts={2: 0},
    )
    for row_filter, kept in {
        "i = -5": True,
        "i > 7": False,
        "i < -5": False,
        "d > 1.4": True,
        "d > 1.5": False,
        "t > '1970-01-01T12:00:00'": True,
        "t > '1970-01-02T00:00:00'": False,
        "t < '1970-01-01T00:00:00'": False,
    }.items():
        assert StatisticsFilter(parse_filter(row_filter), schema).may_match(file) is kept, (
            row_filter
        )


def test_spec_with_a_dropped_source_column_is_no_obstacle() -> None:
    schema = Schema(NestedField(2, "y", LongType(), required=False))
    spec = PartitionSpec(
        PartitionField(1, 1000, IdentityTransform(), "gone"),
        PartitionField(2, 1001, IdentityTransform(), "y"),
        spec_id=1,
    )
    pruner = Pruner(parse_filter("y = 3"), schema, {1: spec})
    file = file_of(0, [1], LongType(), bounds=False)
    assert pruner.residual(file.with_(partition=("old", 4))) == AlwaysFalse()
    assert pruner.residual(file.with_(partition=("old", 3))) == AlwaysTrue()
