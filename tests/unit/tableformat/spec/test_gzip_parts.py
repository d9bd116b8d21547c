from __future__ import annotations

import gzip
import zlib

from hypothesis import given
from hypothesis import strategies as st

from tableformat.spec import kept_text
from tableformat.spec.gzip_parts import gzip_parts
from tableformat.spec.kept_text import KeptText, plain

texts = st.binary(max_size=300)
parts = st.lists(texts | st.builds(KeptText, texts, is_zipped=st.booleans()), max_size=8)


def zipped(parts: list[bytes | KeptText]) -> bytes:
    return gzip_parts(parts, zlib.crc32(b"".join(map(plain, parts))))


@given(parts=parts)
def test_readers_see_one_file(parts: list[bytes | KeptText]) -> None:
    assert gzip.decompress(zipped(parts)) == b"".join(map(plain, parts))


def test_what_is_kept_compressed_is_compressed_once(monkeypatch) -> None:
    kept = KeptText(b"ab" * 5000, is_zipped=True)
    first = zipped([b"a", kept, b"b"])
    monkeypatch.setattr(kept_text, "_LEVEL", 0)  # would make it as large as it is
    second = zipped([b"c", kept, b"d"])
    assert abs(len(second) - len(first)) < 20
    assert kept.kept_bytes < len(first) < kept.size_bytes / 10
