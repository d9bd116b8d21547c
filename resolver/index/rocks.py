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
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from resolver.index.base import Entries, IndexBinding, IndexChanges, IndexedFile, Matches, Prepared
from resolver.index.change import ChangeParts, split_by_shard
from resolver.index.dictionary import FileChanges, FileDictionary, file_changes
from resolver.index.entry import (
    FILE_ID_LIMIT,
    TouchedKeys,
    decode_values,
    file_id_of,
    new_rows,
    position_of,
    sst_chunks,
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
from resolver.keys import EncodedKeys
from tableformat.errors import CorruptDataError, InvalidInputError, StoreUnavailableError
from tableformat.runtime import Runtime

DEFAULT_CACHE_BYTES = 128 << 20
THREADS_MAX = 8
# Bounds the Python objects alive at once in a lookup, per thread.
LOOKUP_CHUNK_KEYS = 131_072

_FILES_SST = "files.sst"
_APPLY = "APPLY"

S = TypeVar("S")
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
        self._interrupted: str | None = None
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
        parts = self._each(
            split_by_shard(keys, self.shard_count),
            lambda part: self._lookup_shard(part[0], keys.take(part[1]), part[1]),
        )
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
            for batch in shard.scan():
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
        files = file_changes(
            dropped.items(), zip(file_ids.tolist(), changes.added_files, strict=True)
        )
        name = self._runtime.ids.uuid().hex
        path = self.generation.pending_path / name
        with disk_errors(path):
            path.mkdir(parents=True)
            try:
                touched = self._write_shard_changes(
                    name, path, changes, file_ids, frozenset(dropped.values())
                )
            except BaseException:
                shutil.rmtree(path, ignore_errors=True)
                raise
        self._pending[name] = _Pending(
            base=self._header.state,
            path=path,
            touched=touched,
            files=files,
            next_file_id=next_file_id,
        )
        self._runtime.fail_point("index.prepare.written")
        return Prepared(id=name, base=self._header.state)

    def apply(self, prepared: Prepared, binding: IndexBinding) -> None:
        """See `PrimaryKeyIndex`.

        Effects: *1. `files.sst`; 2. `APPLY`; 3. each shard; 4. the dictionary and the binding;
        5. removes the pending folder.* A crash before 2 leaves the index at its older snapshot,
        one after 2 is completed when the index is opened.
        """
        pending = self._pending.get(prepared.id)
        if pending is None:
            raise InvalidInputError("this change was applied or discarded", prepared=prepared.id)
        self._check_applicable(prepared, binding)
        self._interrupted = prepared.id
        with disk_errors(pending.path):
            if not (pending.path / _APPLY).exists():
                self._decide(prepared.id, pending, binding)
            self._roll_forward(pending.path)
        self._interrupted = None
        self._pending.clear()  # changes prepared on the older state can no longer be applied
        self._remove_pending()

    def _decide(self, name: str, pending: _Pending, binding: IndexBinding) -> None:
        """Make the change one that opening the index completes."""
        header = FilesHeader(
            generation=self.generation.name,
            state=name,
            previous=pending.base,
            shards=tuple(
                name if shard in pending.touched else state
                for shard, state in enumerate(self._header.shards)
            ),
            next_file_id=pending.next_file_id,
            binding=binding,
        )
        sst = pending.path / _FILES_SST
        sst.unlink(missing_ok=True)
        write_sst(sst, [(pending.files.keys, pending.files.values)], header.to_json())
        self._runtime.fail_point("index.apply.before")
        write_atomically(pending.path / _APPLY, header.to_json())

    def discard(self, prepared: Prepared) -> None:
        """See `PrimaryKeyIndex`."""
        pending = self._pending.get(prepared.id)
        if pending is None:
            return
        if (pending.path / _APPLY).exists():
            raise InvalidInputError(
                "a change that is being applied cannot be discarded", prepared=prepared.id
            )
        del self._pending[prepared.id]
        if self._interrupted == prepared.id:
            self._interrupted = None
        shutil.rmtree(pending.path, ignore_errors=True)

    def close(self) -> None:
        """See `PrimaryKeyIndex`."""
        self._close_shards()
        self._lock.release()

    def __enter__(self) -> Self:
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
        scratch = path / "scratch"
        parts = ChangeParts(self.shard_count, scratch)
        parts.fill(changes, file_ids)

        def write(shard: int) -> None:
            change = parts.load(shard)
            present_key, present = self._present_rows(shard, change, dropped_ids)
            key, rows = new_rows(change, present_key, present)
            header = ShardHeader(self.generation.name, shard, self.shard_count, name)
            write_sst(path / f"{shard}.sst", sst_chunks(change.keys, key, rows), header.to_json())

        touched = parts.touched()
        self._each(touched, write)
        shutil.rmtree(scratch, ignore_errors=True)
        sync_folder(path)
        return frozenset(touched)

    def _present_rows(
        self, shard: int, change: TouchedKeys, dropped_ids: frozenset[int]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint64]]:
        """Rows that the touched, not cleared keys have now, in files that stay."""
        wanted = np.flatnonzero(~change.is_cleared)
        ordinals, parts = [_NO_INT64], [_NO_ROWS]
        for start in range(0, len(wanted), LOOKUP_CHUNK_KEYS):
            chunk = wanted[start : start + LOOKUP_CHUNK_KEYS]
            values = self._shards[shard].get(change.keys.take(chunk).to_list())
            ordinal, rows = decode_values(values)
            ordinals.append(chunk[ordinal])
            parts.append(rows)
        ordinal, rows = np.concatenate(ordinals), np.concatenate(parts)
        file_id = file_id_of(rows)
        stays, _ = self._live(file_id)
        if dropped_ids:
            stays &= ~np.isin(file_id, np.fromiter(dropped_ids, dtype=np.int32))
        return ordinal[stays], rows[stays]

    def _check_applicable(self, prepared: Prepared, binding: IndexBinding) -> None:
        if prepared.base != self._header.state or self._interrupted not in (None, prepared.id):
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

    def _each(self, items: Iterable[S], work: Callable[[S], T]) -> list[T]:
        """Run `work` for every item, all to the end, then raise the first error."""
        futures = [self._pool.submit(work, item) for item in items]
        errors = [error for future in futures if (error := future.exception()) is not None]
        if errors:
            raise errors[0]
        return [future.result() for future in futures]


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
