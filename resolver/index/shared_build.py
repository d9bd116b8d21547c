"""Open the index in shared storage, or build it: on the executors, or in this process.

On the executors every data file is read once, its rows go to their shards' tasks, and each task
writes and uploads its shard. In this process the index is built as a local one is (resumable, in
bounded memory), then uploaded. Nothing is visible before the version is created, last.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from pyroaring import BitMap64

from resolver.index.base import IndexBinding, IndexDamagedError, IndexedFile
from resolver.index.build import (
    BUILT,
    BuildOptions,
    BuildProgress,
    SourceFile,
    build_index,
)
from resolver.index.depot import IndexDepot
from resolver.index.dictionary import file_changes
from resolver.index.open import compare_bindings
from resolver.index.run_cache import RunsPlace, publish_run
from resolver.index.shard_cache import ShardPlace
from resolver.index.shard_map import (
    ROWS_PER_SHARD_MIN,
    ShardMap,
    default_shard_count,
    even_starts,
)
from resolver.index.shard_work import (
    RowSource,
    Runs,
    build_shard,
    convert_shard,
    create,
    split_rows,
)
from resolver.index.shared import (
    DICTIONARY_SHARD,
    IndexMovedError,
    SharedIndex,
    Workplace,
    places_of,
)
from resolver.index.shared_versions import IndexVersion, ShardVersion
from resolver.keys import KeySchema
from resolver.runner import ShufflingRunner
from tableformat.errors import InvalidInputError, StoreUnavailableError
from tableformat.runtime import Runtime

Progress = Callable[[BuildProgress], None]
# Every core has a shard, also of a small table; beyond, of `ROWS_PER_SHARD_MIN` rows at least.
EXECUTOR_SHARDS_MAX = 32
_NOTHING = ShardVersion("", "", b"", ())


@dataclass(frozen=True, slots=True)
class OpenedShared:
    """Either an index, or one line on why there is none."""

    index: SharedIndex | None
    detail: str = ""


def open_shared(
    depot: IndexDepot, expected: IndexBinding, workplace: Workplace, runtime: Runtime
) -> OpenedShared:
    """Open the newest version.

    Args:
        depot: Shared storage.
        expected: Table, branch and key that it must be for; the snapshot is not compared.
        workplace: Where the work is done.
        runtime: Ids and fail points.

    Raises:
        StoreUnavailableError: The store or the disk failed; a rebuild would not help.

    Effects: converts a version of format 1, as the next version.
    """
    number = depot.newest_number()
    if not number:
        return OpenedShared(None, "there is no index")
    try:
        version = depot.load(number)
        refused = compare_bindings(version.binding, expected)
        if refused is not None:
            return OpenedShared(None, refused.detail)
        if version.databases:
            version = _convert(depot, version, workplace)
        return OpenedShared(SharedIndex(depot, version, workplace, runtime))
    except IndexDamagedError as error:
        return OpenedShared(None, str(error))


def _convert(depot: IndexDepot, version: IndexVersion, workplace: Workplace) -> IndexVersion:
    """Make and take the version with runs that says what a version with databases says."""
    count = len(version.databases)
    places = places_of(depot, workplace.cache, ShardMap.even(count), [()] * count)
    shards = workplace.runner.run(
        convert_shard,
        [
            (
                ShardPlace(
                    depot=depot,
                    folder=workplace.cache,
                    generation=version.generation,
                    shard=place.shard,
                    shard_count=count,
                    version=database,
                ),
                place,
            )
            for place, database in zip(places, version.databases, strict=True)
        ],
    )
    converted = replace(
        version,
        number=version.number + 1,
        shards=tuple(shards),
        starts=even_starts(count),
        databases=(),
    )
    if not depot.take(converted):
        raise IndexMovedError("another process has converted the index", index=depot.root)
    return converted


def build_shared(
    depot: IndexDepot,
    binding: IndexBinding,
    key: KeySchema,
    sources: Sequence[SourceFile],
    workplace: Workplace,
    *,
    runtime: Runtime,
    options: BuildOptions,
    progress: Progress | None = None,
) -> SharedIndex:
    """Build the index of a snapshot as the next version, and open it.

    Args:
        depot: Shared storage; what is there stays until it is garbage.
        binding: The snapshot that `sources` are the live data files of.
        key: The key; its fingerprint must be the binding's.
        sources: Every live data file of the snapshot, each once.
        workplace: Where the work is done.
        runtime: Ids and fail points.
        options: Settings.
        progress: Called now and then.

    Raises:
        IndexMovedError: Another process has taken the next version.
        StoreUnavailableError, CorruptDataError: See `build_index`.

    Effects: *1. objects; 2. the version; 3. removes garbage.* A crash before 2 leaves garbage.
    """
    if binding.key_fingerprint != key.fingerprint:
        raise InvalidInputError("the binding is for another key", key=key.fingerprint)
    number = depot.newest_number() + 1
    build = _Build(depot, binding, key, sources, workplace, runtime, options, progress)
    runner = workplace.runner
    if isinstance(runner, ShufflingRunner):
        built = build.on_executors(runner)
    else:
        built = build.in_process()
    dictionary_at = ShardPlace(
        depot=depot,
        folder=partial(Path, workplace.own_cache),
        generation=built.generation,
        shard=DICTIONARY_SHARD,
        shard_count=len(built.shards),
        version=_NOTHING,
    )
    pairs = file_changes((), sorted(built.files.items()))
    runtime.fail_point("index.build.before_current")
    version = IndexVersion(
        number=number,
        generation=built.generation,
        binding=binding,
        next_file_id=max(built.files, default=-1) + 1,
        gone_files=BitMap64().serialize(),
        dictionary=create(dictionary_at, BUILT, [(pairs.keys, pairs.values)]),
        shards=built.shards,
        starts=even_starts(len(built.shards)),
        shard_rows=options.shard_rows,
    )
    if not depot.take(version):
        raise IndexMovedError("another process has built the index", index=depot.root)
    runtime.fail_point("index.build.after_current")
    with suppress(StoreUnavailableError):  # the index is there; garbage can wait
        depot.collect_garbage()
    return SharedIndex(depot, version, workplace, runtime)


@dataclass(frozen=True, slots=True)
class _Built:
    generation: str
    shards: tuple[Runs, ...]
    files: dict[int, IndexedFile]


@dataclass(frozen=True, slots=True)
class _Build:
    """The arguments of `build_shared`."""

    depot: IndexDepot
    binding: IndexBinding
    key: KeySchema
    sources: Sequence[SourceFile]
    workplace: Workplace
    runtime: Runtime
    options: BuildOptions
    progress: Progress | None

    def on_executors(self, runner: ShufflingRunner) -> _Built:
        rows = sum(source.record_count for source in self.sources)
        # Every core should have a shard to look up.
        wanted = max(EXECUTOR_SHARDS_MAX, rows // ROWS_PER_SHARD_MIN)
        usual = max(default_shard_count(rows), min(runner.parallelism, wanted))
        count = self.options.shard_count or usual
        shards = ShardMap.even(count, self.options.shard_rows)
        generation = f"gen-{self.runtime.ids.uuid().hex}"
        if self.progress is not None:
            self.progress(BuildProgress("on executors", 0, rows, 0, count))
        built = runner.shuffle(
            partial(split_rows, self.key, shards),
            [RowSource(file_id, source.read) for file_id, source in enumerate(self.sources)],
            partial(build_shard, self._places(shards)),
            count,
        )
        if self.progress is not None:
            self.progress(BuildProgress("on executors", rows, rows, count, count))
        files = {file_id: source.file for file_id, source in enumerate(self.sources)}
        return _Built(generation, tuple(built), files)

    def in_process(self) -> _Built:
        folder = self.workplace.own_cache / "build"
        local = build_index(
            folder,
            self.binding,
            self.key,
            self.sources,
            runtime=self.runtime,
            options=self.options,
            progress=self.progress,
        )
        generation, files, names = local.generation, local.files(), local.run_names
        local.close()

        def upload(place: RunsPlace) -> Runs:
            return tuple(
                publish_run(place, generation.run_path(name), name) for name in names[place.shard]
            )

        places = self._places(ShardMap.even(len(names), self.options.shard_rows))
        shards = self.workplace.runner.run(upload, places)
        shutil.rmtree(folder, ignore_errors=True)
        return _Built(generation.name, tuple(shards), files)

    def _places(self, shards: ShardMap) -> list[RunsPlace]:
        """The places of shards that have no run yet."""
        return places_of(self.depot, self.workplace.cache, shards, [()] * len(shards))
