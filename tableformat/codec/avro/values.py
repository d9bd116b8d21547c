"""Avro values: bounds-checked decoders of what a record is made of.

A decoder takes `(buffer, position)` and returns `(value, next position)`. Every count and length is
checked against the bytes left, so the cost of a value is bounded by the bytes it occupies.

Source: Apache Avro specification 1.11, "Binary Encoding".
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

Decoder = Callable[[bytes, int], tuple[Any, int]]

INT_MIN, INT_MAX = -(2**31), 2**31 - 1
_FLOAT = struct.Struct("<f")
_DOUBLE = struct.Struct("<d")


class MalformedAvroError(ValueError):
    """Bytes that are not what the schema says. Callers turn it into `CorruptDataError`."""


def describe_malformed(error: Exception) -> str:
    """What is wrong with the bytes, for the one line of a `CorruptDataError`."""
    if isinstance(error, IndexError):
        return "the data ends inside a value"
    if isinstance(error, RecursionError):
        return "JSON in its header is nested too deeply"
    return str(error)


def write_long(out: bytearray, value: int) -> None:
    """Append a zigzag varint."""
    encoded = (value << 1) ^ (value >> 63)
    while encoded > 0x7F:
        out.append((encoded & 0x7F) | 0x80)
        encoded >>= 7
    out.append(encoded)


def read_long(buffer: bytes, position: int) -> tuple[int, int]:
    """Read a zigzag varint of at most 64 bits.

    Raises:
        MalformedAvroError: It is longer than 10 bytes or has more than 64 bits.
        IndexError: The buffer ends inside it.
    """
    byte = buffer[position]
    position += 1
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), position
    encoded = byte & 0x7F
    shift = 7
    while True:
        byte = buffer[position]
        position += 1
        encoded |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > 63:
            raise MalformedAvroError("an integer is longer than 10 bytes")
    if encoded > 0xFFFF_FFFF_FFFF_FFFF:
        raise MalformedAvroError("an integer has more than 64 bits")
    return (encoded >> 1) ^ -(encoded & 1), position


def read_bytes(buffer: bytes, position: int) -> tuple[bytes, int]:
    """Read a length and that many bytes; the bytes must be there."""
    length, position = read_long(buffer, position)
    end = position + length
    if length < 0 or end > len(buffer):
        raise MalformedAvroError(f"a value of {length} bytes does not fit into the bytes left")
    return buffer[position:end], end


def read_null(_: bytes, position: int) -> tuple[None, int]:
    """A null takes no bytes."""
    return None, position


def read_boolean(buffer: bytes, position: int) -> tuple[bool, int]:
    """One byte."""
    byte = buffer[position]
    if byte > 1:
        raise MalformedAvroError("a boolean is neither 0 nor 1")
    return byte == 1, position + 1


def read_int(buffer: bytes, position: int) -> tuple[int, int]:
    """A varint of at most 32 bits."""
    value, position = read_long(buffer, position)
    if not INT_MIN <= value <= INT_MAX:
        raise MalformedAvroError("an int has more than 32 bits")
    return value, position


def read_str(buffer: bytes, position: int) -> tuple[str, int]:
    """UTF-8."""
    raw, position = read_bytes(buffer, position)
    return raw.decode("utf-8"), position


def read_float(buffer: bytes, position: int) -> tuple[float, int]:
    """4 bytes, little endian."""
    return float(_FLOAT.unpack(_exactly(buffer, position, 4))[0]), position + 4


def read_double(buffer: bytes, position: int) -> tuple[float, int]:
    """8 bytes, little endian."""
    return float(_DOUBLE.unpack(_exactly(buffer, position, 8))[0]), position + 8


def _exactly(buffer: bytes, position: int, size: int) -> bytes:
    raw = buffer[position : position + size]
    if len(raw) != size:
        raise MalformedAvroError("the data ends inside a value")
    return raw


def fixed_decoder(size: int) -> Decoder:
    """Exactly `size` bytes."""

    def decode(buffer: bytes, position: int) -> tuple[bytes, int]:
        return _exactly(buffer, position, size), position + size

    return decode


def tuple_decoder(decoders: tuple[Decoder, ...]) -> Decoder:
    """One value after the other."""

    def decode(buffer: bytes, position: int) -> tuple[tuple[Any, ...], int]:
        values = []
        for each in decoders:
            value, position = each(buffer, position)
            values.append(value)
        return tuple(values), position

    return decode


def union_decoder(branches: tuple[Decoder, ...]) -> Decoder:
    """The index of a branch, then its value."""

    def decode(buffer: bytes, position: int) -> tuple[Any, int]:
        index, position = read_long(buffer, position)
        if not 0 <= index < len(branches):
            raise MalformedAvroError("a union has no such branch")
        return branches[index](buffer, position)

    return decode


def _read_count(buffer: bytes, position: int) -> tuple[int, int]:
    """Items in the next block of an array or map; each takes at least one byte."""
    count, position = read_long(buffer, position)
    if count < 0:
        count = -count
        size, position = read_long(buffer, position)
        if not 0 <= size <= len(buffer) - position:
            raise MalformedAvroError("an array block does not fit into the bytes left")
    if count > len(buffer) - position:
        raise MalformedAvroError(f"an array claims {count} items, more than bytes are left")
    return count, position


def list_decoder(decode_item: Decoder) -> Decoder:
    """An array."""

    def decode(buffer: bytes, position: int) -> tuple[list[Any], int]:
        items: list[Any] = []
        count, position = _read_count(buffer, position)
        while count:
            for _ in range(count):
                item, position = decode_item(buffer, position)
                items.append(item)
            count, position = _read_count(buffer, position)
        return items, position

    return decode


def pairs_decoder(decode_pair: Decoder, key_index: int) -> Decoder:
    """An array of pairs, as a dict."""
    decode_list = list_decoder(decode_pair)

    def decode(buffer: bytes, position: int) -> tuple[dict[Any, Any], int]:
        pairs, position = decode_list(buffer, position)
        return {pair[key_index]: pair[1 - key_index] for pair in pairs}, position

    return decode


def map_decoder(decode_key: Decoder, decode_value: Decoder) -> Decoder:
    """An Avro map."""
    return pairs_decoder(tuple_decoder((decode_key, decode_value)), 0)


def read_int_int_map(buffer: bytes, position: int) -> tuple[dict[int, int], int]:
    """A map of integers to integers, the most frequent value of a manifest."""
    result: dict[int, int] = {}
    count, position = _read_count(buffer, position)
    while count:
        for _ in range(count):
            # One-byte varints, most of all, without the cost of a call.
            key = buffer[position]
            if key < 0x80:
                key = (key >> 1) ^ -(key & 1)
                position += 1
            else:
                key, position = read_long(buffer, position)
            value = buffer[position]
            if value < 0x80:
                result[key] = (value >> 1) ^ -(value & 1)
                position += 1
            else:
                result[key], position = read_long(buffer, position)
        count, position = _read_count(buffer, position)
    return result, position


def read_int_bytes_map(buffer: bytes, position: int) -> tuple[dict[int, bytes], int]:
    """A map of integers to bytes."""
    result: dict[int, bytes] = {}
    count, position = _read_count(buffer, position)
    while count:
        for _ in range(count):
            key, position = read_long(buffer, position)
            result[key], position = read_bytes(buffer, position)
        count, position = _read_count(buffer, position)
    return result, position
