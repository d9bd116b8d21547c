from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from resolver.index.base import IndexChanges
from resolver.index.removal import removals
from tests.support.index_builder import (
    binding_at,
    build_rocks,
    entries_of,
    file_of,
    keys_of,
    rows_of,
    source_of,
)


def test_keys_that_keep_a_row_lose_single_rows_and_others_go_whole(tmp_path: Path) -> None:
    sources = [source_of("a", [1, 2, 3, 4]), source_of("b", [1, 2, 2])]
    with build_rocks(tmp_path, sources, shards=2) as index:
        keys = keys_of([2, 1, 9, 3])
        matches = index.lookup(keys)
        in_b = np.array([matches.files[i].file_path == "b" for i in matches.file_id.tolist()])
        gone = in_b | (matches.key_ordinal == 3)
        removed_keys, removed = removals(keys, matches, gone)
        assert [part.to_list() for part in removed_keys] == [keys_of([9, 3]).to_list()]
        assert [len(part) for part in removed] == [3]
        changes = IndexChanges(removed_keys=removed_keys, removed=removed)
        index.apply(index.prepare(changes), binding_at(2))
        assert rows_of(index, [1, 2, 3, 4]) == [[("a", 0)], [("a", 1)], [], [("a", 3)]]


@pytest.mark.parametrize("dies", [True, False])
def test_parts_without_content_are_left_out(dies: bool, tmp_path: Path) -> None:
    with build_rocks(tmp_path, [source_of("a", [1])]) as index:
        keys = keys_of([1])
        matches = index.lookup(keys)
        removed_keys, removed = removals(keys, matches, np.array([dies]))
        assert (len(removed_keys), len(removed)) == (int(dies), 0)


def test_rows_of_dropped_files_are_dropped_from_values_that_are_written(tmp_path: Path) -> None:
    """Otherwise every compaction would make the values longer."""
    with build_rocks(tmp_path, [source_of("f0", [1])]) as index:
        for number in range(1, 6):
            changes = IndexChanges(
                dropped_files=(f"f{number - 1}",),
                added_files=(file_of(f"f{number}"),),
                put=(entries_of([(1, 0, number)]),),
            )
            index.apply(index.prepare(changes), binding_at(number))
        ((value,),) = [index._shards[0].get(keys_of([1]).to_list())]
        assert len(value) == 8
        assert rows_of(index, [1]) == [[("f5", 5)]]
