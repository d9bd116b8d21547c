from __future__ import annotations

import gzip
import zlib

from hypothesis import given
from hypothesis import strategies as st

from tableformat.spec import gzip_parts as module
from tableformat.spec.gzip_parts import gzip_parts
from tableformat.spec.json_texts import CHUNK_BYTES_MIN

LARGE = [bytes([65 + n]) * CHUNK_BYTES_MIN for n in range(3)]
parts = st.lists(st.binary(max_size=300) | st.sampled_from(LARGE), max_size=8)


def zipped(parts: list[bytes]) -> bytes:
    return gzip_parts(parts, zlib.crc32(b"".join(parts)))


@given(parts=parts)
def test_readers_see_one_file(parts: list[bytes]) -> None:
    assert gzip.decompress(zipped(parts)) == b"".join(parts)


def test_large_parts_are_compressed_once(monkeypatch) -> None:
    module._kept.cache_clear()
    first = zipped([b"a", *LARGE, b"b"])
    monkeypatch.setattr(module, "_LEVEL", 0)  # would make them as large as they are
    second = zipped([b"c", *LARGE, b"d"])
    assert abs(len(second) - len(first)) < 20
    assert module._kept.cache_info().hits == len(LARGE)
