"""Look-ups in one version of a shared index, by tasks that have the keys themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from resolver.index.base import IndexedFile, Matches
from resolver.index.damage import damaged
from resolver.index.depot import IndexDepot
from resolver.index.dictionary import FileDictionary
from resolver.index.entry import Rows
from resolver.index.matching import ShardKeys
from resolver.index.matching import look_up as match_keys
from resolver.index.run_cache import RunsPlace
from resolver.index.shard_cache import ShardPlace, with_shard
from resolver.index.shard_map import ShardMap
from resolver.index.shard_work import look_up
from resolver.keys import EncodedKeys
from tableformat.array_types import Int64s


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexOnTasks:
    """A version of an index. Pickles.

    Attributes:
        shards: Which shard has a key.
        places: The shards.
        gone: `IndexVersion.gone_files`.
        dictionary: The file dictionary.
    """

    shards: ShardMap
    places: tuple[RunsPlace, ...]
    gone: bytes
    dictionary: ShardPlace

    @property
    def depot(self) -> IndexDepot:
        """Where the index lies."""
        return self.dictionary.depot

    def look_up(self, keys: EncodedKeys) -> Matches:
        """All rows of keys, wherever they lie; the files of shards that have none are not fetched.

        Raises:
            IndexDamagedError: Rebuild the index.
        """
        return match_keys(keys, self.shards, self._rows, self._files)

    def _rows(self, parts: Sequence[ShardKeys]) -> list[tuple[Int64s, Rows]]:
        return [look_up(self.gone, (self.places[shard], keys)) for shard, keys in parts]

    def _files(self, ids: Sequence[int]) -> dict[int, IndexedFile]:
        return with_shard(
            self.dictionary, lambda shard: files_of(FileDictionary(shard), ids, self.depot.root)
        )


def files_of(dictionary: FileDictionary, ids: Sequence[int], name: str) -> dict[int, IndexedFile]:
    """The files of rows that were looked up.

    Raises:
        IndexDamagedError: One is not known.
    """
    files = dictionary.by_ids(ids)
    if len(files) != len(ids):
        raise damaged("the index names a file that it does not know", name)
    return files
