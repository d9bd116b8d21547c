"""Copies of runs on this machine, whole, under their unique names.

```
<folder>/runs-0003/<object name>     a run
<folder>/runs-0003/work-<uuid>/      a change in progress
```

Several processes may share a folder: files appear complete, by renaming, and what a process has
open stays readable when another one removes the name. The folder may be deleted at any time; it
costs the next download.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from resolver.index.depot import IndexDepot
from resolver.index.folder import disk_errors
from resolver.index.run import Run
from resolver.index.shard_cache import fetch, healing, keep, remove_abandoned
from resolver.index.shard_map import ShardRange
from resolver.index.shared_versions import StoredFile
from tableformat.sized_cache import SizedCache

OPEN_RUNS_BYTES_MAX = 512 << 20  # in one process; 0.2 bytes per key of what they hold

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunsPlace:
    """Everything a process needs to work on one key shard of one version. Pickles.

    Attributes:
        depot: Shared storage.
        folder: Gives the cache folder of the index on the machine it is called on.
        shard: Number of the shard.
        hashes: Its range.
        runs: What the shard is.
    """

    depot: IndexDepot
    folder: Callable[[], Path]
    shard: int
    hashes: ShardRange
    runs: tuple[StoredFile, ...]

    @property
    def path(self) -> Path:
        """The shard's part of the cache on this machine."""
        return self.folder() / f"runs-{self.shard:04d}"


# By path. One that is given up while it is in use closes with its last user.
_open_runs: SizedCache[Run] = SizedCache(OPEN_RUNS_BYTES_MAX, lambda run: run.memory_bytes + 1)


def with_runs(place: RunsPlace, work: Callable[[list[Run]], T]) -> T:
    """Do something with the runs of a shard; see `healing`."""

    def drop() -> None:
        forget_open(place.path)
        for path in place.path.glob("*.run"):
            path.unlink(missing_ok=True)

    return healing(lambda: work(_opened(place)), drop)


def publish_run(place: RunsPlace, path: Path, name: str) -> StoredFile:
    """Upload a new run of a shard.

    Effects: an object, which is garbage until a version names it. This machine keeps a copy.
    """
    stored = place.depot.upload(path, name, f"{name}.run")
    keep(path, place.path / stored.object_name)
    return stored


def forget_open(folder: Path) -> None:
    """Close what this process has open below a cache folder."""
    _open_runs.forget(lambda path: isinstance(path, Path) and folder in path.parents)


def _opened(place: RunsPlace) -> list[Run]:
    found, is_new = [], False
    for file in place.runs:
        path = place.path / file.object_name
        run = _open_runs.get(path)
        if run is None:
            run, is_new = _open(place, file, path), True
            _open_runs.put(path, run)
        found.append(run)
    if is_new:
        _evict_others(place)
    return found


def _open(place: RunsPlace, file: StoredFile, path: Path) -> Run:
    with disk_errors(path):
        if not path.exists() or path.stat().st_size != file.size_bytes:
            fetch(place.depot, file, path)
    return Run(path, file.name)


def _evict_others(place: RunsPlace) -> None:
    """Remove what the version does not need. What others have open stays with them."""
    wanted = {file.object_name for file in place.runs}
    with suppress(OSError):
        for entry in os.scandir(place.path):
            if entry.name.endswith(".run") and entry.name not in wanted:
                Path(entry.path).unlink(missing_ok=True)
        remove_abandoned(place.path)
