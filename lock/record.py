"""The stored state of one lock, and every change it can go through, as pure functions.

A record never leaves the store, not even when the lock is free: it carries the token, which must
rise for ever. All changes go through a compare-and-swap on the whole record (`lock.register`).

| change    | owner         | token                | beat | queue                            |
|-----------|---------------|----------------------|------|----------------------------------|
| granted   | the claimant  | max(last, floor) + 1 | 0    | claimant and dead waiters leave  |
| renewed   | same          | same                 | + 1  | same                             |
| freed     | none          | same                 | 0    | same                             |
| queued    | same          | same                 | same | claimant in, dead waiters leave  |
| withdrawn | same          | same                 | same | claimant leaves                  |

(owner, token, beat) is the sign of life a waiter watches; the queue is not part of it.
A waiter is dead when its ticket was not refreshed for `ttl_ms`. That is judged by the store's clock
or, where there is none, by wall clocks: a wrong judgement costs fairness and nothing else, since a
waiter that is alive queues again under its old number.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import AfterValidator, Field

from lock.lock_names import LEASE_MAX_MS, LOCK_NAME_LENGTH_MAX

WAITERS_MAX = 256
"""Bounds the record. Who comes later polls without a ticket and queues once there is room."""
HOLDER_LENGTH_MAX = 600


def _printable(text: str) -> str:
    """Anything else would be a line break in someone's log or terminal."""
    if not text.isprintable():
        raise ValueError("not printable")
    return text


# What a stored record may hold; the aliases are its names there (on disk: never change).
Nonce = Annotated[str, Field(max_length=64), AfterValidator(_printable)]
Holder = Annotated[str, Field(max_length=HOLDER_LENGTH_MAX), AfterValidator(_printable)]
Name = Annotated[str, Field(max_length=LOCK_NAME_LENGTH_MAX), AfterValidator(_printable)]
Number = Annotated[int, Field(ge=0, lt=1 << 63)]
LeaseMs = Annotated[int, Field(ge=0, le=LEASE_MAX_MS)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """One waiter's place. `seen_ms`: when it last refreshed the ticket."""

    number: Annotated[Number, Field(alias="ticket")]
    owner_id: Annotated[Nonce, Field(alias="owner")]
    holder: Holder
    seen_ms: Number
    ttl_ms: LeaseMs

    def is_alive(self, now_ms: int) -> bool:
        """Refreshed lately, seen from `now_ms` (a clock that jumped either way counts as late)."""
        return abs(now_ms - self.seen_ms) <= self.ttl_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class LockRecord:
    """See the module. `write_id` is fresh on every write: it tells one's own write by its sight."""

    name: Name
    token: Number = 0
    owner_id: Annotated[Nonce | None, Field(alias="owner")] = None
    holder: Holder | None = None
    lease_ms: LeaseMs = 0
    beat: Number = 0
    acquired_ms: Number = 0
    renewed_ms: Number = 0
    next_ticket: Number = 1
    waiters: Annotated[tuple[Ticket, ...], Field(max_length=WAITERS_MAX)] = ()
    write_id: Annotated[Nonce, Field(alias="write")] = ""

    @property
    def sign_of_life(self) -> tuple[str | None, int, int]:
        """What every renewal changes and nobody else does."""
        return (self.owner_id, self.token, self.beat)

    def is_owned_by(self, owner_id: str, token: int) -> bool:
        """Whether this very acquisition holds the lock."""
        return self.owner_id == owner_id and self.token == token

    def live_waiters(self, now_ms: int) -> tuple[Ticket, ...]:
        """The queue without the dead, in order."""
        return tuple(ticket for ticket in self.waiters if ticket.is_alive(now_ms))


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One attempt to get a lock; `owner_id` is fresh for each."""

    name: str
    owner_id: str
    holder: str
    lease_ms: int
    token_floor: int
    ticket_ttl_ms: int


def granted(record: LockRecord, claim: Claim, now_ms: int) -> LockRecord:
    """The claimant gets the lock."""
    return replace(
        record,
        token=max(record.token, claim.token_floor) + 1,
        owner_id=claim.owner_id,
        holder=claim.holder,
        lease_ms=claim.lease_ms,
        beat=0,
        acquired_ms=now_ms,
        renewed_ms=now_ms,
        waiters=_others(record, claim.owner_id, now_ms),
    )


def renewed(record: LockRecord, now_ms: int) -> LockRecord:
    """The owner gives a sign of life."""
    return replace(record, beat=record.beat + 1, renewed_ms=now_ms)


def freed(record: LockRecord) -> LockRecord:
    """Nobody holds the lock; the token and the queue stay."""
    return replace(
        record, owner_id=None, holder=None, lease_ms=0, beat=0, acquired_ms=0, renewed_ms=0
    )


def queued(record: LockRecord, claim: Claim, ticket: int | None, now_ms: int) -> LockRecord:
    """The claimant waits: under `ticket` if it had one before, else at the end."""
    number = record.next_ticket if ticket is None else ticket
    others = _others(record, claim.owner_id, now_ms)
    mine = Ticket(
        number=number,
        owner_id=claim.owner_id,
        holder=claim.holder,
        seen_ms=now_ms,
        ttl_ms=claim.ticket_ttl_ms,
    )
    return replace(
        record,
        next_ticket=max(record.next_ticket, number + 1),
        waiters=tuple(sorted((*others, mine), key=lambda waiter: waiter.number)),
    )


def withdrawn(record: LockRecord, owner_id: str) -> LockRecord:
    """The claimant leaves the queue, and the lock if it got it without knowing."""
    waiters = tuple(ticket for ticket in record.waiters if ticket.owner_id != owner_id)
    record = replace(record, waiters=waiters)
    return freed(record) if record.owner_id == owner_id else record


def _others(record: LockRecord, owner_id: str, now_ms: int) -> tuple[Ticket, ...]:
    return tuple(t for t in record.live_waiters(now_ms) if t.owner_id != owner_id)
