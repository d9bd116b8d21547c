"""Shared storage of an index: its versions, its files, and what of them may be removed.

Nothing here is ever overwritten or trusted unseen: versions carry a checksum, files are compared
with the size and digest that the version names, and everything that nobody names is garbage.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from resolver.index.base import IndexDamagedError
from resolver.index.damage import damaged
from resolver.index.folder import disk_errors
from resolver.index.shared_versions import IndexVersion, StoredFile
from tableformat.errors import AlreadyExistsError, NotFoundError
from tableformat.store.base import ObjectInfo, ObjectStore

VERSIONS_KEPT = 2
# Younger garbage may be the work of a process that is about to name it.
GARBAGE_AGE_MIN_MS = 3_600_000
_CHUNK_BYTES = 4 << 20
_DIGITS = 20


@dataclass(frozen=True, slots=True)
class IndexDepot:
    """One index in shared storage. Pickles when its store does.

    Attributes:
        store: Where it lies.
        root: Its folder, which holds nothing else.
    """

    store: ObjectStore
    root: str

    # -- versions --------------------------------------------------------------------------------

    def newest_number(self) -> int:
        """The highest version number taken; 0 when there is none."""
        return max((number for number, _ in self._versions()), default=0)

    def load(self, number: int) -> IndexVersion:
        """One version.

        Raises:
            IndexDamagedError: It is missing, unreadable or not what its name says.
        """
        location = self._version_location(number)
        try:
            version = IndexVersion.decode(self.store.get(location), location)
        except NotFoundError as error:
            raise damaged("a version of the index is gone", location) from error
        if version.number != number:
            raise damaged("a version of the index has another number", location)
        return version

    def take(self, version: IndexVersion) -> bool:
        """Create a version; False when its number belongs to another one.

        Repeating it after a lost answer is no conflict: the object is compared.
        """
        data = version.encode()
        location = self._version_location(version.number)
        try:
            self.store.put(location, data)
        except AlreadyExistsError:
            return self.store.get(location) == data
        return True

    # -- files -----------------------------------------------------------------------------------

    def upload(self, path: Path, name: str, object_name: str) -> StoredFile:
        """Copy a local file to a new object; `name` is what it is called where it is used.

        Raises:
            StoreUnavailableError: The store or the disk failed.

        Effects: one object, which is garbage until a version names it.
        """
        digest = hashlib.sha256()
        size = 0
        location = self._file_location(object_name)
        with (
            disk_errors(path),
            path.open("rb") as source,
            self.store.open_output(location) as sink,
        ):
            while chunk := source.read(_CHUNK_BYTES):
                digest.update(chunk)
                size += len(chunk)
                sink.write(chunk)
        return StoredFile(name, object_name, size, digest.hexdigest())

    def download(self, file: StoredFile, target: Path) -> None:
        """Copy an object to a local file that does not exist yet.

        Raises:
            IndexDamagedError: It is gone, or is not what the version says.
            StoreUnavailableError: The store or the disk failed; a part may be left behind.
        """
        location = self._file_location(file.object_name)
        digest = hashlib.sha256()
        try:
            source = self.store.open_input(location)
        except NotFoundError as error:
            raise damaged("a file of the index is gone", location) from error
        with source, disk_errors(target), target.open("xb") as sink:
            while chunk := source.read(_CHUNK_BYTES):
                digest.update(chunk)
                sink.write(chunk)
        if digest.hexdigest() != file.sha256:
            raise damaged("a file of the index does not match its checksum", location)

    def leave(self, data: bytes, object_name: str) -> str:
        """Store what later tasks of the same cycle read; returns its location.

        Effects: one object, which no version will name: the cycle removes it, else the garbage
        collection.
        """
        location = self._file_location(object_name)
        self.store.put(location, data)
        return location

    # -- garbage ---------------------------------------------------------------------------------

    def collect_garbage(self, *, age_min_ms: int = GARBAGE_AGE_MIN_MS) -> int:
        """Remove what no recent version needs; returns how many objects went.

        The newest versions are kept, so that a process that reads one is not disturbed by the
        next. Ages are differences of the store's own times: no other clock is asked.

        Raises:
            StoreUnavailableError: Nothing is removed that a version which cannot be read now may
                need.

        Effects: *1. removes old versions; 2. removes files that none of the kept ones names.* A
        crash in between leaves files for the next time.
        """
        versions = sorted(self._versions(), reverse=True)
        if not versions:
            return 0
        horizon_ms = versions[0][1].modified_ms - age_min_ms
        old = [info for _, info in versions[VERSIONS_KEPT:] if info.modified_ms <= horizon_ms]
        gone = {info.location for info in old}
        needed: set[str] = set()
        for number, info in versions:
            if info.location not in gone:
                with suppress(IndexDamagedError):  # it needs nothing: it is built again
                    needed |= self.load(number).object_names()
        unused = [
            info
            for info in self.store.list_prefix(f"{self.root}/files")
            if info.modified_ms <= horizon_ms and info.location.rsplit("/", 1)[-1] not in needed
        ]
        for garbage in (old, unused):
            if garbage:
                self.store.delete([info.location for info in garbage])
        return len(old) + len(unused)

    def _versions(self) -> list[tuple[int, ObjectInfo]]:
        found = []
        for info in self.store.list_prefix(f"{self.root}/versions"):
            name = info.location.rsplit("/", 1)[-1].removesuffix(".json")
            if len(name) == _DIGITS and name.isdecimal():
                found.append((int(name), info))
        return found

    def _version_location(self, number: int) -> str:
        return f"{self.root}/versions/{number:0{_DIGITS}d}.json"

    def _file_location(self, object_name: str) -> str:
        return f"{self.root}/files/{object_name}"
