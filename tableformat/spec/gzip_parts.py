"""One gzip file of many parts, of which each large one is compressed once (RFC 1951, RFC 1952).

The metadata of a hot table is megabytes of JSON of which a commit changes kilobytes. Its parts are
compressed apart, each to whole bytes (a full flush) and without looking back into the part before,
so what they became can be put into the next file as it is. Any reader sees one gzip member.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

from tableformat.spec.json_texts import CHUNK_BYTES_MIN

_KEPT_MAX = 512  # parts, with what they became: 32 MiB and a ninth of that, or a little more
_LEVEL = 3  # of 2.8 MB of snapshots 0.31 in 12 ms; the best, 9, needs 78 ms for 0.23
_HEADER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"  # deflate, no name, no time, no system
_END = b"\x03\x00"  # an empty last block


def gzip_parts(parts: Sequence[bytes], checksum: int) -> bytes:
    """The parts, joined and compressed.

    Args:
        parts: Those of `CHUNK_BYTES_MIN` or more that were given lately, as the same objects, are
            copied as they were compressed then.
        checksum: CRC-32 of all of them.
    """
    size_bytes = sum(map(len, parts))
    tail = checksum.to_bytes(4, "little") + (size_bytes & 0xFFFFFFFF).to_bytes(4, "little")
    return b"".join((_HEADER, *_deflated(parts), _END, tail))


def _deflated(parts: Iterable[bytes]) -> Iterator[bytes]:
    small: list[bytes] = []
    for part in parts:
        if len(part) < CHUNK_BYTES_MIN:
            small.append(part)
            continue
        yield _deflate(b"".join(small))
        small = []
        yield _kept(part)
    yield _deflate(b"".join(small))


def _deflate(data: bytes) -> bytes:
    if not data:
        return b""
    compressor = zlib.compressobj(_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    return compressor.compress(data) + compressor.flush(zlib.Z_FULL_FLUSH)


_kept = lru_cache(maxsize=_KEPT_MAX)(_deflate)  # by value: an object keeps its hash
