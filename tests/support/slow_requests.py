"""Requests that take as long as a bucket's, and how many of them waited for each other."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from typing import Any

from tableformat.store.arrow_store import ArrowObjectStore
from tableformat.store.local import LocalOutput

REQUEST_S = 0.02
READS = ((ArrowObjectStore, "get"), (ArrowObjectStore, "open_input"))
WRITES = ((LocalOutput, "close"),)


class SlowRequests:
    """When each of them was under way."""

    def __init__(self) -> None:
        self.spans: list[tuple[float, float]] = []
        self._lock = threading.Lock()

    def watch(self, monkeypatch: Any, requests: Collection[tuple[type, str]] = READS) -> None:
        """From now on each of these methods takes so long."""
        for kind, name in requests:
            monkeypatch.setattr(kind, name, self._slow(getattr(kind, name)))

    def _slow(self, ask: Callable[..., Any]) -> Callable[..., Any]:
        def asked(*given: Any, **options: Any) -> Any:
            begun = time.monotonic()
            time.sleep(REQUEST_S)
            answer = ask(*given, **options)
            with self._lock:
                self.spans.append((begun, time.monotonic()))
            return answer

        return asked

    @property
    def in_turn(self) -> int:
        """How many there are at most of which none began before the one before was answered."""
        count, free_s = 0, 0.0
        for begun, ended in sorted(self.spans, key=lambda span: span[1]):
            if begun >= free_s:
                count, free_s = count + 1, ended
        return count
