"""Freed memory goes back to the system.

Work that allocates and frees in several threads leaves pages that the C library and Arrow keep for
themselves: of 350 MB of heap that ten minutes of compactions left, 250 were free.
"""

from __future__ import annotations

import ctypes

import pyarrow as pa

_M_ARENA_MAX = -8  # of malloc.h
HEAPS_MAX = 2


def keep_few_heaps() -> None:
    """For a process that runs for weeks in many threads: let those share heaps. Call it early.

    By default the C library makes eight heaps a core and Arrow one a thread, and each keeps what
    was freed in it until its own threads need it again.

    Effects: on this process, where it has glibc.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, HEAPS_MAX)
        pa.set_memory_pool(pa.system_memory_pool())


def release_unused() -> None:
    """Return freed memory to the system. Only glibc has a heap to trim."""
    pa.default_memory_pool().release_unused()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
