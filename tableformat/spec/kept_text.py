"""A part of many metadata files, made ready once: its checksum, and itself plain or compressed."""

from __future__ import annotations

import zlib

from tableformat.crc32_parts import crc32_shift

KEPT_BYTES_MIN = 64 << 10  # what is shorter is as quickly made ready again
_LEVEL = 3  # of 2.8 MB of snapshots 0.31 in 12 ms; the best, 9, needs 78 ms for 0.23


class KeptText:
    """Bytes that do not change.

    Args:
        text: The bytes.
        is_zipped: Keep them compressed, a sixth to a ninth of them, and no other copy.

    Attributes:
        checksum: Their CRC-32.
        shift: `crc32_shift` of their size.
        size_bytes: How many they are.
        kept_bytes: How many are kept.
    """

    __slots__ = ("_kept", "checksum", "is_zipped", "kept_bytes", "shift", "size_bytes")

    def __init__(self, text: bytes, *, is_zipped: bool) -> None:
        self.is_zipped = is_zipped
        self.size_bytes = len(text)
        self.checksum = zlib.crc32(text)
        self.shift = crc32_shift(len(text))
        self._kept = deflate(text) if is_zipped else text
        self.kept_bytes = len(self._kept)

    @property
    def text(self) -> bytes:
        """The bytes."""
        return _inflate(self._kept) if self.is_zipped else self._kept

    @property
    def deflated(self) -> bytes:
        """As `deflate` makes them."""
        return self._kept if self.is_zipped else deflate(self._kept)


def plain(part: bytes | KeptText) -> bytes:
    """A part of a file as it is read."""
    return part.text if isinstance(part, KeptText) else part


def deflate(data: bytes) -> bytes:
    """Whole bytes of a deflate stream (RFC 1951), which does not look back before them."""
    if not data:
        return b""
    compressor = zlib.compressobj(_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    return compressor.compress(data) + compressor.flush(zlib.Z_FULL_FLUSH)


def _inflate(data: bytes) -> bytes:
    return zlib.decompressobj(-zlib.MAX_WBITS).decompress(data)
