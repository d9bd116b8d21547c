"""The primary-key index in shared storage: any process may do any shard's work in any cycle.

Steps of a change, and what a crash after each leaves:

1. `prepare` makes a run of each touched shard, or of each part of one that it splits, on the
   executors: objects with fresh names. Left: garbage.
2. The caller publishes. Left: an index bound to the older snapshot; the next run follows.
3. `apply` creates one small object, the version: it binds the new shards to the published snapshot.
   It exists whole or not at all, and its number can be taken once, so of two processes that moved
   the index from the same version only one succeeds; the other loads what it finds. Left: done.

The process that has the index open keeps the file dictionary only; keys and rows of the shards pass
through it in the share of one cycle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Self

from pyroaring import BitMap64

from resolver.index.base import (
    Entries,
    IndexBinding,
    IndexChanges,
    IndexedFile,
    Matches,
    Prepared,
)
from resolver.index.change import ChangeParts
from resolver.index.depot import IndexDepot
from resolver.index.dictionary import FileDictionary, file_changes
from resolver.index.entry import Rows
from resolver.index.follow import EntriesOfFiles
from resolver.index.left import LeftChanges, LoadLeft
from resolver.index.matching import ShardKeys, entries_of, look_up
from resolver.index.run_cache import RunsPlace, forget_open, with_runs
from resolver.index.runs import merged_entries
from resolver.index.shard_cache import ShardPlace, with_shard, work_folder
from resolver.index.shard_cache import forget_open as forget_open_databases
from resolver.index.shard_map import ShardMap, after_change
from resolver.index.shard_work import (
    Loaded,
    Parts,
    RowSource,
    Runs,
    ShardChange,
    change_shard,
    ingest,
    put_rows,
    split_rows,
    without_gone,
)
from resolver.index.shard_work import look_up as look_up_shard
from resolver.index.shared_versions import IndexVersion, ShardVersion
from resolver.index.task_lookup import IndexOnTasks, files_of
from resolver.keys import EncodedKeys
from resolver.runner import Runner, ShufflingRunner
from tableformat.array_types import Int64s
from tableformat.errors import InvalidInputError, StoreUnavailableError
from tableformat.runtime import Runtime

DICTIONARY_SHARD = -1
# Listing all files costs little next to a cycle, and garbage need not go at once.
GARBAGE_EVERY = 8

Folder = Callable[[], Path]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workplace:
    """Where the work on an index is done.

    Attributes:
        runner: Runs the work on the shards.
        cache: The cache folder on the machine of a task. Pickles.
        own_cache: The cache folder of this process.
    """

    runner: Runner
    cache: Folder
    own_cache: Path


class SharedIndex:
    """A `PrimaryKeyIndex` in shared storage. Get one from `open_shared` or `build_shared`."""

    __slots__ = ("_depot", "_dictionary", "_map", "_prepared", "_runtime", "_version", "_workplace")

    def __init__(
        self, depot: IndexDepot, version: IndexVersion, workplace: Workplace, runtime: Runtime
    ) -> None:
        """Open a version; the dictionary is fetched.

        Raises:
            IndexDamagedError: The dictionary cannot be trusted.
            StoreUnavailableError: The store or the disk failed.
        """
        self._depot = depot
        self._version = version
        self._map = version.map
        self._workplace = workplace
        self._runtime = runtime
        self._prepared: dict[str, IndexVersion] = {}
        self._dictionary = self._open_dictionary()

    @property
    def binding(self) -> IndexBinding:
        """See `PrimaryKeyIndex`."""
        return self._version.binding

    @property
    def version(self) -> IndexVersion:
        """The version that is open."""
        return self._version

    @property
    def shard_count(self) -> int:
        """Number of key shards."""
        return len(self._version.shards)

    def lookup(self, keys: EncodedKeys) -> Matches:
        """See `PrimaryKeyIndex`."""
        places = self._places(self._workplace.cache)

        def find(parts: Sequence[ShardKeys]) -> list[tuple[Int64s, Rows]]:
            return self._workplace.runner.run(
                partial(look_up_shard, self._version.gone_files),
                [(places[shard], part) for shard, part in parts],
            )

        return look_up(keys, self._map, find, self.files_of)

    def on_tasks(self) -> IndexOnTasks:
        """What tasks need to look up keys in the version that is open."""
        folder = self._workplace.cache
        return IndexOnTasks(
            shards=self._map,
            places=tuple(self._places(folder)),
            gone=self._version.gone_files,
            dictionary=dictionary_place(self._depot, folder, self._version),
        )

    def files_of(self, ids: Sequence[int]) -> dict[int, IndexedFile]:
        """The files of rows that were looked up.

        Raises:
            IndexDamagedError: One is not known.
        """
        return files_of(self._dictionary, ids, self._depot.root)

    def file_ids(self, paths: Iterable[str]) -> dict[str, int]:
        """See `PrimaryKeyIndex`."""
        return self._dictionary.by_paths(paths)

    def files(self) -> dict[int, IndexedFile]:
        """See `PrimaryKeyIndex`."""
        return self._dictionary.all()

    def entries(self) -> Iterator[Entries]:
        """See `PrimaryKeyIndex`. Fetches every shard to this machine."""
        gone = BitMap64.deserialize(self._version.gone_files)
        for place in self._places(self._own_folder):
            runs = with_runs(place, list)
            for keys, rows in merged_entries(runs, keep_gone=False):
                yield entries_of(keys, rows, without_gone(rows, gone))

    def prepare(self, changes: IndexChanges) -> Prepared:
        """See `PrimaryKeyIndex`. Effects: objects, which are garbage until `apply`."""
        return self._prepare(
            changes.added_files,
            self._dictionary.by_paths(changes.dropped_files),
            lambda gone, ids: self._change_shards(gone, changes, ids),
        )

    def prepare_left(self, added: Sequence[IndexedFile], left: LeftChanges) -> Prepared:
        """As `prepare`, of changes that tasks have left.

        Args:
            added: Files that come.
            left: Their rows, and the rows that go.

        Raises:
            IndexMovedError: The index is another one, or its shards are others, by now.
            IndexDamagedError, StoreUnavailableError: As for `prepare`.
            CorruptDataError, NotFoundError: What was left is not there any more.
        """
        if (left.generation, left.starts) != (self._version.generation, self._version.starts):
            raise IndexMovedError(
                "another process has changed the shards of the index",
                index=self._depot.root,
                action="nothing is lost: the next run follows the table",
            )
        return self._prepare(added, {}, lambda gone, ids: self._take_left(gone, left, ids))

    def _prepare(
        self,
        added: Sequence[IndexedFile],
        dropped: dict[str, int],
        change: Callable[[bytes, Int64s], tuple[tuple[int, ...], tuple[Runs, ...]]],
    ) -> Prepared:
        version = self._version
        file_ids, next_file_id = self._dictionary.assign_ids(added, dropped, version.next_file_id)
        state = self._runtime.ids.uuid().hex
        gone = BitMap64.deserialize(version.gone_files) | BitMap64(dropped.values())
        gone.run_optimize()
        starts, shards = change(gone.serialize(), file_ids)
        self._prepared[state] = replace(
            version,
            number=version.number + 1,
            next_file_id=next_file_id,
            gone_files=gone.serialize(),
            dictionary=self._change_dictionary(state, added, file_ids, dropped),
            starts=starts,
            shards=shards,
        )
        self._runtime.fail_point("index.prepare.written")
        return Prepared(id=state, base=str(version.number))

    def apply(self, prepared: Prepared, binding: IndexBinding) -> None:
        """See `PrimaryKeyIndex`.

        Raises:
            StoreUnavailableError: Also when another process has moved the index meanwhile.

        Effects: *1. creates the version; 2. sometimes removes garbage.*
        """
        draft = self._prepared.get(prepared.id)
        if draft is None:
            raise InvalidInputError("this change was applied or discarded", prepared=prepared.id)
        if draft.number != self._version.number + 1:
            raise InvalidInputError(
                "the index has changed since this change was prepared", prepared=prepared.id
            )
        if not binding.is_like(self.binding):
            raise InvalidInputError("an index keeps its table, branch and key", binding=binding)
        version = replace(draft, binding=binding)
        self._runtime.fail_point("index.apply.before")
        if not self._depot.take(version):
            raise IndexMovedError(
                "another process has moved the index",
                index=self._depot.root,
                action="nothing is lost: the next run goes on from there",
            )
        self._runtime.fail_point("index.apply.after")
        self._version = version
        self._map = version.map
        self._prepared.clear()  # changes prepared on the older version can no longer be applied
        self._dictionary = self._open_dictionary()
        if version.number % GARBAGE_EVERY == 0:
            with suppress(StoreUnavailableError):  # the change is done; garbage can wait
                self._depot.collect_garbage()

    def discard(self, prepared: Prepared) -> None:
        """See `PrimaryKeyIndex`. The objects are left as garbage: a lost `apply` may name them."""
        self._prepared.pop(prepared.id, None)

    def close(self) -> None:
        """See `PrimaryKeyIndex`."""
        self._prepared.clear()
        forget_open(self._workplace.own_cache)
        forget_open_databases(self._workplace.own_cache)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- help ------------------------------------------------------------------------------------

    def _change_shards(
        self, gone: bytes, changes: IndexChanges, file_ids: Int64s
    ) -> tuple[tuple[int, ...], tuple[Runs, ...]]:
        places = self._places(self._workplace.cache)
        runner = self._workplace.runner
        if isinstance(changes.put, EntriesOfFiles) and isinstance(runner, ShufflingRunner):
            assert not changes.removed_keys, "following a table removes files and rows of files"
            assert not changes.removed
            rows = changes.put.rows
            found = runner.shuffle(
                partial(split_rows, changes.put.key, self._map),
                [RowSource(int(i), each.read) for i, each in zip(file_ids, rows, strict=True)],
                partial(put_rows, places, gone),
                self.shard_count,
            )
            return self._after(dict(enumerate(found)))
        with work_folder(self._workplace.own_cache) as scratch:
            parts = ChangeParts(self._map, scratch)
            parts.fill(changes, file_ids)
            touched = parts.touched()
            changed = runner.run(
                partial(change_shard, gone),
                [
                    ShardChange(
                        places[shard],
                        partial(parts.load, shard)
                        if runner.name == "local"
                        else Loaded(parts.load(shard)),
                    )
                    for shard in touched
                ],
            )
        return self._after(dict(zip(touched, changed, strict=True)))

    def _take_left(
        self, gone: bytes, left: LeftChanges, file_ids: Int64s
    ) -> tuple[tuple[int, ...], tuple[Runs, ...]]:
        places, id_of = self._places(self._workplace.cache), left.ids_by_ordinal(file_ids)
        by_shard = left.by_shard()
        changed = self._workplace.runner.run(
            partial(change_shard, gone),
            [
                ShardChange(places[shard], LoadLeft(self._depot.store, each, id_of))
                for shard, each in by_shard.items()
            ],
        )
        return self._after(dict(zip(by_shard, changed, strict=True)))

    def _after(self, changed: dict[int, Parts]) -> tuple[tuple[int, ...], tuple[Runs, ...]]:
        return after_change(self._version.starts, self._version.shards, changed)

    def _change_dictionary(
        self,
        state: str,
        added: Sequence[IndexedFile],
        file_ids: Int64s,
        dropped: dict[str, int],
    ) -> ShardVersion:
        if not added and not dropped:
            return self._version.dictionary
        pairs = file_changes(dropped.items(), zip(file_ids.tolist(), added, strict=True))
        place = dictionary_place(self._depot, self._own_folder, self._version)
        return ingest(place, state, lambda: [(pairs.keys, pairs.values)])

    def _open_dictionary(self) -> FileDictionary:
        place = dictionary_place(self._depot, self._own_folder, self._version)
        return FileDictionary(with_shard(place, lambda shard: shard))

    def _places(self, folder: Folder) -> list[RunsPlace]:
        return places_of(self._depot, folder, self._map, self._version.shards)

    def _own_folder(self) -> Path:
        return self._workplace.own_cache


class IndexMovedError(StoreUnavailableError):
    """Another process has taken the next version: load it, and go on from there."""


def places_of(
    depot: IndexDepot, folder: Folder, shards: ShardMap, runs: Sequence[Runs]
) -> list[RunsPlace]:
    """The places of all key shards."""
    return [
        RunsPlace(
            depot=depot, folder=folder, shard=shard, hashes=shards.range_of(shard), runs=of_shard
        )
        for shard, of_shard in enumerate(runs)
    ]


def dictionary_place(depot: IndexDepot, folder: Folder, version: IndexVersion) -> ShardPlace:
    """The place of the file dictionary."""
    return ShardPlace(
        depot=depot,
        folder=folder,
        generation=version.generation,
        shard=DICTIONARY_SHARD,
        shard_count=len(version.shards),
        version=version.dictionary,
    )
