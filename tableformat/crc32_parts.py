"""CRC-32 of bytes that are joined or cut, from the checksums of their parts.

A CRC is the remainder of a polynomial over GF(2): `crc(ab) = crc(a) * x^(8 * len(b)) + crc(b)`, all
modulo the polynomial of CRC-32, and addition is XOR. Polynomials have their highest power in the
lowest bit, as zlib's checksums have.
"""

from __future__ import annotations

from functools import cache

_POLYNOMIAL = 0xEDB88320
_ONE = 1 << 31
_BITS_PER_BYTE_LOG2 = 3


def crc32_of_rest(begin: int, whole: int, rest_bytes: int) -> int:
    """The checksum of the last `rest_bytes` bytes.

    Args:
        begin: `zlib.crc32` of the bytes before them.
        whole: `zlib.crc32` of all bytes.
        rest_bytes: 0 or more.
    """
    return whole ^ _multiply(crc32_shift(rest_bytes), begin)


def crc32_of_joined(begin: int, rest: int, shift: int) -> int:
    """The checksum of some bytes and the rest; `shift`: `crc32_shift` of the rest's size."""
    return rest ^ _multiply(shift, begin)


def crc32_shift(size_bytes: int) -> int:
    """What a checksum is multiplied by when so many bytes follow."""
    return _power_of_x(size_bytes, _BITS_PER_BYTE_LOG2)


def _power_of_x(count: int, log2: int) -> int:
    """`x ** (count * 2 ** log2)`."""
    found = _ONE
    while count:
        if count & 1:
            found = _multiply(_square(log2), found)
        count >>= 1
        log2 += 1
    return found


@cache
def _square(log2: int) -> int:
    """`x ** (2 ** log2)`."""
    if log2 == 0:
        return _ONE >> 1
    half = _square(log2 - 1)
    return _multiply(half, half)


def _multiply(left: int, right: int) -> int:
    product = 0
    while left:
        if left & _ONE:
            product ^= right
        left = left << 1 & 0xFFFFFFFF
        right = right >> 1 ^ (_POLYNOMIAL if right & 1 else 0)
    return product
