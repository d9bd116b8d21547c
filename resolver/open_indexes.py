"""Indexes that stay open between the cycles of one process.

To open one costs more than to use it for a small cycle: its database writes itself a new log, new
options and a new list of files. An index that waits here keeps its folder's lock, so nobody changes
it meanwhile; another process that wants it gets it within a moment (`FolderLock`). Killed, such a
process leaves what one leaves that was killed between two cycles.
"""

from __future__ import annotations

import resource
import threading
from dataclasses import dataclass, field
from pathlib import Path

from resolver.index.base import IndexBinding
from resolver.index.local import LocalIndex
from resolver.index.open import compare_bindings
from tableformat.runtime import Clock

OPEN_MIN, OPEN_MAX = 32, 256  # half a megabyte each, with the threads that read it
FILES_EACH = 10  # open ones of one index
IDLE_MS = 15_000  # a table that is published this seldom does not miss an open index


def open_max() -> int:
    """As many as have a quarter of the files that this process may open."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed == resource.RLIM_INFINITY:
        return OPEN_MAX
    return max(OPEN_MIN, min(allowed // (4 * FILES_EACH), OPEN_MAX))


@dataclass(slots=True)
class OpenIndexes:
    """What one process keeps open. Safe from several threads; close it.

    Args:
        clock: Measures how long one has waited.
        open_max: So many wait at most; the one that has waited longest is closed.
    """

    clock: Clock
    open_max: int = field(default_factory=open_max)
    _waiting: dict[Path, tuple[LocalIndex, float]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, folder: Path, wanted: IndexBinding) -> LocalIndex | None:
        """The index of a folder if it waits here and is for what is wanted, at any snapshot."""
        with self._lock:
            found = self._waiting.pop(folder, None)
        if found is None:
            return None
        index, _ = found
        if index.resume() and compare_bindings(index.binding, wanted) is None:
            return index
        index.close()
        return None

    def keep(self, folder: Path, index: LocalIndex) -> None:
        """Keep an index that nobody uses; one that is in the midst of a change is closed."""
        if not index.park():
            index.close()
            return
        with self._lock:
            replaced = self._waiting.pop(folder, None)
            self._waiting[folder] = index, self.clock.monotonic_ms()
            surplus = [] if replaced is None else [replaced[0]]
            while len(self._waiting) > self.open_max:
                surplus.append(self._waiting.pop(next(iter(self._waiting)))[0])
        for each in surplus:
            each.close()

    def tidy(self) -> None:
        """Close what others want, and what has waited long. Call it once a second or more often."""
        oldest_ms = self.clock.monotonic_ms() - IDLE_MS
        with self._lock:
            gone = [
                folder
                for folder, (index, since_ms) in self._waiting.items()
                if since_ms < oldest_ms or index.is_wanted
            ]
            closing = [self._waiting.pop(folder)[0] for folder in gone]
        for each in closing:
            each.close()

    def close(self) -> None:
        """Close all, and from now on whatever comes."""
        with self._lock:
            self.open_max = 0
            closing = [index for index, _ in self._waiting.values()]
            self._waiting.clear()
        for each in closing:
            each.close()
