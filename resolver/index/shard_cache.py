"""Copies of databases on this machine: any version is opened by fetching what is missing.

```
<folder>/shard--001/files/<object name>     SST files, whole, under their unique names
<folder>/shard--001/open-<gen>-<state>/     one version for RocksDB: links to the files, MANIFEST
<folder>/shard--001/work-<uuid>/            a change in progress
```

The file dictionary is one; the key shards of format 1 were.

Several processes may share a folder: files and folders appear under their names complete, by
renaming, and links keep what a process has open when another one removes the name. The folder may
be deleted at any time; it costs the next download.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from resolver.index.base import IndexDamagedError
from resolver.index.damage import damaged
from resolver.index.depot import IndexDepot
from resolver.index.folder import disk_errors
from resolver.index.header import ShardHeader
from resolver.index.shard import Shard, open_cache
from resolver.index.shared_versions import ShardVersion, StoredFile
from tableformat.runtime import Runtime
from tableformat.sized_cache import SizedCache

BLOCK_CACHE_BYTES = 64 << 20  # of all shards that a process has open
OPEN_SHARDS_MAX = 40  # in one process; each holds a handful of open files
ABANDONED_AGE_MS = 86_400_000
_LINK_ATTEMPTS = 5

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardPlace:
    """Everything a process needs to work on one shard of one version. Pickles.

    Attributes:
        depot: Shared storage.
        folder: Gives the cache folder of the index on the machine it is called on.
        generation: The index's build.
        shard: Number of the shard; -1 is the file dictionary.
        shard_count: Number of key shards.
        version: What the shard is.
    """

    depot: IndexDepot
    folder: Callable[[], Path]
    generation: str
    shard: int
    shard_count: int
    version: ShardVersion

    @property
    def path(self) -> Path:
        """The shard's part of the cache on this machine."""
        return self.folder() / f"shard-{self.shard:04d}"

    @property
    def opened_name(self) -> str:
        """Name of the folder that RocksDB opens."""
        return f"open-{self.generation}-{self.version.state}"

    def header(self, state: str) -> ShardHeader:
        """What the shard says of itself in a state."""
        return ShardHeader(self.generation, self.shard, self.shard_count, state)


# By path, with the name of the version. One that is given up closes with its last user.
_open_shards: SizedCache[tuple[str, Shard]] = SizedCache(OPEN_SHARDS_MAX, lambda _: 1)


@cache
def _block_cache() -> Any:
    return open_cache(BLOCK_CACHE_BYTES)


def with_shard(place: ShardPlace, work: Callable[[Shard], T]) -> T:
    """Do something with a shard, opened for reading; see `healing`."""
    return healing(lambda: work(_opened(place)), lambda: drop_copy(place))


def drop_copy(place: ShardPlace) -> None:
    """Close a shard's copy, and remove it."""
    _open_shards.forget(lambda path: path == place.path)
    for path in (*place.path.glob("open-*"), place.path / "files"):
        shutil.rmtree(path, ignore_errors=True)


def _opened(place: ShardPlace) -> Shard:
    path, name = place.path, place.opened_name
    known = _open_shards.get(path)
    if known is None or known[0] != name:
        known = (name, _open(place, _block_cache()))
        _open_shards.put(path, known)
    return known[1]


def healing(work: Callable[[], T], drop: Callable[[], None]) -> T:
    """Do something with a shard's copy, and again with a fresh one if it turns out damaged.

    What is damaged then is damaged in shared storage.

    Raises:
        IndexDamagedError: The shard cannot be trusted.
        StoreUnavailableError: The store or the disk failed.

    Effects: files in the cache folder.
    """
    try:
        return work()
    except IndexDamagedError:
        drop()
        return work()


def forget_open(folder: Path) -> None:
    """Close what this process has open below a cache folder."""
    _open_shards.forget(lambda path: isinstance(path, Path) and path.parent == folder)


@contextmanager
def writable_copy(place: ShardPlace) -> Iterator[tuple[Shard, Path]]:
    """A copy of a shard to be changed, and an empty folder beside it. Both go with the block."""
    with work_folder(place.path) as work:
        copy = work / "shard"
        scratch = work / "scratch"
        with disk_errors(scratch):
            scratch.mkdir()
        _materialize(place, copy)
        shard = Shard.open(copy, open_cache(0))
        try:
            yield shard, scratch
        finally:
            shard.close()


