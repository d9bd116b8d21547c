"""How tests share the machine: one JVM, the other worker goes on meanwhile."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything that needs Spark runs in one xdist worker, so that one session serves it all."""
    for item in items:
        if item.get_closest_marker("spark") is not None:
            item.add_marker(pytest.mark.xdist_group("spark"))
        elif item.get_closest_marker("interop") is not None:
            item.add_marker(pytest.mark.xdist_group("interop"))
