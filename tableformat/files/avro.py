"""Avro object container files, read and written in memory.

    "Obj" 01 | metadata: map<string, bytes> | sync (16 bytes) | block*
    block = record count (long) | stored size (long) | stored bytes | sync

PyIceberg's `AvroFile` is not used for reading: it takes a file that was cut between two blocks for
a complete one, and its compiled decoder reads past the end of its buffer when a count is wrong,
which is a crash or someone else's memory. Records are decoded by `avro_records`.

The sync marker is derived from the contents, so equal inputs give equal files.

Source: Apache Avro specification 1.11, "Object Container Files".
"""

from __future__ import annotations

import bz2
import hashlib
import io
import json
import zlib
from binascii import crc32
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tableformat.errors import CorruptDataError, InvalidInputError, UnsupportedError
from tableformat.files.avro_records import MalformedAvroError, read_bytes, read_long, write_long
from tableformat.limits import (
    AVRO_DECODED_BYTES_FLOOR,
    AVRO_DECODED_BYTES_MAX,
    AVRO_EXPANSION_MAX,
    AVRO_HEADER_BYTES_MAX,
    AVRO_RECORDS_FLOOR,
)

MAGIC = b"Obj\x01"
SYNC_SIZE = 16
SCHEMA_KEY = "avro.schema"
CODEC_KEY = "avro.codec"

# Iceberg's property values (write.avro.compression-codec) to the names in Avro headers.
CODEC_NAMES: Mapping[str, str] = {
    "gzip": "deflate",
    "zstd": "zstandard",
    "uncompressed": "null",
    "none": "null",
}
WRITE_CODECS = frozenset({"null", "deflate", "zstandard", "bzip2"})
READ_CODECS = WRITE_CODECS | {"snappy"}


@dataclass(frozen=True, slots=True)
class AvroBlock:
    """One block, decompressed: `record_count` records stand back to back in `data`."""

    record_count: int
    data: bytes


@dataclass(frozen=True, slots=True)
class AvroContainer:
    """A decoded container. `metadata` has no `avro.*` keys."""

    schema: Any
    metadata: Mapping[str, str]
    blocks: tuple[AvroBlock, ...]

    @property
    def record_count(self) -> int:
        """Records in all blocks."""
        return sum(block.record_count for block in self.blocks)


def encode_container(
    payload: bytes, *, record_count: int, schema: Any, metadata: Mapping[str, str], codec: str
) -> bytes:
    """Wrap encoded records into a container of one block (none when there are no records).

    Args:
        payload: The records, back to back.
        record_count: How many.
        schema: The Avro schema as JSON values.
        metadata: File metadata, without `avro.*` keys.
        codec: `gzip`, `zstd`, `uncompressed`, or an Avro codec name.
    """
    avro_codec = CODEC_NAMES.get(codec, codec)
    if avro_codec not in WRITE_CODECS:
        raise InvalidInputError("cannot write Avro: unknown compression codec", codec=codec)
    header = {**metadata, SCHEMA_KEY: json.dumps(schema), CODEC_KEY: avro_codec}
    out = bytearray(MAGIC)
    write_long(out, len(header))
    for key, value in header.items():
        for part in (key.encode(), value.encode()):
            write_long(out, len(part))
            out += part
    write_long(out, 0)
    sync = hashlib.blake2b(payload, digest_size=SYNC_SIZE, key=hashlib.md5(out).digest()).digest()  # noqa: S324 - a marker, no secret
    out += sync
    if record_count:
        stored = _compress(payload, avro_codec)
        write_long(out, record_count)
        write_long(out, len(stored))
        out += stored
        out += sync
    return bytes(out)


def decode_container(data: bytes, *, location: str) -> AvroContainer:
    """Read a whole container; checks everything but the records.

    Raises:
        CorruptDataError: Magic, header, a block or a sync marker is wrong; the file ends early; or
            it decodes to far more than its size allows (`limits`).
        UnsupportedError: The codec is valid Avro, but not read here.
    """
    try:
        return _decode_container(data)
    except UnsupportedError as error:
        raise error.with_context(location=location) from error
    except (MalformedAvroError, IndexError, ValueError, RecursionError) as error:
        raise CorruptDataError(f"not a readable Avro file: {error}", location=location) from error


