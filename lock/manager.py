"""Leases on any `RecordStore`: the `LockManager` that everything uses."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Self

from lock.errors import InvalidLockError, LeaseLostError, LeaseUnavailableError
from lock.heartbeat import HeldLease
from lock.lease import DEFAULT_LEASE_MS, Lease, LockState, Waiter
from lock.lock_names import check_lease_ms, check_lock_name, check_task
from lock.owners import owner_id
from lock.record import Claim, LockRecord, freed, renewed
from lock.register import Observed, RecordStore, Register, Step
from lock.seams import Clock, FailPoint, IdSource, no_fail_point
from lock.waiting import Acquisition, Watches

logger = logging.getLogger("icefold.lock")

_RENEW_BUDGET_SHARE = 6  # a renewal gives up early: the heartbeat tries again, a commit fails fast
_RELEASE_BUDGET_MAX_MS = 5_000.0  # after that the lease runs out by itself (R72)
_TICKET_TTL_MIN_MS = 2_000
_TOKEN_FLOOR_MAX = 1 << 62
_HOST_LENGTH_MAX = 100
_FAR_POLL_MS = 100.0  # buckets; a database answers before a thread has begun


class LockManager:
    """Named locks. Not reentrant: a second acquisition of one name waits, in one process too.

    Safe to share between threads; useless leases after a fork.

    Args:
        store: Where the records live; `prepare` has been called.
        clock: Measures leases (monotonic) and labels records (wall).
        ids: Nonces and jitter.
        lease_ms: Lease time where a call gives none.
        process: Who we are, for others' logs; host and process id if None.
        fail_point: Hit as `lock.before_*` and `lock.after_*` acquire, renew and release.
    """

    def __init__(
        self,
        store: RecordStore,
        *,
        clock: Clock,
        ids: IdSource,
        lease_ms: int = DEFAULT_LEASE_MS,
        process: str | None = None,
        fail_point: FailPoint = no_fail_point,
    ) -> None:
        check_lease_ms(lease_ms)
        self._register = Register(store, clock, ids)
        self._watches = Watches()
        self._lease_ms = lease_ms
        self._process = process
        self._fail_point = fail_point
        if process is not None:
            check_task(process)

    def __repr__(self) -> str:
        return f"LockManager({self._register.store.describe()!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def clock(self) -> Clock:
        """The clock that leases are measured by."""
        return self._register.clock

    @property
    def is_far(self) -> bool:
        """Whether an answer takes so long that several locks are better asked for at a time."""
        return self._register.store.poll_min_ms >= _FAR_POLL_MS

    def close(self) -> None:
        """Give up connections; leases stay."""
        self._register.store.close()

    def try_acquire(
        self, name: str, *, task: str, lease_ms: int | None = None, token_floor: int = 0
    ) -> Lease | None:
        """Acquire if free and nobody queues, else None; never waits.

        Args:
            name: The lock.
            task: What it is for; others see it while they wait.
            lease_ms: Lease time; the manager's own if None.
            token_floor: The newest token known from elsewhere (the table's branch). The lease gets
                a higher one even if the lock's store was lost or exchanged.
        """
        self._fail_point("lock.before_acquire")
        lease = self._acquisition(name, task, lease_ms, token_floor).run_once()
        self._fail_point("lock.after_acquire")
        return lease

    def acquire(
        self,
        name: str,
        *,
        task: str,
        timeout_ms: int | None = None,
        lease_ms: int | None = None,
        token_floor: int = 0,
        then: Sequence[str] = (),
    ) -> Lease:
        """Queue until it is our turn; `LeaseUnavailableError` after `timeout_ms`.

        None waits for two lease times: that outlasts a dead holder, so that a crash alone never
        fails the next run. A timeout below one lease time may not.

        `then` are locks that the caller acquires next: if it has to wait for this one, they are
        looked at as well, so that a dead holder of all of them is waited for once.
        """
        if timeout_ms is None:
            timeout_ms = 2 * (lease_ms or self._lease_ms)
        if timeout_ms < 0:
            raise InvalidLockError("timeout refused: negative", timeout_ms=timeout_ms)
        self._fail_point("lock.before_acquire")
        lease = self._acquisition(name, task, lease_ms, token_floor).run(timeout_ms, then)
        self._fail_point("lock.after_acquire")
        return lease

    def renew(self, lease: Lease) -> Lease:
        """Prove and extend one's own lease; `LeaseLostError` if it is another's by now."""
        self._fail_point("lock.before_renew")

        def decide(seen: Observed) -> Step[LockRecord]:
            record = seen.record
            if not record.is_owned_by(lease.owner_id, lease.token):
                return Step(None, record)
            record = renewed(record, seen.now_ms)
            return Step(record, record)

        budget_ms = lease.lease_ms / _RENEW_BUDGET_SHARE
        applied = self._register.update(lease.name, decide, budget_ms=budget_ms)
        self._fail_point("lock.after_renew")
        record = applied.outcome
        if not record.is_owned_by(lease.owner_id, lease.token):
            raise LeaseLostError(
                "lease lost: " + ("taken over" if record.owner_id else "ended by someone else"),
                lock=lease.name,
                token=lease.token,
                newest_token=record.token,
                holder=record.holder or "nobody",
                action="stop; plan again under a new lease",
            )
        return replace(lease, confirmed_ms=applied.sent_ms)

    def release(self, lease: Lease) -> bool:
        """End one's own lease. False, and nothing changed, if it was not ours any more."""
        self._fail_point("lock.before_release")

        def decide(seen: Observed) -> Step[bool]:
            if not seen.record.is_owned_by(lease.owner_id, lease.token):
                return Step(None, False)
            return Step(freed(seen.record), True)

        budget_ms = min(lease.lease_ms, _RELEASE_BUDGET_MAX_MS)
        released = self._register.update(lease.name, decide, budget_ms=budget_ms).outcome
        self._fail_point("lock.after_release")
        if not released:
            logger.warning(
                "lock %s: nothing to release, token %d has ended", lease.name, lease.token
            )
        return released

    def inspect(self, name: str) -> LockState:
        """Look, change nothing."""
        check_lock_name(name)
        return _state(self._register.load(name))

    def break_(self, name: str, *, token: int | None = None) -> LockState:
        """Operator: end whoever's lease it is, at once. Its holder finds out at its next renewal.

        Args:
            name: The lock.
            token: Break only if this is still the token: the lease that `inspect` showed.

        Returns:
            The state before.
        """
        check_lock_name(name)

        def decide(seen: Observed) -> Step[LockState]:
            state = _state(seen)
            wanted = state.is_held and token in {None, state.token}
            return Step(freed(seen.record) if wanted else None, state)

        state = self._register.update(name, decide, budget_ms=_RELEASE_BUDGET_MAX_MS).outcome
        if token is not None and token != state.token:
            raise LeaseUnavailableError(
                "lock not broken: it changed hands meanwhile",
                lock=name,
                token=token,
                newest_token=state.token,
                holder=state.holder or "nobody",
                action="look again",
            )
        if state.is_held:
            logger.warning(
                "lock %s: broken by an operator; held by %s for %d ms, silent for %d ms; token=%d",
                name, state.holder, state.held_ms, state.silent_ms, state.token,
            )  # fmt: skip
        return state

    @contextmanager
    def hold(
        self,
        name: str,
        *,
        task: str,
        timeout_ms: int | None = None,
        lease_ms: int | None = None,
        token_floor: int = 0,
        then: Sequence[str] = (),
        heartbeat: bool = True,
    ) -> Iterator[HeldLease]:
        """Acquire on entry, renew in a background thread, release on exit.

        With `heartbeat=False` there is no thread: the caller confirms (the simulator does).

        Effects: on exit the lease is released, also after an error; if the store cannot be reached
        for it, the lease runs out by itself and a warning is logged.
        """

        def acquire(timeout_ms: int | None) -> Lease:
            return self.acquire(
                name,
                task=task,
                timeout_ms=timeout_ms,
                lease_ms=lease_ms,
                token_floor=token_floor,
                then=then,
            )

        held = HeldLease(self, acquire, timeout_ms=timeout_ms, heartbeat=heartbeat)
        try:
            yield held
        finally:
            held.close()

    def _acquisition(
        self, name: str, task: str, lease_ms: int | None, token_floor: int
    ) -> Acquisition:
        check_lock_name(name)
        check_task(task)
        lease_ms = self._lease_ms if lease_ms is None else lease_ms
        check_lease_ms(lease_ms)
        if not 0 <= token_floor <= _TOKEN_FLOOR_MAX:
            raise InvalidLockError("token floor refused: out of range", token_floor=token_floor)
        claim = Claim(
            name=name,
            owner_id=owner_id(self._register.ids.uuid().hex),
            holder=f"{task} ({self._process or _this_process()})",
            lease_ms=lease_ms,
            token_floor=token_floor,
            ticket_ttl_ms=max(lease_ms // 2, _TICKET_TTL_MIN_MS),
        )
        return Acquisition(self._register, self._watches, claim)


def _state(seen: Observed) -> LockState:
    record = seen.record
    is_held = record.owner_id is not None
    return LockState(
        name=record.name,
        token=record.token,
        owner_id=record.owner_id,
        holder=record.holder,
        lease_ms=record.lease_ms,
        held_ms=max(seen.now_ms - record.acquired_ms, 0) if is_held else 0,
        silent_ms=max(seen.now_ms - record.renewed_ms, 0) if is_held else 0,
        waiters=tuple(
            Waiter(ticket=ticket.number, holder=ticket.holder)
            for ticket in record.live_waiters(seen.now_ms)
        ),
    )


def _this_process() -> str:
    """Host and process id, asked anew: a fork changes it."""
    host = "".join(c if c.isprintable() else "?" for c in socket.gethostname())
    return f"host {host[:_HOST_LENGTH_MAX]}, pid {os.getpid()}"
