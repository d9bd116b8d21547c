"""How a lock is acquired: judging the holder, queueing, and how often to look.

A claimant may take the lock when

1. nobody holds it, or the holder gave no sign of life for its lease time: by the store's clock
   where the store has one, or watched by our own monotonic clock (two machines' clocks are never
   compared); or it was a process of this machine that has ended (`owners`); and
2. no living ticket is ahead of ours.

Watching: a sign of life first seen in a reply that *came back* at t, and still the same in a read
*sent* at t + lease or later, was unchanged in the store for the whole lease. The holder counts from
when it sent the renewal, so it stops believing before we start.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from lock.errors import LeaseUnavailableError, LockError, LockUnavailableError
from lock.lease import Lease
from lock.owners import is_gone
from lock.record import WAITERS_MAX, Claim, LockRecord, granted, queued, renewed, withdrawn
from lock.register import Applied, Observed, Register, Step

logger = logging.getLogger("icefold.lock")

_REPORT_EVERY_MS = 30_000.0
# A database that fails over is back by then; one whose disk is full is for people.
_OUTAGE_MAX_MS = 300_000.0
_STEP_BUDGET_MS = 5_000.0  # contention or a short outage within one look; waiting goes on after it
_WITHDRAW_BUDGET_MS = 1_000.0
_REFRESHES_PER_TTL = 3  # so that one late refresh does not look like death
_QUIET_SHARE = 0.1  # look after a tenth of the time nothing happened: late by a tenth at most


class Watches:
    """Since when each lock's sign of life has not changed, as this process saw it.

    Kept over calls, so that a task which only ever tries, again and again, takes over a dead
    holder's lock as well.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._seen: dict[str, tuple[tuple[str | None, int, int], float]] = {}

    def silent_ms(self, seen: Observed) -> float:
        """For how long, at least, the sign of life in `seen` has been the same in the store."""
        sign = seen.record.sign_of_life
        with self._mutex:
            known = self._seen.get(seen.record.name)
            # An older reply that arrives late shows an older sign: it restarts the count, no more.
            if known is None or known[0] != sign:
                self._seen[seen.record.name] = (sign, seen.received_ms)
                return 0.0
            return max(seen.sent_ms - known[1], 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocked:
    """Why not: a living holder, or someone ahead in the queue. `place` counts from 1."""

    record: LockRecord
    holder: str
    is_held: bool
    place: int
    age_ms: int
    expires_in_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    """The lock is ours. `taken_from`: the holder whose lease ran out, with its silence."""

    record: LockRecord
    taken_from: str | None = None
    silent_ms: float = 0.0


class Acquisition:
    """One claim on its way to a lease."""

    def __init__(self, register: Register, watches: Watches, claim: Claim) -> None:
        self._register = register
        self._watches = watches
        self._claim = claim
        self._ticket: int | None = None
        self._wants_ticket = False

    def run(self, timeout_ms: float, then: Sequence[str] = ()) -> Lease:
        """Take the lock, or queue until it is our turn.

        Args:
            timeout_ms: How long to wait.
            then: Locks whose silence is counted from the first look on that has to wait.

        Raises:
            LeaseUnavailableError: Not within `timeout_ms`.
            LockUnavailableError: The store was out of reach when the time was over, or for minutes.

        Effects: an interruption leaves neither a ticket nor a lease behind, as far as the store
        can still be reached; what stays runs out by itself.
        """
        clock = self._register.clock
        started_ms = clock.monotonic_ms()
        deadline_ms = started_ms + timeout_ms
        self._wants_ticket = timeout_ms > 0
        pace = _Pace(self._register, started_ms)
        outage = _Outage(self._claim.name)
        try:
            while True:
                pause_ms = self._register.store.poll_max_ms
                sent_ms = clock.monotonic_ms()
                try:
                    applied = self.look(budget_ms=_STEP_BUDGET_MS)
                except LockUnavailableError as error:
                    now_ms = clock.monotonic_ms()
                    if now_ms >= deadline_ms or outage.lasts(error, sent_ms, now_ms):
                        raise
                else:
                    outage.end()
                    if isinstance(applied.outcome, Granted):
                        pace.report_end(applied.outcome)
                        return self._lease(applied)
                    if clock.monotonic_ms() >= deadline_ms:
                        raise self._unavailable(applied.outcome, timeout_ms)
                    pause_ms = pace.next_ms(applied.outcome)
                    then = self._watch(then)
                left_ms = max(deadline_ms - clock.monotonic_ms(), 0.0)
                clock.sleep_ms(min(pause_ms, left_ms))
        except BaseException:
            self.withdraw()
            raise

    def _watch(self, names: Sequence[str]) -> Sequence[str]:
        """Begin to count the silence of locks; which of them are left to be looked at: none."""
        with suppress(LockError):  # whoever acquires it finds out
            for name in names:
                self._watches.silent_ms(self._register.load(name))
        return ()

    def run_once(self) -> Lease | None:
        """Take the lock if it can be taken at once."""
        try:
            applied = self.look(budget_ms=_STEP_BUDGET_MS)
        except BaseException:
            self.withdraw()
            raise
        return self._lease(applied) if isinstance(applied.outcome, Granted) else None

    def look(self, *, budget_ms: float) -> Applied[Granted | Blocked]:
        """Read the lock once and do what follows: take it, queue, refresh the ticket, nothing."""
        return self._register.update(self._claim.name, self._decide, budget_ms=budget_ms)

    def withdraw(self) -> None:
        """Best effort: remove our ticket, and the lease if an unanswered write got it."""
        claim = self._claim

        def decide(seen: Observed) -> Step[None]:
            record = withdrawn(seen.record, claim.owner_id)
            return Step(None if record == seen.record else record, None)

        try:
            self._register.update(claim.name, decide, budget_ms=_WITHDRAW_BUDGET_MS)
        except LockError as error:
            logger.info("lock %s: claim left to run out by itself: %s", claim.name, error)

    def _decide(self, seen: Observed) -> Step[Granted | Blocked]:
        record, claim = seen.record, self._claim
        if record.owner_id == claim.owner_id:
            # An earlier, unanswered write of this claim landed: renew, since nobody knows when.
            mine = renewed(record, seen.now_ms)
            return Step(mine, Granted(record=mine))
        silent_ms = self._watches.silent_ms(seen)
        if seen.store_clock:
            silent_ms = max(silent_ms, seen.now_ms - record.renewed_ms)
        # Strictly more where the store's clock counts whole milliseconds.
        expired = silent_ms > record.lease_ms or is_gone(record.owner_id)
        ahead = self._ahead(seen)
        if (record.owner_id is None or expired) and not ahead:
            taken = granted(record, claim, seen.now_ms)
            return Step(taken, Granted(record=taken, taken_from=record.holder, silent_ms=silent_ms))
        is_held = record.owner_id is not None and not expired
        blocked = Blocked(
            record=record,
            holder=record.holder or "" if is_held else ahead[0],
            is_held=is_held,
            place=len(ahead) + 1,
            age_ms=max(seen.now_ms - record.acquired_ms, 0) if is_held else 0,
            expires_in_ms=record.lease_ms - silent_ms if is_held else 0.0,
        )
        return Step(self._with_ticket(seen), blocked)

    def _ahead(self, seen: Observed) -> list[str]:
        return [
            ticket.holder
            for ticket in seen.record.live_waiters(seen.now_ms)
            if ticket.owner_id != self._claim.owner_id
            and not is_gone(ticket.owner_id)
            and (self._ticket is None or ticket.number < self._ticket)
        ]

    def _with_ticket(self, seen: Observed) -> LockRecord | None:
        """The record with our ticket put in or refreshed; None if there is nothing to write."""
        record, claim = seen.record, self._claim
        if not self._wants_ticket:
            return None
        mine = next((t for t in record.waiters if t.owner_id == claim.owner_id), None)
        if mine is not None:
            self._ticket = mine.number
            if abs(seen.now_ms - mine.seen_ms) < claim.ticket_ttl_ms / _REFRESHES_PER_TTL:
                return None
        elif len(record.live_waiters(seen.now_ms)) >= WAITERS_MAX:
            return None
        return queued(record, claim, self._ticket, seen.now_ms)

    def _lease(self, applied: Applied[Granted | Blocked]) -> Lease:
        got, claim = applied.outcome, self._claim
        assert isinstance(got, Granted)
        if got.taken_from is not None:
            logger.warning(
                "lock %s: taken over by %s from %s, silent for %d ms; token=%d",
                claim.name, claim.holder, got.taken_from, got.silent_ms, got.record.token,
            )  # fmt: skip
        return Lease(
            name=claim.name,
            owner_id=claim.owner_id,
            holder=claim.holder,
            lease_ms=claim.lease_ms,
            token=got.record.token,
            confirmed_ms=applied.sent_ms,
        )

    def _unavailable(self, blocked: Blocked, timeout_ms: float) -> LeaseUnavailableError:
        return LeaseUnavailableError(
            "lock not acquired: "
            + ("held by another task" if blocked.is_held else "others were first in the queue"),
            lock=self._claim.name,
            holder=blocked.holder,
            age_ms=blocked.age_ms,
            token=blocked.record.token,
            waited_ms=int(timeout_ms),
            action="wait longer; if that holder is dead, its lease ends by itself",
        )


class _Outage:
    """For how long the store has been out of reach, and when to tell the operator."""

    def __init__(self, lock: str) -> None:
        self._lock = lock
        self._since_ms: float | None = None
        self._reported_ms: float | None = None

    def lasts(self, error: LockUnavailableError, sent_ms: float, now_ms: float) -> bool:
        """Whether it has been for so long that waiting on is no use. `sent_ms`: of this look."""
        if self._since_ms is None:
            self._since_ms = sent_ms
        if self._reported_ms is None or now_ms - self._reported_ms >= _REPORT_EVERY_MS:
            self._reported_ms = now_ms
            logger.warning("lock %s: %s; trying again", self._lock, error)
        return now_ms - self._since_ms >= _OUTAGE_MAX_MS

    def end(self) -> None:
        """It has answered."""
        self._since_ms = self._reported_ms = None


class _Pace:
    """How long to pause, and when to tell the operator."""

    def __init__(self, register: Register, started_ms: float) -> None:
        self._register = register
        self._started_ms = started_ms
        self._holding: tuple[str | None, int] | None = None
        self._since_ms = started_ms
        self._reported_ms: float | None = None

    def next_ms(self, blocked: Blocked) -> float:
        """Soon while the lock changes hands, rarely while one task holds it; later places later."""
        store, now_ms = self._register.store, self._register.clock.monotonic_ms()
        holding = (blocked.record.owner_id, blocked.record.token)
        if holding != self._holding:
            self._holding, self._since_ms = holding, now_ms
        self._report(blocked, now_ms)
        pause_ms = max((now_ms - self._since_ms) * _QUIET_SHARE, store.poll_min_ms)
        pause_ms += (blocked.place - 1) * 2 * store.poll_min_ms
        pause_ms = min(pause_ms, store.poll_max_ms) * self._register.ids.uniform(0.8, 1.2)
        if blocked.is_held and blocked.place == 1:
            # Look right when the lease ends, if its holder is dead.
            pause_ms = min(pause_ms, max(blocked.expires_in_ms, 0.0) + 1.0)
        return pause_ms

    def report_end(self, got: Granted) -> None:
        """Say that the waiting is over, if anybody was told of it."""
        if self._reported_ms is not None:
            logger.info(
                "lock %s: acquired by %s after waiting %d ms; token=%d",
                got.record.name, got.record.holder,
                self._register.clock.monotonic_ms() - self._started_ms, got.record.token,
            )  # fmt: skip

    def _report(self, blocked: Blocked, now_ms: float) -> None:
        if self._reported_ms is not None and now_ms - self._reported_ms < _REPORT_EVERY_MS:
            return
        self._reported_ms = now_ms
        logger.info(
            "lock %s: waiting since %d ms for %s; age=%d ms, token=%d, place=%d",
            blocked.record.name, now_ms - self._started_ms,
            blocked.holder, blocked.age_ms, blocked.record.token, blocked.place,
        )  # fmt: skip
