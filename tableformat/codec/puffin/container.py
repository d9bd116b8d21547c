"""Puffin files: a container of blobs with a JSON footer.

```
"PFA1" blob* footer          footer = "PFA1" payload, payload size (int32 LE), flags (4), "PFA1"
```

Byte 0, bit 0 of the flags: the payload is one LZ4 frame. All other bits must be 0. The first blob
is at offset 4. Footers are written uncompressed, with JSON keys in Java's order.

Source: Puffin spec.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tableformat.codec.compression import MalformedDataError, decompress
from tableformat.errors import CorruptDataError, InvalidInputError
from tableformat.limits import (
    PUFFIN_DECODED_BYTES_FLOOR,
    PUFFIN_EXPANSION_MAX,
    PUFFIN_FOOTER_BYTES_MAX,
)

MAGIC = b"PFA1"  # on disk: never change
TAIL_BYTES = 12  # payload size, flags, magic: what must be read first
FOOTER_FRAME_BYTES = len(MAGIC) + TAIL_BYTES

DELETION_VECTOR_TYPE = "deletion-vector-v1"

_TAIL = struct.Struct("<i4s4s")
_FLAG_LZ4 = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Blob:
    """One blob to write, stored as it is.

    `snapshot_id` and `sequence_number` are -1 where they are inherited (deletion vectors).
    """

    type: str
    data: bytes
    fields: tuple[int, ...]
    properties: Mapping[str, str] = field(default_factory=dict)
    snapshot_id: int = -1
    sequence_number: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class BlobMetadata:
    """What the footer says about one blob. Names are the spec's; `length` is the stored bytes."""

    type: str
    fields: tuple[int, ...]
    snapshot_id: int
    sequence_number: int
    offset: int
    length: int
    compression_codec: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedPuffin:
    """A Puffin file ready to be stored, and where its blobs are, in the order given."""

    data: bytes
    blobs: tuple[BlobMetadata, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PuffinFooter:
    """A decoded footer. `offset` is where it starts: the end of the blobs."""

    blobs: tuple[BlobMetadata, ...]
    properties: Mapping[str, str]
    offset: int


def encode_puffin(blobs: Sequence[Blob], properties: Mapping[str, str]) -> EncodedPuffin:
    """Encode a Puffin file with the blobs back to back.

    Args:
        blobs: In the order they shall stand.
        properties: Of the file, such as `created-by`.
    """
    pieces = [MAGIC]
    offset = len(MAGIC)
    placed = []
    for blob in blobs:
        placed.append(
            BlobMetadata(
                type=blob.type,
                fields=blob.fields,
                snapshot_id=blob.snapshot_id,
                sequence_number=blob.sequence_number,
                offset=offset,
                length=len(blob.data),
                properties=blob.properties,
            )
        )
        pieces.append(blob.data)
        offset += len(blob.data)
    footer: dict[str, Any] = {"blobs": [_blob_json(each) for each in placed]}
    if properties:
        footer["properties"] = dict(properties)
    payload = json.dumps(footer, separators=(",", ":"), ensure_ascii=False).encode()
    if len(payload) > PUFFIN_FOOTER_BYTES_MAX:
        raise InvalidInputError("too many blobs for one Puffin file", blobs=len(blobs))
    pieces += (MAGIC, payload, _TAIL.pack(len(payload), bytes(4), MAGIC))
    return EncodedPuffin(data=b"".join(pieces), blobs=tuple(placed))


def footer_size_bytes(tail: bytes, *, file_size_bytes: int, location: str) -> int:
    """Bytes of the whole footer, from the last `TAIL_BYTES` of the file.

    Raises:
        CorruptDataError: It is no Puffin file, or is cut.
    """
    payload_size, _, magic = _TAIL.unpack(_last(tail, TAIL_BYTES, location))
    if magic != MAGIC:
        raise CorruptDataError("not a Puffin file: wrong magic at its end", location=location)
    size = FOOTER_FRAME_BYTES + int(payload_size)
    if payload_size < 0 or size + len(MAGIC) > file_size_bytes:
        raise CorruptDataError(
            "not a valid Puffin file: impossible footer size",
            location=location,
            payload_size=payload_size,
            file_size=file_size_bytes,
        )
    if payload_size > PUFFIN_FOOTER_BYTES_MAX:
        raise CorruptDataError(
            "not a valid Puffin file: the footer is too large",
            location=location,
            payload_size=payload_size,
        )
    return size


def decode_puffin_footer(footer: bytes, *, file_size_bytes: int, location: str) -> PuffinFooter:
    """Decode a footer.

    Args:
        footer: The last `footer_size_bytes` bytes of the file (more may precede them).
        file_size_bytes: Size of the whole file: every blob must lie before the footer.
        location: For errors.

    Raises:
        CorruptDataError: Magic, flags, JSON or a blob's place is wrong.
    """
    size = footer_size_bytes(footer, file_size_bytes=file_size_bytes, location=location)
    raw = _last(footer, size, location)
    if raw[: len(MAGIC)] != MAGIC:
        raise CorruptDataError(
            "not a valid Puffin file: wrong magic at the footer", location=location
        )
    _, flags, _ = _TAIL.unpack(raw[-TAIL_BYTES:])
    if flags not in (bytes(4), bytes((_FLAG_LZ4, 0, 0, 0))):
        raise CorruptDataError(
            "not a valid Puffin file: unknown flags", location=location, flags=flags.hex()
        )
    payload = raw[len(MAGIC) : -TAIL_BYTES]
    footer_offset = file_size_bytes - size
    try:
        if flags[0] & _FLAG_LZ4:
            bytes_max = PUFFIN_DECODED_BYTES_FLOOR + PUFFIN_EXPANSION_MAX * len(payload)
            payload = decompress(payload, "lz4", bytes_max=bytes_max)
        return _parse_footer(payload, footer_offset)
    except (ValueError, RecursionError) as error:
        raise CorruptDataError(f"not a valid Puffin footer: {error}", location=location) from error


def decode_puffin(data: bytes, *, location: str) -> PuffinFooter:
    """Decode the footer of a whole file; also checks the magic at its start.

    Raises:
        CorruptDataError: See `decode_puffin_footer`.
    """
    check_head(data, location=location)
    return decode_puffin_footer(data, file_size_bytes=len(data), location=location)


def check_head(data: bytes, *, location: str) -> None:
    """Check the magic in the first 4 bytes of a file."""
    if data[: len(MAGIC)] != MAGIC:
        raise CorruptDataError("not a Puffin file: wrong magic at its start", location=location)


def _last(data: bytes, size: int, location: str) -> bytes:
    if len(data) < size:
        raise CorruptDataError(
            "not a valid Puffin file: it ends early", location=location, size_bytes=len(data)
        )
    return data[len(data) - size :]


def _blob_json(blob: BlobMetadata) -> dict[str, Any]:
    """JSON values in Java's key order; optional keys are left out when empty."""
    result: dict[str, Any] = {
        "type": blob.type,
        "fields": list(blob.fields),
        "snapshot-id": blob.snapshot_id,
        "sequence-number": blob.sequence_number,
        "offset": blob.offset,
        "length": blob.length,
    }
    if blob.compression_codec is not None:
        result["compression-codec"] = blob.compression_codec
    if blob.properties:
        result["properties"] = dict(blob.properties)
    return result


def _parse_footer(payload: bytes, footer_offset: int) -> PuffinFooter:
    footer = json.loads(payload.decode("utf-8"), object_pairs_hook=_unique_keys)
    if not isinstance(footer, dict) or not isinstance(footer.get("blobs"), list):
        raise MalformedDataError("it has no list of blobs")
    return PuffinFooter(
        blobs=tuple(_parse_blob(each, footer_offset) for each in footer["blobs"]),
        properties=_parse_properties(footer.get("properties")),
        offset=footer_offset,
    )


def _parse_blob(blob: Any, footer_offset: int) -> BlobMetadata:
    if not isinstance(blob, dict):
        raise MalformedDataError("a blob is not an object")
    fields = blob.get("fields")
    codec = blob.get("compression-codec")
    if not isinstance(blob.get("type"), str):
        raise MalformedDataError("a blob has no type")
    if not isinstance(fields, list) or not all(_is_integer(each) for each in fields):
        raise MalformedDataError("the fields of a blob are not a list of ids")
    if codec is not None and not isinstance(codec, str):
        raise MalformedDataError("the codec of a blob is not a name")
    offset, length = _integer(blob, "offset"), _integer(blob, "length")
    if offset < len(MAGIC) or length < 0 or offset + length > footer_offset:
        raise MalformedDataError(f"a blob at {offset}, {length} bytes long, is outside the file")
    return BlobMetadata(
        type=blob["type"],
        fields=tuple(fields),
        snapshot_id=_integer(blob, "snapshot-id"),
        sequence_number=_integer(blob, "sequence-number"),
        offset=offset,
        length=length,
        compression_codec=codec,
        properties=_parse_properties(blob.get("properties")),
    )


def _parse_properties(properties: Any) -> dict[str, str]:
    if properties is None:
        return {}
    if not isinstance(properties, dict) or not all(
        isinstance(value, str) for value in properties.values()
    ):
        raise MalformedDataError("properties are not a map of strings")
    return properties


def _integer(blob: dict[str, Any], key: str) -> int:
    value = blob.get(key)
    if not isinstance(value, int) or isinstance(value, bool):
        raise MalformedDataError(f"the {key} of a blob is not a number")
    return value


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        raise MalformedDataError("a key stands twice in an object")
    return result
