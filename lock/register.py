"""Read, decide, swap: the one loop through which every backend's records change.

A backend is a `RecordStore`: bytes under a key, replaced only if nobody did so in between. The loop
needs nothing else of it, so that all lease rules are written once and tested on every backend.

What a write that failed may have done is settled by looking: each write carries a fresh `write_id`,
and a record that shows one of ours is our success, whatever the reply was (a lost reply, a 412 that
answers our own retried request, R71). A late write cannot hurt: it is conditional on a version that
is gone. A 409 only means "again" (R74).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Generic, Protocol, TypeVar

from lock.codec import decode_record, encode_record
from lock.errors import CorruptLockError, LockUnavailableError
from lock.lock_names import storage_key
from lock.record import LockRecord
from lock.seams import Clock, IdSource

_BACKOFF_FIRST_MS = 5.0  # a lost swap means someone else made progress: go again soon
_BACKOFF_MAX_MS = 200.0

T = TypeVar("T")


class SwapOutcome(Enum):
    """What a conditional write answered."""

    DONE = "done"
    """Written."""
    LOST = "lost"
    """The condition was false; the reason may be our own earlier, unanswered write."""
    BUSY = "busy"
    """Nothing was written and nothing is known about the condition: ask again."""


@dataclass(frozen=True, slots=True)
class Stored:
    """One read: the bytes and their version (both None if there are none), the store's clock."""

    data: bytes | None
    version: str | None
    now_ms: int | None


class RecordStore(Protocol):
    """Compare-and-swap on small values. Methods raise `LockUnavailableError` for trouble."""

    poll_min_ms: float
    """Shortest pause between two reads of a waiter: what the store takes without pain."""
    poll_max_ms: float
    """Longest pause; a takeover is late by this much at most."""

    def load(self, key: str) -> Stored:
        """Read one value, as it is at this moment (never from a replica or a cache)."""

    def swap(self, key: str, version: str | None, data: bytes) -> SwapOutcome:
        """Write if the version is still this one; None: if there is no value."""

    def describe(self, key: str | None = None) -> str:
        """Where a value lives, for people: no credentials."""

    def prepare(self) -> None:
        """Create what is missing, and refuse a store that does not swap atomically. Repeatable."""

    def close(self) -> None:
        """Give up connections."""


class ConditionalStore(Protocol):
    """What is needed of an object store. Trouble is `LockUnavailableError`, as for `RecordStore`.

    A write that is refused because its condition is false (412) is `SwapOutcome.LOST`; one that
    lost against a write under way and decided nothing (409) is `SwapOutcome.BUSY`.
    """

    poll_min_ms: float
    poll_max_ms: float

    def get(self, key: str) -> tuple[bytes, str] | None:
        """The whole object and its version tag; None if there is none. Strongly consistent."""

    def put_if_absent(self, key: str, data: bytes) -> SwapOutcome:
        """Create the object."""

    def put_if_match(self, key: str, data: bytes, etag: str) -> SwapOutcome:
        """Replace exactly that version; `LOST` also if there is no object."""

    def delete(self, key: str) -> None:
        """Remove an object (the probe's); nothing if there is none."""

    def describe(self, key: str | None = None) -> str:
        """Where it lives, without credentials."""

    def close(self) -> None:
        """Give up connections."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """One read of one lock, with what is needed to judge time by it.

    `sent_ms` and `received_ms` are this process's monotonic clock around the request: the store saw
    it in between. `now_ms` is the store's clock if `store_clock`, else this machine's.
    """

    record: LockRecord
    version: str | None
    now_ms: int
    store_clock: bool
    sent_ms: float
    received_ms: float


@dataclass(frozen=True, slots=True)
class Step(Generic[T]):
    """A decision: the record to write (None: leave it) and what it means if that succeeds."""

    record: LockRecord | None
    outcome: T


@dataclass(frozen=True, slots=True)
class Applied(Generic[T]):
    """A step that took effect, and when the read it rests on was sent."""

    outcome: T
    sent_ms: float


class Register:
    """The loop, on one store."""

    def __init__(self, store: RecordStore, clock: Clock, ids: IdSource) -> None:
        self.store = store
        self.clock = clock
        self.ids = ids

    def load(self, name: str) -> Observed:
        """Read one lock; a lock that never was is free with token 0."""
        key = storage_key(name)
        sent_ms = self.clock.monotonic_ms()
        stored = self.store.load(key)
        received_ms = self.clock.monotonic_ms()
        record = LockRecord(name=name)
        if stored.data is not None:
            location = self.store.describe(key)
            record = decode_record(stored.data, location=location)
            if record.name != name:
                raise CorruptLockError(
                    "lock record refused: it is another lock's", location=location, lock=name
                )
        return Observed(
            record=record,
            version=stored.version,
            now_ms=self.clock.now_ms() if stored.now_ms is None else stored.now_ms,
            store_clock=stored.now_ms is not None,
            sent_ms=sent_ms,
            received_ms=received_ms,
        )

    def update(
        self, name: str, decide: Callable[[Observed], Step[T]], *, budget_ms: float
    ) -> Applied[T]:
        """Read, decide and swap until a step took effect.

        Args:
            name: The lock.
            decide: Called again after every lost swap; must be right on any record.
            budget_ms: How long to go on against contention and an unavailable store.

        Raises:
            LockUnavailableError: The budget is spent. The last write may have landed, or still
                land, unless somebody else writes first.
        """
        give_up_ms = self.clock.monotonic_ms() + budget_ms
        written: dict[str, Applied[T]] = {}
        backoff_ms = _BACKOFF_FIRST_MS
        while True:
            try:
                applied = self._try_update(name, decide, written)
            except LockUnavailableError:
                if self.clock.monotonic_ms() >= give_up_ms:
                    raise
                applied = None
            if applied is not None:
                return applied
            if self.clock.monotonic_ms() >= give_up_ms:
                raise LockUnavailableError(
                    "lock not changed: others changed it first, time after time",
                    lock=name,
                    store=self.store.describe(),
                    action="try again",
                )
            self.clock.sleep_ms(self.ids.uniform(0.2, 1.0) * backoff_ms)
            backoff_ms = min(backoff_ms * 1.6, _BACKOFF_MAX_MS)

    def _try_update(
        self, name: str, decide: Callable[[Observed], Step[T]], written: dict[str, Applied[T]]
    ) -> Applied[T] | None:
        seen = self.load(name)
        ours = written.get(seen.record.write_id)
        if ours is not None:
            return ours
        step = decide(seen)
        applied = Applied(step.outcome, seen.sent_ms)
        if step.record is None:
            return applied
        write_id = self.ids.uuid().hex
        written[write_id] = applied
        data = encode_record(replace(step.record, write_id=write_id))
        outcome = self.store.swap(storage_key(name), seen.version, data)
        return applied if outcome is SwapOutcome.DONE else None
