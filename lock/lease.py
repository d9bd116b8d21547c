"""The lock as its users see it: values.

A lock has a name. Whoever acquires it gets a `Lease`: the right to work for `lease_ms`, renewed by
a heartbeat. Each acquisition of one name gets a fence token higher than every token before it, for
ever: after a release, a crash or a break as well. The lock saves work and never provides safety:
what cannot be undone carries the token, and is refused where a newer token has been seen.
"""

from __future__ import annotations

from dataclasses import dataclass

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
