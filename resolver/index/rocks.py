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

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from resolver.index.base import Entries, IndexBinding, IndexChanges, IndexedFile, Matches, Prepared
from resolver.index.dictionary import FileChanges, FileDictionary, file_changes
from resolver.index.entry import (
    FILE_ID_LIMIT,
    KeyedRows,
    decode_values,
    file_id_of,
    new_rows,
    position_of,
    sst_chunks,
    touched_keys,
)
from resolver.index.folder import (
    FolderLock,
    Generation,
    disk_errors,
    sync_folder,
    write_atomically,
)
from resolver.index.header import FilesHeader, ShardHeader
from resolver.index.shard import Shard, open_cache, write_sst
from resolver.keys import EncodedKeys, concat_keys
from tableformat.errors import CorruptDataError, InvalidInputError, StoreUnavailableError
from tableformat.runtime import Runtime

DEFAULT_CACHE_BYTES = 128 << 20
THREADS_MAX = 8
# Bounds the Python objects alive at once in a lookup, per thread.
LOOKUP_CHUNK_KEYS = 131_072
ENTRIES_BATCH_KEYS = 65_536

_FILES_SST = "files.sst"
_APPLY = "APPLY"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Pending:
    """A prepared change of this process."""

    base: str
    path: Path
    touched: frozenset[int]
    files: FileChanges
    next_file_id: int


