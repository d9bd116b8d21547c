"""A process that runs for weeks gives back what a task needed for a moment.

Tasks allocate and free in several threads. The C library and Arrow keep the freed pages for
themselves: of 350 MB of heap that ten minutes of compactions left, 250 were free.
"""

from __future__ import annotations

import ctypes

import pyarrow as pa

from maintenance.run_history import Outcome, Run
from maintenance.settings import TaskName


def release_after(run: Run) -> None:
    """An observer of the scheduler: after a task that did something, but for the frequent one."""
    if run.task != TaskName.RESOLVE and run.outcome in {Outcome.DONE, Outcome.FAILED}:
        release_unused()


def release_unused() -> None:
    """Return freed memory to the system. Only glibc has a heap to trim."""
    pa.default_memory_pool().release_unused()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
