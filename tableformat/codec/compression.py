"""Decompression that cannot be made to produce more than it is told, and the matching compression.

`deflate` is raw (no zlib frame), `snappy` has Avro's checksum behind it, `zstd` and `lz4` are
frames. Arrow brings zstd, lz4 and snappy, so no further package is needed.
"""

from __future__ import annotations

import bz2
import io
import zlib
from binascii import crc32

import pyarrow as pa

_CHUNK_BYTES = 1 << 20
_SNAPPY_CHECKSUM_BYTES = 4
_ZLIB_CHECKSUM_BYTES = 4


class MalformedDataError(ValueError):
    """Damaged or oversized compressed data. Callers turn it into `CorruptDataError`."""


def compress(data: bytes, codec: str) -> bytes:
    """Compress with "null", "deflate", "bzip2" or "zstd"; snappy and lz4 are only read."""
    if codec == "null":
        return data
    if codec == "deflate":
        deflater = zlib.compressobj(wbits=-15)
        return deflater.compress(data) + deflater.flush()
    if codec == "bzip2":
        return bz2.compress(data)
    return bytes(pa.compress(data, codec="zstd", asbytes=True))


def decompress(stored: bytes, codec: str, *, bytes_max: int) -> bytes:
    """Decompress one block or frame.

    Args:
        stored: All of it and nothing else.
        codec: null, deflate, bzip2, zstd, lz4 or snappy.
        bytes_max: At most this much is produced.

    Raises:
        MalformedDataError: The data is damaged, cut, followed by other bytes, or decodes to more
            than `bytes_max`.
    """
    try:
        decoded = _decompress(stored, codec, bytes_max)
    except (OSError, zlib.error, EOFError, pa.ArrowException) as error:
        raise MalformedDataError(f"{codec} data is damaged ({error})") from error
    if len(decoded) > bytes_max:
        raise MalformedDataError("it decodes to far more bytes than its size allows")
    return decoded


def _decompress(stored: bytes, codec: str, bytes_max: int) -> bytes:
    """At most `bytes_max` + 1 bytes, so that the caller sees that there are more."""
    if codec == "null":
        return stored
    if codec == "deflate":
        inflater = zlib.decompressobj(wbits=-15)
        decoded = inflater.decompress(stored, bytes_max + 1)
        # PyIceberg and others leave bytes of the zlib checksum behind the stream.
        rest = inflater.unused_data[_ZLIB_CHECKSUM_BYTES:]
        return _complete(decoded, inflater.eof, rest, bytes_max)
    if codec == "bzip2":
        bunzipper = bz2.BZ2Decompressor()
        decoded = bunzipper.decompress(stored, bytes_max + 1)
        return _complete(decoded, bunzipper.eof, bunzipper.unused_data, bytes_max)
    if codec == "snappy":
        return _decompress_snappy(stored, bytes_max)
    return _decompress_stream(stored, codec, bytes_max)


def _complete(decoded: bytes, ended: bool, rest: bytes, bytes_max: int) -> bytes:
    if len(decoded) <= bytes_max and (not ended or rest):
        raise MalformedDataError("compressed data does not end where it should")
    return decoded


def _decompress_stream(stored: bytes, codec: str, bytes_max: int) -> bytes:
    if not stored:
        raise MalformedDataError(f"{codec} data is empty")  # Arrow takes it for an empty frame
    with pa.CompressedInputStream(pa.BufferReader(stored), codec) as stream:
        out = io.BytesIO()
        while out.tell() <= bytes_max:
            # Not `read`: it leaks what it has allocated when the data turns out to be damaged.
            chunk = stream.read_buffer(min(_CHUNK_BYTES, bytes_max + 1 - out.tell()))
            if not chunk.size:
                break
            out.write(chunk)
        return out.getvalue()


def _decompress_snappy(stored: bytes, bytes_max: int) -> bytes:
    body, checksum = stored[:-_SNAPPY_CHECKSUM_BYTES], stored[-_SNAPPY_CHECKSUM_BYTES:]
    size = shift = 0
    for byte in body[:5]:  # snappy opens with the decoded size as a varint
        size |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            break
    if size > bytes_max:
        raise MalformedDataError("it decodes to far more bytes than its size allows")
    decoded = bytes(pa.decompress(body, decompressed_size=size, codec="snappy", asbytes=True))
    if crc32(decoded).to_bytes(_SNAPPY_CHECKSUM_BYTES, "big") != checksum:
        raise MalformedDataError("snappy checksum does not match")
    return decoded
