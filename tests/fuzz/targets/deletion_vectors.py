"""Deletion vectors and the Puffin files they are in."""

from __future__ import annotations

import json
import random
import struct
import zlib
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from tableformat.codec.puffin.container import decode_puffin
from tableformat.codec.puffin.deletion_vector import (
    Positions,
    decode_deletion_vector,
    encode_deletion_vector,
)
from tableformat.codec.puffin.dv_file import read_deletion_vectors
from tableformat.errors import CorruptDataError, InvalidInputError
from tableformat.spec.data_file import DataFile, FileContent
from tests.fuzz.mutate_bytes import BYTE_MUTATORS, INTEGERS
from tests.fuzz.mutate_text import dump_json, mutate_json
from tests.fuzz.roaring_reference import MalformedError, read_positions
from tests.fuzz.target import Accepted, Mutator, Target
from tests.support.memory_store import MemoryObjectStore

MAGIC = bytes.fromhex("d1d33964")
LOCATION = "memory://warehouse/t/data/dvs.puffin"
_PUFFIN_MAGIC = b"PFA1"
_REFERENCE_BYTES_MAX = 2_000  # it is slow


def frame(vector: bytes) -> bytes:
    """A vector as a blob: length, magic and CRC as they must be."""
    body = MAGIC + vector
    return struct.pack(">I", len(body)) + body + struct.pack(">I", zlib.crc32(body))


def _parse_vector(data: bytes) -> None:
    positions = decode_deletion_vector(data, location=LOCATION)
    if len(data) < _REFERENCE_BYTES_MAX:
        _compare_with_reference(data[8:-4], positions)
    try:
        again = encode_deletion_vector(positions)
    except InvalidInputError:  # it may be read, but no data file has so many rows
        return
    if decode_deletion_vector(again, location=LOCATION) != positions:
        raise Accepted("the positions read differ from those written again")


def _compare_with_reference(vector: bytes, positions: Positions) -> None:
    try:
        expected = read_positions(vector)
    except MalformedError as error:
        raise Accepted(f"the reference refuses it: {error}") from error
    if list(positions) != expected:
        raise Accepted("other positions than the reference reads")


