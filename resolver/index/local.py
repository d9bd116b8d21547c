"""The primary-key index in a local folder.

A generation is one database for the file dictionary (`files`) and a folder of runs (`runs`), a
key's shard being decided by its hash. The header of `files` names the runs of every shard and holds
the binding, so it is the one record that makes a change visible, all of it at once.

Steps of a change, and what a crash after each leaves:

1. `prepare` writes one run per touched shard, or several where it splits one (see `write_change`).
   Left: files that nothing names.
2. The caller publishes. Left: an index bound to the older snapshot; the next run follows.
3. `apply` ingests the changes of the dictionary with the new header: the change is visible and
   bound. Left: runs that nothing names any more.
4. It removes the runs that were merged, in the background.

What nothing names is removed when the index is opened. A run that is missing, or is not the one
that the header names, means damage, and the index is built again; it is never partly trusted (I19).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np

from resolver.index.base import (
    Entries,
    IndexBinding,
    IndexChanges,
    IndexDamagedError,
    IndexedFile,
    Matches,
    Prepared,
)
from resolver.index.change import ChangeParts
from resolver.index.damage import check_unmarked, damaged, remembering_damage
from resolver.index.dictionary import (
    FileChanges,
    FileDictionary,
    file_changes,
    noting_state,
)
from resolver.index.entry import Rows, file_id_of
from resolver.index.folder import (
    FolderLock,
    Generation,
    current_generation,
    disk_errors,
    sync_folder,
)
from resolver.index.format_1 import convert, remove_shards
from resolver.index.header import FilesHeader
from resolver.index.matching import ShardKeys, entries_of, live_rows, look_up
from resolver.index.run import Run
from resolver.index.runs import merged_entries, rows_of_keys, write_change
from resolver.index.shard import Shard, open_cache, write_sst
from resolver.index.shard_map import after_change
from resolver.keys import EncodedKeys
from tableformat.array_types import Bools, Int64s
from tableformat.errors import InvalidInputError, StoreUnavailableError
from tableformat.memory import release_unused
from tableformat.runtime import Runtime
from tableformat.side_by_side import run_in_parts

CACHE_BYTES = 128 << 20
THREADS_MAX = 8
WRITTEN_MAX = 10_000  # files that are added and dropped, up to which they go through the log


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    """A prepared change: the header that makes it visible, but for the binding."""

    header: FilesHeader
    base: str
    files: FileChanges


class OpenRuns:
    """The open runs of a generation, by shard. Close it to release them."""

    __slots__ = ("_keep_open", "_open", "shards")

    def __init__(
        self, generation: Generation, header: FilesHeader, *, keep_open: bool = False
    ) -> None:
        """Open all runs, or none; `keep_open` where another process maintains the index.

        Raises:
            IndexDamagedError: One is missing or damaged, or the header is another generation's.
        """
        self._keep_open = keep_open
        self._open: dict[str, Run] = {}
        self.shards: list[list[Run]] = []
        try:
            self.open(generation, header)
        except BaseException:
            self.close()
            raise

    def open(self, generation: Generation, header: FilesHeader) -> None:
        """Open what a header names, and close what it does not."""
        runs = header.runs
        if runs is None:
            raise damaged(
                "the index has an older format; the next resolve converts it", generation.path
            )
        if header.generation != generation.name:
            raise damaged("the file dictionary belongs to another index", generation.files_path)
        named = {name for shard in runs for name in shard}
        for name in named - self._open.keys():
            path = generation.run_path(name)
            self._open[name] = Run(path, name, keep_open=self._keep_open)
        for name in self._open.keys() - named:
            del self._open[name]  # one that is being read closes with its last reader
        self.shards = [[self._open[name] for name in shard] for shard in runs]

    def close(self) -> None:
        """Release the files."""
        self.shards = []
        self._open.clear()


class LocalIndex:
    """A `PrimaryKeyIndex` in a local folder. Get one from `open_index` or `build_index`."""

    __slots__ = (
        "_dictionary",
        "_files",
        "_header",
        "_interrupted",
        "_lock",
        "_map",
        "_pending",
        "_runs",
        "_runtime",
        "_tidying",
        "generation",
    )

    def __init__(self, generation: Generation, lock: FolderLock, *, runtime: Runtime) -> None:
        """Open a generation under a lock that the index releases when it is closed.

        Raises:
            IndexDamagedError: Something is missing, damaged or does not belong together.
            StoreUnavailableError: Disk trouble, or another process has it open.

        Effects: removes what no change needs; converts an index of format 1.
        """
        self.generation = generation
        self._lock = lock
        self._runtime = runtime
        self._pending: dict[str, _Change] = {}
        self._interrupted: str | None = None
        with remembering_damage(generation.path):
            check_unmarked(generation.path)
            self._files = Shard.open(generation.files_path, open_cache(CACHE_BYTES))
            try:
                self._header = FilesHeader.parse(self._files.header(), self._files.path)
                with disk_errors(generation.runs_path):
                    generation.runs_path.mkdir(exist_ok=True)
                if self._header.runs is None:
                    self._header = convert(generation, self._files)
                remove_shards(generation)
                self._dictionary = FileDictionary(self._files)
                self._dictionary.check_state(self._header.state)
                self._runs = OpenRuns(generation, self._header)
                _remove_all(self._unnamed())
            except BaseException:
                self._files.close()
                raise
        self._map = self._header.shards
        self._tidying = ThreadPoolExecutor(1, thread_name_prefix="index")

    @property
    def binding(self) -> IndexBinding:
        """See `PrimaryKeyIndex`."""
        return self._header.binding

    @property
    def shard_count(self) -> int:
        """Number of key shards."""
        return len(self._map)

    @property
    def run_names(self) -> tuple[tuple[str, ...], ...]:
        """The runs of each shard, the newest first."""
        return tuple(tuple(run.name for run in runs) for runs in self._runs.shards)

    def lookup(self, keys: EncodedKeys) -> Matches:
        """See `PrimaryKeyIndex`.

        Cost: a block per key at most, so 1 to 2 µs for few keys; 0.3 µs where keys share blocks.
        """
        with self._in_use():
            return look_up(keys, self._map, self._find, self._dictionary.by_ids)

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
            for runs in self._runs.shards:
                for keys, rows in merged_entries(runs, keep_gone=False):
                    yield entries_of(keys, rows, live_rows(rows, self._dictionary.by_ids)[0])

    def prepare(self, changes: IndexChanges) -> Prepared:
        """See `PrimaryKeyIndex`."""
        with self._in_use():
            dropped = self._dictionary.by_paths(changes.dropped_files)
            file_ids, next_file_id = self._dictionary.assign_ids(
                changes.added_files, dropped, self._header.next_file_id
            )
            name = self._runtime.ids.uuid().hex
            try:
                starts, runs = self._write_runs(name, changes, file_ids, tuple(dropped.values()))
            except BaseException:
                self._remove_runs_of(name)
                raise
        self._pending[name] = _Change(
            header=replace(
                self._header, state=name, runs=runs, starts=starts, next_file_id=next_file_id
            ),
            base=self._header.state,
            files=file_changes(
                dropped.items(), zip(file_ids.tolist(), changes.added_files, strict=True)
            ),
        )
        self._runtime.fail_point("index.prepare.written")
        return Prepared(id=name, base=self._header.state)

    def apply(self, prepared: Prepared, binding: IndexBinding) -> None:
        """See `PrimaryKeyIndex`.

        Effects: *1. changes the dictionary with the header; 2. in the background, makes that
        durable and removes the runs that it does not name.* A crash before 1 leaves the index at
        its older snapshot; so does a power loss before 2, with all runs of that.
        """
        change = self._pending.get(prepared.id)
        if change is None:
            raise InvalidInputError("this change was applied or discarded", prepared=prepared.id)
        if change.base != self._header.state or self._interrupted not in (None, prepared.id):
            raise InvalidInputError(
                "the index has changed since this change was prepared", prepared=prepared.id
            )
        if not binding.is_like(self.binding):
            raise InvalidInputError("an index keeps its table, branch and key", binding=binding)
        self._interrupted = prepared.id
        header = replace(change.header, binding=binding)
        with remembering_damage(self.generation.path):
            if not self._has_landed(prepared.id):
                self._change_files(header, noting_state(change.files, prepared.id, change.base))
            self._runs.open(self.generation, header)
        self._header = header
        self._map = header.shards
        self._dictionary.forget(change.files)
        self._interrupted = None
        self._pending.clear()  # changes prepared on the older state can no longer be applied
        self._tidying.submit(self._tidy, self._unnamed())

    def discard(self, prepared: Prepared) -> None:
        """See `PrimaryKeyIndex`."""
        if prepared.id not in self._pending:
            return
        if self._interrupted == prepared.id:
            if self._has_landed(prepared.id):
                raise InvalidInputError(
                    "a change that has been applied cannot be discarded", prepared=prepared.id
                )
            self._interrupted = None
        del self._pending[prepared.id]
        self._remove_runs_of(prepared.id)

    def park(self) -> bool:
        """Stay open for a later cycle; False, and nothing is done, in the midst of a change."""
        if self._pending or self._interrupted is not None:
            return False
        self._lock.park()
        return True

    def resume(self) -> bool:
        """Use a parked index again; False: close it, it is no longer the folder's, or is damaged.

        Nobody has changed it: it kept the folder's lock.
        """
        with suppress(IndexDamagedError):
            check_unmarked(self.generation.path)
            return self._lock.resume() and self.generation == current_generation(self._lock.folder)
        return False

    @property
    def is_wanted(self) -> bool:
        """Whether somebody else waits for a parked index."""
        return self._lock.is_wanted

    def close(self) -> None:
        """See `PrimaryKeyIndex`."""
        try:
            self._tidying.shutdown()
            self._runs.close()
            self._files.close()
        finally:
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- help ------------------------------------------------------------------------------------

    def _find(self, parts: Sequence[ShardKeys]) -> list[tuple[Int64s, Rows]]:
        return run_in_parts(
            lambda part: rows_of_keys(self._runs.shards[part[0]], part[1]),
            parts,
            at_once=THREADS_MAX,
        )

    def _write_runs(
        self, name: str, changes: IndexChanges, file_ids: Int64s, dropped_ids: tuple[int, ...]
    ) -> tuple[tuple[int, ...], tuple[tuple[str, ...], ...]]:
        """Write a run per touched shard, or per part of one that is split.

        Returns:
            Where each shard begins after the change, and its runs.
        """
        folder = self.generation.runs_path
        scratch = folder / f"{name}.scratch"
        parts = ChangeParts(self._map, scratch)
        parts.fill(changes, file_ids)
        if parts.is_large:
            release_unused()
        dropped = np.array(dropped_ids, dtype=np.int64)

        def stays(rows: Rows) -> Bools:
            alive = live_rows(rows, self._dictionary.by_ids)[0]
            return alive & ~np.isin(file_id_of(rows), dropped) if len(dropped) else alive

        def write(shard: int) -> list[tuple[int, tuple[str, ...]]]:
            runs = self._runs.shards[shard]
            written = write_change(
                folder,
                f"{name}-{shard:04d}",
                runs,
                parts.load(shard),
                stays,
                self._map.range_of(shard),
            )
            if parts.is_large:
                release_unused()  # what the shard's share took
            older = tuple(each.name for each in runs[written.merged :])
            return [
                (start, (() if run is None else (run,)) + older) for start, run in written.parts
            ]

        # A shard's share of a large change is held while its run is written; a small run is mostly
        # waiting for the disk.
        at_a_time = os.cpu_count() or 1 if parts.is_large else THREADS_MAX
        touched = parts.touched()
        changed = dict(zip(touched, run_in_parts(write, touched, at_once=at_a_time), strict=True))
        shutil.rmtree(scratch, ignore_errors=True)
        with disk_errors(folder):
            sync_folder(folder)
        return after_change(self._header.starts, self.run_names, changed)

    def _change_files(self, header: FilesHeader, files: FileChanges) -> None:
        """Change the dictionary and the header in one step."""
        if len(files.keys) <= WRITTEN_MAX:
            self._runtime.fail_point("index.apply.before")
            self._files.write(files.keys, files.values, header.to_json())
        else:
            sst = self.generation.runs_path / f"{header.state}.sst"
            with disk_errors(sst):
                sst.unlink(missing_ok=True)
            write_sst(sst, [(files.keys, files.values)], header.to_json())
            self._runtime.fail_point("index.apply.before")
            self._files.ingest(sst)
        self._runtime.fail_point("index.apply.after")

    def _tidy(self, unnamed: Sequence[Path]) -> None:
        """Nothing that an older header names goes before the newer one is on disk."""
        with suppress(StoreUnavailableError):
            self._files.sync()
            _remove_all(unnamed)

    def _has_landed(self, change: str) -> bool:
        return FilesHeader.parse(self._files.header(), self._files.path).state == change

    def _unnamed(self) -> list[Path]:
        """What the header does not name. To leave it costs disk only."""
        named = {f"{run.name}.run" for runs in self._runs.shards for run in runs}
        with disk_errors(self.generation.runs_path):
            return [p for p in self.generation.runs_path.iterdir() if p.name not in named]

    def _remove_runs_of(self, change: str) -> None:
        _remove_all(list(self.generation.runs_path.glob(f"{change}*")))

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


def _remove_all(paths: Sequence[Path]) -> None:
    for path in paths:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with suppress(OSError):
                path.unlink()