@contextmanager
def new_shard(place: ShardPlace) -> Iterator[tuple[Callable[[], Shard], Path]]:
    """A function that makes an empty shard, and an empty folder. Both go with the block."""
    with work_folder(place.path) as work:
        scratch = work / "scratch"
        with disk_errors(scratch):
            scratch.mkdir()
        made: list[Shard] = []

        def create() -> Shard:
            made.append(Shard.create(work / "shard", open_cache(0)))
            return made[-1]

        try:
            yield create, scratch
        finally:
            for shard in made:
                shard.close()


def publish_shard(place: ShardPlace, shard: Shard, scratch: Path, state: str) -> ShardVersion:
    """Upload what a changed shard has and `place.version` has not.

    Effects: objects, which are garbage until a version names them. This machine keeps copies.
    """
    runtime = Runtime()
    checkpoint = scratch / "checkpoint"
    shard.checkpoint(checkpoint, runtime.clock)
    known = {file.name: file for file in place.version.files}
    files = []
    with disk_errors(checkpoint):
        for path in sorted(checkpoint.glob("*.sst")):
            file = known.get(path.name)
            if file is None:
                object_name = f"{runtime.ids.uuid().hex}.sst"
                file = place.depot.upload(path, path.name, object_name)
                keep(path, place.path / "files" / object_name)
            files.append(file)
        manifest_name = (checkpoint / "CURRENT").read_text().strip()
        manifest = (checkpoint / manifest_name).read_bytes()
    return ShardVersion(state, manifest_name, manifest, tuple(files))


def _open(place: ShardPlace, block_cache: Any) -> Shard:
    opened = place.path / place.opened_name
    if not opened.is_dir():
        with work_folder(place.path) as work:
            _materialize(place, work / "shard")
            with suppress(OSError):  # another process was faster
                (work / "shard").rename(opened)
    shard = Shard.open_read_only(opened, block_cache)
    found = ShardHeader.parse(shard.header(), opened)
    # The dictionary's says how many key shards there were when it was written.
    if replace(found, shards=place.shard_count) != place.header(place.version.state):
        raise damaged("a shard belongs to another index or another version", opened)
    _evict_others(place, opened.name)
    return shard


def _materialize(place: ShardPlace, target: Path) -> None:
    """Make the folder that RocksDB opens."""
    with disk_errors(target):
        target.mkdir()
        for file in place.version.files:
            _link(place, file, target / file.name)
        (target / place.version.manifest_name).write_bytes(place.version.manifest)
        (target / "CURRENT").write_text(f"{place.version.manifest_name}\n")


def _link(place: ShardPlace, file: StoredFile, target: Path) -> None:
    cached = place.path / "files" / file.object_name
    for _ in range(_LINK_ATTEMPTS):
        try:
            if cached.stat().st_size == file.size_bytes:
                os.link(cached, target)
                return
        except FileNotFoundError:
            pass  # never fetched, or removed by a process that works on another version
        fetch(place.depot, file, cached)
    raise damaged("a cached file of the index cannot be kept", cached)


def fetch(depot: IndexDepot, file: StoredFile, cached: Path) -> None:
    """Copy an object to a file that appears whole, or not at all."""
    cached.parent.mkdir(parents=True, exist_ok=True)
    part = cached.with_name(f"{file.object_name}.{Runtime().ids.uuid().hex}.part")
    try:
        depot.download(file, part)
        part.replace(cached)
    finally:
        part.unlink(missing_ok=True)


def keep(path: Path, cached: Path) -> None:
    """Keep a file that was uploaded as the copy of its object."""
    with suppress(OSError):  # a copy that is not kept is fetched when it is needed
        cached.parent.mkdir(parents=True, exist_ok=True)
        os.link(path, cached)


def _evict_others(place: ShardPlace, opened: str) -> None:
    """Remove what the version does not need. What others have open stays with them."""
    wanted = {file.object_name for file in place.version.files}
    with suppress(OSError):
        for path in place.path.glob("open-*"):
            if path.name != opened:
                shutil.rmtree(path, ignore_errors=True)
        for path in (place.path / "files").glob("*.sst"):
            if path.name not in wanted:
                path.unlink(missing_ok=True)
        remove_abandoned(place.path)


def remove_abandoned(parent: Path) -> None:
    """Remove the scratch folders of processes that were killed."""
    horizon_ms = Runtime().clock.now_ms() - ABANDONED_AGE_MS
    for path in parent.glob("work-*"):
        if path.stat().st_mtime_ns // 1_000_000 < horizon_ms:
            shutil.rmtree(path, ignore_errors=True)


@contextmanager
def work_folder(parent: Path) -> Iterator[Path]:
    """A scratch folder that goes with the block."""
    work = parent / f"work-{Runtime().ids.uuid().hex}"
    with disk_errors(work):
        work.mkdir(parents=True)
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)
