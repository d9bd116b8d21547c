"""The object store for real: local files, and buckets on S3, GCS and Azure.

Every location passes the allow-list first. The store pickles (for Spark workers): its clients are
made again on the other side.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from tableformat.errors import InvalidInputError
from tableformat.store import local
from tableformat.store.base import ObjectInfo
from tableformat.store.bucket_files import BucketOutput
from tableformat.store.bucket_objects import BucketObjects
from tableformat.store.locations import AllowedLocations
from tableformat.store.vended import CredentialVault


class ArrowObjectStore:
    """`ObjectStore` over local files and buckets.

    Args:
        properties: Catalog properties; the names of PyIceberg (`s3.*`, `gcs.*`, `adls.*`) configure
            buckets. May hold secrets: never shown by `repr` or in an error.
        allowed: Where this store may read, write and delete.
        vault: Credentials that a catalog hands out with its tables.
    """

    def __init__(
        self,
        properties: Mapping[str, str],
        allowed: AllowedLocations,
        vault: CredentialVault | None = None,
    ) -> None:
        self._properties = dict(properties)
        self._allowed = allowed
        self._vault = CredentialVault() if vault is None else vault
        self._objects = BucketObjects(self._properties, self._vault)

    def __repr__(self) -> str:
        return f"ArrowObjectStore(allowed={list(self._allowed.prefixes)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (self._properties, self._allowed.prefixes, self._vault))

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
        return self._objects.get(at, offset, length)

    def size_bytes(self, location: str) -> int:
        """See `ObjectStore.size_bytes`."""
        at = self._allowed.check(location)
        if at.scheme == "file":
            return local.size_bytes(at.path)
        return self._objects.size_bytes(at)

    def put(self, location: str, data: bytes | memoryview) -> None:
        """See `ObjectStore.put`."""
        at = self._allowed.check(location)
        if at.scheme == "file":
            local.write_new(at.path, data)
        else:
            content = bytes(data)
            self._objects.put(at, content, len(content))

    def open_input(self, location: str) -> pa.NativeFile:
        """See `ObjectStore.open_input`."""
        at = self._allowed.check(location)
        if at.scheme == "file":
            return local.open_input(at.path)
        return self._objects.open_input(at)

    def open_output(self, location: str) -> local.LocalOutput | BucketOutput:
        """See `ObjectStore.open_output`."""
        at = self._allowed.check(location)
        if at.scheme == "file":
            return local.LocalOutput(at.path)
        return BucketOutput(partial(self._objects.put, at))

    def list_prefix(self, prefix: str) -> Iterator[ObjectInfo]:
        """See `ObjectStore.list_prefix`."""
        at = self._allowed.check(prefix)
        return local.list_files(at.path) if at.scheme == "file" else self._objects.list(at)

    def delete(self, locations: Sequence[str]) -> None:
        """See `ObjectStore.delete`. Every location is checked before the first is removed."""
        places = [self._allowed.check(location) for location in locations]
        remote = [at for at in places if at.scheme != "file"]
        local.remove_files([at.path for at in places if at.scheme == "file"])
        if remote:
            self._objects.delete(remote)


def _rebuild(
    properties: dict[str, str], prefixes: tuple[str, ...], vault: CredentialVault
) -> ArrowObjectStore:
    return ArrowObjectStore(properties, AllowedLocations(prefixes), vault)
