"""64-bit roaring bitmaps read by the letter of the format: slow, strict, no code of the product.

Source: RoaringFormatSpec, "Extension for 64-bit Implementations".
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator

_NO_RUNS, _RUNS = 12346, 12347
_ARRAY_MAX = 4096
_OFFSETS_FROM = 4


class MalformedError(ValueError):
    """The bytes break the format."""


class _Bytes:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, layout: str) -> tuple[int, ...]:
        size = struct.calcsize(layout)
        if self.at + size > len(self.data):
            raise MalformedError("it ends early")
        found = struct.unpack_from(layout, self.data, self.at)
        self.at += size
        return found

    def one(self, layout: str) -> int:
        return self.take(layout)[0]


def read_positions(vector: bytes) -> list[int]:
    """All positions, ascending.

    Raises:
        MalformedError: The bytes are not exactly one bitmap.
    """
    source = _Bytes(vector)
    positions: list[int] = []
    before = -1
    for _ in range(_checked(source.one("<q"), 0, len(vector))):
        key = source.one("<I")
        if key <= before:
            raise MalformedError("keys do not ascend")
        before = key
        positions.extend((key << 32) | low for low in _read_32(source))
    if source.at != len(vector):
        raise MalformedError("bytes behind the last bitmap")
    return positions


def _read_32(source: _Bytes) -> Iterator[int]:
    cookie = source.one("<I")
    if cookie == _NO_RUNS:
        flags = [False] * _checked(source.one("<I"), 0, 65536)
    elif cookie & 0xFFFF == _RUNS:
        count = (cookie >> 16) + 1
        raw = source.take(f"<{(count + 7) // 8}B")
        flags = [bool(raw[i // 8] >> (i % 8) & 1) for i in range(count)]
    else:
        raise MalformedError("unknown cookie")
    headers = [source.take("<HH") for _ in flags]
    if cookie == _NO_RUNS or len(flags) >= _OFFSETS_FROM:
        source.take(f"<{len(flags)}I")
    before = -1
    for is_run, (key, less_one) in zip(flags, headers, strict=True):
        if key <= before:
            raise MalformedError("containers do not ascend")
        before = key
        values = _run(source) if is_run else _plain(source, less_one + 1)
        if len(values) != less_one + 1:
            raise MalformedError("a container has another cardinality")
        yield from ((key << 16) | value for value in values)


def _run(source: _Bytes) -> list[int]:
    values: list[int] = []
    for _ in range(source.one("<H")):
        start, more = source.take("<HH")
        if start + more > 65535 or (values and start <= values[-1]):
            raise MalformedError("runs overlap or leave the container")
        values.extend(range(start, start + more + 1))
    return values


def _plain(source: _Bytes, cardinality: int) -> list[int]:
    if cardinality > _ARRAY_MAX:
        words = source.take("<1024Q")
        return [
            64 * i + bit for i, word in enumerate(words) if word for bit in range(64)
            if word >> bit & 1
        ]  # fmt: skip
    values = list(source.take(f"<{cardinality}H"))
    if any(left >= right for left, right in itertools.pairwise(values)):
        raise MalformedError("an array does not ascend")
    return values


def _checked(value: int, low: int, high: int) -> int:
    if not low <= value <= high:
        raise MalformedError(f"impossible count {value}")
    return value
