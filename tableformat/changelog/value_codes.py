"""Equal values as equal numbers: exact, vectorized, for every type a table column can have.

Codes mean something only within one call. NULL is a value like others, every NaN is the same NaN,
0.0 and -0.0 are two values (as in Iceberg's partition values), a list is its elements in order.

| type          | code of a value                                                          |
|---------------|--------------------------------------------------------------------------|
| primitive     | its index among the distinct values                                       |
| struct        | the code of its fields' codes, NULL structs apart                         |
| list, map     | the code of its elements' codes as bytes, 8 each                          |
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tableformat.spec.arrow_arrays import rebased_offsets

Codes = NDArray[np.int64]
CODE_BYTES = 8


def value_codes(columns: Sequence[pa.Array]) -> Codes:
    """One code per row: two rows have the same if they are equal in every column.

    Args:
        columns: At least one, each of shape (n,).

    Returns:
        int64 of shape (n,), from 0, dense.
    """
    codes = _codes(columns[0])
    for column in columns[1:]:
        codes = _fold(codes, _codes(column))
    return codes


def _codes(values: pa.Array) -> Codes:
    if isinstance(values, pa.ExtensionArray):
        values = values.storage
    kind = values.type
    if pa.types.is_struct(kind):
        return _struct_codes(values)
    if pa.types.is_map(kind):
        keys, items = (_codes(each) for each in (values.keys, values.items))
        return _list_codes(values, _fold(keys, items))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _list_codes(values, _codes(values.values))
    if pa.types.is_floating(kind):
        nan = pa.scalar(float("nan"), kind)
        bits = pa.int32() if kind == pa.float32() else pa.int64()
        values = pc.if_else(pc.is_nan(values), nan, values).view(bits)
    return _dense(values)


def _struct_codes(values: pa.StructArray) -> Codes:
    codes: Codes = values.is_valid().to_numpy(zero_copy_only=False).astype(np.int64)
    # `flatten` shows the fields of a NULL struct as NULL, whatever is stored there.
    for child in values.flatten():
        codes = _fold(codes, _codes(child))
    return codes


def _list_codes(values: pa.Array, elements: Codes) -> Codes:
    """Codes of lists whose stored elements have the codes `elements`."""
    rebased, first, count = rebased_offsets(values)
    offsets = np.asarray(rebased, dtype=np.int64) * CODE_BYTES
    data = np.ascontiguousarray(elements[first : first + count])
    texts = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(values), [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )
    is_valid = values.is_valid().to_numpy(zero_copy_only=False)
    codes: Codes = np.where(is_valid, _dense(texts) + 1, 0)  # a NULL list may hide elements
    return codes


def _fold(left: Codes, right: Codes) -> Codes:
    """One code for pairs of codes."""
    if not left.size:
        return left
    return _dense(pa.array(left * (int(right.max()) + 1) + right))


def _dense(values: pa.Array) -> Codes:
    indices = values.dictionary_encode(null_encoding="encode").indices
    codes: Codes = indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return codes
