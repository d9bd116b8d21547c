"""Arrow columns to canonical key bytes, without a Python loop over rows (I5, R20-R31).

| key | bytes of a key |
|---|---|
| one column: boolean, int, long, date, time, timestamp* | 8: big-endian int64, sign bit flipped |
| one column: decimal, uuid | 16: big-endian unscaled int128, sign bit flipped; the UUID |
| one column: fixed[L], string, binary | `01`, then the value |
| one column, NULL | `00` |
| several columns | per column, in field-id order: `01` + value, or `00` + a zero value |

In a key of several columns a string or binary value is a 4-byte big-endian length and the bytes;
all others have their fixed width, so no two different tuples have equal bytes. No data key is
empty: the index keeps its header there.

Integers are never narrowed, decimals are compared by unscaled value at the scale that the
fingerprint names, timestamps are counts since the epoch in the type's own unit, strings are their
UTF-8 bytes as they are (no normalization, no trimming).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    FixedType,
    IcebergType,
    IntegerType,
    LongType,
    StringType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from resolver.keys.encoded import EncodedKeys
from resolver.keys.schema import KeyField, KeySchema
from tableformat.errors import InvalidInputError
from tableformat.spec.decimal_casts import exact_cast

NULL_KEY = b"\x00"
_NULL_TAG = 0
_VALUE_TAG = 1
_SIGN_BIT = np.uint64(1 << 63)
_LENGTH_BYTES = 4

Bytes2d = npt.NDArray[np.uint8]
Column: TypeAlias = pa.Array | pa.ChunkedArray


def key_columns(batch: pa.RecordBatch | pa.Table, key: KeySchema) -> list[pa.Array]:
    """The key's columns of `batch`, by name, down through structs.

    A null struct has null leaves (spec: Scan Planning, equality deletes).

    Raises:
        InvalidInputError: A key column is missing.
    """
    columns = []
    for field in key.fields:
        root, *below = field.path
        position = batch.schema.get_field_index(root)
        if position < 0:
            raise InvalidInputError("key column is missing", column=field.name)
        column = _one_chunk(batch.column(position))
        for name in below:
            index = column.type.get_field_index(name) if pa.types.is_struct(column.type) else -1
            if index < 0:
                raise InvalidInputError("key column is missing", column=field.name)
            column = column.flatten()[index]
        columns.append(column)
    return columns


def encode_keys(columns: Sequence[Column], key: KeySchema) -> EncodedKeys:
    """Encode one batch of keys.

    Args:
        columns: One column per key field, in the order of `key.fields`, equally long.
        key: The key; its types decide the encoding, the columns are promoted to them.

    Raises:
        InvalidInputError: A column cannot hold values of its field's type without loss.

    Invariants: two rows have equal bytes iff their values are equal, NULL being equal to NULL.
    """
    if len(columns) != len(key.fields):
        raise InvalidInputError(
            "one column per key field is needed", columns=len(columns), fields=len(key.fields)
        )
    arrays = [
        _promote(_one_chunk(column), field)
        for column, field in zip(columns, key.fields, strict=True)
    ]
    if len({len(array) for array in arrays}) > 1:
        raise InvalidInputError("key columns differ in length")
    if len(arrays) == 1:
        return _encode_single(arrays[0], key.fields[0])
    if all(field.width_bytes is not None for field in key.fields):
        parts = [_tagged(array, field) for array, field in zip(arrays, key.fields, strict=True)]
        return EncodedKeys(fixed=np.concatenate(parts, axis=1))
    return _encode_ragged(arrays, key.fields)


def encode_batch(batch: pa.RecordBatch | pa.Table, key: KeySchema) -> EncodedKeys:
    """`encode_keys` of the key's columns of a batch that may have other columns too."""
    return encode_keys(key_columns(batch, key), key)


def _encode_single(array: pa.Array, field: KeyField) -> EncodedKeys:
    if isinstance(field.field_type, StringType | BinaryType | FixedType):
        values = array.cast(pa.large_binary())
        tag = pa.scalar(bytes([_VALUE_TAG]), pa.large_binary())
        joined = pc.binary_join_element_wise(tag, values, _empty())
        return EncodedKeys.of(_fill_null_keys(joined))
    matrix = _fixed_values(array, field)
    if array.null_count == 0:
        return EncodedKeys(fixed=matrix)
    keys = EncodedKeys(fixed=matrix).to_binary().binary
    missing = pa.scalar(None, pa.large_binary())
    return EncodedKeys(binary=_fill_null_keys(pc.if_else(array.is_valid(), keys, missing)))


def _fill_null_keys(keys: pa.Array) -> pa.LargeBinaryArray:
    return _one_chunk(pc.fill_null(keys, pa.scalar(NULL_KEY, pa.large_binary())))


def _encode_ragged(arrays: Sequence[pa.Array], fields: Sequence[KeyField]) -> EncodedKeys:
    parts: list[pa.Array | pa.Scalar] = []
    for array, field in zip(arrays, fields, strict=True):
        if field.width_bytes is not None:
            parts.append(EncodedKeys(fixed=_tagged(array, field)).to_binary().binary)
            continue
        values = pc.fill_null(array.cast(pa.large_binary()), _empty())
        header = np.empty((len(array), 1 + _LENGTH_BYTES), dtype=np.uint8)
        header[:, 0] = _tags(array)
        lengths = pc.binary_length(values).to_numpy(zero_copy_only=False)
        header[:, 1:] = lengths.astype(">u4").view(np.uint8).reshape(-1, _LENGTH_BYTES)
        parts += [EncodedKeys(fixed=header).to_binary().binary, values]
    return EncodedKeys.of(_one_chunk(pc.binary_join_element_wise(*parts, _empty())))


