from __future__ import annotations

import pytest

from lock import HeldLease, LeaseLostError, LockManager
from lock.memory_store import MemoryRecordStore
from tests.support.lock_seams import RandomIds, RealClock
from tests.support.lying_lock import GrantAllLock, GrantedLease


def test_liar_has_shape_of_real_lock() -> None:
    liar = GrantAllLock()
    real = LockManager(MemoryRecordStore(), clock=RealClock(), ids=RandomIds())
    managers: list[LockManager] = [liar, real]  # mypy checks the shapes
    held: HeldLease = GrantedLease(liar, liar.acquire("a", task="t"))
    assert [manager.inspect("b").is_held for manager in managers] == [False, False]
    assert held.still_held()


def test_liar_grants_everyone_at_once() -> None:
    liar = GrantAllLock()
    with liar.hold("a", task="x") as first, liar.hold("a", task="y") as second:
        first.confirm()
        second.confirm()
        assert (first.token, second.token) == (1, 2)


def test_liar_can_repeat_a_token() -> None:
    liar = GrantAllLock(tokens="same")
    with liar.hold("a", task="x") as first, liar.hold("a", task="y") as second:
        assert first.token == second.token


def test_liar_takes_lease_away_for_good() -> None:
    answers = iter([False, True, False])
    with GrantAllLock(lost=lambda _: next(answers)).hold("a", task="x") as lease:
        lease.check()
        with pytest.raises(LeaseLostError):
            lease.check()
        assert not lease.still_held()
