"""A change on its way to the shards: split by shard, and on disk when it is large.

Following a compaction of a whole table puts every row again. So puts are held in memory only up to
a bound, and then one shard at a time.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from resolver.index.base import IndexChanges
from resolver.index.entry import KeyedRows, TouchedKeys, concat_rows, touched_keys
from resolver.index.folder import disk_errors
from resolver.index.shard_map import ShardMap
from resolver.index.spill import ShardSpill, read_spill
from resolver.keys import EncodedKeys, concat_keys
from tableformat.errors import StoreUnavailableError
from tableformat.memory import release_unused

HELD_ROWS_MAX = 1_000_000


class ChangeParts:
    """One change, split by shard. Filled by one thread, then loaded by any."""

    __slots__ = ("_cleared", "_folder", "_held_rows", "_put", "_removed", "_shards", "_spills")

    def __init__(self, shards: ShardMap, folder: Path) -> None:
        """`folder` is scratch space; it is created when needed, and removed with the change."""
        self._shards = shards
        self._folder = folder
        self._cleared: dict[int, list[EncodedKeys]] = {}
        self._removed: dict[int, list[KeyedRows]] = {}
        self._put: dict[int, list[KeyedRows]] = {}
        self._held_rows = 0
        self._spills: dict[int, ShardSpill] = {}

    def fill(self, changes: IndexChanges, file_ids: npt.NDArray[np.int64]) -> None:
        """Take in a change; `file_ids` are the ids of its added files."""
        for keys in changes.removed_keys:
            for shard, rows in self._shards.split(keys):
                self._cleared.setdefault(shard, []).append(keys.take(rows))
        for entries in changes.removed:
            self._add(self._removed, KeyedRows.of(entries))
        try:
            for entries in changes.put:
                self._add(self._put, KeyedRows.of(entries, file_ids))
                self._held_rows += len(entries)
                if self._held_rows > HELD_ROWS_MAX:
                    self._spill()
        finally:
            for spill in self._spills.values():
                spill.close()

    @property
    def is_large(self) -> bool:
        """Whether it is more than is held in memory."""
        return bool(self._spills)

    def touched(self) -> list[int]:
        """The shards that the change touches."""
        return sorted({*self._cleared, *self._removed, *self._put, *self._spills})

    def load(self, shard: int) -> TouchedKeys:
        """The change of one shard.

        Raises:
            StoreUnavailableError: Scratch files are not what was written.
        """
        return touched_keys(*self._take(shard))

    def _take(self, shard: int) -> tuple[EncodedKeys, KeyedRows, KeyedRows]:
        """Cleared keys, removed rows and rows that come; they are held no longer."""
        put = self._put.pop(shard, [])
        if shard in self._spills:
            spilled = list(read_spill(self._folder, shard))
            if sum(map(len, spilled)) != self._spills[shard].row_count:
                raise StoreUnavailableError("scratch files have lost rows", index=self._folder)
            put += spilled
        return (
            concat_keys(self._cleared.pop(shard, ())),
            concat_rows(self._removed.pop(shard, ())),
            concat_rows(put),
        )

    def _add(self, parts: dict[int, list[KeyedRows]], keyed: KeyedRows) -> None:
        for shard, rows in self._shards.split(keyed.keys):
            parts.setdefault(shard, []).append(keyed.take(rows))

    def _spill(self) -> None:
        with disk_errors(self._folder):
            self._folder.mkdir(exist_ok=True)
        for shard, parts in self._put.items():
            if shard not in self._spills:
                self._spills[shard] = ShardSpill(self._folder, shard, "put")
            for part in parts:
                self._spills[shard].append(part.keys, part.rows)
        self._put.clear()
        self._held_rows = 0
        release_unused()