def _decode_container(data: bytes) -> AvroContainer:
    if data[: len(MAGIC)] != MAGIC:
        raise MalformedAvroError("wrong magic bytes")
    metadata, position = _read_metadata(data, len(MAGIC))
    sync = data[position : position + SYNC_SIZE]
    if len(sync) != SYNC_SIZE:
        raise MalformedAvroError("it ends inside the header")
    position += SYNC_SIZE
    codec = metadata.pop(CODEC_KEY, "null")
    if codec not in READ_CODECS:
        raise UnsupportedError("cannot read Avro: unknown compression codec", codec=codec)
    if SCHEMA_KEY not in metadata:
        raise MalformedAvroError("no schema in the header")
    schema = json.loads(metadata.pop(SCHEMA_KEY))

    budget = min(AVRO_DECODED_BYTES_FLOOR + AVRO_EXPANSION_MAX * len(data), AVRO_DECODED_BYTES_MAX)
    records_left = AVRO_RECORDS_FLOOR + len(data)
    blocks: list[AvroBlock] = []
    while position < len(data):
        record_count, position = read_long(data, position)
        stored, position = read_bytes(data, position)
        if data[position : position + SYNC_SIZE] != sync:
            raise MalformedAvroError("sync marker does not match")
        position += SYNC_SIZE
        records_left -= record_count
        if record_count < 0 or records_left < 0:
            raise MalformedAvroError(f"a block claims {record_count} records")
        decoded = _decompress(stored, codec, budget)
        budget -= len(decoded)
        blocks.append(AvroBlock(record_count, decoded))
    return AvroContainer(schema, metadata, tuple(blocks))


def _read_metadata(data: bytes, position: int) -> tuple[dict[str, str], int]:
    start = position
    metadata: dict[str, str] = {}
    count, position = read_long(data, position)
    while count != 0:
        if count < 0:
            count = -count
            _, position = read_long(data, position)
        if count > len(data) - position:
            raise MalformedAvroError(f"the header claims {count} entries")
        for _ in range(count):
            key, position = read_bytes(data, position)
            value, position = read_bytes(data, position)
            metadata[key.decode()] = value.decode()
        if position - start > AVRO_HEADER_BYTES_MAX:
            raise MalformedAvroError("the header is too large")
        count, position = read_long(data, position)
    return metadata, position


def _compress(payload: bytes, codec: str) -> bytes:
    if codec == "deflate":
        compressor = zlib.compressobj(wbits=-15)  # raw deflate, no zlib frame
        return compressor.compress(payload) + compressor.flush()
    if codec == "zstandard":
        return bytes(pa.compress(payload, codec="zstd", asbytes=True))
    if codec == "bzip2":
        return bz2.compress(payload)
    return payload


def _decompress(stored: bytes, codec: str, budget: int) -> bytes:
    """Decompress one block into at most `budget` bytes."""
    if codec == "null":
        decoded = stored
    elif codec == "deflate":
        inflater = zlib.decompressobj(wbits=-15)
        try:
            decoded = inflater.decompress(stored, budget + 1)
        except zlib.error as error:
            raise MalformedAvroError(f"a block does not inflate ({error})") from error
        if len(decoded) <= budget and (not inflater.eof or inflater.unused_data):
            raise MalformedAvroError("a block does not inflate to its end")
    elif codec == "bzip2":
        bunzipper = bz2.BZ2Decompressor()
        try:
            decoded = bunzipper.decompress(stored, budget + 1)
        except OSError as error:
            raise MalformedAvroError(f"a block does not decompress ({error})") from error
        if len(decoded) <= budget and (not bunzipper.eof or bunzipper.unused_data):
            raise MalformedAvroError("a block does not decompress to its end")
    elif codec == "zstandard":
        decoded = decompress_stream(stored, "zstd", budget)
    else:
        decoded = _decompress_snappy(stored, budget)
    if len(decoded) > budget:
        raise MalformedAvroError("it decodes to far more bytes than its size allows")
    return decoded


def decompress_stream(stored: bytes, codec: str, bytes_max: int) -> bytes:
    """Decompress a frame with Arrow's `zstd` or `lz4`; at most `bytes_max` + 1 bytes are produced.

    Raises:
        MalformedAvroError: The frame is damaged or cut.
    """
    try:
        with pa.CompressedInputStream(pa.BufferReader(stored), codec) as stream:
            out = io.BytesIO()
            while out.tell() <= bytes_max:
                chunk = stream.read(min(1 << 20, bytes_max + 1 - out.tell()))
                if not chunk:
                    break
                out.write(chunk)
            return out.getvalue()
    except (OSError, pa.ArrowException) as error:
        raise MalformedAvroError(f"{codec} data is damaged ({error})") from error


def _decompress_snappy(stored: bytes, budget: int) -> bytes:
    """Raw snappy plus a big-endian CRC-32 of the decoded bytes (Avro's own framing)."""
    body, checksum = stored[:-4], stored[-4:]
    size = shift = 0
    for byte in body[:5]:  # snappy opens with the decoded size as a varint
        size |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            break
    if size > budget:
        raise MalformedAvroError("it decodes to far more bytes than its size allows")
    try:
        decoded = bytes(pa.decompress(body, decompressed_size=size, codec="snappy", asbytes=True))
    except (OSError, pa.ArrowException) as error:
        raise MalformedAvroError(f"snappy data is damaged ({error})") from error
    if crc32(decoded).to_bytes(4, "big") != checksum:
        raise MalformedAvroError("snappy checksum does not match")
    return decoded