def _inside_frame(inner: Mutator) -> Mutator:
    """Change the vector and make the frame fit again, so that the checksum does not end it."""

    def mutate(rng: random.Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
        return frame(inner(rng, data[8:-4], [each[8:-4] for each in corpus]))

    return mutate


def _boundary_field(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    """A limit in the count, the first key, the cookie or the header of the containers."""
    vector = bytearray(data[8:-4])
    at, code = rng.choice(((0, "<Q"), (8, "<I"), (12, "<I"), (16, "<H"), (16, "<I"), (18, "<H")))
    size = struct.calcsize(code)
    if len(vector) < at + size:
        return data
    struct.pack_into(code, vector, at, rng.choice(INTEGERS) & (256**size - 1))
    return frame(bytes(vector))


def _many_empty_bitmaps(rng: random.Random, _: bytes, __: Sequence[bytes]) -> bytes:
    """Far keys, each of a bitmap without a position: memory must follow the bytes."""
    keys = sorted(rng.sample(range(2**31 - 1), rng.choice((1, 5, 400))))
    bitmaps = b"".join(struct.pack("<I", key) + bytes.fromhex("3a30000000000000") for key in keys)
    return frame(struct.pack("<q", len(keys)) + bitmaps)


DELETION_VECTOR = Target(
    name="deletion_vector",
    parse=_parse_vector,
    mutators=(
        *BYTE_MUTATORS,
        *(_inside_frame(each) for each in BYTE_MUTATORS),
        *(_inside_frame(each) for each in BYTE_MUTATORS),
        _boundary_field,
        _boundary_field,
        _many_empty_bitmaps,
    ),
    errors=(CorruptDataError,),
    inputs=15_000,
)


def _parse_puffin(data: bytes) -> None:
    footer = decode_puffin(data, location=LOCATION)
    if len(footer.blobs) < 8:
        _read_vectors(data, [_entry(blob, len(data)) for blob in footer.blobs])


def _read_vectors(data: bytes, entries: Sequence[DataFile | None]) -> None:
    store = MemoryObjectStore()
    store.put(LOCATION, data)
    wanted = [(each, each.record_count) for each in entries if each is not None]
    read_deletion_vectors(store, wanted)


def _entry(blob: Any, size_bytes: int) -> DataFile | None:
    """The manifest entry that says what the footer says; None where it could not."""
    text = blob.properties.get("cardinality", "")
    count = int(text) if text.isascii() and text.isdigit() and len(text) < 18 else 3
    return DataFile(
        content=FileContent.POSITION_DELETES,
        file_path=LOCATION,
        file_format="PUFFIN",
        spec_id=0,
        partition=(),
        record_count=count,
        file_size_in_bytes=size_bytes,
        referenced_data_file=blob.properties.get("referenced-data-file", "a"),
        content_offset=blob.offset,
        content_size_in_bytes=blob.length,
    )


def _footer_payload(data: bytes) -> tuple[bytes, bytes] | None:
    """The blobs, and the JSON of the footer."""
    size = int.from_bytes(data[-12:-8], "little", signed=True)
    start = len(data) - 12 - size - 4
    if len(data) < 16 or size < 0 or start < 0 or data[start : start + 4] != _PUFFIN_MAGIC:
        return None
    return data[:start], data[start + 4 : -12]


def _with_footer(blobs: bytes, payload: bytes, *, lz4: bool = False) -> bytes:
    if lz4:
        sink = pa.BufferOutputStream()
        with pa.CompressedOutputStream(sink, "lz4") as stream:
            stream.write(payload)
        payload = sink.getvalue().to_pybytes()
    flags = b"\x01\x00\x00\x00" if lz4 else bytes(4)
    tail = struct.pack("<i", len(payload)) + flags + _PUFFIN_MAGIC
    return blobs + _PUFFIN_MAGIC + payload + tail


def _change_footer(rng: random.Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    parts = _footer_payload(data)
    if parts is None:
        return BYTE_MUTATORS[0](rng, data, corpus)
    payload = mutate_json()(rng, parts[1], [parts[1]])
    return _with_footer(parts[0], payload, lz4=rng.random() < 0.2)


def _change_blob_fields(rng: random.Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    """Limits in offset and length, another codec or type."""
    parts = _footer_payload(data)
    try:
        footer = json.loads(parts[1]) if parts else None
        blob = rng.choice(footer["blobs"])
    except (ValueError, TypeError, KeyError, IndexError):
        return BYTE_MUTATORS[0](rng, data, corpus)
    if not isinstance(blob, dict) or parts is None:
        return data
    key = rng.choice(("offset", "length", "compression-codec", "type", "properties", "fields"))
    blob[key] = rng.choice(
        (*INTEGERS, len(parts[0]), "lz4", "zstd", "deletion-vector-v1", None, {"cardinality": "1"})
    )
    return _with_footer(parts[0], dump_json(rng, footer))


def _bomb_footer(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    """A footer that is short when compressed, and long or deep when not."""
    piece = rng.choice((b'{"type":"x"},', b"[],", b"[[[[[[[[1]]]]]]]],", b" ", b'{"a":{"a":0}},'))
    payload = b'{"blobs":[' + piece * rng.choice((1_000, 60_000, 200_000))
    return _with_footer(data[:4], payload + rng.choice((b"1]}", b"]}")), lz4=True)


PUFFIN = Target(
    name="puffin",
    parse=_parse_puffin,
    mutators=(
        *BYTE_MUTATORS,
        *(_change_footer,) * 5,
        *(_change_blob_fields,) * 3,
        lambda rng, data, corpus: (
            _bomb_footer(rng, data, corpus) if rng.random() < 0.02 else data[:-1]
        ),
    ),
    inputs=15_000,
)
