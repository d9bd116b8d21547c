from __future__ import annotations

from dataclasses import replace

import pytest

from lock import CorruptLockError, LockUnavailableError
from lock.codec import encode_record
from lock.lock_names import storage_key
from lock.memory_store import MemoryRecordStore
from lock.record import LockRecord
from lock.register import Observed, Register, Step, SwapOutcome
from tests.support.lock_seams import FaultyRecordStore, ManualClock, SeededIds


def bump(seen: Observed) -> Step[int]:
    record = replace(seen.record, token=seen.record.token + 1)
    return Step(record, record.token)


def registers(**faults: float) -> tuple[Register, FaultyRecordStore, ManualClock]:
    clock = ManualClock()
    store = FaultyRecordStore(MemoryRecordStore(), faults, seed=1)
    return Register(store, clock, SeededIds()), store, clock


@pytest.mark.parametrize("fault", ["lost_reply", "resent"])
def test_own_write_is_recognised_when_its_reply_is_wrong(fault: str) -> None:
    """R71: the write landed; an error or a 412 answers it."""
    register, store, _ = registers(**{fault: 1.0})
    assert register.update("n", bump, budget_ms=1_000).outcome == 1
    assert store.hits[fault] == 1
    assert register.load("n").record.token == 1


def test_conflict_is_not_taken_for_someone_elses_success() -> None:
    """R74: a 409 says that nothing landed; the write is made again."""
    register, store, clock = registers(busy=1.0)
    clock.on_sleep = store.faults.clear
    assert register.update("n", bump, budget_ms=60_000).outcome == 1
    assert store.hits == {"busy": 1}


def test_write_that_lands_late_takes_effect_once() -> None:
    register, store, _ = registers(late=1.0)
    with pytest.raises(LockUnavailableError):
        register.update("n", bump, budget_ms=0)
    store.faults.clear()
    assert register.load("n").record.token == 1
    assert register.update("n", bump, budget_ms=1_000).outcome == 2


def test_late_write_is_recognised_after_it_overtook_its_repetition() -> None:
    register, store, clock = registers(late=1.0)
    clock.on_sleep = store.faults.clear
    assert register.update("n", bump, budget_ms=1_000).outcome == 1
    assert register.load("n").record.token == 1


def test_repeated_decision_starts_from_what_is_stored() -> None:
    register, store, _ = registers()
    other = Register(store.inner, ManualClock(), SeededIds(9))
    interfere = iter([True, False])

    def decide(seen: Observed) -> Step[int]:
        if next(interfere):
            other.update("n", bump, budget_ms=1_000)
        return bump(seen)

    assert register.update("n", decide, budget_ms=1_000).outcome == 2


def test_confirmation_counts_from_before_the_read_it_rests_on() -> None:
    register, store, clock = registers()
    load = store.inner.load

    def slow(key: str):  # type: ignore[no-untyped-def]
        clock.pass_ms(40)
        return load(key)

    store.inner.load = slow  # type: ignore[method-assign]
    clock.pass_ms(1_000)
    assert register.update("n", bump, budget_ms=1_000).sent_ms == 1_000


def test_recognised_write_is_confirmed_from_its_own_sending() -> None:
    register, _, clock = registers(lost_reply=1.0)
    clock.pass_ms(1_000)
    assert register.update("n", bump, budget_ms=1_000).sent_ms == 1_000
    assert clock.elapsed_ms > 1_000


def test_update_gives_up_when_budget_is_spent() -> None:
    register, _, clock = registers(load_error=1.0)
    with pytest.raises(LockUnavailableError, match="injected"):
        register.update("n", bump, budget_ms=500)
    assert 500 <= clock.elapsed_ms < 1_000


def test_update_gives_up_against_endless_contention() -> None:
    register, _, clock = registers(busy=1.0)
    with pytest.raises(LockUnavailableError, match="others changed it first"):
        register.update("n", bump, budget_ms=500)
    assert clock.elapsed_ms < 1_000


def test_record_of_another_lock_is_refused() -> None:
    register, store, _ = registers()
    record = encode_record(LockRecord(name="other", write_id="w"))
    assert store.swap(storage_key("n"), None, record) is SwapOutcome.DONE
    with pytest.raises(CorruptLockError, match="another lock's"):
        register.load("n")


def test_damaged_record_is_never_overwritten() -> None:
    register, store, _ = registers()
    store.swap(storage_key("n"), None, b"junk")
    with pytest.raises(CorruptLockError, match="memory:n-"):
        register.update("n", bump, budget_ms=1_000)
    assert store.load(storage_key("n")).data == b"junk"
