"""Locks by URL.

| URL                                   | store                                                    |
|---------------------------------------|----------------------------------------------------------|
| `sqlite:///folder/file.db`            | SQLite file; the embedded default                        |
| `postgresql+psycopg://host/database`  | PostgreSQL; leases end by the server's clock             |
| `s3://bucket/prefix`                  | S3 with conditional writes, and what speaks its protocol |
| `gs://bucket/prefix`                  | Google Cloud Storage                                     |
| `abfss://container@account.host/prefix` | Azure Blob Storage                                     |
| `file:///folder`                      | local folder, one machine                                |
| `memory:name`                         | this process only                                        |
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from lock.buckets import BucketConditionalStore, Connect
from lock.errors import InvalidLockError
from lock.lease import DEFAULT_LEASE_MS
from lock.manager import LockManager
from lock.memory_store import MemoryRecordStore
from lock.object_store import ObjectRecordStore
from lock.register import ConditionalStore, RecordStore
from lock.seams import Clock, FailPoint, IdSource, no_fail_point

_BUCKETS = {"s3": "s3", "s3a": "s3", "s3n": "s3", "gs": "gs", "gcs": "gs"} | dict.fromkeys(
    ("abfss", "abfs", "wasbs", "wasb"), "abfss"
)
_MEMORY: dict[str, MemoryRecordStore] = {}  # a lock in memory is one only if its openers share it


def open_lock(
    url: str,
    *,
    clock: Clock,
    ids: IdSource,
    connect: Connect | None = None,
    lease_ms: int = DEFAULT_LEASE_MS,
    fail_point: FailPoint = no_fail_point,
    read_only: bool = False,
) -> LockManager:
    """Open the locks at `url`.

    Args:
        url: See the module. Credentials in it appear in no error, log or `repr`.
        clock: `tableformat.runtime.Runtime.clock`, or another.
        ids: `Runtime.ids`, or another.
        connect: Makes the client of a bucket, for the URLs that name one.
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
    store = _open_store(url, ids, connect, read_only=read_only)
    if not read_only:
        store.prepare()
    return LockManager(store, clock=clock, ids=ids, lease_ms=lease_ms, fail_point=fail_point)


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
    url: str,
    ids: IdSource,
    connect: Connect | None = None,
    *,
    read_only: bool = False,
) -> RecordStore:
    scheme, _, rest = url.partition(":")
    if scheme == "memory":
        return _MEMORY.setdefault(rest, MemoryRecordStore())
    if scheme == "file":
        parts = urlsplit(url)
        if parts.netloc not in {"", "localhost"} or not parts.path.startswith("/"):
            raise InvalidLockError("lock URL refused: not an absolute local path")
        return ObjectRecordStore(_local(Path(unquote(parts.path))), ids=ids)
    if scheme in _BUCKETS:
        return ObjectRecordStore(_bucket(url, connect), ids=ids)
    from lock.sql import SqlRecordStore  # SQLAlchemy is heavy, and other stores do without it

    return SqlRecordStore(url, read_only=read_only)


def _local(folder: Path) -> ConditionalStore:
    from lock.local_files import LocalConditionalStore  # POSIX only

    return LocalConditionalStore(folder)


def _bucket(url: str, connect: Connect | None) -> ConditionalStore:
    parts = urlsplit(url)
    is_azure = _BUCKETS[parts.scheme] == "abfss"
    names_nothing_else = not parts.query and not parts.fragment and ":" not in parts.netloc
    if not names_nothing_else or not parts.netloc or ("@" in parts.netloc and not is_azure):
        raise InvalidLockError(
            "lock URL refused: not s3://bucket/prefix",
            action="give endpoint and credentials as catalog properties",
        )
    if connect is None:
        raise InvalidLockError("lock URL refused: a bucket needs connect=")
    root = f"{_BUCKETS[parts.scheme]}://{parts.netloc}"
    return BucketConditionalStore(root, parts.path.strip("/"), client=connect(root))
