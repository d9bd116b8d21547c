"""The open shards of one generation: the file dictionary and the key shards, read in parallel."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from resolver.index.damage import damaged
from resolver.index.entry import Rows, decode_values
from resolver.index.folder import Generation
from resolver.index.header import FilesHeader, ShardHeader
from resolver.index.shard import Shard, open_cache
from resolver.keys import EncodedKeys

THREADS_MAX = 8
# Bounds the Python objects alive at once in a lookup, per thread.
LOOKUP_CHUNK_KEYS = 32_768

Int64s = npt.NDArray[np.int64]
S = TypeVar("S")
T = TypeVar("T")


class Shards:
    """All databases of a generation. Close it to release them."""

    __slots__ = ("_keys", "_pool", "files", "generation")

    def __init__(self, generation: Generation, cache_bytes: int) -> None:
        """Open all of them, or none.

        Raises:
            IndexDamagedError: One is missing or damaged.
            StoreUnavailableError: Disk trouble, or another process has one open.
        """
        self.generation = generation
        cache = open_cache(cache_bytes)
        self.files = Shard.open(generation.files_path, cache)
        self._keys: dict[int, Shard] = {}
        self._pool = ThreadPoolExecutor(
            min(generation.shard_count, THREADS_MAX), thread_name_prefix="index"
        )

        def open_shard(shard: int) -> None:
            self._keys[shard] = Shard.open(generation.shard_path(shard), cache)

        try:
            self.each(range(generation.shard_count), open_shard)
        except BaseException:
            self.close()
            raise

    @property
    def count(self) -> int:
        """Number of key shards."""
        return self.generation.shard_count

    def __getitem__(self, shard: int) -> Shard:
        return self._keys[shard]

    def close(self) -> None:
        """Release the databases."""
        self._pool.shutdown()
        for shard in self._keys.values():
            shard.close()
        self.files.close()

    def each(self, items: Iterable[S], work: Callable[[S], T]) -> list[T]:
        """Run `work` for every item in threads, all to the end, then raise the first error."""
        futures = [self._pool.submit(work, item) for item in items]
        errors = [error for future in futures if (error := future.exception()) is not None]
        if errors:
            raise errors[0]
        return [future.result() for future in futures]

    def rows_of(self, shard: int, sorted_keys: EncodedKeys) -> tuple[Int64s, Rows]:
        """Rows of keys of one shard: key ordinals, ascending, and rows."""
        return rows_of_keys(self[shard], sorted_keys)

    def files_header(self) -> FilesHeader:
        """The state of the whole index.

        Raises:
            IndexDamagedError: The dictionary belongs to another index.
        """
        header = FilesHeader.parse(self.files.header(), self.files.path)
        if (header.generation, len(header.shards)) != (self.generation.name, self.count):
            raise damaged("the file dictionary belongs to another index", self.files.path)
        return header

    def state_of(self, shard: int) -> str:
        """The last change that touched a key shard.

        Raises:
            IndexDamagedError: The shard belongs to another index, or to another place in it.
        """
        header = ShardHeader.parse(self[shard].header(), self[shard].path)
        if header != ShardHeader(self.generation.name, shard, self.count, header.state):
            raise damaged("a shard belongs to another index", self[shard].path)
        return header.state

    def check_states(self, header: FilesHeader) -> None:
        """Check that every key shard is where the dictionary says.

        Raises:
            IndexDamagedError: One is ahead or behind.
        """
        for shard, state in enumerate(header.shards):
            if self.state_of(shard) != state:
                raise damaged("a shard is not in the state of the index", self[shard].path)


def rows_of_keys(shard: Shard, sorted_keys: EncodedKeys) -> tuple[Int64s, Rows]:
    """Rows of keys in one shard: key ordinals, ascending, and rows."""
    ordinals = [np.empty(0, dtype=np.int64)]
    rows = [np.empty(0, dtype=np.uint64)]
    for start in range(0, len(sorted_keys), LOOKUP_CHUNK_KEYS):
        chunk = sorted_keys.slice(start, min(start + LOOKUP_CHUNK_KEYS, len(sorted_keys)))
        ordinal, found = decode_values(shard.get(chunk.to_list()))
        ordinals.append(ordinal + start)
        rows.append(found)
    return np.concatenate(ordinals), np.concatenate(rows)
