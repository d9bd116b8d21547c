"""Build an index from the data files of a snapshot: in bounded memory, resumable, in parallel.

1. Every data file is read (key columns and `_pos`, deletes applied), its keys are encoded and
   spilled by shard; a finished file is logged.
2. Shard by shard, the spill is sorted and written as one SST, which a new RocksDB takes over.
3. The file dictionary is written with the binding, the folder becomes a generation, CURRENT is
   replaced.

A build that was interrupted goes on when it is started again for the same binding: logged files
and finished shards are not done again. Before step 3 nothing of it is visible; an older generation
stays in place until then.
"""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from resolver.index.base import IndexBinding, IndexedFile
from resolver.index.change import split_by_shard
from resolver.index.dictionary import file_changes
from resolver.index.entry import KeyedRows, concat_rows, group_by_key, pack_rows, sst_chunks
from resolver.index.folder import (
    FolderLock,
    Generation,
    build_path,
    check_usable_for_build,
    disk_errors,
    generation_path,
    make_current,
    write_atomically,
)
from resolver.index.header import FilesHeader, ShardHeader
from resolver.index.rocks import DEFAULT_CACHE_BYTES, RocksIndex
from resolver.index.shard import Shard, open_cache, write_sst
from resolver.index.spill import ShardSpill, read_spill, spill_size_bytes
from resolver.keys import KeySchema, encode_batch
from tableformat.errors import CorruptDataError, InvalidInputError
from tableformat.runtime import Runtime

POSITION_COLUMN = "_pos"
BUILT = "built"  # the state of a fresh generation

