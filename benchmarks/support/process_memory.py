"""The most anonymous memory that this process had: without page cache and mapped files."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Self

_INTERVAL_S = 0.02
_STATUS = Path("/proc/self/status")


def anonymous_bytes() -> int:
    """Memory of this process that is in no file."""
    for line in _STATUS.read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise LookupError("RssAnon")


class PeakMemory:
    """Looks every 20 ms while the block runs."""

    def __init__(self) -> None:
        self.peak_bytes = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while True:
            self.peak_bytes = max(self.peak_bytes, anonymous_bytes())
            if self._ended.wait(_INTERVAL_S):
                return
