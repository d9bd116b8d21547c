"""The `deletion-vector-v1` blob: deleted row positions of one data file.

| offset | bytes | field |
|---|---|---|
| 0 | 4 | int32 **big** endian: length of magic + vector |
| 4 | 4 | magic `D1 D3 39 64` |
| 8 | n | vector: 64-bit roaring bitmap, portable, little endian (`roaring_layout`) |
| 8 + n | 4 | CRC-32 of magic + vector, **big** endian |

Written bytes are those of Java: run-optimized, with an empty bitmap for every missing key.

Differs from Java on reading: the CRC is checked before anything is parsed; bytes after the last
bitmap and positions past the data file's rows are refused; a missing key costs nothing.

Source: Puffin spec, "deletion-vector-v1 blob type".
"""

from __future__ import annotations

import struct
import zlib
from array import array
from typing import TypeAlias

import numpy as np
from pyroaring import BitMap, BitMap64

from tableformat.codec.puffin.roaring_layout import (
    COUNT,
    EMPTY_BITMAP,
    KEY,
    MalformedBitmapError,
    walk_bitmaps,
)
from tableformat.errors import CorruptDataError, InvalidInputError
from tableformat.limits import (
    DELETION_VECTOR_BYTES_MAX,
    POSITION_MAX,
    ROARING_KEY_MAX,
    WRITTEN_ROARING_KEYS_MAX,
)

Positions: TypeAlias = BitMap64  # 0-based row ordinals in one data file

MAGIC = bytes.fromhex("d1d33964")  # on disk: never change
_LENGTH = struct.Struct(">i")
_CRC = struct.Struct(">I")
_FRAME_BYTES = 12  # length, magic, CRC
_BLOB_BYTES_MIN = _FRAME_BYTES + COUNT.size


