"""Every hash is in one shard, however often shards were split."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resolver.index.shard_map import (
    HASHES,
    SPLIT_PARTS_MAX,
    ShardMap,
    ShardRange,
    after_change,
    default_shard_count,
    even_starts,
)
from tests.support.index_builder import keys_of

KEYS = keys_of(range(3_000))
HASH_OF = [each >> 32 for each in KEYS.hash64().tolist()]


def shard_of_keys(shards: ShardMap) -> list[int]:
    found = [-1] * len(KEYS)
    for shard, rows in shards.split(KEYS):
        assert (np.diff(rows) > 0).all()
        for row in rows.tolist():
            assert found[row] == -1
            found[row] = shard
    return found


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 5_000))
def test_even_shards_are_those_of_an_index_whose_header_has_no_starts(count: int) -> None:
    assert ShardMap.even(count).starts[0] == 0
    # What the format before had: the leading bits of the hash, times the shards.
    assert shard_of_keys(ShardMap.even(count)) == [each * count // HASHES for each in HASH_OF]


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 5), st.lists(st.tuples(st.integers(0, 50), st.integers(2, 7)), max_size=6))
def test_split_moves_keys_of_one_shard_only_to_new_ones(
    count: int, splits: list[tuple[int, int]]
) -> None:
    shards = ShardMap.even(count)
    before = shard_of_keys(shards)
    for at, parts in splits:
        shard = at % len(shards)
        entries = parts * 10
        starts = ShardRange(
            shards.range_of(shard).start, shards.range_of(shard).stop, 10
        ).part_starts(entries)
        changed = {shard: [(start, ()) for start in starts]}
        known = len(shards)
        shards = ShardMap(after_change(shards.starts, ((),) * known, changed)[0])
        assert len(shards) == known + len(starts) - 1
        after = shard_of_keys(shards)
        for old, new in zip(before, after, strict=True):
            assert new == old or (old == shard and new >= known)
        before = after
    ranges = [shards.range_of(shard) for shard in range(len(shards))]
    for hashed, shard in zip(HASH_OF, before, strict=True):
        assert ranges[shard].start <= hashed < ranges[shard].stop
    assert sum(each.stop - each.start for each in ranges) == HASHES


@pytest.mark.parametrize("starts", [(), (1,), (0, 0), (0, HASHES), (0, -1)])
def test_ranges_that_do_not_cover_every_hash_once_are_refused(starts: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="every hash once"):
        ShardMap(starts)


@pytest.mark.parametrize("million", [1, 3, 16, 100, 1_000, 100_000])
def test_shards_are_split_by_growth_and_not_by_keys_written_again(million: int) -> None:
    rows = million * 1_000_000
    count = default_shard_count(rows)
    of_shard = ShardMap.even(count).range_of(count - 1)
    entries = rows // count
    assert of_shard.part_starts(entries + entries // 2) == [of_shard.start], "in several runs"
    parts = of_shard.part_starts(4 * entries + 25_000_000)
    assert 2 <= len(parts) <= SPLIT_PARTS_MAX
    assert parts == sorted(set(parts))
    assert of_shard.start == parts[0] <= parts[-1] < of_shard.stop


def test_range_of_one_hash_is_never_split() -> None:
    assert ShardRange(7, 8, 1).part_starts(1_000_000) == [7]
    assert ShardRange(7, 9, 1).part_starts(1_000_000) == [7, 8]
    assert even_starts(1) == (0,)
