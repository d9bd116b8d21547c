from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

import tableformat as tf
from tests.support.interop_java_tables import SharedTable
from tests.support.interop_tables import CASES, InteropCase
from tests.support.java_iceberg import JavaIceberg, java_iceberg
from tests.support.rest_catalog import RestServer, rest_server

_numbers = itertools.count()


@pytest.fixture(scope="session")
def interop_catalog(tmp_path_factory) -> tf.TableCatalog:
    return tf.open_catalog("local", warehouse=str(tmp_path_factory.mktemp("interop")))


@pytest.fixture(scope="session")
def case_named(interop_catalog) -> Callable[[str], InteropCase]:
    """A case's table; each is written once, when first asked for."""
    builders = {build.__name__: build for build in CASES}
    made: dict[str, InteropCase] = {}

    def find(name: str) -> InteropCase:
        if name not in made:
            made[name] = builders[name](interop_catalog)
        return made[name]

    return find


@pytest.fixture
def case(request, case_named) -> InteropCase:
    return case_named(request.param)


@pytest.fixture
def java() -> JavaIceberg:
    return java_iceberg()


@pytest.fixture(scope="module")
def server() -> RestServer:
    return rest_server()


@pytest.fixture
def shared(java: JavaIceberg, server: RestServer, tmp_path) -> SharedTable:
    """A name for a table in a catalog that both tools open."""
    java.add_catalog("rest", {"type": "rest", "uri": server.uri})
    properties = {
        "allowed-locations": server.warehouse,
        "lock-url": f"sqlite:///{tmp_path}/locks.db",
    }
    catalog = tf.open_catalog("rest", uri=server.uri, **properties)
    java.sql("CREATE NAMESPACE IF NOT EXISTS rest.shared")
    return SharedTable(java, catalog, "rest", f"shared.t{next(_numbers)}")