def position_array(positions: Positions) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Positions as row ordinals, shape `(n,)`, ascending; those of the format fit into int64."""
    return np.asarray(positions.to_array(), dtype=np.uint64).astype(np.int64)


def build_positions(ordinals: np.ndarray) -> Positions:
    """Positions from row ordinals, in any order, duplicates allowed.

    Args:
        ordinals: Shape `(n,)`, an integer dtype.

    Raises:
        InvalidInputError: Not integers, negative, or above the format's largest position.

    Cost: below 2**32 (every real file) about 10 ms per million.
    """
    if ordinals.ndim != 1 or ordinals.dtype.kind not in "iu":
        raise InvalidInputError(
            "positions must be one-dimensional integers",
            shape=ordinals.shape,
            dtype=ordinals.dtype,
        )
    if len(ordinals) == 0:
        return BitMap64()
    low, high = int(ordinals.min()), int(ordinals.max())
    if low < 0 or high > POSITION_MAX:
        raise InvalidInputError(
            "position out of range", smallest=low, largest=high, position_max=POSITION_MAX
        )
    if high >> 32:
        wide = array("Q")
        wide.frombytes(ordinals.astype(np.uint64).tobytes())
        return BitMap64(wide)
    # The 32-bit bitmap is built much faster, and its serialized form is part of the 64-bit one.
    # Sorting first pays twelvefold for ordinals in random order and costs sorted ones nothing.
    narrow = array("I")
    narrow.frombytes(np.sort(ordinals.astype(np.uint32)).tobytes())
    return BitMap64.deserialize(COUNT.pack(1) + KEY.pack(0) + BitMap(narrow).serialize())


def encode_deletion_vector(positions: Positions) -> bytes:
    """Encode a whole blob, byte for byte as Java does.

    Raises:
        InvalidInputError: A position is out of range; or so large that the empty bitmaps below it
            would have to be counted in thousands (no data file has that many rows); or the blob
            would be larger than 2 GB.

    Invariants: decode(encode(p)) == p; encode(decode(b)) == b for every blob that Java wrote.
    """
    body = MAGIC + _encode_vector(positions)
    if len(body) + _FRAME_BYTES - len(MAGIC) > DELETION_VECTOR_BYTES_MAX:
        raise InvalidInputError("deletion vector is larger than 2 GB", size_bytes=len(body))
    return _LENGTH.pack(len(body)) + body + _CRC.pack(zlib.crc32(body))


def decode_deletion_vector(
    blob: bytes, *, location: str, cardinality: int | None = None, record_count: int | None = None
) -> Positions:
    """Decode a whole blob.

    Args:
        blob: Puffin bytes `[content_offset, content_offset + content_size_in_bytes)`, exactly.
        location: The Puffin file, for errors.
        cardinality: What the manifest entry's `record_count` says; None skips the check.
        record_count: Rows of the data file: every position must be below; None skips the check.

    Returns:
        The positions; a bitmap of the caller's own.

    Raises:
        CorruptDataError: In this order: size, length field, magic, CRC, bitmap structure, key
            range, cardinality, largest position. Nothing is returned for a partly valid blob.

    Cost: O(blob bytes). No I/O.
    """
    try:
        vector = _unframe(blob)
        _check_keys(vector)
        positions = BitMap64.deserialize(vector)
        if cardinality is not None and len(positions) != cardinality:
            raise MalformedBitmapError(
                f"cardinality {len(positions)} differs from the manifest's {cardinality}"
            )
        _check_largest(positions, record_count)
    except ValueError as error:
        raise CorruptDataError(
            f"not a valid deletion vector: {error}", location=location
        ) from error
    return positions


def _encode_vector(positions: Positions) -> bytes:
    if not positions:
        return COUNT.pack(0)
    largest = positions.max()
    if largest > POSITION_MAX:
        raise InvalidInputError("position out of range", largest=largest, position_max=POSITION_MAX)
    keys = (largest >> 32) + 1
    if keys > WRITTEN_ROARING_KEYS_MAX:
        raise InvalidInputError(
            "deletion vector would be mostly filler: no data file has that many rows",
            largest=largest,
            keys_max=WRITTEN_ROARING_KEYS_MAX,
        )
    optimized = positions.copy()  # run_optimize changes the bitmap, which may be shared
    optimized.run_optimize()
    vector = bytes(optimized.serialize())
    if COUNT.unpack_from(vector)[0] == keys:
        return vector
    return _with_empty_bitmaps(vector, keys)


def _with_empty_bitmaps(vector: bytes, keys: int) -> bytes:
    present = {key: vector[start:end] for key, start, end in walk_bitmaps(vector)}
    pieces = [COUNT.pack(keys)]
    for key in range(keys):
        pieces += (KEY.pack(key), present.get(key, EMPTY_BITMAP))
    return b"".join(pieces)


def _unframe(blob: bytes) -> bytes:
    """Check the frame and give the vector."""
    if not _BLOB_BYTES_MIN <= len(blob) <= DELETION_VECTOR_BYTES_MAX:
        raise MalformedBitmapError(f"impossible size of {len(blob)} bytes")
    length = _LENGTH.unpack_from(blob)[0]
    if length != len(blob) - _FRAME_BYTES + len(MAGIC):
        raise MalformedBitmapError(f"length field {length} in a blob of {len(blob)} bytes")
    body = memoryview(blob)[4:-4]
    if body[:4] != MAGIC:
        raise MalformedBitmapError(f"wrong magic bytes {bytes(body[:4]).hex()}")
    stored = _CRC.unpack_from(blob, len(blob) - 4)[0]
    computed = zlib.crc32(body)
    if computed != stored:
        raise MalformedBitmapError(f"stored CRC {stored:08x} differs from computed {computed:08x}")
    return bytes(body[4:])


def _check_keys(vector: bytes) -> None:
    """Walk all bitmaps, also empty ones, which the decoder would drop without a look."""
    for key, _, _ in walk_bitmaps(vector):
        if key > ROARING_KEY_MAX:
            raise MalformedBitmapError(f"bitmap key {key} is too large")


def _check_largest(positions: Positions, record_count: int | None) -> None:
    if not positions:
        return
    largest = positions.max()
    if largest > POSITION_MAX:
        raise MalformedBitmapError(f"position {largest} is too large")
    if record_count is not None and largest >= record_count:
        raise MalformedBitmapError(
            f"position {largest} is past the data file's {record_count} rows"
        )
