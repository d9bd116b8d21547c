"""A large batch by parts of its keys: what is matched at a time is bounded, whatever is staged.

What becomes of a row depends on rows and deletes of its key only, unless staged snapshots delete by
position, rows have moved, or versions are compared. All rows and deletes of a key are in one part.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from resolver.cycle_input import CycleInput
from resolver.keys import EncodedKeys
from resolver.match import Int64s
from tableformat.memory import release_unused

PART_KEYS = 1_000_000
HASHED_KEYS = 1 << 18  # at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPart:
    """Some keys of a batch.

    Attributes:
        batch: The batch with these keys' rows and deletes only.
        rows: Ordinals of the rows in the whole batch, ascending.
    """

    batch: CycleInput
    rows: Int64s | slice


def whole(batch: CycleInput) -> BatchPart:
    """All of it."""
    return BatchPart(batch=batch.part(slice(None), slice(None)), rows=slice(None))


def is_divided(key_count: int) -> bool:
    """Whether a batch of so many rows and deletes is matched by parts, if it can be."""
    return key_count > PART_KEYS


def part_count(batch: CycleInput) -> int:
    """In how many parts a batch is matched."""
    return -(-(len(batch.rows.keys) + len(batch.deletes.keys)) // PART_KEYS) or 1


def batch_parts(batch: CycleInput, count: int) -> Iterator[BatchPart]:
    """The parts of a batch, made when they are asked for."""
    if count == 1:
        yield whole(batch)
        return
    of_row, of_delete = (_parts_of(keys, count) for keys in (batch.rows.keys, batch.deletes.keys))
    for number in range(count):
        rows = np.flatnonzero(of_row == number)
        yield BatchPart(batch=batch.part(rows, np.flatnonzero(of_delete == number)), rows=rows)
        release_unused()  # what the part took; a part is a second's work


def _parts_of(keys: EncodedKeys, count: int) -> npt.NDArray[np.uint16]:
    """Shape `(len(keys),)`. Not the shards of the index: all of them answer for each part."""
    found = np.empty(len(keys), dtype=np.uint16)
    for start in range(0, len(keys), HASHED_KEYS):
        hashes = keys.slice(start, min(start + HASHED_KEYS, len(keys))).hash64()
        found[start : start + len(hashes)] = hashes % np.uint64(count)
    return found
