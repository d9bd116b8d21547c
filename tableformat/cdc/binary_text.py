"""Bytes that JSON carries as text: base64, hex, and decimals as two's complement.

Whole columns at once: every text is decoded at its place in one flat byte array, so there is no
loop over rows. A wrong value raises `pa.ArrowInvalid` for the column, as Arrow's own casts do; the
caller narrows it down to the rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Bytes = npt.NDArray[np.uint8]
Offsets = npt.NDArray[np.int64]

NOT_A_DIGIT = 255
BASE64_DIGITS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
DECIMAL128_BYTES = 16


def decode_base64(texts: pa.StringArray) -> pa.BinaryArray:
    """Base64 with padding (RFC 4648, section 4, or 5: URL-safe) as binary; null stays null."""
    flat, offsets = _flat(pc.fill_null(texts, ""))
    lengths = np.diff(offsets)
    if np.any(lengths % 4):
        raise pa.ArrowInvalid("base64 text has no whole number of 4-character groups")
    pads = _padding(flat, offsets)
    is_pad = flat == ord("=")
    if int(is_pad.sum()) != int(pads.sum()):
        raise pa.ArrowInvalid("base64 text has '=' before its end")
    digits = _BASE64_VALUES[flat]
    if np.any((digits == NOT_A_DIGIT) & ~is_pad):
        raise pa.ArrowInvalid("text is not base64")
    digits[is_pad] = 0
    groups = digits.reshape(-1, 4).astype(np.uint32)
    words = (groups[:, 0] << 18) | (groups[:, 1] << 12) | (groups[:, 2] << 6) | groups[:, 3]
    decoded = np.empty((len(words), 3), np.uint8)
    for byte, shift in enumerate((16, 8, 0)):
        decoded[:, byte] = (words >> shift) & 0xFF
    # Padding stands for bytes that are not there: drop the last 0, 1 or 2 of each text.
    group_ends = np.cumsum(lengths) // 4 * 3
    keep = np.ones(decoded.size, np.bool_)
    keep[group_ends[pads >= 1] - 1] = False
    keep[group_ends[pads == 2] - 2] = False
    return _binary(decoded.reshape(-1)[keep], lengths // 4 * 3 - pads, texts)


def decode_hex(texts: pa.StringArray) -> pa.BinaryArray:
    r"""Hexadecimal digits of either case, also behind \x, as binary; null stays null."""
    digits_of = pc.replace_substring_regex(texts, r"^\\x", "")  # as PostgreSQL writes them
    flat, offsets = _flat(pc.fill_null(digits_of, ""))
    lengths = np.diff(offsets)
    if np.any(lengths % 2):
        raise pa.ArrowInvalid("hexadecimal text has an odd number of digits")
    digits = _HEX_VALUES[flat]
    if np.any(digits == NOT_A_DIGIT):
        raise pa.ArrowInvalid("text is not hexadecimal")
    pairs = digits.reshape(-1, 2)
    decoded = ((pairs[:, 0] << 4) | pairs[:, 1]).astype(np.uint8)
    return _binary(decoded, lengths // 2, texts)


def decode_unscaled(unscaled: pa.BinaryArray, scale: int) -> pa.Array:
    """Big-endian two's-complement integers of at most 16 bytes as `decimal128(38, scale)`.

    Source: `java.math.BigInteger.toByteArray`, which is what Connect's Decimal carries.
    """
    flat, offsets = _flat(pc.fill_null(unscaled, b"\0"))
    lengths = np.diff(offsets)
    if np.any((lengths < 1) | (lengths > DECIMAL128_BYTES)):
        raise pa.ArrowInvalid("decimal has no byte, or more than 16")
    count = len(lengths)
    little = np.zeros((count, DECIMAL128_BYTES), np.uint8)
    little[flat[offsets[:-1]] >= 0x80] = 0xFF  # sign extension; the bytes there are set below
    row = np.repeat(np.arange(count), lengths)
    place = offsets[1:][row] - 1 - np.arange(offsets[0], offsets[-1])
    little[row, place] = flat[offsets[0] : offsets[-1]]
    kind = pa.decimal128(38, scale)
    decimals = pa.Array.from_buffers(kind, count, [None, pa.py_buffer(little.tobytes())])
    decimals.validate(full=True)  # more than 38 digits still fit into 16 bytes
    return pc.if_else(unscaled.is_valid(), decimals, pa.scalar(None, kind))


def _flat(values: pa.Array) -> tuple[Bytes, Offsets]:
    """All bytes of a string or binary array without nulls, from 0 on, and n + 1 offsets."""
    values = values.cast(pa.large_binary())
    _, offset_buffer, data = values.buffers()
    offsets = np.frombuffer(offset_buffer, np.int64)[values.offset :][: len(values) + 1]
    empty = np.empty(0, np.uint8)
    flat = empty if data is None else np.frombuffer(data, np.uint8)[: offsets[-1]]
    return flat[offsets[0] :].copy(), offsets - offsets[0]


def _padding(flat: Bytes, offsets: Offsets) -> npt.NDArray[np.int64]:
    """How many `=` each text ends with, 0 to 2."""
    pads = np.zeros(len(offsets) - 1, np.int64)
    filled = np.diff(offsets) > 0
    last = offsets[1:][filled] - 1
    one = flat[last] == ord("=")
    pads[filled] = one.astype(np.int64) + (one & (flat[last - 1] == ord("=")))
    return pads


def _binary(data: Bytes, lengths: npt.NDArray[np.int64], like: pa.Array) -> pa.BinaryArray:
    """A binary array from its bytes and lengths, null where `like` is."""
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    buffers = [None, pa.py_buffer(offsets.tobytes()), pa.py_buffer(data.tobytes())]
    values = pa.Array.from_buffers(pa.large_binary(), len(lengths), buffers).cast(pa.binary())
    return pc.if_else(like.is_valid(), values, pa.scalar(None, pa.binary()))


def _values_of(digits: bytes, *, ignore_case: bool = False) -> Bytes:
    table: Any = np.full(256, NOT_A_DIGIT, np.uint8)
    for value, digit in enumerate(digits):
        table[digit] = value
        if ignore_case:
            table[ord(chr(digit).upper())] = value
    return table  # type: ignore[no-any-return]


_BASE64_VALUES = _values_of(BASE64_DIGITS)
_BASE64_VALUES[[ord("-"), ord("_")]] = 62, 63
_HEX_VALUES = _values_of(b"0123456789abcdef", ignore_case=True)
