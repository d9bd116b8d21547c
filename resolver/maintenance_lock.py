"""The lock that resolver and maintenance of one table share. It saves work, never provides safety.

The URL is the catalog property `lock-url`; without one the catalog's own database serves (SQLite,
PostgreSQL), see `lock.default_lock_url`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from lock import HeldLease, LockManager, default_lock_url, lock_name, open_lock
from lock.buckets import CONNECT_TIMEOUT_S, REQUEST_TIMEOUT_S
from tableformat.catalog.base import TableState
from tableformat.commit.branch_history import snapshots_by_id
from tableformat.commit.carried_properties import load_carried
from tableformat.commit.changeset import Fence
from tableformat.environment import Environment
from tableformat.errors import InvalidInputError
from tableformat.store.buckets import connect

LOCK_URL = "lock-url"
MAINTENANCE = "maintenance"


def maintenance_lock(environment: Environment, *, read_only: bool = False) -> LockManager:
    """The lock manager of a catalog; close it. `read_only`: to look, nothing is created.

    Raises:
        InvalidInputError: The catalog has no database of its own and no `lock-url`.
    """
    properties = environment.catalog.properties
    url = properties.get(LOCK_URL) or default_lock_url(properties.get("uri", "memory:"))
    if url is None:
        raise InvalidInputError(
            "this catalog has no database for locks",
            catalog=environment.catalog.name,
            action=f"set the catalog property {LOCK_URL} to a database or a bucket",
        )
    runtime = environment.runtime
    return open_lock(
        url,
        clock=runtime.clock,
        ids=runtime.ids,
        connect=partial(bucket_client, properties=properties),
        fail_point=runtime.fail_point,
        read_only=read_only,
    )


def bucket_client(url: str, properties: Mapping[str, str]) -> Any:
    """How locks reach a bucket: as the tables do, but with less patience."""
    return connect(
        url, properties, connect_timeout_s=CONNECT_TIMEOUT_S, timeout_s=REQUEST_TIMEOUT_S
    )


def maintenance_lock_name(state: TableState) -> str:
    """The name of a table's lock; by table uuid, so that a rename keeps it."""
    return lock_name(str(state.metadata.table_uuid), MAINTENANCE)


def task_lock_name(state: TableState, task: str) -> str:
    """The name of the lock that keeps two runs of one long task apart; likewise."""
    return lock_name(str(state.metadata.table_uuid), task)


@contextmanager
def hold_maintenance(
    state: TableState,
    manager: LockManager,
    *,
    task: str,
    branch: str,
    timeout_ms: int,
    then: Iterable[TableState] = (),
) -> Iterator[HeldLease]:
    """Hold the table's maintenance lock with a token above any the branch has seen.

    `then`: tables whose locks the caller takes next, see `LockManager.acquire`.

    Raises:
        LeaseUnavailableError: Someone else has had it for the whole of `timeout_ms`.
    """
    name = maintenance_lock_name(state)
    with manager.hold(
        name,
        task=task,
        timeout_ms=timeout_ms,
        token_floor=_highest_token(state, branch),
        then=[maintenance_lock_name(each) for each in then],
    ) as lease:
        yield lease


def fence_of(lease: HeldLease) -> Fence:
    """The fence for a commit, after proving that the lease is still ours.

    Raises:
        LeaseLostError: Someone else has taken over.
    """
    lease.confirm()
    return Fence(MAINTENANCE, lease.token)


def _highest_token(state: TableState, branch: str) -> int:
    carried = load_carried(snapshots_by_id(state.metadata), state.head_id(branch))
    return carried.tokens.get(MAINTENANCE, 0)
