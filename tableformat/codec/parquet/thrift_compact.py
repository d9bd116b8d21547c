"""Thrift's compact protocol, as far as Parquet footers and page headers use it.

A struct is a dict from field id to `(type, value)`; a list is `(element type, values)`. What is
decoded is encoded to the same meaning, so a footer can be taken apart and put together again.

Source: Apache Thrift, "Thrift compact protocol encoding".
"""

from __future__ import annotations

from typing import Any

from tableformat.errors import CorruptDataError

TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)
_STOP = 0
_LONG_LIST = 15
_DEPTH_MAX = 16  # Parquet's deepest struct has six levels

Struct = dict[int, tuple[int, Any]]


def decode_struct(data: bytes, offset: int = 0) -> tuple[Struct, int]:
    """One struct and the offset behind it.

    Raises:
        CorruptDataError: Not a struct, or cut off.
    """
    try:
        return _Decoder(data, offset).struct_at_top()
    except (IndexError, ValueError) as error:
        raise CorruptDataError(f"broken Thrift struct: {error}") from error


def encode_struct(struct: Struct) -> bytes:
    """The bytes of one struct."""
    out = bytearray()
    _write_struct(out, struct)
    return bytes(out)


class _Decoder:
    def __init__(self, data: bytes, offset: int) -> None:
        self._data = data
        self._at = offset

    def struct_at_top(self) -> tuple[Struct, int]:
        return self._struct(0), self._at

    def _struct(self, depth: int) -> Struct:
        if depth > _DEPTH_MAX:
            raise ValueError("too deep")
        found: Struct = {}
        field_id = 0
        while True:
            head = self._data[self._at]
            self._at += 1
            if head == _STOP:
                return found
            delta, kind = head >> 4, head & 15
            field_id = field_id + delta if delta else self._zigzag()
            found[field_id] = (kind, self._value(kind, depth))

    def _value(self, kind: int, depth: int) -> Any:
        if kind in (TRUE, FALSE):
            return kind == TRUE
        if kind in (I16, I32, I64):
            return self._zigzag()
        if kind == BYTE:
            return self._take(1)[0]
        if kind == DOUBLE:
            return self._take(8)
        if kind == BINARY:
            return self._take(self._varint())
        if kind in (LIST, SET):
            return self._list(depth)
        if kind == STRUCT:
            return self._struct(depth + 1)
        raise ValueError(f"type {kind}")

    def _list(self, depth: int) -> tuple[int, list[Any]]:
        if depth > _DEPTH_MAX:
            raise ValueError("too deep")
        head = self._take(1)[0]
        size, kind = head >> 4, head & 15
        if size == _LONG_LIST:
            size = self._varint()
        if size > len(self._data) - self._at:
            raise ValueError("list is longer than the data")
        if kind in (TRUE, FALSE):
            return kind, [self._take(1)[0] == TRUE for _ in range(size)]
        return kind, [self._value(kind, depth + 1) for _ in range(size)]

    def _take(self, count: int) -> bytes:
        end = self._at + count
        if end > len(self._data):
            raise ValueError("cut off")
        part = self._data[self._at : end]
        self._at = end
        return part

    def _varint(self) -> int:
        data, at = self._data, self._at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            if byte < 128:
                if value >> 64:
                    raise ValueError("number has more than 64 bits")
                self._at = at
                return value
            shift += 7
            if shift > 63:
                raise ValueError("number is too long")

    def _zigzag(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)


def _write_struct(out: bytearray, struct: Struct) -> None:
    previous = 0
    for field_id in sorted(struct):
        kind, value = struct[field_id]
        if kind in (TRUE, FALSE):
            kind = TRUE if value else FALSE
        delta = field_id - previous
        if 0 < delta < 16:
            out.append(delta << 4 | kind)
        else:
            out.append(kind)
            _write_zigzag(out, field_id)
        previous = field_id
        if kind not in (TRUE, FALSE):
            _write_value(out, kind, value)
    out.append(_STOP)


def _write_value(out: bytearray, kind: int, value: Any) -> None:
    if kind in (I16, I32, I64):
        _write_zigzag(out, value)
    elif kind == BYTE:
        out.append(value)
    elif kind == DOUBLE:
        out += value
    elif kind == BINARY:
        _write_varint(out, len(value))
        out += value
    elif kind == STRUCT:
        _write_struct(out, value)
    else:
        _write_list(out, *value)


def _write_list(out: bytearray, kind: int, values: list[Any]) -> None:
    if len(values) < _LONG_LIST:
        out.append(len(values) << 4 | kind)
    else:
        out.append(_LONG_LIST << 4 | kind)
        _write_varint(out, len(values))
    for value in values:
        if kind in (TRUE, FALSE):
            out.append(TRUE if value else FALSE)
        else:
            _write_value(out, kind, value)


def _write_varint(out: bytearray, value: int) -> None:
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)


def _write_zigzag(out: bytearray, value: int) -> None:
    _write_varint(out, (value << 1) ^ (value >> 63))
