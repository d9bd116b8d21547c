"""Reads an index beside the process that maintains it: no lock, nothing is written.

RocksDB opens the dictionary read-only as its manifest says at that moment, and its header names the
runs; files that are open stay readable, whatever the maintainer merges and removes afterwards. What
is removed while it is being opened makes it open once more.
"""

from __future__ import annotations

from pathlib import Path
from typing import Self

from resolver.index.base import IndexBinding, IndexDamagedError, Matches
from resolver.index.damage import check_unmarked
from resolver.index.dictionary import FileDictionary
from resolver.index.folder import Generation, current_generation
from resolver.index.header import FilesHeader
from resolver.index.local import OpenRuns
from resolver.index.matching import look_up
from resolver.index.runs import rows_of_keys
from resolver.index.shard import Shard, open_cache
from resolver.keys import EncodedKeys
from tableformat.errors import StoreUnavailableError
from tableformat.runtime import Runtime

CACHE_BYTES = 64 << 20
ATTEMPTS_MAX = 5
RETRY_MS = 20.0


class IndexReader:
    """A point-in-time view of one index. Get one from `open_reader`."""

    __slots__ = ("_dictionary", "_files", "_map", "_runs", "header")

    def __init__(self, generation: Generation) -> None:
        """Open the dictionary read-only, and the runs that its header names, or nothing.

        Raises:
            IndexDamagedError: Something is missing or damaged, or the format is an older one.
            StoreUnavailableError: The disk cannot be read.
        """
        check_unmarked(generation.path)
        self._files = Shard.open_read_only(generation.files_path, open_cache(CACHE_BYTES))
        try:
            self.header = FilesHeader.parse(self._files.header(), self._files.path)
            self._dictionary = FileDictionary(self._files)
            self._dictionary.check_state(self.header.state)
            self._runs = OpenRuns(generation, self.header, keep_open=True)
            self._map = self.header.shards
        except BaseException:
            self._files.close()
            raise

    @property
    def binding(self) -> IndexBinding:
        """What the content is true for."""
        return self.header.binding

    def lookup(self, keys: EncodedKeys) -> Matches:
        """See `PrimaryKeyIndex.lookup`."""
        shards = self._runs.shards
        return look_up(
            keys,
            self._map,
            lambda parts: [rows_of_keys(shards[shard], part) for shard, part in parts],
            self._dictionary.by_ids,
        )

    def close(self) -> None:
        """Release the files."""
        self._runs.close()
        self._files.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_reader(folder: Path, runtime: Runtime) -> IndexReader | None:
    """Open the current index of a folder; None when there is none.

    Raises:
        IndexDamagedError: It is damaged, or has an older format.
        StoreUnavailableError: The disk cannot be read.
    """
    for attempt in range(1, ATTEMPTS_MAX + 1):
        generation = current_generation(folder) if folder.is_dir() else None
        if generation is None:
            return None
        try:
            return IndexReader(generation)
        except (IndexDamagedError, StoreUnavailableError):
            # Also a run that was merged, or a generation that was replaced, in between.
            if attempt == ATTEMPTS_MAX:
                raise
            runtime.clock.sleep_ms(RETRY_MS)
    return None


def current_state(folder: Path) -> tuple[str, float] | None:
    """Something cheap that differs after every change of the index in a folder.

    Each appends to the log or to the manifest of the dictionary, so their sizes and times tell.
    """
    generation = current_generation(folder) if folder.is_dir() else None
    if generation is None:
        return None
    newest = 0.0
    try:
        for path in generation.files_path.iterdir():
            if path.name.startswith("MANIFEST") or path.suffix == ".log":
                status = path.stat()
                newest = max(newest, status.st_mtime_ns + status.st_size)
    except OSError:
        return (generation.name, -1.0)
    return (generation.name, newest)
