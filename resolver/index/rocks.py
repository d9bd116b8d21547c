"""The primary-key index as RocksDB shards in a local folder.

A generation is one shard for the file dictionary (`files`) and n shards of keys, a key's shard
being decided by its hash. Every ingestion into a shard carries a header naming the state it brings
the shard to. The header of `files` holds the binding and the expected state of every key shard, so
it is the one record that makes a change visible, and a shard that is ahead or behind is seen.

Steps of a change, and what a crash after each leaves:

1. `prepare` writes one SST per touched shard to `pending/<id>/`. Left: files to delete.
2. The caller publishes. Left: an index bound to the older snapshot; the next run follows.
3. `apply` writes `files.sst` with the new header, then `APPLY`, atomically. From here on the change
   is decided: opening the index rolls it forward.
4. It ingests the SST of each shard; a shard whose header names the new state is skipped.
5. It ingests `files.sst`: the change is visible and bound.
6. It removes `pending/<id>/`. Left: a folder whose roll-forward finds everything done.

A pending folder without `APPLY` is thrown away when the index is opened. Headers that disagree
without a pending `APPLY` mean damage, and the index is rebuilt; it is never partly trusted (I19).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from resolver.index.base import Entries, IndexBinding, IndexChanges, IndexedFile, Matches, Prepared
from resolver.index.change import ChangeParts, split_by_shard
from resolver.index.damage import check_unmarked, remembering_damage
from resolver.index.dictionary import FileDictionary, file_changes
from resolver.index.entry import (
    Rows,
    TouchedKeys,
    decode_values,
    file_id_of,
    new_rows,
    position_of,
    sst_chunks,
)
from resolver.index.folder import FolderLock, Generation, disk_errors, sync_folder
from resolver.index.header import ShardHeader
from resolver.index.pending import PendingChange, roll_forward, settle, shard_sst
from resolver.index.shard import SstChunk, write_sst
from resolver.index.shards import Shards
from resolver.keys import EncodedKeys
from tableformat.errors import InvalidInputError, StoreUnavailableError
from tableformat.runtime import Runtime

DEFAULT_CACHE_BYTES = 128 << 20

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


class RocksIndex:
    """A `PrimaryKeyIndex` in a local folder. Get one from `open_index` or `build_index`."""

    __slots__ = (
        "_dictionary",
        "_header",
        "_interrupted",
        "_lock",
        "_pending",
        "_runtime",
        "_shards",
        "generation",
    )

    def __init__(
        self,
        generation: Generation,
        lock: FolderLock,
        *,
        runtime: Runtime,
        cache_bytes: int = DEFAULT_CACHE_BYTES,
    ) -> None:
        """Open a generation under a lock that the index releases when it is closed.

        Raises:
            IndexDamagedError: Shards are missing, damaged or do not belong together.
            StoreUnavailableError: Disk trouble, or another process has it open.

        Effects: completes a decided change, and throws undecided ones away.
        """
        self.generation = generation
        self._lock = lock
        self._runtime = runtime
        self._pending: dict[str, PendingChange] = {}
        self._interrupted: str | None = None
        with remembering_damage(generation.path):
            check_unmarked(generation.path)
            self._shards = Shards(generation, cache_bytes)
            try:
                settle(generation.pending_path, self._shards, runtime)
                self._header = self._shards.files_header()
                self._shards.check_states(self._header)
            except BaseException:
                self._shards.close()
                raise
        self._dictionary = FileDictionary(self._shards.files)

    @property
    def binding(self) -> IndexBinding:
        """See `PrimaryKeyIndex`."""
        return self._header.binding

    @property
    def shard_count(self) -> int:
        """Number of key shards."""
        return self.generation.shard_count

    def lookup(self, keys: EncodedKeys) -> Matches:
        """See `PrimaryKeyIndex`.

        Cost: about 1 µs per key and core; absent keys mostly stop at the bloom filters.
        """
        with self._in_use():
            parts = self._shards.each(
                split_by_shard(keys, self.shard_count), lambda part: self._lookup(keys, *part)
            )
            ordinal = np.concatenate([_NO_INT64, *(part[0] for part in parts)])
            rows = np.concatenate([_NO_ROWS, *(part[1] for part in parts)])
            order = np.argsort(ordinal, kind="stable")
            ordinal, rows = ordinal[order], rows[order]
            file_id = file_id_of(rows)
            live, files = self._live(file_id)
        if not live.all():
            ordinal, rows, file_id = ordinal[live], rows[live], file_id[live]
        return Matches(ordinal, file_id, position_of(rows), files)

    def file_ids(self, paths: Iterable[str]) -> dict[str, int]:
        """See `PrimaryKeyIndex`."""
        with self._in_use():
            return self._dictionary.by_paths(paths)

    def files(self) -> dict[int, IndexedFile]:
        """See `PrimaryKeyIndex`."""
        with self._in_use():
            return self._dictionary.all()

    def entries(self) -> Iterator[Entries]:
        """See `PrimaryKeyIndex`."""
        with self._in_use():
            for shard in range(self.shard_count):
                for batch in self._shards[shard].scan():
                    yield self._entries_of(batch)

    def prepare(self, changes: IndexChanges) -> Prepared:
        """See `PrimaryKeyIndex`."""
        with self._in_use():
            dropped = self._dictionary.by_paths(changes.dropped_files)
            file_ids, next_file_id = self._dictionary.assign_ids(
                changes.added_files, dropped, self._header.next_file_id
            )
            name = self._runtime.ids.uuid().hex
            path = self.generation.pending_path / name
            try:
                with disk_errors(path):
                    path.mkdir(parents=True)
                touched = self._write_shards(path, changes, file_ids, frozenset(dropped.values()))
            except BaseException:
                shutil.rmtree(path, ignore_errors=True)
                raise
        self._pending[name] = PendingChange(
            name=name,
            base=self._header.state,
            path=path,
            touched=touched,
            files=file_changes(
                dropped.items(), zip(file_ids.tolist(), changes.added_files, strict=True)
            ),
            next_file_id=next_file_id,
        )
        self._runtime.fail_point("index.prepare.written")
        return Prepared(id=name, base=self._header.state)

    def apply(self, prepared: Prepared, binding: IndexBinding) -> None:
        """See `PrimaryKeyIndex`.

        Effects: *1. decides the change; 2. ingests it into each shard; 3. into the dictionary,
        with the binding; 4. removes it from `pending`.* A crash before 1 leaves the index at its
        older snapshot, one after it is completed when the index is opened.
        """
        change = self._pending.get(prepared.id)
        if change is None:
            raise InvalidInputError("this change was applied or discarded", prepared=prepared.id)
        self._check_applicable(change, binding)
        self._interrupted = change.name
        with remembering_damage(self.generation.path):
            if not change.is_decided:
                change.decide(self._header, binding, self._runtime)
            roll_forward(change.path, self._shards, self._runtime)
            self._header = self._shards.files_header()
        self._dictionary.forget_cached()
        self._interrupted = None
        self._pending.clear()  # changes prepared on the older state can no longer be applied
        shutil.rmtree(self.generation.pending_path, ignore_errors=True)

    def discard(self, prepared: Prepared) -> None:
        """See `PrimaryKeyIndex`."""
        change = self._pending.get(prepared.id)
        if change is None:
            return
        if change.is_decided:
            raise InvalidInputError(
                "a change that is being applied cannot be discarded", prepared=prepared.id
            )
        del self._pending[prepared.id]
        if self._interrupted == prepared.id:
            self._interrupted = None
        shutil.rmtree(change.path, ignore_errors=True)

    def close(self) -> None:
        """See `PrimaryKeyIndex`."""
        try:
            self._shards.close()
        finally:
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- reading ---------------------------------------------------------------------------------

    def _lookup(self, keys: EncodedKeys, shard: int, ordinals: Int64s) -> tuple[Int64s, Rows]:
        """Rows of one shard's share of the keys, with the ordinals of the whole lookup."""
        in_shard = keys.take(ordinals)
        order = in_shard.argsort()
        ordinal, rows = self._shards.rows_of(shard, in_shard.take(order))
        return ordinals[order[ordinal]], rows

    def _live(self, file_id: Int32s) -> tuple[Bools, dict[int, IndexedFile]]:
        """Which rows are in files of the table, and those files."""
        distinct = np.unique(file_id)
        files = self._dictionary.by_ids(distinct.tolist())
        if len(files) == len(distinct):
            return np.ones(len(file_id), dtype=np.bool_), files
        return np.isin(file_id, np.fromiter(files, dtype=np.int32, count=len(files))), files

    def _entries_of(self, pairs: Sequence[tuple[bytes, bytes]]) -> Entries:
        keys = pa.array([key for key, _ in pairs], type=pa.large_binary())
        ordinal, rows = decode_values([value for _, value in pairs])
        file_id = file_id_of(rows)
        live, _ = self._live(file_id)
        selected = EncodedKeys(binary=keys).take(ordinal[live])
        return Entries(selected, file_id[live], position_of(rows[live]))

    # -- writing ---------------------------------------------------------------------------------

    def _write_shards(
        self, path: Path, changes: IndexChanges, file_ids: Int32s, dropped_ids: frozenset[int]
    ) -> frozenset[int]:
        """Write one SST per touched shard; returns which."""
        scratch = path / "scratch"
        parts = ChangeParts(self.shard_count, scratch)
        parts.fill(changes, file_ids)

        def write(shard: int) -> None:
            header = ShardHeader(self.generation.name, shard, self.shard_count, path.name)
            write_sst(shard_sst(path, shard), pairs_of(shard), header.to_json())

        def pairs_of(shard: int) -> Iterator[SstChunk]:
            for change in parts.load_pieces(shard):
                present_key, present = self._present_rows(shard, change, dropped_ids)
                yield from sst_chunks(change.keys, *new_rows(change, present_key, present))

        touched = parts.touched()
        at_a_time = os.cpu_count() or 1  # a shard's share of a large change is held while it is
        for start in range(0, len(touched), at_a_time):
            self._shards.each(touched[start : start + at_a_time], write)
        shutil.rmtree(scratch, ignore_errors=True)
        with disk_errors(path):
            sync_folder(path)
        return frozenset(touched)

    def _present_rows(
        self, shard: int, change: TouchedKeys, dropped_ids: frozenset[int]
    ) -> tuple[Int64s, Rows]:
        """Rows that the touched, not cleared keys have now, in files that stay."""
        wanted = np.flatnonzero(~change.is_cleared)
        ordinal, rows = self._shards.rows_of(shard, change.keys.take(wanted))
        file_id = file_id_of(rows)
        stays, _ = self._live(file_id)
        if dropped_ids:
            stays &= ~np.isin(file_id, np.fromiter(dropped_ids, dtype=np.int32))
        return wanted[ordinal[stays]], rows[stays]

    def _check_applicable(self, change: PendingChange, binding: IndexBinding) -> None:
        if change.base != self._header.state or self._interrupted not in (None, change.name):
            raise InvalidInputError(
                "the index has changed since this change was prepared", prepared=change.name
            )
        mine = self.binding.at(snapshot_id=None, sequence_number=0)
        if binding.at(snapshot_id=None, sequence_number=0) != mine:
            raise InvalidInputError("an index keeps its table, branch and key", binding=binding)

    @contextmanager
    def _in_use(self) -> Iterator[None]:
        """Around everything that reads: not in mid-change, and damage is remembered."""
        if self._interrupted is not None:
            raise StoreUnavailableError(
                "a change of the index was interrupted",
                index=self.generation.path,
                action="apply it again, or open the index again",
            )
        with remembering_damage(self.generation.path):
            yield


_NO_INT64: Int64s = np.empty(0, dtype=np.int64)
_NO_ROWS: Rows = np.empty(0, dtype=np.uint64)
