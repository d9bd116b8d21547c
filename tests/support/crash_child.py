"""Child processes that die at a fail point. Forked from a server that has everything imported."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import tableformat as tf
from lock import LockError, LockManager, open_lock
from lock.seams import Clock
from resolver.index import shard_map
from tableformat import Table
from tableformat.errors import TableError
from tests.support.goals import goal
from tests.support.lock_seams import SharedClock

ROWS_PER_SHARD = 1  # of a child's indexes: what it resolves splits shards
LEASE_MS = 30_000  # of who is killed or stopped
HEIR_LEASE_MS = 300_000  # of who outlives it, and may hold one lock while it waits for others
KILLED = -signal.SIGKILL
REFUSED = 7

_CONTEXT = multiprocessing.get_context("forkserver")
# What a task loads when it first needs it, too: most of a second of CPU in each child.
_LOADED_LATE = (
    "fastavro", "hypothesis", "lock.sql", "maintenance", "pandas", "pyarrow.dataset", "pytest",
    "sqlalchemy.dialects.sqlite", "sqlite3", "tableformat.catalog.sql",
)  # fmt: skip
_PRELOADED = [__name__, "resolver", "tableformat", *_LOADED_LATE]


def preload(*modules: str) -> None:
    """Have the server import more, if it has not started yet."""
    _PRELOADED.extend(modules)
    _CONTEXT.set_forkserver_preload(_PRELOADED)


preload()


def open_table(warehouse: str, name: str) -> Table:
    return tf.open_catalog("local", warehouse=warehouse).load_table(name)


def lock_of(table: Table) -> LockManager:
    """Leases for a child that is killed or stopped and for the process that goes on after it.

    Time is that of `SharedClock`: a lease takes long to end, and nobody waits for it.
    """
    is_child = multiprocessing.parent_process() is not None
    path = Path(f"{_locks(table).removeprefix('sqlite:///')}.time")
    return _lock(table, SharedClock(path), LEASE_MS if is_child else HEIR_LEASE_MS)


def waiting_lock(table: Table, lease_ms: int) -> LockManager:
    """Leases that end by the machine's clock."""
    return _lock(table, table.environment.runtime.clock, lease_ms)


def _lock(table: Table, clock: Clock, lease_ms: int) -> LockManager:
    runtime = table.environment.runtime
    return open_lock(
        _locks(table),
        clock=clock,
        ids=runtime.ids,
        lease_ms=lease_ms,
        fail_point=runtime.fail_point,
    )


def _locks(table: Table) -> str:
    return f"{table.environment.catalog.properties['uri']}.locks"


def started(task: Callable[..., Any], *arguments: Any) -> BaseProcess:
    """A child that runs `task(*arguments)`."""
    child = _CONTEXT.Process(target=task, args=arguments)
    child.start()
    return child


def run_until_killed(
    task: Callable[..., Any], warehouse: str, name: str, *, point: str, hits: int = 1
) -> int:
    """Run `task(table)` in a child that is killed at the `hits`-th time it passes `point`.

    Indexes that the child builds or changes have shards of a row or two, and split them.

    Returns:
        Its exit code: `KILLED`, or 0 when it never came that far.
    """
    child = started(_child, task, warehouse, name, point, hits)
    child.join(120)
    assert child.exitcode is not None, "the child hangs"
    measure = "G17" if point.startswith("index.") else "G4"
    goal(measure, kills=child.exitcode == KILLED)
    return child.exitcode


@contextmanager
def stopped(
    task: Callable[..., Any], warehouse: str, name: str, *, point: str
) -> Iterator[Callable[[], int]]:
    """A child that runs `task(table)` and stands still at `point` for as long as the block wants.

    Yields:
        What lets it go on, waits for its end and gives its exit code: 0, or `REFUSED` when the
        task ended with an error of the product.
    """
    child = started(_child, task, warehouse, name, point, 1, signal.SIGSTOP)
    assert child.pid is not None
    while Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        assert child.is_alive(), f"it never came to {point}"
        time.sleep(0.01)

    def go_on() -> int:
        assert child.pid is not None
        os.kill(child.pid, signal.SIGCONT)
        child.join(120)
        assert child.exitcode is not None, "the child hangs"
        return child.exitcode

    try:
        yield go_on
    finally:
        child.kill()
        child.join()


def _child(
    task: Callable[..., Any],
    warehouse: str,
    name: str,
    point: str,
    hits: int,
    sent: signal.Signals = signal.SIGKILL,
) -> None:
    shard_map.ROWS_PER_SHARD_MIN = shard_map.ROWS_PER_SHARD_MAX = ROWS_PER_SHARD
    table = open_table(warehouse, name)
    left = hits

    def strike(_name: str) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), sent)

    table.environment.runtime.fail_points.armed[point] = strike
    try:
        task(table)
    except (TableError, LockError):
        sys.exit(REFUSED)
