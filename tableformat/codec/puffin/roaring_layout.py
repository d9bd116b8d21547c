"""The portable layout of a 64-bit roaring bitmap, walked without building it.

```
int64 LE  number of 32-bit bitmaps
per bitmap, keys strictly ascending:
  uint32 LE  key: the high 32 bits of its positions
  uint32 LE  cookie 12346, uint32 LE number of containers           no run containers
             or: low 16 bits 12347, high 16 bits containers - 1, then one bit per container (is run)
  per container: uint16 LE key, uint16 LE cardinality - 1
  without run containers, or with 4 containers and more: one uint32 LE offset per container
  containers: runs (uint16 count, then 4 bytes each), array (2 bytes each), bitset (8192 bytes)
```

The library that decodes accepts bytes after the last bitmap, and drops empty bitmaps; Java writes
an empty one for every missing key. So the pieces are found here: to see that they fill the vector
exactly, and to put the empty ones in.

Source: RoaringFormatSpec, "Extension for 64-bit Implementations"; Puffin spec.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np

EMPTY_BITMAP = bytes.fromhex("3a30000000000000")
COUNT = struct.Struct("<q")
KEY = struct.Struct("<I")

_COOKIE_PLAIN = 12346
_COOKIE_RUNS = 12347
_OFFSETS_FROM_CONTAINERS = 4  # with run containers, fewer have no offsets
_CONTAINERS_MAX = 65536
_ARRAY_CARDINALITY_MAX = 4096
_BITSET_BYTES = 8192
_BITMAP_BYTES_MIN = KEY.size + len(EMPTY_BITMAP)


class MalformedBitmapError(ValueError):
    """The bytes do not have the layout. Callers turn it into `CorruptDataError`."""


def walk_bitmaps(vector: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield (key, start, end) of each 32-bit bitmap; `vector[start:end]` is it without its key.

    Lazy: bytes after the piece that was yielded last are not looked at yet.

    Raises:
        MalformedBitmapError: A count is impossible, keys do not ascend, or the bitmaps do not fill
            the vector exactly.

    Cost: O(containers), no allocation that grows with a count in the data.
    """
    if len(vector) < COUNT.size:
        raise MalformedBitmapError("the vector ends early")
    count = COUNT.unpack_from(vector)[0]
    position = COUNT.size
    if not 0 <= count <= (len(vector) - position) // _BITMAP_BYTES_MIN:
        raise MalformedBitmapError(f"impossible bitmap count {count}")
    previous = -1
    for _ in range(count):
        if position + _BITMAP_BYTES_MIN > len(vector):
            raise MalformedBitmapError("the vector ends early")
        key = KEY.unpack_from(vector, position)[0]
        if key <= previous:
            raise MalformedBitmapError(f"bitmap key {key} after {previous}")
        previous = key
        start = position + KEY.size
        position = _bitmap_end(vector, start)
        if position > len(vector):
            raise MalformedBitmapError("the vector ends early")
        yield key, start, position
    if position != len(vector):
        raise MalformedBitmapError(f"{len(vector) - position} bytes after the last bitmap")


def _bitmap_end(vector: bytes, start: int) -> int:
    """Where the 32-bit bitmap at `start` ends; may lie past the vector, the caller looks."""
    cookie = int(KEY.unpack_from(vector, start)[0])
    position = start + KEY.size
    is_run: np.ndarray | None = None
    if cookie == _COOKIE_PLAIN:
        count = int(KEY.unpack_from(vector, position)[0])
        position += KEY.size
    elif cookie & 0xFFFF == _COOKIE_RUNS:
        count = (cookie >> 16) + 1
        flags = _array(vector, position, (count + 7) // 8, np.uint8)
        is_run = np.unpackbits(flags, count=count, bitorder="little").astype(bool)
        position += len(flags)
    else:
        raise MalformedBitmapError(f"unknown bitmap cookie {cookie}")
    if count > _CONTAINERS_MAX:
        raise MalformedBitmapError(f"impossible container count {count}")
    cardinalities = _array(vector, position, 2 * count, np.dtype("<u2"))[1::2].astype(np.int64) + 1
    position += 4 * count
    if is_run is None or count >= _OFFSETS_FROM_CONTAINERS:
        position += 4 * count
    sizes = np.where(
        cardinalities <= _ARRAY_CARDINALITY_MAX, 2 * cardinalities, np.int64(_BITSET_BYTES)
    )
    if is_run is None:
        return position + int(sizes.sum())
    # The size of a run container is known only where it starts. Offsets in the header would tell,
    # but decoders ignore them, so they are not trusted here either.
    containers = zip(is_run.tolist(), sizes.tolist(), cardinalities.tolist(), strict=True)
    for run, size, cardinality in containers:
        position = _runs_end(vector, position, cardinality) if run else position + size
    return position


def _runs_end(vector: bytes, start: int, cardinality: int) -> int:
    """Where the run container at `start` ends. Decoders ignore the header's cardinality of runs."""
    count = int(_array(vector, start, 1, np.dtype("<u2"))[0])
    lengths = _array(vector, start + 2, 2 * count, np.dtype("<u2"))[1::2]
    if int(lengths.sum(dtype=np.int64)) + count != cardinality:
        raise MalformedBitmapError("a run container has another cardinality than its header says")
    return start + 2 + 4 * count


def _array(vector: bytes, start: int, count: int, dtype: np.dtype | type) -> np.ndarray:
    if start + count * np.dtype(dtype).itemsize > len(vector):
        raise MalformedBitmapError("the vector ends early")
    return np.frombuffer(vector, dtype=dtype, count=count, offset=start)
