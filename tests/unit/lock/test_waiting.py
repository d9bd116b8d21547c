"""Waiting on a clock that the test moves: nothing here takes time."""

from __future__ import annotations

import logging
from collections.abc import Callable
from zlib import crc32

import pytest

from lock import Lease, LeaseUnavailableError, LockManager, LockUnavailableError
from lock.memory_store import MemoryRecordStore
from lock.record import WAITERS_MAX
from lock.register import RecordStore, Stored
from lock.waiting import Acquisition
from tests.support.lock_seams import FaultyRecordStore, ManualClock, SeededIds

LEASE_MS = 10_000


class ClockedStore(MemoryRecordStore):
    """With a clock of its own, as PostgreSQL has."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self.clock = clock

    def load(self, key: str) -> Stored:
        stored = super().load(key)
        return Stored(stored.data, stored.version, self.clock.wall_ms)


class Parked(BaseException):
    """Stands for SIGKILL: nothing is cleaned up."""


def manager(store: RecordStore, clock: ManualClock, process: str) -> LockManager:
    ids = SeededIds(crc32(process.encode()))
    return LockManager(store, clock=clock, ids=ids, lease_ms=LEASE_MS, process=process)


def leave_ticket_behind(
    waiter: LockManager, clock: ManualClock, *, lease_ms: int = LEASE_MS
) -> None:
    """Queue at the lock `n` and die."""

    def park() -> None:
        raise Parked

    clock.on_sleep = park
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Acquisition, "withdraw", lambda _: None)
        with pytest.raises(Parked):
            waiter.acquire("n", task="w", timeout_ms=60_000, lease_ms=lease_ms)
    clock.on_sleep = lambda: None


def elapsed(clock: ManualClock, action: Callable[[], Lease]) -> tuple[Lease, float]:
    before = clock.elapsed_ms
    lease = action()
    return lease, clock.elapsed_ms - before


def test_takeover_needs_one_whole_lease_of_watching() -> None:
    store, ours, theirs = MemoryRecordStore(), ManualClock(), ManualClock()
    manager(store, ours, "a").acquire("n", task="t")
    lease, waited_ms = elapsed(
        theirs, lambda: manager(store, theirs, "b").acquire("n", task="t", timeout_ms=60_000)
    )
    assert lease.token == 2
    assert LEASE_MS < waited_ms <= LEASE_MS + 500


def test_dead_holder_of_many_locks_is_waited_for_once() -> None:
    store, ours, theirs = MemoryRecordStore(), ManualClock(), ManualClock()
    names = ["a", "b", "c", "d"]
    for name in names:
        manager(store, ours, "dead").acquire(name, task="t")
    heir = manager(store, theirs, "heir")

    def take_all() -> Lease:
        for at, name in enumerate(names, start=1):
            lease = heir.acquire(name, task="t", timeout_ms=60_000, then=names[at:])
        return lease

    lease, waited_ms = elapsed(theirs, take_all)
    assert lease.token == 2
    assert LEASE_MS < waited_ms <= LEASE_MS + 500


def test_living_holder_of_a_later_lock_is_waited_for() -> None:
    store, ours, theirs = MemoryRecordStore(), ManualClock(), ManualClock()
    living, heir = manager(store, ours, "living"), manager(store, theirs, "heir")
    manager(store, ours, "dead").acquire("a", task="t")
    lease = living.acquire("b", task="t")

    def renew() -> None:
        living.renew(lease)

    theirs.on_sleep = renew
    heir.acquire("a", task="t", timeout_ms=60_000, then=["b"])
    assert heir.try_acquire("b", task="t") is None


def test_renewal_restarts_the_watch() -> None:
    store, theirs = MemoryRecordStore(), ManualClock()
    ours = manager(store, ManualClock(), "a")
    lease = ours.acquire("n", task="t")
    renewed_ms = [0.0]

    def renew_for_five_leases() -> None:
        if theirs.elapsed_ms < 5 * LEASE_MS:
            ours.renew(lease)
            renewed_ms[0] = theirs.elapsed_ms

    theirs.on_sleep = renew_for_five_leases
    manager(store, theirs, "b").acquire("n", task="t", timeout_ms=10**7)
    assert LEASE_MS < theirs.elapsed_ms - renewed_ms[0] <= LEASE_MS + 500


@pytest.mark.parametrize("jump_ms", [-3_600_000, 3_600_000])
def test_jump_of_wall_clock_neither_hastens_nor_delays_takeover(jump_ms: int) -> None:
    store, ours, theirs = MemoryRecordStore(), ManualClock(), ManualClock()
    manager(store, ours, "a").acquire("n", task="t")
    theirs.wall_ms += jump_ms
    _, waited_ms = elapsed(
        theirs, lambda: manager(store, theirs, "b").acquire("n", task="t", timeout_ms=60_000)
    )
    assert LEASE_MS < waited_ms <= LEASE_MS + 500


def test_holder_stops_trusting_before_waiter_starts() -> None:
    """Both count from their own ends of the same request."""
    store, clock = MemoryRecordStore(), ManualClock()
    ours, theirs = manager(store, clock, "a"), manager(store, clock, "b")
    with ours.hold("n", task="t", heartbeat=False) as lease:
        trusted: list[bool] = []
        clock.on_sleep = lambda: trusted.append(lease.still_held())
        theirs.acquire("n", task="t", timeout_ms=60_000)
        clock.on_sleep = lambda: None
        assert True in trusted
        assert not lease.still_held()
        assert trusted.index(False) < len(trusted) - 1


def test_slow_replies_do_not_hasten_takeover() -> None:
    """The count starts when the reply has come back, and ends when the next read is sent."""
    store, clock = MemoryRecordStore(), ManualClock()
    manager(store, clock, "a").acquire("n", task="t")
    load = store.load

    def slow(key: str) -> Stored:
        clock.pass_ms(300)
        stored = load(key)
        clock.pass_ms(300)
        return stored

    store.load = slow  # type: ignore[method-assign]
    first_seen_ms = clock.elapsed_ms + 300
    manager(store, clock, "b").acquire("n", task="t", timeout_ms=60_000)
    last_seen_ms = clock.elapsed_ms - 300
    assert last_seen_ms - first_seen_ms >= LEASE_MS + 600


def test_store_clock_ends_lease_without_watching() -> None:
    server = ManualClock()
    store = ClockedStore(server)
    manager(store, ManualClock(), "a").acquire("n", task="t")
    server.pass_ms(LEASE_MS)
    assert manager(store, ManualClock(), "b").try_acquire("n", task="t") is None
    server.pass_ms(1)
    lease = manager(store, ManualClock(), "c").try_acquire("n", task="t")
    assert lease is not None
    assert lease.token == 2


def test_store_clock_counts_from_last_renewal() -> None:
    server, clock = ManualClock(), ManualClock()
    store = ClockedStore(server)
    ours, theirs = manager(store, clock, "a"), manager(store, clock, "b")
    lease = ours.acquire("n", task="t")
    server.pass_ms(LEASE_MS - 1)
    ours.renew(lease)
    server.pass_ms(LEASE_MS - 1)
    assert theirs.try_acquire("n", task="t") is None


def test_store_clock_that_went_back_does_not_keep_dead_holder_for_ever() -> None:
    server = ManualClock()
    store = ClockedStore(server)
    manager(store, ManualClock(), "a").acquire("n", task="t")
    server.wall_ms -= 3_600_000
    waiter = ManualClock(on_sleep=lambda: None)
    lease, waited_ms = elapsed(
        waiter, lambda: manager(store, waiter, "b").acquire("n", task="t", timeout_ms=60_000)
    )
    assert lease.token == 2
    assert waited_ms <= LEASE_MS + 500


def test_watching_goes_on_over_separate_tries() -> None:
    store, clock = MemoryRecordStore(), ManualClock()
    manager(store, ManualClock(), "a").acquire("n", task="t")
    ours = manager(store, clock, "b")
    assert ours.try_acquire("n", task="t") is None
    clock.pass_ms(LEASE_MS)
    assert ours.try_acquire("n", task="t") is None
    clock.pass_ms(1)
    assert ours.try_acquire("n", task="t") is not None


def test_try_respects_living_queue_and_ignores_dead_one() -> None:
    store, clock = MemoryRecordStore(), ManualClock()
    ours, waiter, late = (manager(store, clock, p) for p in "abc")
    lease = ours.acquire("n", task="t")
    leave_ticket_behind(waiter, clock)
    assert [w.holder for w in ours.inspect("n").waiters] == ["w (b)"]
    ours.release(lease)
    assert late.try_acquire("n", task="t") is None
    clock.pass_ms(LEASE_MS // 2 + 1)
    assert late.try_acquire("n", task="t") is not None


def test_interrupted_waiter_leaves_queue() -> None:
    store, clock = MemoryRecordStore(), ManualClock()
    ours, waiter = manager(store, clock, "a"), manager(store, clock, "b")
    ours.acquire("n", task="t")

    def interrupt() -> None:
        clock.on_sleep = lambda: None
        raise KeyboardInterrupt

    clock.on_sleep = interrupt
    with pytest.raises(KeyboardInterrupt):
        waiter.acquire("n", task="w", timeout_ms=60_000)
    assert ours.inspect("n").waiters == ()


def test_acquisition_whose_reply_was_lost_is_found_again() -> None:
    clock = ManualClock()
    store = FaultyRecordStore(MemoryRecordStore(), {"lost_reply": 1.0})
    lease = manager(store, clock, "a").acquire("n", task="t")
    assert lease.token == 1
    assert manager(store.inner, clock, "b").inspect("n").owner_id == lease.owner_id


def test_acquisition_found_again_later_is_confirmed_anew() -> None:
    """Nobody knows when the lost write landed, so its lease must not be counted from then."""
    clock = ManualClock()
    store = FaultyRecordStore(MemoryRecordStore())
    swap = store.swap
    cut = [True]

    def lost(key: str, version: str | None, data: bytes):  # type: ignore[no-untyped-def]
        outcome = swap(key, version, data)
        if cut[0]:
            store.faults["load_error"] = 1.0
            raise LockUnavailableError("cut off")
        return outcome

    watched: list[Lease | None] = []

    def reconnect() -> None:
        if not watched:
            watched.append(watcher.try_acquire("n", task="t"))
        if clock.elapsed_ms > 8_000:
            cut[0] = False
            store.faults.clear()

    store.swap = lost  # type: ignore[method-assign]
    clock.on_sleep = reconnect
    watcher = manager(store.inner, clock, "b")
    lease = manager(store, clock, "a").acquire("n", task="t", timeout_ms=60_000)
    assert lease.token == 1
    assert lease.confirmed_ms >= 8_000
    assert watched == [None]
    clock.pass_ms(LEASE_MS + 500 - clock.elapsed_ms)  # a whole lease since it landed
    assert watcher.try_acquire("n", task="t") is None


def test_unreachable_store_is_reported_as_such_after_timeout() -> None:
    clock = ManualClock()
    store = FaultyRecordStore(MemoryRecordStore(), {"load_error": 1.0})
    with pytest.raises(LockUnavailableError):
        manager(store, clock, "a").acquire("n", task="t", timeout_ms=20_000)
    assert 20_000 <= clock.elapsed_ms < 30_000


def test_store_that_comes_back_in_time_is_no_error() -> None:
    clock = ManualClock()
    store = FaultyRecordStore(MemoryRecordStore(), {"load_error": 1.0})
    clock.on_sleep = lambda: store.faults.clear() if clock.elapsed_ms > 15_000 else None
    assert manager(store, clock, "a").acquire("n", task="t", timeout_ms=20_000).token == 1


def test_store_that_stays_away_ends_a_wait_of_an_hour_after_minutes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = ManualClock()
    store = FaultyRecordStore(MemoryRecordStore(), {"load_error": 1.0})
    with pytest.raises(LockUnavailableError):
        manager(store, clock, "a").acquire("n", task="t", timeout_ms=3_600_000)
    assert 300_000 <= clock.elapsed_ms < 310_000
    assert caplog.text.count("trying again") == 10  # it says so, and not with every look


def test_store_that_answers_now_and_then_is_waited_for() -> None:
    clock = ManualClock()
    store = FaultyRecordStore(MemoryRecordStore())
    other = manager(store.inner, ManualClock(), "b")
    lease = other.acquire("n", task="t")

    def flap() -> None:
        other.renew(lease)
        is_away = clock.elapsed_ms // 100_000 % 2 == 0
        store.faults = {"load_error": 1.0} if is_away else {}

    clock.on_sleep = flap
    with pytest.raises(LeaseUnavailableError):
        manager(store, clock, "a").acquire("n", task="t", timeout_ms=900_000)


def test_timeout_names_first_in_queue_when_nobody_holds() -> None:
    store, clock = MemoryRecordStore(), ManualClock()
    ours, waiter, late = (manager(store, clock, p) for p in "abc")
    lease = ours.acquire("n", task="t")
    asked: list[str] = []

    def third_comes() -> None:
        clock.on_sleep = lambda: None
        ours.release(lease)
        with pytest.raises(LeaseUnavailableError) as caught:
            late.acquire("n", task="l", timeout_ms=0)
        asked.append(caught.value.holder)

    clock.on_sleep = third_comes
    waiter.acquire("n", task="w", timeout_ms=60_000)
    assert asked == ["w (b)"]


def test_long_wait_polls_rarely_and_reports_now_and_then(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = ManualClock()
    store = FaultyRecordStore(MemoryRecordStore())
    ours, waiter = manager(store, ManualClock(), "a"), manager(store, clock, "b")
    lease = ours.acquire("n", task="t")
    loads = [0]
    load = store.load

    def counted(key: str) -> Stored:
        loads[0] += 1
        return load(key)

    store.load = counted  # type: ignore[method-assign]

    def renew() -> None:
        ours.renew(lease)

    clock.on_sleep = renew
    with caplog.at_level(logging.INFO, "icefold.lock"), pytest.raises(LeaseUnavailableError):
        waiter.acquire("n", task="w", timeout_ms=100_000)
    assert loads[0] < 2 * 100_000 / 250 * 1.3 + 60  # the renewals read as well
    assert caplog.text.count("waiting since") == 4


def test_fast_changing_lock_is_polled_fast() -> None:
    store, clock = MemoryRecordStore(), ManualClock()
    ours, waiter = manager(store, clock, "a"), manager(store, clock, "b")
    lease = ours.acquire("n", task="t")

    def release_soon() -> None:
        if clock.elapsed_ms >= 20:
            clock.on_sleep = lambda: None
            ours.release(lease)

    clock.on_sleep = release_soon
    waiter.acquire("n", task="w", timeout_ms=60_000)
    assert clock.elapsed_ms <= 40


def test_queue_is_bounded() -> None:
    store, clock = MemoryRecordStore(), ManualClock()
    ours = manager(store, clock, "a")
    ours.acquire("n", task="t")
    for number in range(WAITERS_MAX + 3):
        leave_ticket_behind(manager(store, clock, f"w{number}"), clock, lease_ms=600_000)
    assert len(ours.inspect("n").waiters) == WAITERS_MAX
