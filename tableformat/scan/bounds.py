"""Column bounds and null counts of files, decoded for the type a column is read with.

Statistics keep the bytes of the type they were written with. After a promotion the table's type is
wider, and decoding the old bytes as the new type fails or prunes wrongly (R21), so bounds pass
through here before anything compares them.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from pyiceberg import types as iceberg
from pyiceberg.conversions import from_bytes

from tableformat.errors import CorruptDataError
from tableformat.spec.data_file import DataFile

MICROS_PER_DAY = timedelta(days=1) // timedelta(microseconds=1)
NARROW_SIZE_BYTES = 4


@dataclass(frozen=True, slots=True)
class KeyRange:
    """What is known about one column of one file; None means not known.

    `lower` and `upper` include every non-null value (they may be wider: truncated strings).
    """

    lower: Any | None
    upper: Any | None
    may_hold_nulls: bool
    may_hold_values: bool


def widen_bound(field_type: iceberg.PrimitiveType, bound: bytes) -> bytes:
    """A bound written before a promotion, as bytes of the type it was promoted to.

    int to long, float to double and date to timestamp change the width; the other promotions
    (decimal precision, string and binary) do not change the bytes.
    """
    if len(bound) != NARROW_SIZE_BYTES:
        return bound
    if isinstance(field_type, iceberg.LongType):
        return struct.pack("<q", *struct.unpack("<i", bound))
    if isinstance(field_type, iceberg.DoubleType):
        return struct.pack("<d", *struct.unpack("<f", bound))
    if isinstance(field_type, iceberg.TimestampType | iceberg.TimestampNanoType):
        (days,) = struct.unpack("<i", bound)
        scale = 1000 if isinstance(field_type, iceberg.TimestampNanoType) else 1
        return struct.pack("<q", days * MICROS_PER_DAY * scale)
    return bound


def has_usable_bounds(field_type: iceberg.IcebergType, file: DataFile) -> bool:
    """Whether a file's bounds of a column enclose its values.

    Iceberg's Java library orders UUIDs as signed numbers (apache/iceberg#14216), Parquet as bytes.
    Of a file of several row groups it takes the signed least and greatest of theirs, outside of
    which there may be rows.
    """
    return not isinstance(field_type, iceberg.UUIDType) or len(file.split_offsets or ()) == 1


def decode_bound(field_type: iceberg.PrimitiveType, bound: bytes, *, location: str) -> Any:
    """A bound as a comparable value (UUIDs as bytes, whose order is the column's order).

    Raises:
        CorruptDataError: The bytes are not of this type.
    """
    if isinstance(field_type, iceberg.UUIDType):
        return bound
    try:
        return from_bytes(field_type, widen_bound(field_type, bound))
    except (struct.error, ValueError, UnicodeDecodeError) as error:
        raise CorruptDataError(
            f"a column bound is no {field_type}: {bound.hex()}", location=location
        ) from error


def key_range(file: DataFile, key_field: iceberg.NestedField) -> KeyRange:
    """The statistics of `key_field` in `file`. Floats get no bounds: NaN is outside of them."""
    field_id, field_type = key_field.field_id, key_field.field_type
    null_count = (file.null_value_counts or {}).get(field_id)
    value_count = (file.value_counts or {}).get(field_id)
    lower = upper = None
    if (
        isinstance(field_type, iceberg.PrimitiveType)
        and not isinstance(field_type, iceberg.FloatType | iceberg.DoubleType)
        and has_usable_bounds(field_type, file)
    ):
        lower_bytes = (file.lower_bounds or {}).get(field_id)
        upper_bytes = (file.upper_bounds or {}).get(field_id)
        if lower_bytes is not None and upper_bytes is not None:
            lower = decode_bound(field_type, lower_bytes, location=file.file_path)
            upper = decode_bound(field_type, upper_bytes, location=file.file_path)
    return KeyRange(
        lower=lower,
        upper=upper,
        may_hold_nulls=null_count is None or null_count > 0,
        may_hold_values=null_count is None or value_count is None or null_count < value_count,
    )


def enclosing_range(ranges: Sequence[KeyRange]) -> KeyRange:
    """What holds all of some ranges, of which there is one at least."""
    holding = [each for each in ranges if each.may_hold_values]
    bounds: list[Any] = [each for each in holding if each.lower is not None]
    is_known = bool(holding) and len(bounds) == len(holding)
    return KeyRange(
        lower=min(each.lower for each in bounds) if is_known else None,
        upper=max(each.upper for each in bounds) if is_known else None,
        may_hold_nulls=any(each.may_hold_nulls for each in ranges),
        may_hold_values=bool(holding),
    )


def ranges_overlap(left: KeyRange, right: KeyRange) -> bool:
    """Whether some value, or NULL (which equals NULL here), may be in both."""
    if left.may_hold_nulls and right.may_hold_nulls:
        return True
    if not (left.may_hold_values and right.may_hold_values):
        return False
    if left.lower is None or right.lower is None:
        return True
    return bool(left.lower <= right.upper and right.lower <= left.upper)
