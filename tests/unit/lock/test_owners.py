"""Which process an owner's id names, and whether it has ended. Processes are real."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lock import LockManager, open_lock, owners
from lock.memory_store import MemoryRecordStore
from lock.owners import is_gone, owner_id
from tests.support.lock_seams import ManualClock, RandomIds, RealClock, SeededIds

pytestmark = pytest.mark.skipif(owners._machine() is None, reason="the system has no boot id")
ACQUIRE_AND_DIE = """
import os, sys
from lock import open_lock
from tests.support.lock_seams import RandomIds, RealClock
lock = open_lock(sys.argv[1], clock=RealClock(), ids=RandomIds())
print(lock.acquire("n", task="t").owner_id, flush=True)
os._exit(9)
"""


def ended() -> str:
    """The id of an owner whose process was there and is not any more."""
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    return f"nonce@{owners._machine()}:{done.pid}"


def test_own_process_lives_and_one_that_ended_does_not() -> None:
    assert not is_gone(owner_id("nonce"))
    assert is_gone(ended())


@pytest.mark.parametrize("owner", [
    None, "", "nonce", "nonce@", "nonce@elsewhere:1", "nonce@{0}", "nonce@{0}:", "nonce@{0}:x",
    "nonce@{0}:-1", "nonce@{0}:²", "nonce@{0}:99999999999999999999", "nonce@{0}:1", "nonce@{0}:0",
])  # fmt: skip
def test_what_is_not_certain_counts_as_alive(owner: str | None) -> None:
    assert not is_gone(None if owner is None else owner.format(owners._machine()))


def test_processes_of_other_boots_and_namespaces_are_not_judged(monkeypatch) -> None:
    gone = ended()
    monkeypatch.setattr(owners, "_machine", lambda: "0123456789abcdef")
    assert not is_gone(gone)
    monkeypatch.setattr(owners, "_machine", lambda: None)
    assert owner_id("nonce") == "nonce"
    assert not is_gone(gone)


def test_other_users_process_is_alive(monkeypatch) -> None:
    def kill(pid: int, signal: int) -> None:
        raise PermissionError

    gone = ended()
    monkeypatch.setattr(os, "kill", kill)
    assert not is_gone(gone)


def test_killed_process_is_not_waited_for(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/locks.db"
    child = subprocess.run(
        [sys.executable, "-c", ACQUIRE_AND_DIE, url], capture_output=True, text=True, check=False
    )
    assert child.returncode == 9, child.stderr
    with open_lock(url, clock=RealClock(), ids=RandomIds()) as lock:
        before = lock.inspect("n")
        lease = lock.try_acquire("n", task="t")
        after = lock.inspect("n")
    assert lease is not None
    assert (before.token, before.holder_has_ended) == (1, True)
    assert (after.token, after.holder_has_ended) == (2, False)


def test_dead_waiter_is_passed(monkeypatch) -> None:
    store, clock = MemoryRecordStore(), ManualClock()
    first, dead, next_one = (
        LockManager(store, clock=clock, ids=SeededIds(seed)) for seed in range(3)
    )
    lease = first.acquire("n", task="t")
    waiter = dead._acquisition("n", "t", None, 0)
    waiter._wants_ticket = True
    waiter.look(budget_ms=0)
    first.release(lease)
    assert next_one.try_acquire("n", task="t") is None
    monkeypatch.setattr("lock.waiting.is_gone", lambda owner: owner == waiter._claim.owner_id)
    assert next_one.try_acquire("n", task="t") is not None
