"""The object store for real: local files, and S3 where the catalog's properties configure it.

Every location passes the allow-list first. The store pickles (for Spark workers): its clients are
made again on the other side.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyarrow.fs import LocalFileSystem

from tableformat.errors import UnsupportedError
from tableformat.store import local
from tableformat.store.base import ObjectInfo
from tableformat.store.locations import AllowedLocations, ParsedLocation


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
        return local.read_range(self._local(location), offset, length)

    def size_bytes(self, location: str) -> int:
        """See `ObjectStore.size_bytes`."""
        return local.size_bytes(self._local(location))

    def put(self, location: str, data: bytes | memoryview) -> None:
        """See `ObjectStore.put`."""
        local.write_new(self._local(location), data)

    def open_input(self, location: str) -> pa.NativeFile:
        """See `ObjectStore.open_input`."""
        path = self._local(location)
        local.size_bytes(path)
        return LocalFileSystem().open_input_file(path)

    def open_output(self, location: str) -> Any:
        """See `ObjectStore.open_output`."""
        return local.LocalOutput(self._local(location))

    def list_prefix(self, prefix: str) -> Iterator[ObjectInfo]:
        """See `ObjectStore.list_prefix`."""
        for path, status in local.list_files(self._local(prefix)):
            yield local.object_info(f"file://{path}", status)

    def delete(self, locations: Sequence[str]) -> None:
        """See `ObjectStore.delete`."""
        local.remove_files([self._local(location) for location in locations])

    def _local(self, location: str) -> str:
        parsed = self._allowed.check(location)
        if parsed.scheme != "file":
            raise _unsupported(parsed)
        return parsed.path


def _unsupported(parsed: ParsedLocation) -> UnsupportedError:
    return UnsupportedError(
        f"no object store for the scheme {parsed.scheme!r}",
        action="use file or s3 locations",
        location=str(parsed),
    )


def _rebuild(properties: dict[str, str], prefixes: tuple[str, ...]) -> ArrowObjectStore:
    return ArrowObjectStore(properties, AllowedLocations(prefixes))