def _tagged(array: pa.Array, field: KeyField) -> Bytes2d:
    """Shape `(n, 1 + width)`: the tag and the fixed-width value, zeros under a null."""
    values = _fixed_values(array, field)
    matrix = np.empty((len(array), 1 + values.shape[1]), dtype=np.uint8)
    matrix[:, 0] = _tags(array)
    matrix[:, 1:] = values
    if array.null_count:
        matrix[matrix[:, 0] == _NULL_TAG] = 0
    return matrix


def _tags(array: pa.Array) -> npt.NDArray[np.uint8]:
    if array.null_count == 0:
        return np.full(len(array), _VALUE_TAG, dtype=np.uint8)
    return array.is_valid().to_numpy(zero_copy_only=False).astype(np.uint8)  # type: ignore[no-any-return]


def _fixed_values(array: pa.Array, field: KeyField) -> Bytes2d:
    """Shape `(n, field.width_bytes)`: value bytes; undefined under a null."""
    if isinstance(field.field_type, UUIDType | FixedType):
        return _raw_values(array)
    if isinstance(field.field_type, DecimalType):
        return _decimal_values(array)
    integers = pc.fill_null(array, 0) if array.null_count else array
    values = integers.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
    words = values.view(np.uint64) ^ _SIGN_BIT
    return words.astype(">u8").view(np.uint8).reshape(-1, 8)  # type: ignore[no-any-return]


def _raw_values(array: pa.Array) -> Bytes2d:
    width = array.type.byte_width
    data = np.frombuffer(array.buffers()[1], dtype=np.uint8) if len(array) else _NO_BYTES
    start = array.offset * width
    return data[start : start + len(array) * width].reshape(-1, width)


def _decimal_values(array: pa.Array) -> Bytes2d:
    """Arrow keeps decimal128 as little-endian (low, high) words."""
    data = np.frombuffer(array.buffers()[1], dtype="<u8") if len(array) else _NO_BYTES.view("<u8")
    words = data[2 * array.offset : 2 * (array.offset + len(array))].reshape(-1, 2)[:, ::-1]
    words = words.astype(np.uint64)
    words[:, 0] ^= _SIGN_BIT
    return words.astype(">u8").view(np.uint8).reshape(-1, 16)


def _promote(array: pa.Array, field: KeyField) -> pa.Array:
    """The column in the one Arrow type that its encoder reads; lossless or refused."""
    array = _storage(array)
    if pa.types.is_null(array.type):
        return array.cast(_wire_type(field.field_type))
    if not _is_acceptable(array.type, field.field_type):
        raise _mismatch(array, field)
    try:
        logical = exact_cast(array, _logical_type(field.field_type))
        return logical.cast(_wire_type(field.field_type))
    except pa.ArrowInvalid as error:
        raise _mismatch(array, field) from error


def _mismatch(array: pa.Array, field: KeyField) -> InvalidInputError:
    return InvalidInputError(
        "key column does not hold values of the key's type",
        column=field.name,
        found=array.type,
        expected=field.field_type,
    )


def _storage(array: pa.Array) -> pa.Array:
    """Without dictionary encoding and extension types."""
    if isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    return array


def _is_acceptable(found: pa.DataType, wanted: IcebergType) -> bool:
    """Whether the Arrow type is the Iceberg type, or one that the spec promotes to it."""
    types = pa.types
    match wanted:
        case BooleanType():
            return bool(types.is_boolean(found))
        case IntegerType() | LongType():
            return bool(types.is_integer(found))
        case DateType():
            return bool(types.is_date(found))
        case TimeType():
            return bool(types.is_time(found))
        case TimestampType() | TimestampNanoType():
            if types.is_timestamp(found):
                return found.tz is None
            return bool(types.is_date32(found))
        case TimestamptzType() | TimestamptzNanoType():
            return bool(types.is_timestamp(found)) and found.tz is not None
        case DecimalType():
            return bool(types.is_decimal(found))
        case StringType():
            return bool(types.is_string(found) or types.is_large_string(found)) or (
                found == pa.string_view()
            )
        case BinaryType():
            return bool(types.is_binary(found) or types.is_large_binary(found)) or (
                found == pa.binary_view()
            )
        case FixedType():
            return bool(types.is_fixed_size_binary(found)) and found.byte_width == len(wanted)
        case UUIDType():
            return bool(types.is_fixed_size_binary(found)) and found.byte_width == 16
    return False


def _logical_type(wanted: IcebergType) -> pa.DataType:
    match wanted:
        case BooleanType():
            return pa.bool_()
        case IntegerType() | LongType():
            return pa.int64()
        case DateType():
            return pa.date32()
        case TimeType():
            return pa.time64("us")
        case TimestampType():
            return pa.timestamp("us")
        case TimestampNanoType():
            return pa.timestamp("ns")
        case TimestamptzType():
            return pa.timestamp("us", "UTC")
        case TimestamptzNanoType():
            return pa.timestamp("ns", "UTC")
        case DecimalType():
            return pa.decimal128(38, wanted.scale)
        case StringType():
            return pa.large_string()
        case FixedType():
            return pa.binary(len(wanted))
        case UUIDType():
            return pa.binary(16)
    return pa.large_binary()


def _wire_type(wanted: IcebergType) -> pa.DataType:
    """Integers for everything that is a count; otherwise the logical type."""
    logical = _logical_type(wanted)
    if isinstance(wanted, DecimalType | UUIDType | FixedType | StringType | BinaryType):
        return logical
    return pa.int64() if logical != pa.date32() else pa.int32()


def _empty() -> pa.Scalar:
    return pa.scalar(b"", pa.large_binary())


def _one_chunk(column: Column) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


_NO_BYTES: npt.NDArray[np.uint8] = np.empty(0, dtype=np.uint8)
