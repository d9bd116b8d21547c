"""Mutations that know nothing of a format."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence

SIZE_MAX = 64 * 1024
_BLOCK_MAX = 32
INTEGERS = (0, 1, -1, 2, 7, 8, 127, 128, 255, 256, 4095, 4096, 32767, 32768, 65535, 65536,
            2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1, -(2**31), -(2**63))  # fmt: skip
_VARINTS = (
    b"\x80\x00",
    b"\xff" * 4 + b"\x0f",
    b"\xff" * 9 + b"\x01",
    b"\xff" * 9 + b"\x7f",
    b"\x80" * 12,
    b"\xff" * 5,
    b"\x00",
    b"\x01",
)


def flip_bit(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    if not data:
        return b"\x01"
    changed = bytearray(data)
    changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def set_bytes(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    changed = bytearray(data or b"\x00")
    for _ in range(rng.choice((1, 1, 2, 8))):
        changed[rng.randrange(len(changed))] = rng.choice((0, 0x7F, 0x80, 0xFF, rng.randrange(256)))
    return bytes(changed)


def cut(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    """The tail, the head, or something in between."""
    start = rng.choice((0, rng.randrange(len(data) + 1)))
    stop = rng.choice((len(data), rng.randrange(start, len(data) + 1)))
    kept_inside = rng.random() < 0.5
    return data[start:stop] if kept_inside else data[:start] + data[stop:]


def insert(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + rng.randbytes(rng.randrange(1, _BLOCK_MAX)) + data[at:]


def repeat_block(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    if not data:
        return data
    start = rng.randrange(len(data))
    block = data[start : start + rng.randrange(1, _BLOCK_MAX)]
    times = min(rng.choice((2, 3, 17, 300, 5000)), 1 + SIZE_MAX // len(block))
    return (data[:start] + block * times + data[start:])[:SIZE_MAX]


def splice(rng: random.Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    """The head of this and the tail of another."""
    other = rng.choice(corpus)
    head, tail = rng.randrange(len(data) + 1), rng.randrange(len(other) + 1)
    return (data[:head] + other[tail:])[:SIZE_MAX]


def swap_blocks(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    places = sorted(rng.randrange(len(data) + 1) for _ in range(4))
    a, b, c, d = places
    return data[:a] + data[c:d] + data[b:c] + data[a:b] + data[d:]


def put_integer(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    """A boundary value over some bytes, in either order."""
    size, code = rng.choice(((2, "H"), (4, "I"), (8, "Q")))
    value = rng.choice((*INTEGERS, len(data), len(data) - size)) & (256**size - 1)
    at = rng.randrange(max(len(data) - size, 0) + 1)
    packed = struct.pack(rng.choice("<>") + code, value)
    return data[:at] + packed + data[at + size :]


def put_varint(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + rng.choice(_VARINTS) + data[at + rng.randrange(3) :]


BYTE_MUTATORS = (
    flip_bit, set_bytes, cut, insert, repeat_block, splice, swap_blocks, put_integer, put_varint,
)  # fmt: skip
