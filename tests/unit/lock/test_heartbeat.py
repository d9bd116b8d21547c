from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from lock import HeldLease, Lease, LeaseLostError, LeaseUnavailableError, LockManager
from lock.heartbeat import TRUSTED_SHARE
from lock.memory_store import MemoryRecordStore
from tests.support.lock_seams import (
    FaultyRecordStore,
    ManualClock,
    RandomIds,
    RealClock,
    SeededIds,
)

LEASE_MS = 10_000


class Held:
    """A lease on a clock that the test moves, without a thread."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = FaultyRecordStore(MemoryRecordStore())
        self.manager = LockManager(
            self.store, clock=self.clock, ids=SeededIds(), lease_ms=LEASE_MS, process="us"
        )

    @contextmanager
    def lease(self) -> Iterator[HeldLease]:
        with self.manager.hold("n", task="t", heartbeat=False) as lease:
            yield lease


def test_lease_is_trusted_for_nine_tenths_of_its_time() -> None:
    held = Held()
    with held.lease() as lease:
        held.clock.pass_ms(LEASE_MS * TRUSTED_SHARE - 1)
        lease.check()
        held.clock.pass_ms(1)
        with pytest.raises(LeaseLostError, match="not confirmed for 9000 of 10000 ms") as caught:
            lease.check()
    assert caught.value.context == {"lock": "n", "token": "1"}


def test_confirming_extends_trust() -> None:
    held = Held()
    with held.lease() as lease:
        held.clock.pass_ms(8_000)
        lease.confirm()
        held.clock.pass_ms(8_000)
        lease.check()


def test_lost_lease_stays_lost(caplog: pytest.LogCaptureFixture) -> None:
    held = Held()
    with caplog.at_level(logging.WARNING, "icefold.lock"), held.lease() as lease:
        held.clock.pass_ms(LEASE_MS)
        assert not lease.still_held()
        held.clock.elapsed_ms = 0.0
        assert not lease.still_held()
        with pytest.raises(LeaseLostError):
            lease.confirm()
    assert caplog.text.count("lease lost: not confirmed") == 1


def test_jump_of_wall_clock_does_not_matter() -> None:
    held = Held()
    with held.lease() as lease:
        held.clock.wall_ms += 3_600_000
        lease.check()
        held.clock.wall_ms -= 7_200_000
        lease.check()


def test_confirming_fails_when_store_is_out_of_reach() -> None:
    held = Held()
    with held.lease() as lease:
        held.store.faults["load_error"] = 1.0
        with pytest.raises(LeaseLostError, match="did not answer"):
            lease.confirm()
        held.store.faults.clear()
        lease.confirm()  # that was an outage, and the lease outlived it


def test_release_that_fails_is_tried_again_then_left_to_run_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """R72: a 5xx on release must not leave the lock for ever, nor fail the work that is done."""
    held = Held()
    with held.lease():
        held.store.faults["lost_request"] = 1.0
        calm = iter([False, False, False, True])
        held.clock.on_sleep = lambda: held.store.faults.clear() if next(calm, True) else None
    assert not held.manager.inspect("n").is_held
    with caplog.at_level(logging.WARNING, "icefold.lock"), held.lease():
        held.store.faults["load_error"] = 1.0
        held.clock.on_sleep = lambda: None
    assert "not released, runs out by itself" in caplog.text
    held.store.faults.clear()
    assert held.manager.inspect("n").is_held
    held.clock.pass_ms(2 * LEASE_MS)
    assert held.manager.try_acquire("n", task="next") is None  # watched from here
    held.clock.pass_ms(LEASE_MS + 1)
    assert held.manager.try_acquire("n", task="next") is not None


def test_release_does_not_touch_successor(caplog: pytest.LogCaptureFixture) -> None:
    held = Held()
    with caplog.at_level(logging.WARNING, "icefold.lock"), held.lease():
        held.manager.break_("n")
        successor = held.manager.acquire("n", task="next")
    assert held.manager.inspect("n").owner_id == successor.owner_id
    assert "broken by an operator" in caplog.text
    assert "nothing to release, token 1 has ended" in caplog.text


def test_failed_resume_leaves_nothing_held() -> None:
    held = Held()
    other = LockManager(held.store, clock=ManualClock(), ids=SeededIds(7), process="them")
    with held.lease() as lease:
        lease.pause()
        other.acquire("n", task="wait", timeout_ms=0)
        with pytest.raises(LeaseUnavailableError):
            lease.resume(timeout_ms=0)
        with pytest.raises(LeaseLostError, match="paused"):
            lease.check()
    state = held.manager.inspect("n")
    assert (state.holder, state.token) == ("wait (them)", 2)


def test_lease_of_parent_is_not_ours_after_fork() -> None:
    held = Held()
    with held.lease() as lease:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                lease.check()
            except LeaseLostError as error:
                lease.close()  # type: ignore[attr-defined]
                still = held.manager.inspect("n").is_held
                status = 0 if "parent process" in str(error) and still else 2
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        lease.check()


def _real_manager(store: FaultyRecordStore) -> LockManager:
    return LockManager(store, clock=RealClock(), ids=RandomIds(), process="us")


def test_heartbeat_keeps_lease_through_short_outages() -> None:
    store = FaultyRecordStore(MemoryRecordStore(), {"load_error": 0.5}, seed=3)
    with _real_manager(store).hold("n", task="t", lease_ms=3_000) as lease:
        deadline = time.monotonic() + 30
        while store.hits["load_error"] < 2:
            assert time.monotonic() < deadline
            lease.check()
            time.sleep(0.01)


def test_heartbeat_ends_with_its_lease() -> None:
    manager = _real_manager(FaultyRecordStore(MemoryRecordStore()))
    before = threading.active_count()
    with manager.hold("n", task="t"):
        assert threading.active_count() == before + 1
    deadline = time.monotonic() + 30
    while threading.active_count() > before:  # nobody waits for it for long
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_interrupt_while_the_heartbeat_starts_leaves_nothing_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    manager = _real_manager(FaultyRecordStore(MemoryRecordStore()))
    started: list[threading.Thread] = []
    start = threading.Thread.start

    def start_and_interrupt(thread: threading.Thread) -> None:
        start(thread)
        started.append(thread)
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", start_and_interrupt)
    with pytest.raises(KeyboardInterrupt), manager.hold("n", task="t"):
        pytest.fail("nothing is held")
    assert not manager.inspect("n").is_held
    [thread] = started
    thread.join(30)
    assert not thread.is_alive()


def test_interrupted_release_is_tried_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held()
    release = held.manager.release
    interrupts = [KeyboardInterrupt]

    def release_or_interrupt(lease: Lease) -> bool:
        if interrupts:
            raise interrupts.pop()
        return release(lease)

    monkeypatch.setattr(held.manager, "release", release_or_interrupt)
    with pytest.raises(KeyboardInterrupt), held.lease() as lease:
        lease.check()
    assert not held.manager.inspect("n").is_held


@pytest.mark.slow
def test_lease_that_nobody_closes_runs_out() -> None:
    """An interrupt may come where no `finally` is yet."""
    manager = _real_manager(FaultyRecordStore(MemoryRecordStore()))

    def acquire(timeout_ms: int | None) -> Lease:
        return manager.acquire("n", task="t", timeout_ms=timeout_ms, lease_ms=3_000)

    before = set(threading.enumerate())
    dropped = HeldLease(manager, acquire, timeout_ms=0, heartbeat=True)
    [thread] = set(threading.enumerate()) - before
    assert dropped.still_held()
    del dropped
    thread.join(30)
    assert not thread.is_alive()
    with manager.hold("n", task="next", timeout_ms=30_000, heartbeat=False) as lease:
        assert lease.token == 2


def test_renewal_that_comes_back_late_does_not_revive_paused_lease() -> None:
    """The thread may hang in a dead connection while its lease is given up and a new one starts."""
    store = FaultyRecordStore(MemoryRecordStore())
    manager = _real_manager(store)
    renew, hanging, go_on = manager.renew, threading.Event(), threading.Event()

    def slow(lease: Lease) -> Lease:
        renewed = renew(lease)
        hanging.set()
        go_on.wait(10)
        return renewed

    manager.renew = slow  # type: ignore[method-assign]
    with manager.hold("n", task="t", lease_ms=2_000) as lease:
        assert hanging.wait(5)
        manager.renew = renew  # type: ignore[method-assign]
        lease.pause()
        with _real_manager(store).hold("n", task="short"):
            pass
        lease.resume()
        go_on.set()
        time.sleep(0.05)
        assert lease.token == 3
        lease.confirm()


def test_bug_in_heartbeat_is_reported_to_holder(caplog: pytest.LogCaptureFixture) -> None:
    manager = _real_manager(FaultyRecordStore(MemoryRecordStore()))

    def broken(lease: Lease) -> Lease:
        raise ZeroDivisionError(lease.name)

    manager.renew = broken  # type: ignore[method-assign]
    with manager.hold("n", task="t", lease_ms=1_500) as lease:  # a beat, and a second to be late
        deadline = time.monotonic() + 30
        while lease.still_held():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        with pytest.raises(LeaseLostError, match="ZeroDivisionError"):
            lease.check()
    assert "heartbeat stopped" in caplog.text
