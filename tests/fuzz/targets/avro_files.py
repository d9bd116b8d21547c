"""Manifests and manifest lists."""

from __future__ import annotations

import bz2
import json
import random
import zlib
from collections.abc import Sequence

import pyarrow as pa

from tableformat.codec.avro.manifest_entries import decode_manifest
from tableformat.codec.avro.manifest_list import decode_manifest_list
from tableformat.codec.avro.values import read_bytes, read_long, write_long
from tableformat.spec.manifest_file import UNKNOWN_COUNT, ManifestContent, ManifestFile
from tests.fuzz.mutate_bytes import BYTE_MUTATORS, INTEGERS, SIZE_MAX
from tests.fuzz.mutate_text import dump_json, mutate_json
from tests.fuzz.target import Accepted, Mutator, Target

LOCATION = "memory://warehouse/t/metadata/m.avro"
_SYNC = 16
Header = dict[bytes, bytes]
Blocks = list[tuple[int, bytes]]


def _manifest(content: ManifestContent, size_bytes: int) -> ManifestFile:
    """A record of a manifest list that knows no counts, so that they do not end every change."""
    return ManifestFile(
        manifest_path=LOCATION,
        manifest_length=size_bytes,
        partition_spec_id=3,
        content=content,
        sequence_number=9,
        min_sequence_number=1,
        added_snapshot_id=7001,
        added_files_count=UNKNOWN_COUNT,
        existing_files_count=UNKNOWN_COUNT,
        deleted_files_count=UNKNOWN_COUNT,
        added_rows_count=UNKNOWN_COUNT,
        existing_rows_count=UNKNOWN_COUNT,
        deleted_rows_count=UNKNOWN_COUNT,
        first_row_id=1000,
    )


def _parse_manifest(data: bytes) -> None:
    content = ManifestContent.DELETES if b"deletes" in data[:40_000] else ManifestContent.DATA
    for entry in decode_manifest(data, _manifest(content, len(data))):
        file = entry.data_file
        if not file.file_path or file.record_count < 0 or file.file_size_in_bytes < 0:
            raise Accepted(f"a file without path, or with a negative number: {file}")
        hash(file.partition)


def _parse_list(data: bytes) -> None:
    manifests = decode_manifest_list(data, location=LOCATION)
    if len({each.manifest_path for each in manifests}) < len(manifests):
        raise Accepted("a manifest twice")


def _take_apart(data: bytes) -> tuple[Header, Blocks] | None:
    """Header and decompressed blocks; None if the file is too broken already."""
    try:
        header, at = _read_header(data)
        sync, at = data[at : at + _SYNC], at + _SYNC
        blocks: Blocks = []
        while at < len(data):
            count, at = read_long(data, at)
            stored, at = read_bytes(data, at)
            if data[at : at + _SYNC] != sync:
                return None
            at += _SYNC
            blocks.append((count, _plain(stored, header.get(b"avro.codec", b"null"))))
    except (ValueError, IndexError, zlib.error, OSError):
        return None
    return header, blocks


def _read_header(data: bytes) -> tuple[Header, int]:
    header: Header = {}
    count, at = read_long(data, 4)
    while count:
        for _ in range(min(count, 1000)):
            key, at = read_bytes(data, at)
            header[key], at = read_bytes(data, at)
        count, at = read_long(data, at)
    return header, at


def _plain(stored: bytes, codec: bytes) -> bytes:
    if codec == b"deflate":
        return zlib.decompressobj(wbits=-15).decompress(stored, 1 << 20)
    return stored


def _put_together(header: Header, blocks: Blocks, codec: bytes) -> bytes:
    out = bytearray(b"Obj\x01")
    header = {**header, b"avro.codec": codec}
    write_long(out, len(header))
    for item in header.items():
        for part in item:
            write_long(out, len(part))
            out += part
    out += b"\x00" + bytes(_SYNC)
    for count, payload in blocks:
        stored = _compressed(payload, codec)
        write_long(out, max(min(count, 2**63 - 1), -(2**63)))
        write_long(out, len(stored))
        out += stored + bytes(_SYNC)
    return bytes(out)


