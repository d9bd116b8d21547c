"""How tests share the machine: one JVM, the other worker goes on meanwhile."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever shares a JVM runs in one xdist worker, so that one session serves it all."""
    for item in items:
        for marker in ("interop", "spark"):
            if item.get_closest_marker(marker) is not None:
                item.add_marker(pytest.mark.xdist_group(marker))
                break