DEFAULT_MEMORY_BYTES = 256 << 20
DEFAULT_THREADS = 2
SPILL_BATCH_ROWS = 262_144
ROWS_PER_SHARD = 2_000_000
SHARDS_MAX = 1024
# Sorting holds the keys, their order and a sorted copy.
_SORT_COPIES = 4


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
        memory_bytes: Bound of what is sorted at a time, over all threads.
        threads: Files read, and shards written, at a time.
        cache_bytes: Block cache of the index that is returned.
    """

    shard_count: int | None = None
    memory_bytes: int = DEFAULT_MEMORY_BYTES
    threads: int = DEFAULT_THREADS
    cache_bytes: int = DEFAULT_CACHE_BYTES


def default_shard_count(rows: int) -> int:
    """Shards for a table of `rows` rows: work for every core, and memory bounded per shard."""
    return max(1, min(-(-rows // ROWS_PER_SHARD), SHARDS_MAX))


def build_index(
    folder: Path,
    binding: IndexBinding,
    key: KeySchema,
    sources: Sequence[SourceFile],
    *,
    runtime: Runtime,
    options: BuildOptions | None = None,
    progress: Callable[[BuildProgress], None] | None = None,
) -> RocksIndex:
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

    Effects: *1. scratch files; 2. one RocksDB per shard; 3. CURRENT; 4. removes the older index.*
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
            build = _Build(folder, binding, key, sources, runtime, options, progress)
            build.spill_files()
            build.write_shards()
            generation = build.finish()
        return RocksIndex(generation, lock, runtime=runtime, cache_bytes=options.cache_bytes)
    except BaseException:
        lock.release()
        raise


@dataclass(slots=True)
class _Build:
    """One attempt."""

    folder: Path
    binding: IndexBinding
    key: KeySchema
    sources: Sequence[SourceFile]
    runtime: Runtime
    options: BuildOptions
    progress: Callable[[BuildProgress], None] | None
    plan: dict[str, Any] = field(init=False)
    done: dict[str, _Logged] = field(init=False)
    mutex: threading.Lock = field(init=False, default_factory=threading.Lock)
    rows_done: int = field(init=False, default=0)
    shards_done: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.plan = self._load_plan() or self._new_plan()
        self.done = self._load_log()
        self.rows_done = sum(
            source.record_count for source in self.sources if source.file.file_path in self.done
        )

    @property
    def path(self) -> Path:
        """Scratch folder of the build."""
        return build_path(self.folder)

    @property
    def shard_count(self) -> int:
        """Shards of the new generation."""
        return int(self.plan["shards"])

    # -- plan and log ----------------------------------------------------------------------------

    def _load_plan(self) -> dict[str, Any] | None:
        """The plan of an interrupted build for the same binding; anything else is wiped."""
        try:
            plan = json.loads((self.path / "PLAN").read_bytes())
            if plan["binding"] == asdict(self.binding) and plan["shards"] >= 1:
                return dict(plan)
        except (OSError, ValueError, TypeError, KeyError):
            pass  # no build, or one that broke before it began
        if self.path.exists():
            shutil.rmtree(self.path)
        return None

    def _new_plan(self) -> dict[str, Any]:
        rows = sum(source.record_count for source in self.sources)
        plan = {
            "binding": asdict(self.binding),
            "generation": self.runtime.ids.uuid().hex,
            "shards": self.options.shard_count or default_shard_count(rows),
        }
        (self.path / "spill").mkdir(parents=True)
        (self.path / "index").mkdir()
        write_atomically(self.path / "PLAN", plan)
        return plan

    def _load_log(self) -> dict[str, _Logged]:
        """Files that an earlier attempt has spilled completely, by path."""
        wanted = {source.file.file_path for source in self.sources}
        done: dict[str, _Logged] = {}
        try:
            lines = (self.path / "LOG").read_text().splitlines()
        except FileNotFoundError:
            return done
        for line in lines:
            try:
                path, file_id, rows = json.loads(line)
            except ValueError:
                break  # the last line, cut by a crash
            if path in wanted:
                done[path] = _Logged(file_id, rows)
        return done

    def _log(self, path: str, logged: _Logged) -> None:
        with (self.path / "LOG").open("a") as file:
            file.write(json.dumps([path, logged.file_id, logged.rows]) + "\n")
        self.done[path] = logged

    # -- step 1: files to spills -----------------------------------------------------------------

    def spill_files(self) -> None:
        """Read the files that are not logged yet."""
        attempt = self.runtime.ids.uuid().hex
        spills = [
            ShardSpill(self.path / "spill", shard, attempt) for shard in range(self.shard_count)
        ]
        # Ids of an earlier attempt's unfinished files are not used again: their rows are dropped.
        first_id = int(self.plan.get("next_file_id", 0))
        missing = [source for source in self.sources if source.file.file_path not in self.done]
        self.plan["next_file_id"] = first_id + len(missing)
        write_atomically(self.path / "PLAN", self.plan)
        self._report("read")
        try:
            self._parallel(
                [
                    lambda source=source, file_id=first_id + i: self._spill_file(  # type: ignore[misc]
                        source, file_id, spills
                    )
                    for i, source in enumerate(missing)
                ]
            )
        finally:
            for spill in spills:
                spill.close()

    def _spill_file(self, source: SourceFile, file_id: int, spills: list[ShardSpill]) -> None:
        rows = 0
        for keyed in self._encoded(source, file_id):
            parts = [
                (shard, keyed.take(part))
                for shard, part in split_by_shard(keyed.keys, self.shard_count)
            ]
            with self.mutex:
                for shard, part in parts:
                    spills[shard].append(part.keys, part.rows)
            rows += len(keyed)
        self.runtime.fail_point("index.build.file")
        with self.mutex:
            for spill in spills:
                spill.flush()
            self._log(source.file.file_path, _Logged(file_id, rows))
            self.rows_done += source.record_count
            self._report("read")

    def _encoded(self, source: SourceFile, file_id: int) -> Iterator[KeyedRows]:
        """Keyed rows of a file, in batches large enough to split by shard."""
        waiting: list[KeyedRows] = []
        for batch in source.read():
            positions = batch.column(POSITION_COLUMN).to_numpy().astype(np.int64, copy=False)
            keys = encode_batch(batch, self.key)
            waiting.append(KeyedRows(keys=keys, rows=pack_rows(file_id, positions)))
            if sum(map(len, waiting)) >= SPILL_BATCH_ROWS:
                yield concat_rows(waiting)
                waiting = []
        if waiting:
            yield concat_rows(waiting)

    # -- step 2: spills to shards ----------------------------------------------------------------

    def write_shards(self) -> None:
        """Write the shards that are not finished yet."""
        self._report("write")
        done_ids = np.array([logged.file_id for logged in self.done.values()], dtype=np.int32)
        expected = sum(logged.rows for logged in self.done.values())
        counts = self._parallel(
            [
                lambda shard=shard: self._write_shard(shard, done_ids)  # type: ignore[misc]
                for shard in range(self.shard_count)
            ]
        )
        if sum(counts) != expected:
            shutil.rmtree(self.path)
            raise CorruptDataError(
                "scratch files of the index build have lost rows",
                location=self.path,
                found=sum(counts),
                expected=expected,
                action="run the build again",
            )

    def _write_shard(self, shard: int, done_ids: npt.NDArray[np.int32]) -> int:
        """Write one shard; returns its rows."""
        target = self._generation().shard_path(shard)
        counter = target.with_suffix(".rows")
        if target.exists():
            rows = int(counter.read_text())
        else:
            rows = self._create_shard(shard, done_ids, target, counter)
        self.runtime.fail_point("index.build.shard")
        with self.mutex:
            self.shards_done += 1
            self._report("write")
        return rows

    def _create_shard(
        self, shard: int, done_ids: npt.NDArray[np.int32], target: Path, counter: Path
    ) -> int:
        sst = self.path / "spill" / f"{shard}.sst"
        sst.unlink(missing_ok=True)
        rows = 0

        def chunks() -> Iterator[tuple[Sequence[bytes], Sequence[bytes]]]:
            nonlocal rows
            for keyed in self._sorted_ranges(shard, done_ids):
                rows += len(keyed)
                yield from sst_chunks(*group_by_key(keyed.keys, keyed.rows))

        header = ShardHeader(self._generation_name(), shard, self.shard_count, BUILT)
        write_sst(sst, chunks(), header.to_json())
        unfinished = target.with_suffix(".new")
        shutil.rmtree(unfinished, ignore_errors=True)
        _create_database(unfinished, sst)
        counter.write_text(str(rows))
        unfinished.rename(target)
        return rows

    def _sorted_ranges(self, shard: int, done_ids: npt.NDArray[np.int32]) -> Iterator[KeyedRows]:
        """The shard's keyed rows in key ranges that fit into memory, ranges ascending."""
        folder = self.path / "spill"
        budget = self.options.memory_bytes // self.options.threads // _SORT_COPIES
        passes = -(-spill_size_bytes(folder, shard) // budget)
        bounds = _splitters(folder, shard, passes)
        for low, high in zip([None, *bounds], [*bounds, None], strict=True):
            parts = [
                part.of_files(done_ids).in_key_range(low, high)
                for part in read_spill(folder, shard)
            ]
            if any(map(len, parts)):
                yield concat_rows(parts)

    # -- step 3 ----------------------------------------------------------------------------------

    def finish(self) -> Generation:
        """Write the dictionary and make the generation current."""
        files = {source.file.file_path: source.file for source in self.sources}
        changes = file_changes(
            (), ((logged.file_id, files[path]) for path, logged in self.done.items())
        )
        header = FilesHeader(
            generation=self._generation_name(),
            state=BUILT,
            previous="",
            shards=(BUILT,) * self.shard_count,
            next_file_id=int(self.plan["next_file_id"]),
            binding=self.binding,
        )
        generation = self._generation()
        shutil.rmtree(generation.files_path, ignore_errors=True)
        sst = self.path / "files.sst"
        sst.unlink(missing_ok=True)
        write_sst(sst, [(changes.keys, changes.values)], header.to_json())
        _create_database(generation.files_path, sst)
        self.runtime.fail_point("index.build.before_current")
        target = generation_path(self.folder, str(self.plan["generation"]))
        generation.path.rename(target)
        complete = Generation(target, self.shard_count)
        make_current(self.folder, complete)
        shutil.rmtree(self.path)
        return complete

    # -- help ------------------------------------------------------------------------------------

    def _generation_name(self) -> str:
        return generation_path(self.folder, str(self.plan["generation"])).name

    def _generation(self) -> Generation:
        """The generation while it is still in the scratch folder."""
        return Generation(self.path / "index", self.shard_count)

    def _report(self, phase: str) -> None:
        if self.progress is not None:
            rows_total = sum(source.record_count for source in self.sources)
            self.progress(
                BuildProgress(phase, self.rows_done, rows_total, self.shards_done, self.shard_count)
            )

    def _parallel(self, tasks: Sequence[Callable[[], Any]]) -> list[Any]:
        """Run tasks in threads; after the first failure no further one is started."""
        with ThreadPoolExecutor(self.options.threads, thread_name_prefix="index-build") as pool:
            futures: list[Future[Any]] = [pool.submit(task) for task in tasks]
            wait(futures, return_when=FIRST_EXCEPTION)
            for future in futures:
                future.cancel()
        for future in futures:
            if not future.cancelled():
                future.result()
        return [future.result() for future in futures]


@dataclass(frozen=True, slots=True)
class _Logged:
    """A file that is spilled completely."""

    file_id: int
    rows: int


def _create_database(path: Path, sst: Path) -> None:
    shard = Shard.create(path, open_cache(0))
    try:
        shard.ingest(sst)
    finally:
        shard.close()


def _splitters(folder: Path, shard: int, parts: int) -> list[bytes]:
    """Keys that cut a shard's key space into `parts` ranges of about equal size."""
    if parts <= 1:
        return []
    sample: list[bytes] = []
    for part in read_spill(folder, shard):
        rows = np.linspace(0, len(part) - 1, num=min(len(part), 4 * parts), dtype=np.int64)
        sample += part.keys.take(rows).to_list()
    sample = sorted(set(sample))
    return sorted({sample[i * len(sample) // parts] for i in range(1, parts)})