class RocksIndex:
    """A `PrimaryKeyIndex` in a local folder. Get one from `open_index` or `build_index`."""

    __slots__ = (
        "_dictionary",
        "_files",
        "_header",
        "_interrupted",
        "_lock",
        "_pending",
        "_pool",
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
            CorruptDataError: Shards are missing, damaged or do not belong together.
            StoreUnavailableError: Disk trouble, or another process has it open.
        """
        self.generation = generation
        self._lock = lock
        self._runtime = runtime
        self._pending: dict[str, _Pending] = {}
        self._interrupted = False
        self._shards: list[Shard] = []
        self._pool = ThreadPoolExecutor(
            max_workers=min(generation.shard_count, THREADS_MAX), thread_name_prefix="index"
        )
        cache = open_cache(cache_bytes)
        try:
            self._files = Shard.open(generation.files_path, cache)
        except BaseException:
            self._pool.shutdown()
            raise
        try:
            self._dictionary = FileDictionary(self._files)
            self._header = self._read_header()
            shard_numbers = range(generation.shard_count)
            self._shards = self._each(
                shard_numbers, lambda i: Shard.open(generation.shard_path(i), cache)
            )
            self._settle_pending()
            self._check_shards()
        except BaseException:
            self._close_shards()
            raise

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
        self._check_usable()
        parts = self._each_with_rows(keys, self._lookup_shard)
        ordinal = np.concatenate([part[0] for part in parts]) if parts else _NO_INT64
        rows = np.concatenate([part[1] for part in parts]) if parts else _NO_ROWS
        if len(parts) > 1 or not _is_sorted(ordinal):
            order = np.argsort(ordinal, kind="stable")
            ordinal, rows = ordinal[order], rows[order]
        file_id = file_id_of(rows)
        live, files = self._live(file_id)
        if not live.all():
            ordinal, rows, file_id = ordinal[live], rows[live], file_id[live]
        return Matches(ordinal, file_id, position_of(rows), files)

    def file_ids(self, paths: Iterable[str]) -> dict[str, int]:
        """See `PrimaryKeyIndex`."""
        self._check_usable()
        return self._dictionary.by_paths(paths)

    def files(self) -> dict[int, IndexedFile]:
        """See `PrimaryKeyIndex`."""
        self._check_usable()
        return self._dictionary.all()

    def entries(self) -> Iterator[Entries]:
        """See `PrimaryKeyIndex`."""
        self._check_usable()
        for shard in self._shards:
            pairs = shard.scan()
            while batch := list(islice(pairs, ENTRIES_BATCH_KEYS)):
                keys = pa.array([key for key, _ in batch], type=pa.large_binary())
                ordinal, rows = decode_values([value for _, value in batch])
                file_id = file_id_of(rows)
                live, _ = self._live(file_id)
                ordinal, rows = ordinal[live], rows[live]
                yield Entries(
                    EncodedKeys(binary=keys).take(ordinal), file_id[live], position_of(rows)
                )

    def prepare(self, changes: IndexChanges) -> Prepared:
        """See `PrimaryKeyIndex`."""
        self._check_usable()
        dropped = self._dictionary.by_paths(changes.dropped_files)
        file_ids, next_file_id = self._assign_ids(changes.added_files, dropped)
        name = self._runtime.ids.uuid().hex
        path = self.generation.pending_path / name
        with disk_errors(path):
            path.mkdir(parents=True)
        pending = _Pending(
            base=self._header.state,
            path=path,
            touched=self._write_shard_changes(
                name, path, changes, file_ids, frozenset(dropped.values())
            ),
            files=file_changes(
                dropped.items(), zip(file_ids.tolist(), changes.added_files, strict=True)
            ),
            next_file_id=next_file_id,
        )
        self._runtime.fail_point("index.prepare.written")
        self._pending[name] = pending
        return Prepared(id=name, base=pending.base)

    def apply(self, prepared: Prepared, binding: IndexBinding) -> None:
        """See `PrimaryKeyIndex`.

        Effects: *1. `files.sst`; 2. `APPLY`; 3. each shard; 4. the dictionary and the binding;
        5. removes the pending folder.* A crash before 2 leaves the index at its older snapshot,
        one after 2 is completed when the index is opened.
        """
        pending = self._pending.get(prepared.id)
        if pending is None:
            raise InvalidInputError("this change was applied or discarded", prepared=prepared.id)
        if not self._interrupted:
            self._check_applicable(prepared, binding)
            shards = list(self._header.shards)
            for shard in pending.touched:
                shards[shard] = prepared.id
            header = FilesHeader(
                generation=self.generation.name,
                state=prepared.id,
                previous=prepared.base,
                shards=tuple(shards),
                next_file_id=pending.next_file_id,
                binding=binding,
            )
            sst = pending.path / _FILES_SST
            sst.unlink(missing_ok=True)
            write_sst(sst, [(pending.files.keys, pending.files.values)], header.to_json())
            self._runtime.fail_point("index.apply.before")
            write_atomically(pending.path / _APPLY, header.to_json())
            self._interrupted = True
        self._roll_forward(pending.path)
        self._interrupted = False
        self._pending.clear()  # changes prepared on the older state can no longer be applied
        self._remove_pending()

    def discard(self, prepared: Prepared) -> None:
        """See `PrimaryKeyIndex`."""
        pending = self._pending.pop(prepared.id, None)
        if pending is not None:
            shutil.rmtree(pending.path, ignore_errors=True)

    def close(self) -> None:
        """See `PrimaryKeyIndex`."""
        self._close_shards()
        self._lock.release()

    def __enter__(self) -> RocksIndex:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- reading ---------------------------------------------------------------------------------

    def _lookup_shard(
        self, shard: int, keys: EncodedKeys, key_rows: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint64]]:
        """Key ordinals and rows of one shard's share of a lookup."""
        order = keys.argsort()
        ordinals, rows = [], []
        for start in range(0, len(order), LOOKUP_CHUNK_KEYS):
            chunk = order[start : start + LOOKUP_CHUNK_KEYS]
            values = self._shards[shard].get(keys.take(chunk).to_list())
            ordinal, found = decode_values(values)
            ordinals.append(key_rows[chunk[ordinal]])
            rows.append(found)
        return np.concatenate(ordinals), np.concatenate(rows)

    def _live(
        self, file_id: npt.NDArray[np.int32]
    ) -> tuple[npt.NDArray[np.bool_], dict[int, IndexedFile]]:
        """Which rows are in files of the table, and those files."""
        distinct = np.unique(file_id)
        files = self._dictionary.by_ids(distinct.tolist())
        if len(files) == len(distinct):
            return np.ones(len(file_id), dtype=np.bool_), files
        return np.isin(file_id, np.fromiter(files, dtype=np.int32, count=len(files))), files

    # -- writing ---------------------------------------------------------------------------------

    def _assign_ids(
        self, added: Sequence[IndexedFile], dropped: dict[str, int]
    ) -> tuple[npt.NDArray[np.int32], int]:
        """An id per added file: its own when it stays, a new one otherwise."""
        known = self._dictionary.by_paths(file.file_path for file in added)
        next_file_id = self._header.next_file_id
        ids = []
        for file in added:
            file_id = known.get(file.file_path)
            if file_id is None or file.file_path in dropped:
                file_id, next_file_id = next_file_id, next_file_id + 1
                known[file.file_path] = file_id
            ids.append(file_id)
        if next_file_id > FILE_ID_LIMIT:
            raise CorruptDataError(
                "the index has used up its file ids",
                location=self.generation.path,
                action="rebuild the index",
            )
        return np.array(ids, dtype=np.int32), next_file_id

    def _write_shard_changes(
        self,
        name: str,
        path: Path,
        changes: IndexChanges,
        file_ids: npt.NDArray[np.int32],
        dropped_ids: frozenset[int],
    ) -> frozenset[int]:
        """Write one SST per touched shard; returns which."""
        cleared = concat_keys(changes.removed_keys)
        removed = KeyedRows.of(changes.removed)
        put = KeyedRows.of(changes.put, file_ids)
        parts = [part.shard_of(self.shard_count) for part in (cleared, removed.keys, put.keys)]
        touched = np.unique(np.concatenate(parts)).tolist()

        def write(shard: int) -> None:
            in_shard = [part == shard for part in parts]
            change = touched_keys(
                cleared.take(in_shard[0]), removed.take(in_shard[1]), put.take(in_shard[2])
            )
            header = ShardHeader(self.generation.name, shard, self.shard_count, name)
            present_key, present = self._present_rows(
                shard, change.keys, ~change.is_cleared, dropped_ids
            )
            key, rows = new_rows(change, present_key, present)
            write_sst(path / f"{shard}.sst", sst_chunks(change.keys, key, rows), header.to_json())

        self._each(touched, write)
        with disk_errors(path):
            sync_folder(path)
        return frozenset(touched)

    def _present_rows(
        self,
        shard: int,
        keys: EncodedKeys,
        wanted: npt.NDArray[np.bool_],
        dropped_ids: frozenset[int],
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint64]]:
        """Rows that the wanted ones of sorted `keys` have now, in files that stay."""
        ordinals = np.flatnonzero(wanted)
        if not len(ordinals):
            return _NO_INT64, _NO_ROWS
        ordinal, rows = decode_values(self._shards[shard].get(keys.take(ordinals).to_list()))
        file_id = file_id_of(rows)
        stays, _ = self._live(file_id)
        if dropped_ids:
            stays &= ~np.isin(file_id, np.fromiter(dropped_ids, dtype=np.int32))
        return ordinals[ordinal[stays]], rows[stays]

    def _check_applicable(self, prepared: Prepared, binding: IndexBinding) -> None:
        if prepared.base != self._header.state:
            raise InvalidInputError(
                "the index has changed since this change was prepared", prepared=prepared.id
            )
        mine = self.binding.at(snapshot_id=None, sequence_number=0)
        if binding.at(snapshot_id=None, sequence_number=0) != mine:
            raise InvalidInputError("an index keeps its table, branch and key", binding=binding)

    def _roll_forward(self, path: Path) -> None:
        """Complete a decided change. Idempotent; one that is no longer the newest is left alone."""
        header = FilesHeader.parse(_read_json(path / _APPLY), path)
        if self._header.state not in (header.state, header.previous):
            return

        def ingest(shard: int) -> None:
            if header.shards[shard] == path.name:
                current = ShardHeader.parse(self._shards[shard].header(), path)
                if current.state != header.state:
                    self._shards[shard].ingest(path / f"{shard}.sst")
            self._runtime.fail_point("index.apply.shard")

        self._each(range(self.shard_count), ingest)
        if self._read_header().state != header.state:
            self._files.ingest(path / _FILES_SST)
        self._runtime.fail_point("index.apply.after")
        self._dictionary.forget_cached()
        self._header = self._read_header()

    def _settle_pending(self) -> None:
        """After a crash: complete what was decided, throw away the rest."""
        folder = self.generation.pending_path
        if not folder.is_dir():
            return
        for path in sorted(folder.iterdir()):
            if (path / _APPLY).exists():
                self._roll_forward(path)
        self._remove_pending()

    def _remove_pending(self) -> None:
        shutil.rmtree(self.generation.pending_path, ignore_errors=True)

    # -- state -----------------------------------------------------------------------------------

    def _read_header(self) -> FilesHeader:
        header = FilesHeader.parse(self._files.header(), self._files.path)
        if (header.generation, len(header.shards)) != (
            self.generation.name,
            self.generation.shard_count,
        ):
            raise CorruptDataError(
                "the file dictionary belongs to another index",
                location=self._files.path,
                action="rebuild the index",
            )
        return header

    def _check_shards(self) -> None:
        for number, shard in enumerate(self._shards):
            found = ShardHeader.parse(shard.header(), shard.path)
            expected = ShardHeader(
                self.generation.name, number, self.shard_count, self._header.shards[number]
            )
            if found != expected:
                raise CorruptDataError(
                    "a shard of the index does not belong to its file dictionary",
                    location=shard.path,
                    action="rebuild the index",
                )

    def _check_usable(self) -> None:
        if self._interrupted:
            raise StoreUnavailableError(
                "a change of the index was interrupted",
                location=self.generation.path,
                action="apply it again, or open the index again",
            )

    def _close_shards(self) -> None:
        self._pool.shutdown()
        for shard in self._shards:
            shard.close()
        self._files.close()

    # -- shards in parallel ----------------------------------------------------------------------

    def _each(self, items: Iterable[int], work: Callable[[int], T]) -> list[T]:
        """Run `work` for every item, all to the end, then raise the first error."""
        futures = [self._pool.submit(work, item) for item in items]
        errors = [error for future in futures if (error := future.exception()) is not None]
        if errors:
            raise errors[0]
        return [future.result() for future in futures]

    def _each_with_rows(
        self,
        keys: EncodedKeys,
        work: Callable[[int, EncodedKeys, npt.NDArray[np.int64]], T],
    ) -> list[T]:
        """Run `work` for every shard that has keys, with its keys and their ordinals."""
        if not len(keys):
            return []
        shard_of = keys.shard_of(self.shard_count)
        by_shard = np.argsort(shard_of.astype(np.uint16), kind="stable")
        counts = np.bincount(shard_of, minlength=self.shard_count)
        bounds = np.concatenate([[0], np.cumsum(counts)])

        def run(shard: int) -> T:
            rows = by_shard[bounds[shard] : bounds[shard + 1]]
            return work(shard, keys.take(rows), rows)

        return self._each(np.flatnonzero(counts).tolist(), run)


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise CorruptDataError(
            "a decided change of the index is unreadable", location=path, action="rebuild the index"
        ) from error


def _is_sorted(values: npt.NDArray[np.int64]) -> bool:
    return bool((values[1:] >= values[:-1]).all())


_NO_INT64: npt.NDArray[np.int64] = np.empty(0, dtype=np.int64)
_NO_ROWS: npt.NDArray[np.uint64] = np.empty(0, dtype=np.uint64)
