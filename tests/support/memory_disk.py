"""Where tests put their files: into memory, where there is room, as syncing costs nothing there.

A store syncs each object, and a catalog each commit: half of what a test waits for on a disk.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

_FOLDER = Path("/dev/shm")
_FREE_BYTES_MIN = 6 << 30


def memory_disk() -> Path | None:
    """A disk in memory with room for what all tests write; None: there is none."""
    is_usable = _FOLDER.is_dir() and os.access(_FOLDER, os.W_OK)
    has_room = is_usable and shutil.disk_usage(_FOLDER).free >= _FREE_BYTES_MIN
    return _FOLDER if has_room else None
