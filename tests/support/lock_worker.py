"""A process that works under a lock, for tests that kill and stop it.

`python -m tests.support.lock_worker hold|contend URL NAME LOG LEASE_MS [PROCESSES ROUNDS]`; catalog
properties come as JSON in the environment variable `LOCK_PROPERTIES`.

hold     prints `held TOKEN`, then makes fenced steps until the lease is lost; prints `lost`.
contend  forks PROCESSES children; each acquires ROUNDS times and makes one fenced step each time.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from uuid import uuid4

from lock import LeaseLostError, LockManager, LockUnavailableError, open_lock
from resolver.maintenance_lock import bucket_client
from tests.support.fenced_log import FencedLog
from tests.support.lock_seams import RandomIds, RealClock, asked_often

WAIT_MS = 300_000


def main(arguments: list[str]) -> int:
    mode, url, name, log, lease_ms, *counts = arguments
    properties = json.loads(os.environ.get("LOCK_PROPERTIES", "{}"))

    def opened() -> LockManager:
        manager = open_lock(
            url,
            clock=RealClock(),
            ids=RandomIds(),
            connect=partial(bucket_client, properties=properties),
            lease_ms=int(lease_ms),
        )
        asked_often(manager._register.store)
        return manager

    if mode == "hold":
        return hold(opened(), name, FencedLog(Path(log)))
    processes, rounds = (int(count) for count in counts)
    if not properties:  # a client of a bucket cannot be used on both sides of a fork
        opened().close()  # once, so that the children do not all create the table
    children = []
    for _ in range(processes):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                status = contend(reopened(opened), name, FencedLog(Path(log)), rounds)
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)
        children.append(child)
    return max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)


def reopened(opened: Callable[[], LockManager]) -> LockManager:
    """Opening is one attempt by design; here the database is being cut off all the time."""
    for _ in range(50):
        try:
            return opened()
        except LockUnavailableError:
            time.sleep(0.05)
    return opened()


def hold(manager: LockManager, name: str, log: FencedLog) -> int:
    owner = uuid4().hex
    try:
        with manager.hold(name, task="hold", timeout_ms=WAIT_MS) as lease:
            print(f"held {lease.token}", flush=True)
            while True:
                lease.check()
                log.step(lease.token, owner)
                time.sleep(0.005)
    except LeaseLostError:
        print("lost", flush=True)
    return 0


def contend(manager: LockManager, name: str, log: FencedLog, rounds: int) -> int:
    owner = str(os.getpid())
    for round_ in range(rounds):
        with manager.hold(name, task=f"round {round_}", timeout_ms=WAIT_MS) as lease:
            lease.check()
            if not log.step(lease.token, owner):
                print(f"refused {lease.token}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
