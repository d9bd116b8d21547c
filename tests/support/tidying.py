"""What the scheduler does with open indexes at each turn."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from resolver.open_indexes import OpenIndexes


@contextmanager
def tidying(indexes: OpenIndexes) -> Iterator[None]:
    """Those that others want are given up while the block runs."""
    ended = threading.Event()

    def tidy() -> None:
        while not ended.wait(0.05):
            indexes.tidy()

    thread = threading.Thread(target=tidy)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
