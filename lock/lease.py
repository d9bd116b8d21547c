"""The lock as its users see it: values, and the two Protocols everything else implements.

A lock has a name. Whoever acquires it gets a `Lease`: the right to work for `lease_ms`, renewed by
a heartbeat. Each acquisition of one name gets a fence token higher than every token before it, for
ever: after a release, a crash or a break as well. The lock saves work and never provides safety:
what cannot be undone carries the token, and is refused where a newer token has been seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from lock.owners import is_gone

DEFAULT_LEASE_MS = 30_000
"""A dead holder blocks others this long. Three heartbeats fit, so two may be lost."""

RESUME_TIMEOUT_MS = 3_600_000
"""Who has paused is in no hurry; what others do meanwhile may take long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """One acquisition. Only `owner_id` and `token` together renew or release it.

    `confirmed_ms` is this process's monotonic clock when it *sent* the request that last proved the
    lease: the store saw it later, so that a waiter's count of `lease_ms` cannot end before ours.
    """

    name: str
    owner_id: str
    holder: str
    lease_ms: int
    token: int
    confirmed_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiter:
    """One place in the queue. `ticket` rises with every arrival at this lock."""

    ticket: int
    holder: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LockState:
    """What `inspect` saw. `token` is the last one handed out, 0 if there was none.

    `held_ms` and `silent_ms` (since acquisition, since the last heartbeat) are for people: without
    a store clock they compare two machines' clocks, so nothing is decided by them. Both are 0 for a
    free lock.
    """

    name: str
    token: int
    owner_id: str | None
    holder: str | None
    lease_ms: int
    held_ms: int
    silent_ms: int
    waiters: tuple[Waiter, ...]

    @property
    def is_held(self) -> bool:
        """True if someone's lease is on record; it may have run out."""
        return self.owner_id is not None

    @property
    def holder_has_ended(self) -> bool:
        """True if the holder was a process of this machine and is not any more."""
        return is_gone(self.owner_id)


class HeldLease(Protocol):
    """A lease being held, as `LockManager.hold` gives it."""

    @property
    def token(self) -> int:
        """The fence token. Changes only in `resume`."""

    @property
    def name(self) -> str:
        """The lock's name."""

    @property
    def lease(self) -> Lease:
        """The lease as last confirmed."""

    def still_held(self) -> bool:
        """Whether the last confirmation is recent enough. No I/O; False once, False for ever."""

    def check(self) -> None:
        """Raise `LeaseLostError` unless `still_held`. No I/O: for inner loops."""

    def confirm(self) -> None:
        """Renew at the store, now; `LeaseLostError` if that fails. For before irreversible steps.

        Sees what `check` cannot: an operator's break, a machine that was suspended, a takeover
        that this process slept through.
        """

    def pause(self) -> None:
        """Release until `resume`: for work that needs no lease. Again: nothing."""

    def resume(self, *, timeout_ms: int = RESUME_TIMEOUT_MS) -> None:
        """Queue and acquire again, with a new `token`. What depends on the table is planned again.

        Raises:
            LeaseUnavailableError: Someone else has had it for the whole of `timeout_ms`.
        """


class LockManager(Protocol):
    """Named locks. Not reentrant: a second acquisition of one name waits, in one process too."""

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

    def renew(self, lease: Lease) -> Lease:
        """Prove and extend one's own lease; `LeaseLostError` if it is another's by now."""

    def release(self, lease: Lease) -> bool:
        """End one's own lease. False, and nothing changed, if it was not ours any more."""

    def inspect(self, name: str) -> LockState:
        """Look, change nothing."""

    def break_(self, name: str, *, token: int | None = None) -> LockState:
        """Operator: end whoever's lease it is, at once. Its holder finds out at its next renewal.

        Args:
            name: The lock.
            token: Break only if this is still the token: the lease that `inspect` showed.

        Returns:
            The state before.
        """

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
    ) -> AbstractContextManager[HeldLease]:
        """Acquire on entry, renew in a background thread, release on exit.

        With `heartbeat=False` there is no thread: the caller confirms (the simulator does).
        """
