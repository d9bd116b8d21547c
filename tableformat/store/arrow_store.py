"""The object store for real: local files, and S3 where the catalog's properties configure it.

Every location passes the allow-list first. The store pickles (for Spark workers): its clients are
made again on the other side.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from tableformat.errors import InvalidInputError, UnsupportedError
from tableformat.store import local
from tableformat.store.base import ObjectInfo
from tableformat.store.locations import AllowedLocations, ParsedLocation
from tableformat.store.s3 import S3Objects
from tableformat.store.s3_output import S3Output


class ArrowObjectStore:
    """`ObjectStore` over local files and S3.

    Args:
        properties: Catalog properties; the `s3.*` names of PyIceberg configure S3. May hold
            secrets: never shown by `repr` or in an error.
        allowed: Where this store may read, write and delete.
    """

    def __init__(self, properties: Mapping[str, str], allowed: AllowedLocations) -> None:
        self._properties = dict(properties)
        self._allowed = allowed
        self._objects: S3Objects | None = None
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"ArrowObjectStore(allowed={list(self._allowed.prefixes)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (self._properties, self._allowed.prefixes))

    @property
    def allowed(self) -> AllowedLocations:
        """The allow-list; it grows as tables of a REST catalog are loaded."""
        return self._allowed

    def get(self, location: str, *, offset: int = 0, length: int | None = None) -> bytes:
        """See `ObjectStore.get`."""
        at = self._allowed.check(location)
        if offset < 0 or (length is not None and length < 0):
            raise InvalidInputError(
                "a range cannot be negative", location=location, offset=offset, length=length
            )
        if at.scheme == "file":
            return local.read_range(at.path, offset, length)
        return self._s3(at).get(at, offset, length)

    def size_bytes(self, location: str) -> int:
        """See `ObjectStore.size_bytes`."""
        at = self._allowed.check(location)
        if at.scheme == "file":
            return local.size_bytes(at.path)
        return self._s3(at).size_bytes(at)

    def put(self, location: str, data: bytes | memoryview) -> None:
        """See `ObjectStore.put`."""
        at = self._allowed.check(location)
        if at.scheme == "file":
            local.write_new(at.path, data)
        else:
            self._s3(at).put(at, data, memoryview(data).nbytes)

    def open_input(self, location: str) -> pa.NativeFile:
        """See `ObjectStore.open_input`."""
        at = self._allowed.check(location)
        if at.scheme == "file":
            return local.open_input(at.path)
        return self._s3(at).open_input(at)

    def open_output(self, location: str) -> local.LocalOutput | S3Output:
        """See `ObjectStore.open_output`."""
        at = self._allowed.check(location)
        if at.scheme == "file":
            return local.LocalOutput(at.path)
        return S3Output(self._s3(at), at)

    def list_prefix(self, prefix: str) -> Iterator[ObjectInfo]:
        """See `ObjectStore.list_prefix`."""
        at = self._allowed.check(prefix)
        return local.list_files(at.path) if at.scheme == "file" else self._s3(at).list(at)

    def delete(self, locations: Sequence[str]) -> None:
        """See `ObjectStore.delete`. Every location is checked before the first is removed."""
        places = [self._allowed.check(location) for location in locations]
        remote = [at for at in places if at.scheme != "file"]
        local.remove_files([at.path for at in places if at.scheme == "file"])
        if remote:
            self._s3(remote[0]).delete(remote)

    def _s3(self, at: ParsedLocation) -> S3Objects:
        if at.scheme != "s3":
            raise UnsupportedError(
                f"no object store for the scheme {at.scheme!r}",
                action="use file or s3 locations",
                location=str(at),
            )
        with self._lock:
            if self._objects is None:
                self._objects = S3Objects(self._properties)
            return self._objects


def _rebuild(properties: dict[str, str], prefixes: tuple[str, ...]) -> ArrowObjectStore:
    return ArrowObjectStore(properties, AllowedLocations(prefixes))
