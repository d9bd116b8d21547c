"""One place that opens a lock backend for a test, by name."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from uuid import uuid4

from lock.lease import DEFAULT_LEASE_MS
from lock.manager import LockManager
from lock.open import _open_store
from lock.register import RecordStore
from lock.seams import Clock, IdSource
from resolver.maintenance_lock import bucket_client
from tests.support.bucket_servers import CLOUDS
from tests.support.lock_seams import FaultyRecordStore, RandomIds, RealClock, asked_often
from tests.support.lock_servers import lock_server, postgres_url

BACKENDS = ("memory", "sqlite", "postgresql", "file", *CLOUDS, "faulty")
SHARED_BACKENDS = ("sqlite", "postgresql", "file", *CLOUDS)
"""Those that several processes can share."""


def lock_url(backend: str, folder: Path) -> str:
    """A URL for `backend`, fresh wherever a folder or prefix makes it so."""
    if backend == "sqlite":
        return f"sqlite:///{folder}/locks.db"
    if backend == "postgresql":
        return postgres_url()
    if backend == "file":
        return f"file://{folder}/locks"
    if backend in CLOUDS:
        return f"{lock_server(backend).root}/{uuid4().hex}"
    return f"memory:{uuid4().hex}"


def lock_properties(backend: str) -> dict[str, str]:
    """The catalog properties that reach it."""
    return lock_server(backend).properties if backend in CLOUDS else {}


def open_store(backend: str, folder: Path) -> RecordStore:
    """A prepared store; `faulty` is the wrapper around memory, with all faults at zero."""
    connect = partial(bucket_client, properties=lock_properties(backend))
    store = asked_often(_open_store(lock_url(backend, folder), RandomIds(), connect))
    store.prepare()
    return FaultyRecordStore(store) if backend == "faulty" else store


def manager_on(
    store: RecordStore,
    *,
    clock: Clock | None = None,
    ids: IdSource | None = None,
    lease_ms: int = DEFAULT_LEASE_MS,
    process: str | None = None,
) -> LockManager:
    """A manager as one process would have it."""
    return LockManager(
        store,
        clock=clock or RealClock(),
        ids=ids or RandomIds(),
        lease_ms=lease_ms,
        process=process,
    )
