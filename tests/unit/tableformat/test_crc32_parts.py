"""CRC-32 of joined bytes, and of the end of some; zlib is the oracle."""

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tableformat.crc32_parts import crc32_of_joined, crc32_of_rest, crc32_shift


@given(st.binary(max_size=300), st.binary(max_size=3_000))
def test_checksum_of_the_rest_is_that_of_its_bytes(begin: bytes, rest: bytes) -> None:
    found = crc32_of_rest(zlib.crc32(begin), zlib.crc32(begin + rest), len(rest))
    assert found == zlib.crc32(rest)


@given(st.binary(max_size=300), st.binary(max_size=3_000))
def test_checksum_of_joined_bytes_is_that_of_all(begin: bytes, rest: bytes) -> None:
    found = crc32_of_joined(zlib.crc32(begin), zlib.crc32(rest), crc32_shift(len(rest)))
    assert found == zlib.crc32(begin + rest)


@pytest.mark.parametrize("size_bytes", [1, (1 << 16) - 1, 1 << 20, (1 << 24) + 7])
def test_rest_may_be_long(size_bytes: int) -> None:
    rest = bytes(range(256)) * (size_bytes // 256) + b"e" * (size_bytes % 256)
    found = crc32_of_rest(zlib.crc32(b"begin"), zlib.crc32(b"begin" + rest), size_bytes)
    assert found == zlib.crc32(rest)
