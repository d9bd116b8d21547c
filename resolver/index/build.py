"""Build an index from the data files of a snapshot: in bounded memory, resumable, in parallel.

1. Every data file is read (key columns and `_pos`, deletes applied), its keys are encoded and
   spilled by shard; a finished file is logged.
2. Shard by shard, the spill is sorted and written as one run.
3. The file dictionary is written with the binding, the folder becomes a generation, CURRENT is
   replaced.

A build that was interrupted goes on when it is started again for the same binding: logged files
and finished shards are not done again. Before step 3 nothing of it is visible; an older generation
stays in place until then.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from resolver.index.base import IndexBinding, IndexedFile
from resolver.index.build_state import BuildState, SpilledFile
from resolver.index.dictionary import file_changes, noting_state
from resolver.index.entry import keyed_batches
from resolver.index.folder import (
    FolderLock,
    Generation,
    check_usable_for_build,
    disk_errors,
    make_current,
    sync_folder,
)
from resolver.index.header import FilesHeader
from resolver.index.key_ranges import key_ranges
from resolver.index.local import LocalIndex
from resolver.index.runs import write_run
from resolver.index.shard import Shard, open_cache, write_sst
from resolver.index.shard_map import default_shard_count
from resolver.index.spill import ShardSpill
from resolver.keys import KeySchema
from tableformat.errors import CorruptDataError, InvalidInputError
from tableformat.runtime import Runtime
from tableformat.store.locations import readers_of

BUILT = "built"  # the state of a fresh generation

DEFAULT_MEMORY_BYTES = 512 << 20
DEFAULT_THREADS = 2
# A build has a file open per shard. Beyond, shards are larger, and split as they grow.
BUILD_SHARDS_MAX = 512
# Sorting holds the keys, their order and a sorted copy.
_SORT_COPIES = 4

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A data file to index.

    Attributes:
        file: What the dictionary keeps.
        record_count: Rows in the file, for the choice of the shard count and for progress.
        read: Yields the live rows: the key's columns and int64 `_pos`. Called at most once per
            attempt, in a thread of the build.
    """

    file: IndexedFile
    record_count: int
    read: Callable[[], Iterator[pa.RecordBatch]]


@dataclass(frozen=True, slots=True)
class BuildProgress:
    """How far a build is. Rows are counted by the record counts of the files."""

    phase: str
    rows_done: int
    rows_total: int
    shards_done: int
    shards_total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOptions:
    """Settings of a build.

    Attributes:
        shard_count: None: chosen from the number of rows.
        shard_rows: Rows that a shard should have: one with more than twice as many is split. None:
            follows the size of the table.
        memory_bytes: Bound of what is sorted at a time, over all threads.
        threads: Files read, and shards written, at a time.
        readers: Files read at a time, if other; each holds a row group of key columns.
    """

    shard_count: int | None = None
    shard_rows: int | None = None
    memory_bytes: int = DEFAULT_MEMORY_BYTES
    threads: int = DEFAULT_THREADS
    readers: int | None = None

    @staticmethod
    def of_table(location: str) -> BuildOptions:
        """For a build in this process from the files of the table there."""
        threads = max(os.cpu_count() or 1, 2)
        return BuildOptions(threads=threads, readers=max(threads, readers_of(location)))


