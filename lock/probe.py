"""Refuse a store that accepts write conditions without honouring them (I25, R73).

1. Create an object, try to create it again, replace it under a wrong tag, under the right one, and
   under the right one once more. This finds stores that ignore the headers.
2. Race: several threads create one object at once, then replace one version of it at once; each
   time exactly one may win, and the object must be the winner's. This finds stores that look first
   and write afterwards.

A race that a store answers with errors or "busy" alone decides nothing and is run again. Passing is
no proof; failing is.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from threading import Barrier

from lock.errors import LockUnavailableError, UnsafeStoreError
from lock.register import ConditionalStore, SwapOutcome
from lock.seams import IdSource

_BUSY_ATTEMPTS_MAX = 5


def check_conditional_writes(
    store: ConditionalStore, *, ids: IdSource, rounds: int = 3, racers: int = 4
) -> None:
    """Try to catch the store granting a write whose condition is false.

    Raises:
        UnsafeStoreError: It was caught.
        LockUnavailableError: The store did not answer well enough to tell.

    Effects: one small object at a time below the locks' prefix, removed afterwards.
    Cost: about 10 requests, and 2 * `racers` + 4 more for each round.
    """
    key = f"probe-{ids.uuid().hex}"
    try:
        _check_in_turn(store, key)
    finally:
        _remove(store, key)
    with ThreadPoolExecutor(racers, thread_name_prefix="lock-probe") as pool:
        for _ in range(rounds):
            key = f"probe-{ids.uuid().hex}"
            try:
                _race(store, key, pool, racers, partial(store.put_if_absent, key), "create")
                tag = _read(store, key)[1]
                replace = partial(store.put_if_match, key, etag=tag)
                _race(store, key, pool, racers, replace, "replace")
            finally:
                _remove(store, key)


def _check_in_turn(store: ConditionalStore, key: str) -> None:
    _expect(store, lambda: store.put_if_absent(key, b"1"), SwapOutcome.DONE, "create an object")
    _expect(
        store, lambda: store.put_if_absent(key, b"2"), SwapOutcome.LOST, "create an existing object"
    )
    data, tag = _read(store, key)
    if data != b"1":
        raise _unsafe(store, "a refused write changed the object")
    _expect(
        store,
        lambda: store.put_if_match(key, b"3", _another(tag)),
        SwapOutcome.LOST,
        "replace an object under a tag it never had",
    )
    _expect(
        store, lambda: store.put_if_match(key, b"4", tag), SwapOutcome.DONE, "replace an object"
    )
    _expect(
        store,
        lambda: store.put_if_match(key, b"5", tag),
        SwapOutcome.LOST,
        "replace an old version",
    )
    if _read(store, key)[0] != b"4":
        raise _unsafe(store, "a refused write changed the object")


def _expect(
    store: ConditionalStore, write: Callable[[], SwapOutcome], expected: SwapOutcome, what: str
) -> None:
    for _ in range(_BUSY_ATTEMPTS_MAX):
        outcome = write()
        if outcome is not SwapOutcome.BUSY:
            break
    else:
        raise _undecided(store, "it answers every write with a conflict")
    if outcome is not expected:
        verdict = "granted" if outcome is SwapOutcome.DONE else "refused"
        raise _unsafe(store, f"asked to {what}, it {verdict} that")


def _race(
    store: ConditionalStore,
    key: str,
    pool: ThreadPoolExecutor,
    racers: int,
    write: Callable[[bytes], SwapOutcome],
    verb: str,
) -> None:
    for attempt in range(_BUSY_ATTEMPTS_MAX):
        start = Barrier(racers)

        def run(data: bytes, start: Barrier = start) -> SwapOutcome:
            start.wait()
            try:
                return write(data)
            except LockUnavailableError:
                return SwapOutcome.BUSY

        # Never the same bytes twice: where a tag is a digest, an old one would become true again.
        entries = [f"{verb} {attempt} {number}".encode() for number in range(racers)]
        outcomes = list(pool.map(run, entries))
        winners = [e for e, o in zip(entries, outcomes, strict=True) if o is SwapOutcome.DONE]
        if len(winners) > 1:
            raise _unsafe(store, f"{len(winners)} of {racers} racing writers won")
        if winners:
            if _read(store, key)[0] != winners[0]:
                raise _unsafe(store, "a losing writer changed the object")
            return
        if SwapOutcome.BUSY not in outcomes:
            raise _unsafe(store, "it refused every racing writer")
        if SwapOutcome.LOST in outcomes:
            return  # the winner's reply was lost: nothing to hold against the store
    raise _undecided(store, "no writer of a race got an answer")


def _another(tag: str) -> str:
    """A tag of the same form: some stores take numbers only."""
    return re.sub(r"\d(?=\D*$)", lambda digit: str((int(digit[0]) + 1) % 10), tag)


def _read(store: ConditionalStore, key: str) -> tuple[bytes, str]:
    found = store.get(key)
    if found is None:
        raise _unsafe(store, "an object that was just written cannot be read")
    return found


def _remove(store: ConditionalStore, key: str) -> None:
    with suppress(LockUnavailableError):  # must not hide the verdict; one small object stays
        store.delete(key)


def _unsafe(store: ConditionalStore, why: str) -> UnsafeStoreError:
    return UnsafeStoreError(
        f"store refused for locks: {why}",
        store=store.describe(),
        action="keep locks in SQLite or PostgreSQL, or in a store with conditional writes",
    )


def _undecided(store: ConditionalStore, why: str) -> LockUnavailableError:
    return LockUnavailableError(
        f"store not checked: {why}", store=store.describe(), action="try again"
    )
