"""Local disk for what does not fit into memory: the folder of `TMPDIR`, else the system's."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tableformat.errors import StoreUnavailableError


@contextmanager
def temporary_disk_errors() -> Iterator[None]:
    """Operating-system errors as `StoreUnavailableError`: full, read-only, not there."""
    try:
        yield
    except OSError as error:
        # Arrow puts the system's words into a text of its own.
        reason = os.strerror(error.errno) if error.errno else str(error)
        place = {} if tempfile.tempdir is None else {"folder": tempfile.tempdir}
        action = "make room there, or name another one by TMPDIR"
        text = f"the temporary folder cannot be used: {reason}"
        raise StoreUnavailableError(text, action=action, **place) from error


def temporary_folder(prefix: str) -> tempfile.TemporaryDirectory[str]:
    """A fresh folder, a context manager: it is gone at the end.

    Raises:
        StoreUnavailableError: It cannot be made.
    """
    with temporary_disk_errors():
        return tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True)


def temporary_path(prefix: str) -> Path:
    """A fresh folder that whoever asked for it removes; errors as `temporary_folder`."""
    with temporary_disk_errors():
        return Path(tempfile.mkdtemp(prefix=prefix))