def shard_count_of(options: BuildOptions, rows: int) -> int:
    """How many shards a build of so many rows in this process makes."""
    if options.shard_count is not None:
        return options.shard_count
    count = default_shard_count(rows)
    if options.shard_rows is not None:
        count = max(-(-rows // options.shard_rows), 1)
    return min(count, BUILD_SHARDS_MAX)


def build_index(
    folder: Path,
    binding: IndexBinding,
    key: KeySchema,
    sources: Sequence[SourceFile],
    *,
    runtime: Runtime,
    options: BuildOptions | None = None,
    progress: Callable[[BuildProgress], None] | None = None,
) -> LocalIndex:
    """Build the index of a snapshot in `folder`, and open it.

    Args:
        folder: Created if missing. Must hold nothing but indexes.
        binding: The snapshot that `sources` are the live data files of.
        key: The key; its fingerprint must be the binding's.
        sources: Every live data file of the snapshot, each once.
        runtime: Ids and fail points.
        options: Settings.
        progress: Called now and then, from any thread of the build, one at a time.

    Raises:
        InvalidInputError: Foreign content in the folder, or arguments that do not fit together.
        StoreUnavailableError: The folder is in use, full, read-only or forbidden.
        CorruptDataError: From `read`, or scratch files were damaged; run it again.

    Effects: *1. scratch files; 2. one run per shard; 3. CURRENT; 4. removes the older index.*
    A crash before 3 leaves the older index in place and the build to be resumed.
    """
    if binding.key_fingerprint != key.fingerprint:
        raise InvalidInputError("the binding is for another key", key=key.fingerprint)
    options = options or BuildOptions()
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    lock = FolderLock(folder)
    try:
        with disk_errors(folder):
            check_usable_for_build(folder)
            state = BuildState.load_or_start(
                folder,
                binding,
                [source.file.file_path for source in sources],
                shard_count=shard_count_of(options, sum(source.record_count for source in sources)),
                shard_rows=options.shard_rows,
                runtime=runtime,
            )
        build = _Build(state, key, sources, runtime, options, progress)
        build.spill_files()
        build.write_shards()
        generation = build.finish()
        return LocalIndex(generation, lock, runtime=runtime)
    except BaseException:
        lock.release()
        raise


@dataclass(slots=True)
class _Build:
    """One attempt."""

    state: BuildState
    key: KeySchema
    sources: Sequence[SourceFile]
    runtime: Runtime
    options: BuildOptions
    progress: Callable[[BuildProgress], None] | None
    mutex: threading.Lock = field(default_factory=threading.Lock)
    rows_total: int = field(init=False)
    rows_done: int = 0
    shards_done: int = 0

    def __post_init__(self) -> None:
        self.rows_total = sum(source.record_count for source in self.sources)

    # -- step 1: files to spills -----------------------------------------------------------------

    def spill_files(self) -> None:
        """Read the files that are not spilled yet."""
        spilled = self.state.spilled
        waiting = [source for source in self.sources if source.file.file_path not in spilled]
        self.rows_done = self.rows_total - sum(source.record_count for source in waiting)
        self._report("read")
        with disk_errors(self.state.path):
            first_id = self.state.take_file_ids(len(waiting))
        attempt = self.runtime.ids.uuid().hex
        spills = [
            ShardSpill(self.state.spill_path, shard, attempt)
            for shard in range(self.state.shard_count)
        ]
        try:
            self._parallel(
                (
                    partial(self._spill_file, source, file_id, spills)
                    for file_id, source in enumerate(waiting, start=first_id)
                ),
                self.options.readers or self.options.threads,
            )
        finally:
            for spill in spills:
                spill.close()

    def _spill_file(self, source: SourceFile, file_id: int, spills: list[ShardSpill]) -> None:
        rows = 0
        for keyed in keyed_batches(source.read(), self.key, file_id):
            parts = [
                (shard, keyed.take(part)) for shard, part in self.state.shards.split(keyed.keys)
            ]
            with self.mutex, disk_errors(self.state.path):
                for shard, part in parts:
                    spills[shard].append(part.keys, part.rows)
            rows += len(keyed)
        self.runtime.fail_point("index.build.file")
        with self.mutex, disk_errors(self.state.path):
            self.state.log(source.file.file_path, SpilledFile(file_id, rows))
            self.rows_done += source.record_count
            self._report("read")

    # -- step 2: spills to shards ----------------------------------------------------------------

    def write_shards(self) -> None:
        """Write the shards that are not finished yet."""
        self._report("write")
        file_ids = np.array([file.file_id for file in self.state.spilled.values()], dtype=np.int64)
        expected = sum(file.rows for file in self.state.spilled.values())
        found = sum(
            self._parallel(
                (
                    partial(self._write_shard, shard, file_ids)
                    for shard in range(self.state.shard_count)
                ),
                self.options.threads,
            )
        )
        if found != expected:
            self.state.remove()
            raise CorruptDataError(
                "scratch files of the index build have lost rows",
                index=self.state.path,
                found=found,
                expected=expected,
                action="run the build again",
            )

    def _write_shard(self, shard: int, file_ids: npt.NDArray[np.int64]) -> int:
        """Write the run of one shard, if that is not done; returns its rows."""
        generation = self.state.unfinished
        name = self._run_name(shard)
        target = generation.run_path(name)
        counter = generation.path / f"shard-{shard:04d}.rows"
        with disk_errors(target):
            rows = _counted(counter)
            if rows is None or target.exists() != bool(rows):
                target.unlink(missing_ok=True)
                sort_bytes = self._sort_bytes()
                parts = key_ranges(self.state.spill_path, shard, file_ids, sort_bytes)
                rows = write_run(target, name, parts)
                counter.write_text(str(rows))
        self.runtime.fail_point("index.build.shard")
        with self.mutex:
            self.shards_done += 1
            self._report("write")
        return rows

    # -- step 3 ----------------------------------------------------------------------------------

    def finish(self) -> Generation:
        """Write the dictionary and make the generation current."""
        state = self.state
        files = {source.file.file_path: source.file for source in self.sources}
        changes = noting_state(
            file_changes(
                (), ((spilled.file_id, files[path]) for path, spilled in state.spilled.items())
            ),
            BUILT,
        )
        header = FilesHeader(
            generation=state.finished.name,
            state=BUILT,
            runs=tuple(map(self._runs_of, range(state.shard_count))),
            starts=state.shards.starts,
            shard_rows=state.shard_rows,
            next_file_id=state.next_file_id,
            binding=state.binding,
        )
        sst = state.path / "files.sst"
        with disk_errors(state.path):
            sst.unlink(missing_ok=True)
            shutil.rmtree(state.unfinished.files_path, ignore_errors=True)
            write_sst(sst, [(changes.keys, changes.values)], header.to_json())
            _create_database(state.unfinished.files_path, sst)
            sync_folder(state.unfinished.runs_path)
            sync_folder(state.unfinished.path)
            self.runtime.fail_point("index.build.before_current")
            state.unfinished.path.rename(state.finished.path)
            make_current(state.folder, state.finished)
            self.runtime.fail_point("index.build.after_current")
            state.remove()
        return state.finished

    # -- help ------------------------------------------------------------------------------------

    def _run_name(self, shard: int) -> str:
        return f"{self.state.generation_id}-{shard:04d}"

    def _runs_of(self, shard: int) -> tuple[str, ...]:
        name = self._run_name(shard)
        return (name,) if self.state.unfinished.run_path(name).exists() else ()

    def _sort_bytes(self) -> int:
        """Spilled bytes that one thread may sort at a time."""
        return max(self.options.memory_bytes // self.options.threads // _SORT_COPIES, 1)

    def _report(self, phase: str) -> None:
        if self.progress is not None:
            shards = self.state.shard_count
            self.progress(
                BuildProgress(phase, self.rows_done, self.rows_total, self.shards_done, shards)
            )

    def _parallel(self, tasks: Iterator[Callable[[], T]], threads: int) -> list[T]:
        """Run tasks in threads; after the first failure no further one is started."""
        failed = threading.Event()

        def run(task: Callable[[], T]) -> T:
            if failed.is_set():
                raise CancelledError
            try:
                return task()
            except BaseException:
                failed.set()
                raise

        with ThreadPoolExecutor(threads, thread_name_prefix="index-build") as pool:
            futures = [pool.submit(run, task) for task in tasks]
        errors = [error for future in futures if (error := future.exception()) is not None]
        for error in errors:
            if not isinstance(error, CancelledError):
                raise error
        return [future.result() for future in futures]


def _counted(counter: Path) -> int | None:
    """The rows of a finished shard; None where a loss of power has taken them."""
    try:
        return int(counter.read_text())
    except (FileNotFoundError, ValueError):
        return None


def _create_database(path: Path, sst: Path) -> None:
    shard = Shard.create(path, open_cache(0))
    try:
        shard.ingest(sst)
    finally:
        shard.close()
