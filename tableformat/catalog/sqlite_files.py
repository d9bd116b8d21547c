"""SQLite databases as files: whether they are there, may be written, and reading them if not."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from urllib.parse import quote

from sqlalchemy.engine import URL


def is_file(url: URL) -> bool:
    """Whether a SQLite URL names a plain file: not memory, not SQLite's own URI syntax."""
    database = url.database or ""
    return database not in ("", ":memory:") and not database.startswith("file:")


def is_missing(url: URL) -> bool:
    """Whether a SQLite URL names a file that is not there."""
    return url.get_backend_name() == "sqlite" and is_file(url) and not _path(url).exists()


def is_read_only(url: URL) -> bool:
    """Whether a SQLite URL names a file that cannot be written, also because its folder cannot.

    SQLite keeps its log beside the database, so a reader in the usual way writes into the folder.
    """
    if url.get_backend_name() != "sqlite" or is_missing(url) or not is_file(url):
        return False
    path = _path(url)
    return not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK))


def connect_read_only(url: URL, *, timeout: float) -> sqlite3.Connection:
    """A connection that writes nothing: no log, no shared memory, no lock.

    With a log beside the database, left or written by someone who may write, it is read through
    it. Without one nobody has the database open; only then it may be taken for immutable, since
    SQLite could not read a database in write-ahead mode otherwise.
    """
    path = _path(url)
    has_log = path.with_name(f"{path.name}-wal").exists()
    mode = "mode=ro" if has_log else "mode=ro&immutable=1"
    return sqlite3.connect(
        f"file:{quote(str(path))}?{mode}", uri=True, timeout=timeout, check_same_thread=False
    )


def _path(url: URL) -> Path:
    return Path(str(url.database)).absolute()
