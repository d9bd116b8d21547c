"""A place with tables of each kind of catalog, for the tests of what all of them promise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tableformat.backend import open_backend
from tableformat.catalog.base import Catalog
from tableformat.environment import Environment
from tableformat.runtime import FailPoints, Runtime
from tests.support.memory_catalog import MemoryCatalog, MemoryPointers
from tests.support.memory_store import MemoryObjectStore


class Backend:
    """One place with tables; each `open` is another client of it."""

    def __init__(self, kind: str, opener: Callable[[Runtime], Environment], outside: str) -> None:
        self.kind = kind
        self.opener = opener
        self.outside = outside

    def open(self, **armed: Callable[[str], None]) -> Environment:
        points = {f"catalog.{name}": action for name, action in armed.items()}
        return self.opener(Runtime(fail_points=FailPoints(armed=points)))

    def catalog(self) -> Catalog:
        return self.open().catalog


@pytest.fixture(params=["memory", "sqlite", "postgres", "rest"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    warehouse = f"file://{tmp_path}/wh"
    outside = f"file://{tmp_path}/elsewhere"
    if request.param == "memory":
        pointers, store = MemoryPointers(), MemoryObjectStore()

        def shared(runtime: Runtime) -> Environment:
            catalog = MemoryCatalog(store, runtime=runtime, pointers=pointers)
            return Environment(catalog, store, runtime)

        yield Backend("memory", shared, "memory://elsewhere")
        return
    if request.param == "sqlite":
        name, properties = "local", {"warehouse": warehouse}
    elif request.param == "postgres":
        from tests.support.postgres import postgres_server

        # The catalog's name is part of every key: each test has its own.
        name = tmp_path.name
        properties = {"uri": postgres_server().url(), "warehouse": warehouse}
    else:
        from tests.support.rest_catalog import rest_server

        server = rest_server()
        name = "rest"
        properties = {"type": "rest", "uri": server.uri, "warehouse": server.warehouse}
        outside = f"{server.warehouse}-elsewhere"
    yield Backend(
        request.param, lambda runtime: open_backend(name, properties, runtime=runtime), outside
    )
