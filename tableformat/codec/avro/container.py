"""Avro object container files, read and written in memory.

    "Obj" 01 | metadata: map<string, bytes> | sync (16 bytes) | block*
    block = record count (long) | stored size (long) | stored bytes | sync

PyIceberg's `AvroFile` is not used for reading: it takes a file that was cut between two blocks for
a complete one, and its compiled decoder reads past the end of its buffer when a count is wrong,
which is a crash or someone else's memory. Records are decoded by `records`.

Avro has no checksum, and a flipped bit in a path or a count may decode well. So the sync marker of
files written here is a tag and a checksum of header and records, which reading verifies; to others
it is a sync marker like any other. Equal inputs give equal files.

Source: Apache Avro specification 1.11, "Object Container Files".
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from tableformat.codec.avro.values import (
    MalformedAvroError,
    describe_malformed,
    read_bytes,
    read_long,
    write_long,
)
from tableformat.codec.compression import compress, decompress
from tableformat.errors import CorruptDataError, InvalidInputError, UnsupportedError
from tableformat.limits import (
    AVRO_DECODED_BYTES_FLOOR,
    AVRO_DECODED_BYTES_MAX,
    AVRO_EXPANSION_MAX,
    AVRO_HEADER_BYTES_MAX,
    AVRO_RECORDS_FLOOR,
)

MAGIC = b"Obj\x01"
_ENCRYPTED_MAGIC = b"AGS1"  # spec: AES GCM Stream, of tables with encryption.key-id
SYNC_SIZE = 16
_SYNC_TAG = b"icefold\x01"  # eight bytes that nobody draws at random; eight of checksum follow
# Who looks for one record decodes its block; a block is about as long as deflate looks back.
BLOCK_RECORDS = 256
SCHEMA_KEY = "avro.schema"
_SMALL_SCHEMA_CHARS = 1 << 16  # to be kept
CODEC_KEY = "avro.codec"

# Iceberg's property values (write.avro.compression-codec) to the names in Avro headers.
CODEC_NAMES: Mapping[str, str] = {
    "gzip": "deflate",
    "zstd": "zstandard",
    "uncompressed": "null",
    "none": "null",
}
# Avro's names to those of `compression`.
READ_CODECS: Mapping[str, str] = {
    "null": "null",
    "deflate": "deflate",
    "zstandard": "zstd",
    "bzip2": "bzip2",
    "snappy": "snappy",
}
WRITE_CODECS = frozenset({"null", "deflate", "zstandard", "bzip2"})


@dataclass(frozen=True, slots=True)
class AvroBlock:
    """One block: `record_count` records that stand back to back in what `decompressed` gives."""

    record_count: int
    stored: bytes
    codec: str
    decoded_bytes: int

    def decompressed(self) -> bytes:
        """The records. Nothing is kept: each call decompresses."""
        return decompress(self.stored, self.codec, bytes_max=self.decoded_bytes)


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
    records: Sequence[bytes], *, schema: Any, metadata: Mapping[str, str], codec: str
) -> bytes:
    """Wrap encoded records into a container, `BLOCK_RECORDS` in a block.

    Args:
        records: The records.
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
    parts = [records[at : at + BLOCK_RECORDS] for at in range(0, len(records), BLOCK_RECORDS)]
    blocks = [(len(part), b"".join(part)) for part in parts]
    sync = _sync_marker(out, blocks)
    out += sync
    for record_count, data in blocks:
        stored = compress(data, READ_CODECS[avro_codec])
        write_long(out, record_count)
        write_long(out, len(stored))
        out += stored
        out += sync
    return bytes(out)


def decode_container(
    data: bytes, *, location: str, look: Callable[[bytes], None] | None = None
) -> AvroContainer:
    """Read a whole container; checks everything but the records.

    Args:
        data: The file.
        location: Of the file, for errors.
        look: Given the records of each block, which are decompressed to be checked.

    Raises:
        CorruptDataError: Magic, header, a block, a sync marker or (of files written here) the
            checksum is wrong; the file ends early; or it decodes to far more than its size allows
            (`limits`).
        UnsupportedError: The codec is valid Avro, but not read here.
    """
    try:
        return _decode_container(data, look)
    except UnsupportedError as error:
        raise error.with_context(location=location) from error
    except (IndexError, ValueError, RecursionError) as error:
        raise CorruptDataError(
            f"not a readable Avro file: {describe_malformed(error)}", location=location
        ) from error


def _decode_container(data: bytes, look: Callable[[bytes], None] | None) -> AvroContainer:
    if data.startswith(_ENCRYPTED_MAGIC):
        raise UnsupportedError("cannot read an encrypted file")
    if data[: len(MAGIC)] != MAGIC:
        raise MalformedAvroError("wrong magic bytes")
    metadata, position = _read_metadata(data, len(MAGIC))
    sync = data[position : position + SYNC_SIZE]
    if len(sync) != SYNC_SIZE:
        raise MalformedAvroError("it ends inside the header")
    header_size = position
    position += SYNC_SIZE
    codec = metadata.pop(CODEC_KEY, "null")
    if codec not in READ_CODECS:
        raise UnsupportedError("cannot read Avro: unknown compression codec", codec=codec)
    if SCHEMA_KEY not in metadata:
        raise MalformedAvroError("no schema in the header")
    schema = _parse_schema(metadata.pop(SCHEMA_KEY))

    budget = min(AVRO_DECODED_BYTES_FLOOR + AVRO_EXPANSION_MAX * len(data), AVRO_DECODED_BYTES_MAX)
    records_left = AVRO_RECORDS_FLOOR + len(data)
    checksum = _Checksum(data[:header_size])
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
        decoded = decompress(stored, READ_CODECS[codec], bytes_max=budget)
        budget -= len(decoded)
        blocks.append(AvroBlock(record_count, stored, READ_CODECS[codec], len(decoded)))
        checksum.add(record_count, decoded)
        if look is not None:
            look(decoded)
    if sync.startswith(_SYNC_TAG) and sync != checksum.sync_marker:
        raise MalformedAvroError("header or records do not match their checksum")
    return AvroContainer(schema, metadata, tuple(blocks))


def _parse_schema(text: str) -> Any:
    """The same value for the same text, so that what is made of it is found again. Not changed."""
    return _small_schema(text) if len(text) <= _SMALL_SCHEMA_CHARS else json.loads(text)


@lru_cache(maxsize=64)
def _small_schema(text: str) -> Any:
    return json.loads(text)


def _sync_marker(header: bytes | bytearray, blocks: Iterable[tuple[int, bytes]]) -> bytes:
    checksum = _Checksum(header)
    for record_count, data in blocks:
        checksum.add(record_count, data)
    return checksum.sync_marker


class _Checksum:
    """Of a header, which ends before the sync marker, and of the records of each block."""

    def __init__(self, header: bytes | bytearray) -> None:
        self._digest = hashlib.blake2b(header, digest_size=SYNC_SIZE - len(_SYNC_TAG))

    def add(self, record_count: int, data: bytes) -> None:
        """One more block."""
        if record_count:
            self._digest.update(record_count.to_bytes(8, "big"))
            self._digest.update(data)

    @property
    def sync_marker(self) -> bytes:
        """Tag and checksum."""
        return _SYNC_TAG + self._digest.digest()


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
