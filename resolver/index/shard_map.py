"""Which shard a key belongs to, how many shards there are, and when one is split.

A shard is a range of hashes: it begins at its start and ends where the next greater start of
another shard is. A split hands the upper parts of one range to new shards, with the next free
numbers; all other shards keep their range and their number. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from resolver.keys import EncodedKeys
from tableformat.array_types import Int64s

HASH_BITS = 32  # the leading bits of a key's hash
HASHES = 1 << HASH_BITS
# A cycle writes and syncs one file per shard: once every core has some, shards grow instead.
ROWS_PER_SHARD_MIN = 2_000_000
SMALL_SHARDS_MAX = 8
ROWS_PER_SHARD_MAX = 12_500_000
# A shard's entries count a key once per run, so up to one and a half times. Twice is growth.
SPLIT_RATIO = 2
SPLIT_PARTS_MAX = 16  # files written at a time

T = TypeVar("T")


def default_shard_count(rows: int) -> int:
    """Shards for a table of `rows` rows: work for every core, few files per cycle."""
    small = min(-(-rows // ROWS_PER_SHARD_MIN), SMALL_SHARDS_MAX)
    return max(1, small, -(-rows // ROWS_PER_SHARD_MAX))


@dataclass(frozen=True, slots=True)
class ShardRange:
    """The hashes of one shard, from `start` to before `stop`.

    Attributes:
        start, stop: Its bounds, of `HASHES`.
        shard_rows: Rows that a shard should have; None: by what the table seems to have.
    """

    start: int
    stop: int
    shard_rows: int | None = None

    def part_starts(self, entries: int) -> list[int]:
        """Where the parts begin into which a shard of so many entries is split; one: it is not."""
        width, rows = self.stop - self.start, self.shard_rows
        if rows is None:
            table_rows = entries * HASHES // width
            rows = -(-table_rows // default_shard_count(table_rows))
        parts = 1
        if entries > SPLIT_RATIO * rows:
            parts = min(entries // max(rows, 1), SPLIT_PARTS_MAX, width)
        return [self.start + part * width // parts for part in range(parts)]


@dataclass(frozen=True, slots=True)
class ShardMap:
    """The ranges of all shards.

    Attributes:
        starts: The first hash of each shard, by its number; in any order, one of them 0.
        shard_rows: See `ShardRange`.
    """

    starts: tuple[int, ...]
    shard_rows: int | None = None
    _order: Int64s = field(init=False, repr=False, compare=False)
    _sorted: npt.NDArray[np.uint64] = field(init=False, repr=False, compare=False)
    _is_even: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check the starts.

        Raises:
            ValueError: They do not cover every hash once.
        """
        ordered = sorted(set(self.starts))
        if len(ordered) != len(self.starts) or ordered[:1] != [0] or ordered[-1] >= HASHES:
            raise ValueError("the shards do not cover every hash once")
        starts = np.array(self.starts, dtype=np.uint64)
        order = np.argsort(starts)
        object.__setattr__(self, "_order", order)
        object.__setattr__(self, "_sorted", starts[order])
        object.__setattr__(self, "_is_even", self.starts == even_starts(len(self.starts)))

    @staticmethod
    def even(count: int, shard_rows: int | None = None) -> ShardMap:
        """Shards of equal ranges, as a build makes them."""
        return ShardMap(even_starts(count), shard_rows)

    def __len__(self) -> int:
        return len(self.starts)

    def check_count(self, count: int) -> None:
        """Compare with what has something for each shard.

        Raises:
            ValueError: Of another number of shards.
        """
        if len(self) != count:
            raise ValueError("shards without a range, or ranges without a shard")

    def range_of(self, shard: int) -> ShardRange:
        """The range of one shard."""
        after = int(np.searchsorted(self._sorted, np.uint64(self.starts[shard]), "right"))
        stop = HASHES if after == len(self) else int(self._sorted[after])
        return ShardRange(self.starts[shard], stop, self.shard_rows)

    def split(self, keys: EncodedKeys) -> Iterator[tuple[int, Int64s]]:
        """The shards that have some of the keys, ascending, each with the rows of its keys."""
        if not len(keys):
            return
        shard_of = self._shard_of(keys)
        narrow = np.uint16 if len(self) <= np.iinfo(np.uint16).max else np.uint32
        rows = np.argsort(shard_of.astype(narrow), kind="stable")
        counts = np.bincount(shard_of, minlength=len(self))
        for shard, part in enumerate(np.split(rows, np.cumsum(counts)[:-1])):
            if len(part):
                yield shard, part

    def _shard_of(self, keys: EncodedKeys) -> npt.NDArray[np.integer]:
        if self._is_even:  # a multiplication instead of a search
            return keys.shard_of(len(self))
        return self._order[part_of(self._sorted, keys)]


def even_starts(count: int) -> tuple[int, ...]:
    """Starts of shards of equal ranges: those of `EncodedKeys.shard_of`."""
    return tuple(-(-shard * HASHES // count) for shard in range(count))


def part_of(starts: npt.NDArray[np.uint64], keys: EncodedKeys) -> Int64s:
    """Shape `(n,)`: which of the ascending starts is the last at or before each key's hash."""
    return np.searchsorted(starts, keys.hash64() >> np.uint64(64 - HASH_BITS), "right") - 1


def after_change(
    starts: Sequence[int],
    shards: Sequence[T],
    changed: Mapping[int, Sequence[tuple[int, T]]],
) -> tuple[tuple[int, ...], tuple[T, ...]]:
    """Starts and content of all shards after a change.

    Args:
        starts: Before.
        shards: What each shard was.
        changed: By shard, its parts: where each begins, and what it is. The first is the shard
            itself; the others become shards of their own.
    """
    new_starts, new_shards = list(starts), list(shards)
    for shard in sorted(changed):
        (_, new_shards[shard]), *others = changed[shard]
        new_starts += [start for start, _ in others]
        new_shards += [part for _, part in others]
    return tuple(new_starts), tuple(new_shards)
