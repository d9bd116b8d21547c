"""Locks by URL.

| URL                                   | store                                                    |
|---------------------------------------|----------------------------------------------------------|
| `sqlite:///folder/file.db`            | SQLite file; the embedded default                        |
| `postgresql+psycopg://host/database`  | PostgreSQL; leases end by the server's clock             |
| `s3://bucket/prefix`                  | S3 with conditional writes; `s3.*` properties as usual   |
| `file:///folder`                      | local folder, one machine                                |
| `memory:name`                         | this process only                                        |
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from lock.errors import InvalidLockError
from lock.lease import DEFAULT_LEASE_MS
from lock.manager import LeaseManager
from lock.memory import MemoryRecordStore
from lock.object_store import ConditionalStore, ObjectRecordStore
from lock.register import RecordStore
from lock.seams import Clock, FailPoint, IdSource, no_fail_point
from lock.sql import SqlRecordStore

_MEMORY: dict[str, MemoryRecordStore] = {}  # a lock in memory is one only if its openers share it


def open_lock(
    url: str,
    *,
    clock: Clock,
    ids: IdSource,
    properties: Mapping[str, str] | None = None,
    lease_ms: int = DEFAULT_LEASE_MS,
    fail_point: FailPoint = no_fail_point,
    read_only: bool = False,
) -> LeaseManager:
    """Open the locks at `url`.

    Args:
        url: See the module. Credentials in it appear in no error, log or `repr`.
        clock: `tableformat.runtime.Runtime.clock`, or another.
        ids: `Runtime.ids`, or another.
        properties: The catalog's properties; only `s3.*` is read.
        lease_ms: How long a dead holder blocks others.
        fail_point: `Runtime.fail_point`, or another.
        read_only: Only to look: nothing is created, probed or written.

    Raises:
        InvalidLockError: The URL names no store, or its driver is not installed.
        UnsafeStoreError: The object store does not honour write conditions.
        LockUnavailableError: The store does not answer.

    Effects: creates the SQL table if there is none; probes an object store with a few dozen small
    requests.
    """
    store = _open_store(url, ids, properties or {}, read_only=read_only)
    if not read_only:
        store.prepare()
    return LeaseManager(store, clock=clock, ids=ids, lease_ms=lease_ms, fail_point=fail_point)


def default_lock_url(catalog_uri: str) -> str | None:
    """Where the locks of a catalog live if nothing else is said.

    A PostgreSQL catalog's own database; for a SQLite catalog a file beside it, so that heartbeats
    and catalog commits do not wait for each other; memory for a catalog in memory.

    Returns:
        A lock URL, credentials included; None for other catalogs (REST, ...), which need one named.
    """
    if catalog_uri.startswith("memory:"):
        return catalog_uri
    scheme, _, rest = catalog_uri.partition("://")
    backend = scheme.partition("+")[0]
    if backend in {"postgresql", "postgres"}:
        return catalog_uri
    if backend != "sqlite":
        return None
    database, mark, query = rest.removeprefix("/").partition("?")
    if database in {"", ":memory:"} or "mode=memory" in query:
        return "memory:"
    return f"sqlite:///{database}.locks{mark}{query}"


def _open_store(
    url: str, ids: IdSource, properties: Mapping[str, str], *, read_only: bool = False
) -> RecordStore:
    scheme, _, rest = url.partition(":")
    if scheme == "memory":
        return _MEMORY.setdefault(rest, MemoryRecordStore())
    if scheme == "file":
        parts = urlsplit(url)
        if parts.netloc not in {"", "localhost"} or not parts.path.startswith("/"):
            raise InvalidLockError("lock URL refused: not an absolute local path")
        return ObjectRecordStore(_local(Path(unquote(parts.path))), ids=ids)
    if scheme in {"s3", "s3a", "s3n"}:
        return ObjectRecordStore(_s3(url, properties), ids=ids)
    return SqlRecordStore(url, read_only=read_only)


def _local(folder: Path) -> ConditionalStore:
    from lock.local_files import LocalConditionalStore  # POSIX only

    return LocalConditionalStore(folder)


def _s3(url: str, properties: Mapping[str, str]) -> ConditionalStore:
    parts = urlsplit(url)
    if not parts.netloc or "@" in parts.netloc or parts.query or parts.fragment:
        raise InvalidLockError(
            "lock URL refused: not s3://bucket/prefix",
            action="give endpoint and credentials as s3.* properties",
        )
    try:
        from lock.s3 import S3ConditionalStore, create_client  # an extra
    except ModuleNotFoundError as error:
        raise InvalidLockError(
            f"lock URL refused: {error.name} is not installed", action="pip install 'icefold[s3]'"
        ) from error
    return S3ConditionalStore(parts.netloc, parts.path.strip("/"), client=create_client(properties))
