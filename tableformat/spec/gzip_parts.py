"""One gzip file of many parts, of which each large one is compressed once (RFC 1951, RFC 1952).

The metadata of a hot table is megabytes of JSON of which a commit changes kilobytes. Its parts are
compressed apart, each to whole bytes (a full flush) and without looking back into the part before,
so what they became can be put into the next file as it is. Any reader sees one gzip member.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tableformat.spec.kept_text import KeptText, deflate

_HEADER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"  # deflate, no name, no time, no system
_END = b"\x03\x00"  # an empty last block
_COMMA = deflate(b",")  # between the many parts of a long list


def gzip_parts(parts: Sequence[bytes | KeptText], checksum: int) -> bytes:
    """The parts, joined and compressed.

    Args:
        parts: What is kept compressed is copied.
        checksum: CRC-32 of all of them.
    """
    size_bytes = sum(p.size_bytes if isinstance(p, KeptText) else len(p) for p in parts)
    tail = checksum.to_bytes(4, "little") + (size_bytes & 0xFFFFFFFF).to_bytes(4, "little")
    return b"".join((_HEADER, *_deflated(parts), _END, tail))


def _deflated(parts: Iterable[bytes | KeptText]) -> Iterator[bytes]:
    small: list[bytes] = []
    for part in parts:
        if not isinstance(part, KeptText):
            small.append(part)
            continue
        between = b"".join(small)
        yield _COMMA if between == b"," else deflate(between)
        small = []
        yield part.deflated
    yield deflate(b"".join(small))
