"""From keys to `Matches`, whatever holds the shards."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from resolver.index.base import Entries, IndexedFile, Matches
from resolver.index.entry import Rows, file_id_of, position_of
from resolver.index.shard_map import ShardMap
from resolver.keys import EncodedKeys
from tableformat.array_types import Bools, Int64s
from tableformat.integer_order import distinct, stable_order

ShardKeys = tuple[int, EncodedKeys]
FilesOf = Callable[[Sequence[int]], dict[int, IndexedFile]]


def look_up(
    keys: EncodedKeys,
    shards: ShardMap,
    find: Callable[[Sequence[ShardKeys]], list[tuple[Int64s, Rows]]],
    files_of: FilesOf,
) -> Matches:
    """All rows of keys in files of the table.

    Args:
        keys: In any order.
        shards: Which shard has a key.
        find: Rows of each shard's share of the keys, with the ordinals in that share.
        files_of: Files that the table has, by id.
    """
    parts = list(shards.split(keys))
    answers = find([(shard, keys.take(ordinals)) for shard, ordinals in parts])
    ordinal = np.concatenate(
        [
            np.empty(0, dtype=np.int64),
            *(part[1][found[0]] for part, found in zip(parts, answers, strict=True)),
        ]
    )
    rows = np.concatenate([np.empty(0, dtype=np.uint64), *(found[1] for found in answers)])
    alive, files = live_rows(rows, files_of)
    if not alive.all():
        ordinal, rows = ordinal[alive], rows[alive]
    order = stable_order(ordinal)
    rows = rows[order]
    return Matches(ordinal[order], file_id_of(rows), position_of(rows), files)


def live_rows(rows: Rows, files_of: FilesOf) -> tuple[Bools, dict[int, IndexedFile]]:
    """Which rows are in files of the table, and those files."""
    file_id = file_id_of(rows)
    ids = distinct(file_id)
    files = files_of(ids.tolist())
    if len(files) == len(ids):
        return np.ones(len(rows), dtype=np.bool_), files
    return np.isin(file_id, np.fromiter(files, dtype=np.int64, count=len(files))), files


def entries_of(keys: npt.NDArray[np.uint8], rows: Rows, alive: Bools) -> Entries:
    """Those entries of a shard that are alive."""
    rows = rows[alive]
    return Entries(EncodedKeys(fixed=keys[alive]), file_id_of(rows), position_of(rows))
