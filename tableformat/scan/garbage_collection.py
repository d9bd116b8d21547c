"""Whether the garbage collector is at work on this thread.

It runs wherever something is allocated, also while the interpreter starts a thread and holds its
locks. What it finalizes must not wait for another thread there.
"""

from __future__ import annotations

import gc
from threading import local
from typing import Any


class _Collector(local):
    """A thread's own view. Uses no module's names: collections go on while modules are cleared."""

    is_running = False

    def note(self, phase: str, _: dict[str, Any]) -> None:
        """See `gc.callbacks`."""
        self.is_running = phase == "start"


_collector = _Collector()
gc.callbacks.append(_collector.note)


def is_collecting() -> bool:
    """Is this called by a finalizer that the garbage collector runs?"""
    return _collector.is_running
