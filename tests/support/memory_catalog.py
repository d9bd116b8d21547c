"""A catalog in memory: for the simulator and for tests. Same commit code as the SQL catalog."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

from tableformat.catalog.base import Identifier
from tableformat.catalog.pointer import PointerCatalog
from tableformat.catalog.pointers import PointerSwap, table_exists
from tableformat.runtime import Runtime
from tableformat.store.base import ObjectStore
from tableformat.store.locations import AllowedLocations
from tests.support.memory_store import MEMORY_WAREHOUSE


class MemoryPointers:
    """Pointers in dicts under one lock. Shared by the catalogs of several simulated actors."""

    def __init__(self) -> None:
        self._tables: dict[Identifier, str] = {}
        self._namespaces: set[Identifier] = set()
        self._lock = threading.Lock()

    def read(self, identifier: Identifier) -> str | None:
        """See `MetadataPointers.read`."""
        with self._lock:
            return self._tables.get(identifier)

    def insert(self, identifier: Identifier, metadata_location: str) -> bool:
        """See `MetadataPointers.insert`."""
        with self._lock:
            if identifier in self._tables:
                return False
            self._tables[identifier] = metadata_location
            return True

    def swap(self, identifier: Identifier, *, expected: str, new: str) -> bool:
        """See `MetadataPointers.swap`."""
        with self._lock:
            if self._tables.get(identifier) != expected:
                return False
            self._tables[identifier] = new
            return True

    def swap_all(self, swaps: Sequence[PointerSwap]) -> bool:
        """See `MetadataPointers.swap_all`."""
        with self._lock:
            if any(self._tables.get(each.identifier) != each.expected for each in swaps):
                return False
            self._tables.update({each.identifier: each.new for each in swaps})
            return True

    def remove(self, identifier: Identifier) -> bool:
        """See `MetadataPointers.remove`."""
        with self._lock:
            return self._tables.pop(identifier, None) is not None

    def rename(self, identifier: Identifier, new: Identifier) -> bool:
        """See `MetadataPointers.rename`."""
        with self._lock:
            if new in self._tables:
                raise table_exists(new)
            location = self._tables.pop(identifier, None)
            if location is not None:
                self._tables[new] = location
            return location is not None

    def tables(self) -> list[Identifier]:
        """See `MetadataPointers.tables`."""
        with self._lock:
            return list(self._tables)

    def locations(self) -> dict[Identifier, str]:
        """See `MetadataPointers.locations`."""
        with self._lock:
            return dict(self._tables)

    def add_namespace(self, namespace: Identifier) -> None:
        """See `MetadataPointers.add_namespace`."""
        with self._lock:
            self._namespaces.add(namespace)

    def remove_namespace(self, namespace: Identifier) -> None:
        """See `MetadataPointers.remove_namespace`."""
        with self._lock:
            self._namespaces.discard(namespace)

    def namespaces(self) -> list[Identifier]:
        """See `MetadataPointers.namespaces`."""
        with self._lock:
            return list(self._namespaces | {one[:-1] for one in self._tables})


class MemoryCatalog(PointerCatalog):
    """`PointerCatalog` over `MemoryPointers`.

    Args:
        store: Where metadata files go, usually a `MemoryObjectStore`.
        runtime: Clock, ids and fail points of this actor.
        pointers: State to share with another actor's catalog; fresh by default.
        warehouse: Prefix of tables without a location; the only allowed prefix too.
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        runtime: Runtime | None = None,
        pointers: MemoryPointers | None = None,
        warehouse: str = MEMORY_WAREHOUSE,
        name: str = "memory",
        properties: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(
            name,
            properties or {},
            pointers=pointers or MemoryPointers(),
            store=store,
            runtime=runtime or Runtime(),
            warehouse=warehouse,
            allowed=AllowedLocations([warehouse]),
        )
