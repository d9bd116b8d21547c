"""Child processes that die at a fail point. Forked from a server that has everything imported."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from typing import Any

import tableformat as tf
from lock import LeaseManager, open_lock
from tableformat import Table

LEASE_MS = 1_500  # of who is killed: gone soon, and never lost to a busy machine before that
PATIENT_LEASE_MS = 30_000  # of who lives
KILLED = -signal.SIGKILL

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.support.crash_child", "resolver", "tableformat"])


def open_table(warehouse: str, name: str) -> Table:
    return tf.open_catalog("local", warehouse=warehouse).load_table(name)


def short_lock(table: Table, lease_ms: int | None = None) -> LeaseManager:
    """Leases for a child that is killed and for the process that goes on after it."""
    if lease_ms is None:
        is_child = multiprocessing.parent_process() is not None
        lease_ms = LEASE_MS if is_child else PATIENT_LEASE_MS
    runtime = table.environment.runtime
    url = f"{table.environment.catalog.properties['uri']}.locks"
    return open_lock(
        url,
        clock=runtime.clock,
        ids=runtime.ids,
        lease_ms=lease_ms,
        fail_point=runtime.fail_point,
    )


def run_until_killed(
    task: Callable[..., Any], warehouse: str, name: str, *, point: str, hits: int = 1
) -> int:
    """Run `task(table)` in a child that is killed at the `hits`-th time it passes `point`.

    Returns:
        Its exit code: `KILLED`, or 0 when it never came that far.
    """
    child = _CONTEXT.Process(target=_child, args=(task, warehouse, name, point, hits))
    child.start()
    child.join(120)
    assert child.exitcode is not None, "the child hangs"
    return child.exitcode


def _child(task: Callable[..., Any], warehouse: str, name: str, point: str, hits: int) -> None:
    table = open_table(warehouse, name)
    left = hits

    def die(_name: str) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    table.environment.runtime.fail_points.armed[point] = die
    task(table)
