"""Any order of calls, faults and clocks: what must hold about tokens and holders always holds."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lock import LeaseLostError, LeaseUnavailableError, LockManager, LockUnavailableError
from lock.heartbeat import HeldLease
from lock.memory_store import MemoryRecordStore
from lock.register import Stored
from tests.support.lock_seams import FaultyRecordStore, ManualClock, SeededIds

PROCESSES = 3
LEASE_MS = 1_000
FAULTS = ["load_error", "lost_request", "lost_reply", "busy", "resent", "late"]
processes = st.integers(0, PROCESSES - 1)


class ProcessClock:
    """One world, but each process's clocks start elsewhere, and its wall clock jumps."""

    def __init__(self, world: ManualClock, offset_ms: float) -> None:
        self.world = world
        self.offset_ms = offset_ms
        self.jump_ms = 0

    def now_ms(self) -> int:
        return self.world.wall_ms + self.jump_ms

    def monotonic_ms(self) -> float:
        return self.world.elapsed_ms + self.offset_ms

    def sleep_ms(self, duration_ms: float) -> None:
        self.world.sleep_ms(duration_ms)


class ServerStore(MemoryRecordStore):
    """A database with an honest clock, or (None) an object store without."""

    def __init__(self, clock: ManualClock | None) -> None:
        super().__init__()
        self.clock = clock

    def load(self, key: str) -> Stored:
        stored = super().load(key)
        return Stored(stored.data, stored.version, self.clock.wall_ms if self.clock else None)


class LeaseMachine(RuleBasedStateMachine):
    """Processes come and go; `held` are the leases they still believe in or forgot about."""

    @initialize(seed=st.integers(0, 2**32), server_clock=st.booleans())
    def start(self, seed: int, server_clock: bool) -> None:
        self.world = ManualClock()
        server = ServerStore(self.world if server_clock else None)
        self.store = FaultyRecordStore(server, seed=seed)
        self.clocks = [ProcessClock(self.world, 1e6 * number) for number in range(PROCESSES)]
        self.ids = SeededIds(seed)
        self.managers = [
            LockManager(
                self.store, clock=clock, ids=self.ids, lease_ms=LEASE_MS, process=str(number)
            )
            for number, clock in enumerate(self.clocks)
        ]
        self.held: dict[int, HeldLease] = {}
        self.broken: set[int] = set()
        self.tokens: list[int] = []
        self.newest_step = 0

    @rule(number=processes, timeout_ms=st.sampled_from([0, 50, 400, 3_000]))
    def acquire(self, number: int, timeout_ms: int) -> None:
        """A process that held the lock before forgets it without releasing: it crashed."""

        def acquire(timeout_ms: int | None) -> Any:
            return self.managers[number].acquire("n", task="t", timeout_ms=timeout_ms)

        self.held.pop(number, None)
        self.broken.discard(number)
        with suppress(LeaseUnavailableError, LockUnavailableError):
            lease = HeldLease(
                self.managers[number], acquire, timeout_ms=timeout_ms, heartbeat=False
            )
            self.held[number] = lease
            assert lease.token not in self.tokens
            assert lease.token > max(self.tokens, default=0)
            self.tokens.append(lease.token)

    @rule(number=processes)
    def step(self, number: int) -> None:
        """What cannot be undone, guarded by a token alone: an older one must find out."""
        lease = self.held.get(number)
        if lease is None or not lease.still_held():
            return
        if number not in self.broken:
            assert lease.token >= self.newest_step
        self.newest_step = max(self.newest_step, lease.token)

    @rule(number=processes)
    def confirm(self, number: int) -> None:
        """Whoever can confirm holds the newest token, broken or not."""
        lease = self.held.get(number)
        if lease is None:
            return
        with suppress(LeaseLostError):
            lease.confirm()
            assert lease.token == max(self.tokens)
            assert lease.token >= self.newest_step
            self.newest_step = lease.token

    @rule(number=processes)
    def release(self, number: int) -> None:
        lease = self.held.pop(number, None)
        self.broken.discard(number)
        if lease is not None:
            lease.close()
            assert not lease.still_held()

    @rule()
    def break_lock(self) -> None:
        """The one case in which a process may believe for a while what is not so any more."""
        with suppress(LockUnavailableError):
            self.broken |= set(self.held)
            self.managers[0].break_("n")

    @rule(duration_ms=st.sampled_from([1, 100, 333, 899, 901, 1_001, 5_000]))
    def pass_time(self, duration_ms: int) -> None:
        self.world.pass_ms(duration_ms)

    @rule(number=processes, jump_ms=st.sampled_from([-3_600_000, 0, 3_600_000]))
    def jump(self, number: int, jump_ms: int) -> None:
        self.clocks[number].jump_ms = jump_ms

    @rule(fault=st.sampled_from(FAULTS), rate=st.sampled_from([0.0, 0.3, 1.0]))
    def fail(self, fault: str, rate: float) -> None:
        self.store.faults[fault] = rate

    @rule()
    def heal(self) -> None:
        self.store.faults.clear()

    @precondition(lambda self: not self.store.faults)
    @rule(number=processes)
    def drain(self, number: int) -> None:
        """Once faults stop, whoever waits long enough gets the lock (I18)."""
        self.held.pop(number, None)
        others_ms = 2 * LEASE_MS * (PROCESSES + 1) + 10_000
        lease = self.managers[number].acquire("n", task="t", timeout_ms=others_ms)
        assert lease.token > max(self.tokens, default=0)
        self.tokens.append(lease.token)
        assert self.managers[number].release(lease)

    @invariant()
    def at_most_one_believes(self) -> None:
        if not hasattr(self, "held"):
            return
        believers = [
            number
            for number, lease in self.held.items()
            if number not in self.broken and lease.still_held()
        ]
        assert len(believers) <= 1


LeaseMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestLeases = LeaseMachine.TestCase
