"""The folder an index lives in: who may use it, and which generation is current.

```
<folder>/LOCK                     flock while an index or a build is open; ends with the process;
                                  its size says whether the holder would give it up (`FolderLock`)
<folder>/CURRENT                  JSON: format, generation, shards of the build; replaced atomically
<folder>/<generation>/files/      RocksDB: file dictionary, and the header that binds everything
<folder>/<generation>/runs/       runs of the key shards (see `run_format`)
<folder>/CURRENT.manifests        what was seen in the table's manifests (`index_keeper`),
<folder>/CURRENT.files            and of each of its files
<folder>/build/                   a build in progress; becomes a generation when it is complete
```
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resolver.index.damage import damaged
from tableformat.errors import InvalidInputError, StoreUnavailableError
from tableformat.runtime import SystemClock

# On disk: never change the value for the same layout.
FOLDER_FORMAT = 1

_CURRENT = "CURRENT"
_LOCK = "LOCK"
_BUILD = "build"
_GENERATION_PREFIX = "gen-"
# Sizes of LOCK, which only mean something while it is locked.
_IN_USE, _PARKED, _WANTED = 0, 1, 2
WANTED_MS = 2_000.0  # how long to wait for a holder that only keeps the index open
_LOOK_MS = 20.0


@dataclass(frozen=True, slots=True)
class Generation:
    """One complete index inside a folder.

    `shard_count` is what the build made; the header says how many there are.
    """

    path: Path
    shard_count: int

    @property
    def name(self) -> str:
        """The generation's unique name."""
        return self.path.name

    @property
    def files_path(self) -> Path:
        """RocksDB of the file dictionary."""
        return self.path / "files"

    @property
    def runs_path(self) -> Path:
        """Runs of all key shards."""
        return self.path / "runs"

    def run_path(self, name: str) -> Path:
        """The file of one run."""
        return self.runs_path / f"{name}.run"

    def shard_path(self, shard: int) -> Path:
        """RocksDB of one key shard, of format 1."""
        return self.path / f"shard-{shard:04d}"

    @property
    def pending_path(self) -> Path:
        """Where prepared changes waited, of format 1."""
        return self.path / "pending"


@contextmanager
def disk_errors(location: Path) -> Iterator[None]:
    """Operating-system errors as `StoreUnavailableError`: full, read-only, not permitted."""
    try:
        yield
    except OSError as error:
        raise StoreUnavailableError(
            f"the index folder cannot be used: {error.strerror or error}", index=location
        ) from error


class FolderLock:
    """Exclusive use of an index folder, between processes and within one.

    flock belongs to the open file: it ends with the process, however that ends, so a crash leaves
    no stale lock (R84); and with the file object, so an interrupt leaves none in this process.

    A holder that keeps the index open without using it says so (`park`). Who wants the folder then
    asks for it and waits, `WANTED_MS` at most, until the holder has seen it (`is_wanted`).
    """

    __slots__ = ("_file", "folder")

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with disk_errors(folder):
            self._file = (folder / _LOCK).open("ab", buffering=0)
        try:
            self._take()
        except OSError as error:
            self._file.close()
            raise StoreUnavailableError(
                "the index is in use",
                index=folder,
                action="wait for the other process, or give this one another index folder",
            ) from error

    def _take(self) -> None:
        clock = SystemClock()
        deadline_ms = clock.monotonic_ms() + WANTED_MS
        while True:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                size = self._size()
                if size == _IN_USE or clock.monotonic_ms() > deadline_ms:
                    raise
                if size == _PARKED:
                    self._resize(_WANTED)
            clock.sleep_ms(_LOOK_MS)
        if self._size() != _IN_USE:  # its last holder was killed
            self._resize(_IN_USE)

    def park(self) -> None:
        """Say that the folder is given up to whoever asks."""
        self._resize(_PARKED)

    def resume(self) -> bool:
        """Use it again; False: the folder was removed meanwhile, and this lock with it."""
        with disk_errors(self.folder):
            self._resize(_IN_USE)
            try:
                found = (self.folder / _LOCK).stat()
            except FileNotFoundError:
                return False
            return os.path.samestat(found, os.fstat(self._file.fileno()))

    @property
    def is_wanted(self) -> bool:
        """Whether somebody waits for a parked folder."""
        return self._size() == _WANTED

    def _size(self) -> int:
        return os.fstat(self._file.fileno()).st_size

    def _resize(self, size: int) -> None:
        os.ftruncate(self._file.fileno(), size)

    def release(self) -> None:
        """Give the folder free; twice is no error."""
        self._file.close()


def current_generation(folder: Path) -> Generation | None:
    """The generation that CURRENT names; None when the folder has never held a complete index.

    Raises:
        IndexDamagedError: CURRENT is unreadable or of another format.
    """
    try:
        data = (folder / _CURRENT).read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreUnavailableError(
            f"the index folder cannot be read: {error.strerror}", index=folder
        ) from error
    try:
        current = json.loads(data)
        if current["format"] != FOLDER_FORMAT:
            raise damaged(
                "the index folder has another format",
                folder,
                found=current["format"],
                expected=FOLDER_FORMAT,
            )
        name, shard_count = str(current["generation"]), int(current["shards"])
    except (ValueError, TypeError, KeyError, ArithmeticError, RecursionError) as error:
        raise damaged("CURRENT of the index folder is unreadable", folder) from error
    if not _is_generation_name(name) or shard_count < 1:
        raise damaged("CURRENT of the index folder names no index", folder)
    return Generation(folder / name, shard_count)


def make_current(folder: Path, generation: Generation) -> None:
    """Name `generation` as the index of the folder, and remove all others.

    Effects: *1. replaces CURRENT; 2. removes old generations.* A crash after 1 leaves an old
    generation, which the next call or `remove_leftovers` removes.
    """
    content = {
        "format": FOLDER_FORMAT,
        "generation": generation.name,
        "shards": generation.shard_count,
    }
    write_atomically(folder / _CURRENT, content)
    remove_leftovers(folder, generation)


def remove_leftovers(folder: Path, generation: Generation) -> None:
    """Remove generations other than the current one. Only folders that an index made."""
    for path in folder.iterdir():
        if _is_generation_name(path.name) and path != generation.path and path.is_dir():
            shutil.rmtree(path, ignore_errors=True)


def build_path(folder: Path) -> Path:
    """Where a build works."""
    return folder / _BUILD


def generation_path(folder: Path, name: str) -> Path:
    """Where the generation called `name` lives."""
    return folder / f"{_GENERATION_PREFIX}{name}"


def check_usable_for_build(folder: Path) -> None:
    """Refuse a folder that holds something other than an index; nothing foreign is touched.

    Raises:
        InvalidInputError: The folder has foreign content.
    """
    known = {_CURRENT, _LOCK, _BUILD}
    foreign = [
        path.name
        for path in folder.iterdir()
        if path.name not in known
        and not _is_generation_name(path.name)
        and not path.name.startswith(f"{_CURRENT}.")
    ]
    if foreign:
        raise InvalidInputError(
            "the index folder holds other things",
            index=folder,
            found=sorted(foreign)[0],
            action="give the index a folder of its own",
        )


def write_atomically(path: Path, content: dict[str, Any]) -> None:
    """Write a small JSON file whole or not at all, durable when this returns."""
    temporary = path.with_name(f"{path.name}.new")
    with disk_errors(path):
        with temporary.open("wb") as file:
            file.write(json.dumps(content, sort_keys=True).encode())
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Make created, renamed and removed names of a folder durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _is_generation_name(name: str) -> bool:
    return name.startswith(_GENERATION_PREFIX) and "/" not in name
