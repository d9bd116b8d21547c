"""Freed memory goes back to the system.

Work that allocates and frees in several threads leaves pages that the C library and Arrow keep for
themselves: of 350 MB of heap that ten minutes of compactions left, 250 were free.
"""

from __future__ import annotations

import ctypes
import gc
import os

import pyarrow as pa

M_ARENA_MAX = -8  # of glibc's malloc.h
YOUNG_OBJECTS = 20_000


def share_heaps() -> None:
    """Let the threads of this process share heaps, one per core at most. Only glibc has several.

    It opens eight per core, and what one thread frees in its own serves no other: a cycle over 10 M
    staged rows took 150 MiB more. `MALLOC_ARENA_MAX` has the last word.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None and "MALLOC_ARENA_MAX" not in os.environ:
        mallopt(M_ARENA_MAX, os.cpu_count() or 1)


def collect_seldom() -> None:
    """Look for cycles of garbage less often than Python does by itself: after 700 objects.

    A process that holds the metadata of many tables has a million objects that stay. Looking
    through them took 0.2 s at a time, in which no thread went on, and 4 % of its work.
    """
    gc.set_threshold(YOUNG_OBJECTS)


def release_unused() -> None:
    """Return freed memory to the system. Only glibc has a heap to trim."""
    pa.default_memory_pool().release_unused()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
