"""Tables in memory: real codecs and the real commit engine, no disk but for the index."""

from __future__ import annotations

import uuid

from tableformat import TableCatalog
from tableformat.catalog.memory import MemoryCatalog
from tableformat.environment import Environment
from tableformat.runtime import Runtime
from tableformat.store.memory import MemoryObjectStore


def memory_catalog(
    index_directory: str | None = None, runtime: Runtime | None = None
) -> TableCatalog:
    runtime = runtime or Runtime()
    store = MemoryObjectStore()
    properties = {"lock-url": f"memory:{uuid.uuid4()}"}
    if index_directory is not None:
        properties["index-directory"] = index_directory
    catalog = MemoryCatalog(store, runtime=runtime, properties=properties)
    return TableCatalog(Environment(catalog, store, runtime))
