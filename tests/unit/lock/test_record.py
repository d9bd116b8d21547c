from __future__ import annotations

from dataclasses import replace

from lock.record import Claim, LockRecord, Ticket, freed, granted, queued, renewed, withdrawn

NOW = 1_000_000
CLAIM = Claim(
    name="n", owner_id="us", holder="we", lease_ms=1_000, token_floor=0, ticket_ttl_ms=500
)
HELD = LockRecord(
    name="n", token=5, owner_id="them", holder="they", lease_ms=9, beat=3, renewed_ms=NOW
)


def ticket(number: int, owner_id: str, seen_ms: int = NOW) -> Ticket:
    return Ticket(number=number, owner_id=owner_id, holder=owner_id, seen_ms=seen_ms, ttl_ms=500)


def test_grant_raises_token_and_starts_lease() -> None:
    record = granted(HELD, CLAIM, NOW + 5)
    assert (record.token, record.owner_id, record.holder, record.lease_ms) == (6, "us", "we", 1_000)
    assert (record.beat, record.acquired_ms, record.renewed_ms) == (0, NOW + 5, NOW + 5)


def test_grant_raises_token_above_floor() -> None:
    assert granted(HELD, replace(CLAIM, token_floor=90), NOW).token == 91
    assert granted(HELD, replace(CLAIM, token_floor=2), NOW).token == 6


def test_grant_takes_claimant_and_dead_waiters_out_of_queue() -> None:
    waiting = replace(
        HELD, waiters=(ticket(1, "dead", NOW - 501), ticket(2, "us"), ticket(3, "alive"))
    )
    assert [t.owner_id for t in granted(waiting, CLAIM, NOW).waiters] == ["alive"]


def test_renewal_changes_sign_of_life_only() -> None:
    record = renewed(HELD, NOW + 7)
    assert record == replace(HELD, beat=4, renewed_ms=NOW + 7)
    assert record.sign_of_life != HELD.sign_of_life


def test_freeing_keeps_token_and_queue() -> None:
    record = freed(replace(HELD, waiters=(ticket(1, "a"),), next_ticket=2))
    assert (record.token, record.owner_id, record.holder) == (5, None, None)
    assert (record.next_ticket, len(record.waiters)) == (2, 1)


def test_queueing_appends_and_keeps_sign_of_life() -> None:
    record = queued(replace(HELD, waiters=(ticket(1, "a"),), next_ticket=2), CLAIM, None, NOW)
    assert [t.number for t in record.waiters] == [1, 2]
    assert record.next_ticket == 3
    assert record.sign_of_life == HELD.sign_of_life


def test_queueing_again_keeps_place() -> None:
    first = queued(HELD, CLAIM, None, NOW)
    other = queued(first, replace(CLAIM, owner_id="other"), None, NOW)
    again = queued(other, CLAIM, 1, NOW + 400)
    assert [(t.owner_id, t.seen_ms) for t in again.waiters] == [("us", NOW + 400), ("other", NOW)]


def test_waiter_that_was_dropped_returns_to_its_old_place() -> None:
    record = replace(HELD, waiters=(ticket(4, "later"),), next_ticket=5)
    assert [t.number for t in queued(record, CLAIM, 2, NOW).waiters] == [2, 4]


def test_ticket_dies_when_clock_is_off_either_way() -> None:
    assert ticket(1, "a").is_alive(NOW + 500)
    assert not ticket(1, "a").is_alive(NOW + 501)
    assert not ticket(1, "a", NOW + 3_600_000).is_alive(NOW)


def test_withdrawing_leaves_others_alone() -> None:
    record = replace(HELD, waiters=(ticket(1, "us"), ticket(2, "other")))
    assert withdrawn(record, "us") == replace(record, waiters=(ticket(2, "other"),))
    assert withdrawn(HELD, "us") == HELD


def test_withdrawing_frees_lock_that_was_granted_unnoticed() -> None:
    record = withdrawn(granted(HELD, CLAIM, NOW), "us")
    assert (record.owner_id, record.token) == (None, 6)
