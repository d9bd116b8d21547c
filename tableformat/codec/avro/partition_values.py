"""Partition tuples on their way into a manifest: types, exact values, summaries.

Values are PyIceberg's internal ones (days and microseconds as int, `Decimal`, `UUID`, bytes, ...).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any
from uuid import UUID

from pyiceberg import types as iceberg
from pyiceberg.conversions import to_bytes
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import UnknownTransform

from tableformat.errors import InvalidInputError, UnsupportedError
from tableformat.spec.manifest_file import PartitionFieldSummary

PartitionTuple = tuple[Any, ...]

_FLOAT = struct.Struct("<f")

_INT32 = (iceberg.IntegerType, iceberg.DateType)
_INT64 = (
    iceberg.LongType,
    iceberg.TimeType,
    iceberg.TimestampType,
    iceberg.TimestamptzType,
    iceberg.TimestampNanoType,
    iceberg.TimestamptzNanoType,
)


def schema_for_spec(spec: PartitionSpec, current: Schema, schemas: Iterable[Schema]) -> Schema:
    """The schema that tells the types of a spec's partition values.

    The current schema, unless it has lost a source column that another schema of the table still
    has: then the newest of those. Values under a spec outlive the columns they were made from, and
    without the type they could not be written again.
    """
    sources = {each.source_id for each in spec.fields}
    candidates = sorted(schemas, key=lambda each: each.schema_id, reverse=True)
    for schema in (current, *candidates):
        if all(_has_column(schema, source_id) for source_id in sources):
            return schema
    return current


def partition_type(spec: PartitionSpec, schema: Schema) -> iceberg.StructType:
    """Types of the partition values; every field is optional, as Java writes them.

    A field whose source column `schema` does not have is of unknown type and can only be null.
    """
    for field in spec.fields:
        if isinstance(field.transform, UnknownTransform):
            raise UnsupportedError(
                "cannot write a manifest: the spec has a transform this version does not know",
                transform=field.transform,
                spec_id=spec.spec_id,
            )
    return iceberg.StructType(
        *(
            # Avro has no union of null and null, so an unknown type is `null` and not optional.
            iceberg.NestedField(
                each.field_id,
                each.name,
                each.field_type,
                required=isinstance(each.field_type, iceberg.UnknownType),
            )
            for each in spec.partition_type(schema).fields
        )
    )


def partition_normalizer(
    partition: iceberg.StructType,
) -> Callable[[PartitionTuple], PartitionTuple]:
    """A function that checks a tuple and makes its values exactly what the types demand.

    Raises:
        InvalidInputError: (the returned function) A value is of the wrong type or out of range.
    """
    checks = tuple(
        (each.name, each.field_type, _check_of(each.field_type)) for each in partition.fields
    )

    def normalize(values: PartitionTuple) -> PartitionTuple:
        if len(values) != len(checks):
            raise InvalidInputError(
                "partition tuple does not fit its spec: wrong number of values",
                expected=len(checks),
                found=len(values),
            )
        result: list[Any] = []
        for value, (name, field_type, check) in zip(values, checks, strict=True):
            if value is None:
                result.append(None)
                continue
            try:
                result.append(check(value))
            except (TypeError, ValueError, InvalidOperation) as error:
                raise InvalidInputError(
                    f"partition value does not fit its type: {error}",
                    field=name,
                    type=field_type,
                    value=repr(value),
                ) from error
        return tuple(result)

    return normalize


def summarize_partitions(
    partition: iceberg.StructType, tuples: Sequence[PartitionTuple]
) -> tuple[PartitionFieldSummary, ...]:
    """Field 507 `partitions`: what the values of each field span (normalized tuples)."""
    summaries = []
    for ordinal, each in enumerate(partition.fields):
        values = [values[ordinal] for values in tuples]
        present = [value for value in values if value is not None]
        comparable = [value for value in present if not _is_nan(value)]
        low = high = None
        if comparable and isinstance(each.field_type, iceberg.PrimitiveType):
            low = to_bytes(each.field_type, min(comparable, key=_order))
            high = to_bytes(each.field_type, max(comparable, key=_order))
        summaries.append(
            PartitionFieldSummary(
                contains_null=len(present) < len(values),
                contains_nan=len(comparable) < len(present),
                lower_bound=low,
                upper_bound=high,
            )
        )
    return tuple(summaries)


def _has_column(schema: Schema, field_id: int) -> bool:
    return schema.find_column_name(field_id) is not None


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _order(value: Any) -> Any:
    """Sort key; -0.0 comes before 0.0, so that bounds by bytes hold (as in Java)."""
    return (value, math.copysign(1.0, value)) if isinstance(value, float) else value


def _check_of(field_type: iceberg.IcebergType) -> Callable[[Any], Any]:
    if isinstance(field_type, _INT32):
        return lambda value: _integer(value, bits=32)
    if isinstance(field_type, _INT64):
        return lambda value: _integer(value, bits=64)
    if isinstance(field_type, iceberg.DecimalType):
        precision, scale = field_type.precision, field_type.scale
        return lambda value: _decimal(value, precision, scale)
    if isinstance(field_type, iceberg.FixedType):
        size = len(field_type)
        return lambda value: _fixed(value, size)
    for known, check in _SIMPLE_CHECKS:
        if isinstance(field_type, known):
            return check
    return _unknown


def _integer(value: Any, *, bits: int) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError("an integer is needed")
    number = int(value)
    if not -(1 << (bits - 1)) <= number < 1 << (bits - 1):
        raise ValueError(f"more than {bits} bits")
    return number


def _decimal(value: Any, precision: int, scale: int) -> Decimal:
    if not isinstance(value, Decimal):
        raise TypeError("a Decimal is needed")
    if not value.is_finite():
        raise ValueError("not a finite number")
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    unscaled = int("".join(map(str, digits)))
    shift = exponent + scale
    if shift >= 0:
        unscaled *= 10**shift if shift <= precision else 10 ** (precision + 1)
    else:
        unscaled, rest = divmod(unscaled, 10 ** min(-shift, len(digits) + 1))
        if rest:
            raise ValueError(f"more than {scale} digits after the point")
    if unscaled >= 10**precision:
        raise ValueError(f"more than {precision} digits")
    return Decimal((sign, tuple(map(int, str(unscaled))), -scale))


def _fixed(value: Any, size: int) -> bytes:
    raw = _binary(value)
    if len(raw) != size:
        raise ValueError(f"{size} bytes are needed")
    return raw


def _binary(value: Any) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError("bytes are needed")
    return bytes(value)


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("a string is needed")
    value.encode("utf-8")
    return str(value)


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError("a bool is needed")
    return value


def _floating(value: Any) -> float:
    if isinstance(value, bool) or not hasattr(value, "__float__") or isinstance(value, Decimal):
        raise TypeError("a float is needed")
    return float(value)


def _single(value: Any) -> float:
    try:
        return float(_FLOAT.unpack(_FLOAT.pack(_floating(value)))[0])
    except OverflowError as error:
        raise ValueError("more than 32 bits") from error


def _uuid(value: Any) -> UUID:
    if isinstance(value, UUID):
        return value
    return UUID(bytes=_binary(value))


def _unknown(_: Any) -> Any:
    raise ValueError("the source column is not in the schema, so only null can be written")


_SIMPLE_CHECKS: tuple[
    tuple[type[iceberg.IcebergType] | tuple[type[iceberg.IcebergType], ...], Callable[[Any], Any]],
    ...,
] = (
    (iceberg.StringType, _string),
    (iceberg.BinaryType, _binary),
    (iceberg.UUIDType, _uuid),
    (iceberg.BooleanType, _boolean),
    (iceberg.FloatType, _single),
    (iceberg.DoubleType, _floating),
)
