"""UUID columns as text and back, whole columns at a time (Arrow has no kernel for it)."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

UUID_BYTES = 16
TEXT_CHARS = 36  # 8-4-4-4-12 hexadecimal digits and four dashes

_DASHES = (8, 13, 18, 23)
_DIGIT_COLUMNS = np.array([i for i in range(TEXT_CHARS) if i not in _DASHES])
_DIGITS = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)
_INVALID_DIGIT = 255
_DIGIT_VALUES = np.full(256, _INVALID_DIGIT, dtype=np.uint8)
_DIGIT_VALUES[_DIGITS] = np.arange(16)
_DIGIT_VALUES[np.frombuffer(b"ABCDEF", dtype=np.uint8)] = np.arange(10, 16)


def format_uuids(values: pa.Array) -> pa.Array:
    """Lower-case text of a uuid (or 16-byte) column.

    Args:
        values: `pa.uuid()` or `fixed_size_binary(16)`, any length.

    Returns:
        `string`, same length, nulls kept.
    """
    storage = values.storage if isinstance(values.type, pa.UuidType) else values
    count = len(storage)
    raw = np.frombuffer(storage.buffers()[1] or b"", dtype=np.uint8)
    start = storage.offset * UUID_BYTES
    raw = raw[start : start + count * UUID_BYTES].reshape(count, UUID_BYTES)
    text = np.full((count, TEXT_CHARS), ord("-"), dtype=np.uint8)
    text[:, _DIGIT_COLUMNS[0::2]] = _DIGITS[raw >> 4]
    text[:, _DIGIT_COLUMNS[1::2]] = _DIGITS[raw & 15]
    fixed = pa.Array.from_buffers(
        pa.binary(TEXT_CHARS), count, [_validity(storage), pa.py_buffer(text.tobytes())]
    )
    return fixed.cast(pa.binary()).cast(pa.string())


def parse_uuids(values: pa.Array) -> pa.Array:
    """The `pa.uuid()` column that a `string` column spells, in either letter case.

    Raises:
        ValueError: A value is not 36 characters of the form 8-4-4-4-12.
    """
    try:
        fixed = values.cast(pa.binary()).cast(pa.binary(TEXT_CHARS))
    except pa.ArrowInvalid:
        raise ValueError("a value is not the text of a UUID") from None
    count = len(fixed)
    text = np.frombuffer(fixed.buffers()[1] or b"", dtype=np.uint8)
    start = fixed.offset * TEXT_CHARS
    text = text[start : start + count * TEXT_CHARS].reshape(count, TEXT_CHARS)
    valid = np.asarray(fixed.is_valid())
    digits = _DIGIT_VALUES[text[:, _DIGIT_COLUMNS]]
    wrong = (digits == _INVALID_DIGIT).any(axis=1) | (text[:, _DASHES] != ord("-")).any(axis=1)
    if bool((wrong & valid).any()):
        raise ValueError("a value is not the text of a UUID")
    raw = (digits[:, 0::2] << 4) | (digits[:, 1::2] & 15)
    storage = pa.Array.from_buffers(
        pa.binary(UUID_BYTES), count, [_validity(fixed), pa.py_buffer(raw.tobytes())]
    )
    return pa.ExtensionArray.from_storage(pa.uuid(), storage)


def _validity(values: pa.Array) -> pa.Buffer | None:
    """The validity bitmap, moved to offset 0."""
    if values.null_count == 0:
        return None
    bits = np.packbits(np.asarray(values.is_valid()), bitorder="little")
    return pa.py_buffer(bits.tobytes())