def _compressed(payload: bytes, codec: bytes) -> bytes:
    if codec == b"deflate":
        deflater = zlib.compressobj(wbits=-15)
        return deflater.compress(payload) + deflater.flush()
    if codec == b"bzip2":
        return bz2.compress(payload)
    if codec == b"zstandard":
        return bytes(pa.compress(payload, codec="zstd", asbytes=True))
    return payload


def _inside(change: Mutator) -> Mutator:
    """Change records and leave the container right, or change what it says of them."""

    def mutate(rng: random.Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
        parts = _take_apart(data)
        if parts is None:
            return change(rng, data, corpus)
        header, blocks = parts
        codec = rng.choice((b"null", b"null", b"deflate", b"zstandard", b"bzip2"))
        if blocks:
            at = rng.randrange(len(blocks))
            count, payload = blocks[at]
            others = [p for each in corpus[:3] for _, p in (_take_apart(each) or ({}, []))[1]]
            blocks[at] = (count, change(rng, payload, others or [payload]))
        return _put_together(header, blocks, codec)

    return mutate


def _change_header(rng: random.Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    parts = _take_apart(data)
    if parts is None:
        return BYTE_MUTATORS[0](rng, data, corpus)
    header, blocks = parts
    key = rng.choice((b"avro.schema", b"avro.schema", b"avro.schema", *header))
    value = header.get(key, b"")
    changed = mutate_json()(rng, value, [value])
    if rng.random() < 0.1:
        header.pop(key, None)
    else:
        header[key] = changed
    return _put_together(header, blocks, rng.choice((b"null", b"deflate", b"zstandard", b"x")))


def _change_counts(rng: random.Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    parts = _take_apart(data)
    if parts is None or not parts[1]:
        return BYTE_MUTATORS[0](rng, data, corpus)
    header, blocks = parts
    if sum(len(payload) for _, payload in blocks) > SIZE_MAX:
        return data  # each time it would grow forty-fold
    count, payload = rng.choice(blocks)
    blocks = rng.choice(
        (
            [(rng.choice((*INTEGERS, count + 1, count - 1)), payload)],
            [*blocks, *blocks],
            [*blocks, (0, b"")] * rng.choice((2, 300)),
            [(count * 40, payload * 40)],
        )
    )
    return _put_together(header, blocks, b"deflate")


def _bomb(rng: random.Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    """A field that no reader wants, of a type whose values are far larger than their bytes."""
    parts = _take_apart(data)
    if parts is None or not parts[1] or rng.random() > 0.02:
        return BYTE_MUTATORS[1](rng, data, corpus)
    header, blocks = parts
    items = rng.choice(
        (
            {"type": "array", "items": "int"},
            "boolean",
            ["null", "int"],
            {"type": "map", "values": "null"},
            "double",
            {"type": "record", "name": "r", "fields": [{"name": "a", "type": "boolean"}] * 9},
        )
    )
    try:
        schema = json.loads(header[b"avro.schema"])
        schema["fields"].insert(0, {"name": "b", "type": {"type": "array", "items": items}})
    except (ValueError, KeyError, TypeError, AttributeError):
        return data
    header[b"avro.schema"] = dump_json(rng, schema)
    size = rng.choice((1 << 16, 3 << 20, 1 << 23))
    value = bytearray()
    write_long(value, size // (9 if isinstance(items, dict) and "name" in items else 1))
    value += bytes(size) + b"\x00"
    count, payload = blocks[0]
    return _put_together(header, [(count, bytes(value) + payload)], b"zstandard")


_MUTATORS = (
    *BYTE_MUTATORS,
    *(_inside(each) for each in BYTE_MUTATORS),
    *(_inside(each) for each in BYTE_MUTATORS),
    *(_change_header,) * 6,
    *(_change_counts,) * 2,
    _bomb,
)
MANIFEST = Target(name="manifest", parse=_parse_manifest, mutators=_MUTATORS, inputs=12_500)
MANIFEST_LIST = Target(name="manifest_list", parse=_parse_list, mutators=_MUTATORS, inputs=12_500)
