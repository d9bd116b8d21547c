"""Arrow arrays that reading and writing both build: constants, and lists cut to what they hold."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.types import IcebergType, UUIDType

from tableformat.spec.types import arrow_type
from tableformat.spec.uuid_text import UUID_BYTES


def constant_array(value: Any, kind: IcebergType, count: int) -> pa.Array:
    """`count` times one value.

    Args:
        value: As PyIceberg holds it (a default or a partition value): temporal values as
            `datetime` objects, as int in the type's unit, or as ISO text; None is null.
        kind: A flat Iceberg type, or any type for a null.
        count: Length of the result.

    Returns:
        Type `arrow_type(kind)`.
    """
    target = arrow_type(kind)
    if value is None:
        return pa.nulls(count, target)
    if isinstance(kind, UUIDType):
        raw = value if isinstance(value, bytes) else value.bytes
        storage = pa.repeat(pa.scalar(raw, pa.binary(UUID_BYTES)), count)
        return pa.ExtensionArray.from_storage(target, storage)
    if isinstance(value, str) and pa.types.is_temporal(target):
        return pa.repeat(pa.scalar(value).cast(target), count)
    return pa.repeat(pa.scalar(value, target), count)


def rebased_offsets(values: pa.Array) -> tuple[pa.Array, int, int]:
    """Offsets of a list or map array that start at 0, and which children they span.

    Returns:
        int32 offsets, shape `(len + 1,)`; the first child; the number of children.
    """
    offsets = values.offsets
    first, last = offsets[0].as_py(), offsets[-1].as_py()
    return pc.subtract(offsets, offsets[0]).cast(pa.int32()), first, last - first
