"""Reads an index beside the process that maintains it: no lock, nothing is written.

RocksDB opens a database read-only as its manifest says at that moment, and keeps the files open:
what the maintainer ingests, compacts or removes afterwards does not show. A shard may be opened in
the middle of a change, so the states of all shards are held against the header of the dictionary,
and the index is opened again when they do not fit. A maintainer that was killed in mid-change
leaves them so until its next run; then there is no index to read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Self

import numpy as np

from resolver.index.base import IndexBinding, IndexDamagedError, Matches
from resolver.index.change import split_by_shard
from resolver.index.damage import check_unmarked, damaged
from resolver.index.dictionary import FileDictionary
from resolver.index.entry import file_id_of, position_of
from resolver.index.folder import Generation, current_generation
from resolver.index.header import FilesHeader, ShardHeader
from resolver.index.shard import Shard, open_cache
from resolver.index.shards import rows_of_keys
from resolver.keys import EncodedKeys
from tableformat.errors import StoreUnavailableError
from tableformat.runtime import Runtime

CACHE_BYTES = 64 << 20
ATTEMPTS_MAX = 5
RETRY_MS = 20.0  # ingesting a cycle's files into all shards takes some milliseconds


class IndexReader:
    """A point-in-time view of one index. Get one from `open_reader`."""

    __slots__ = ("_dictionary", "_files", "_shards", "header")

    def __init__(self, generation: Generation, cache_bytes: int = CACHE_BYTES) -> None:
        """Open all shards read-only, or none.

        Raises:
            IndexDamagedError: A shard is damaged, or in the middle of a change.
            StoreUnavailableError: The disk cannot be read.
        """
        check_unmarked(generation.path)
        cache = open_cache(cache_bytes)
        self._shards: list[Shard] = []
        self._files = Shard.open_read_only(generation.files_path, cache)
        try:
            self.header = FilesHeader.parse(self._files.header(), self._files.path)
            for number in range(generation.shard_count):
                self._shards.append(Shard.open_read_only(generation.shard_path(number), cache))
            _check(self.header, generation, self._shards)
        except BaseException:
            self.close()
            raise
        self._dictionary = FileDictionary(self._files)

    @property
    def binding(self) -> IndexBinding:
        """What the content is true for."""
        return self.header.binding

    def lookup(self, keys: EncodedKeys) -> Matches:
        """See `PrimaryKeyIndex.lookup`."""
        ordinals, words = [np.empty(0, np.int64)], [np.empty(0, np.uint64)]
        for shard, selected in split_by_shard(keys, len(self._shards)):
            in_shard = keys.take(selected)
            order = in_shard.argsort()
            ordinal, rows = rows_of_keys(self._shards[shard], in_shard.take(order))
            ordinals.append(selected[order[ordinal]])
            words.append(rows)
        key, rows = np.concatenate(ordinals), np.concatenate(words)
        file_id = file_id_of(rows)
        distinct = np.unique(file_id)
        files = self._dictionary.by_ids(distinct.tolist())
        if len(files) < len(distinct):  # entries of files that left the table
            live = np.isin(file_id, np.fromiter(files, dtype=np.int32, count=len(files)))
            key, rows, file_id = key[live], rows[live], file_id[live]
        by_key = np.argsort(key, kind="stable")
        return Matches(key[by_key], file_id[by_key], position_of(rows)[by_key], files)

    def close(self) -> None:
        """Release the files."""
        for shard in self._shards:
            shard.close()
        self._files.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_reader(folder: Path, runtime: Runtime) -> IndexReader | None:
    """Open the current index of a folder; None when there is none.

    Raises:
        IndexDamagedError: It is damaged, or was left in the middle of a change.
        StoreUnavailableError: The disk cannot be read.
    """
    for attempt in range(1, ATTEMPTS_MAX + 1):
        generation = current_generation(folder) if folder.is_dir() else None
        if generation is None:
            return None
        try:
            return IndexReader(generation)
        except (IndexDamagedError, StoreUnavailableError):
            # Also a shard whose files were compacted away, or a generation that was replaced,
            # while it was being opened.
            if attempt == ATTEMPTS_MAX:
                raise
            runtime.clock.sleep_ms(RETRY_MS)
    return None


def current_state(folder: Path) -> tuple[str, float] | None:
    """Something cheap that differs after every change of the index in a folder.

    The dictionary's manifest is appended to by each ingestion, so its size and time tell.
    """
    generation = current_generation(folder) if folder.is_dir() else None
    if generation is None:
        return None
    newest = 0.0
    try:
        for path in generation.files_path.iterdir():
            if path.name.startswith("MANIFEST"):
                status = path.stat()
                newest = max(newest, status.st_mtime_ns + status.st_size)
    except OSError:
        return (generation.name, -1.0)
    return (generation.name, newest)


def _check(header: FilesHeader, generation: Generation, shards: list[Shard]) -> None:
    if header.generation != generation.name or len(header.shards) != len(shards):
        raise damaged("the file dictionary belongs to another index", generation.files_path)
    for number, (shard, state) in enumerate(zip(shards, header.shards, strict=True)):
        found = ShardHeader.parse(shard.header(), shard.path)
        if found != ShardHeader(generation.name, number, len(shards), state):
            raise damaged("the index is in the middle of a change", shard.path)
