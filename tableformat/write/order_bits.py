"""Column values as 64-bit keys that compare as the values do, column at a time.

| type | key | exact |
|---|---|---|
| boolean, integers, dates, times, timestamps | the number, its sign bit flipped | yes |
| float, double | the IEEE bits, all flipped below 0, the sign bit else | yes |
| decimal | its nearest double | no |
| string, binary, fixed, uuid | the first 8 bytes, big endian | no |

Where a key is not exact, different values may share one; none is ever out of order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tableformat.spec.types import is_string, is_varying_binary

SIGN = np.uint64(1 << 63)
PREFIX_BYTES = 8


@dataclass(frozen=True, slots=True)
class OrderBits:
    """Keys, shape `(rows,)`; those of nulls mean nothing, `valid` is False there."""

    keys: npt.NDArray[np.uint64]
    valid: npt.NDArray[np.bool_]
    is_exact: bool


def order_bits(values: pa.ChunkedArray) -> OrderBits:
    """Keys of a flat column."""
    array = values.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], values.type)
    valid = array.is_valid().to_numpy(zero_copy_only=False)
    types, kind = pa.types, array.type
    if types.is_floating(kind):
        return OrderBits(_of_doubles(array), valid, is_exact=True)
    if types.is_decimal(kind):
        return OrderBits(_of_doubles(array), valid, is_exact=False)
    if is_string(kind) or is_varying_binary(kind) or types.is_fixed_size_binary(kind):
        return OrderBits(_of_bytes(array), valid, is_exact=False)
    if types.is_null(kind):
        return OrderBits(np.zeros(len(array), dtype=np.uint64), valid, is_exact=True)
    return OrderBits(_of_integers(array), valid, is_exact=True)


def _of_integers(array: pa.Array) -> npt.NDArray[np.uint64]:
    if pa.types.is_boolean(array.type):
        array = array.cast(pa.int8())
    elif pa.types.is_date32(array.type) or pa.types.is_time32(array.type):
        array = array.cast(pa.int32())
    number = pc.fill_null(array.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
    return np.asarray(number.astype(np.int64).view(np.uint64) ^ SIGN)


def _of_doubles(array: pa.Array) -> npt.NDArray[np.uint64]:
    number = pc.fill_null(array.cast(pa.float64(), safe=False), 0.0)
    value = number.to_numpy(zero_copy_only=False) + 0.0  # -0.0 equals 0.0
    value = np.where(np.isnan(value), np.inf, value)
    bits = value.view(np.uint64)
    return np.where(bits & SIGN, ~bits, bits | SIGN)


def _of_bytes(array: pa.Array) -> npt.NDArray[np.uint64]:
    plain = pc.fill_null(array.cast(pa.large_binary()), b"")
    offsets = np.frombuffer(plain.buffers()[1], dtype=np.int64)
    offsets = offsets[plain.offset : plain.offset + len(plain) + 1]
    data = plain.buffers()[2]
    raw = np.frombuffer(data, dtype=np.uint8) if data is not None else np.zeros(0, dtype=np.uint8)
    keys = np.zeros(len(plain), dtype=np.uint64)
    if not len(raw):
        return keys
    for ordinal in range(PREFIX_BYTES):
        at = offsets[:-1] + ordinal
        present = at < offsets[1:]
        byte = np.where(present, raw[np.minimum(at, len(raw) - 1)], 0).astype(np.uint64)
        keys |= byte << np.uint64(8 * (PREFIX_BYTES - 1 - ordinal))
    return keys
