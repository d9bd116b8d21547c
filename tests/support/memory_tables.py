"""Tables in memory: real codecs and the real commit engine, no disk but for the index."""

from __future__ import annotations

import uuid

from tableformat import TableCatalog
from tableformat.environment import Environment
from tableformat.runtime import Runtime
from tests.support.memory_catalog import MemoryCatalog
from tests.support.memory_store import MemoryObjectStore


def memory_catalog(
    index_directory: str | None = None, runtime: Runtime | None = None
) -> TableCatalog:
    runtime = runtime or Runtime(side_by_side=False)
    store = MemoryObjectStore(runtime)  # its clock, too
    properties = {"lock-url": f"memory:{uuid.uuid4()}"}
    if index_directory is not None:
        properties["index-directory"] = index_directory
    catalog = MemoryCatalog(store, runtime=runtime, properties=properties)
    return TableCatalog(Environment(catalog, store, runtime))


def copy_of(environment: Environment) -> Environment:
    """The same tables in a catalog and a store of their own."""
    copy = memory_catalog().environment
    assert isinstance(copy.store, MemoryObjectStore)
    assert isinstance(environment.store, MemoryObjectStore)
    copy.store._objects.update(environment.store._objects)
    copy.catalog._pointers._tables.update(environment.catalog._pointers._tables)
    return copy
