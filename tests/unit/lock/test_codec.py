from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lock import CorruptLockError
from lock.codec import RECORD_SIZE_MAX_BYTES, decode_record, encode_record
from lock.record import WAITERS_MAX, LockRecord, Ticket

numbers = st.integers(min_value=0, max_value=(1 << 63) - 1)
leases = st.integers(min_value=0, max_value=3_600_000)
words = st.text(
    st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=20
)  # printable everywhere
tickets = st.builds(
    Ticket, number=numbers, owner_id=words, holder=words, seen_ms=numbers, ttl_ms=leases
)
records = st.builds(
    LockRecord,
    name=words,
    token=numbers,
    owner_id=st.none() | words,
    holder=st.none() | words,
    lease_ms=leases,
    beat=numbers,
    acquired_ms=numbers,
    renewed_ms=numbers,
    next_ticket=numbers,
    waiters=st.lists(tickets, max_size=3).map(tuple),
    write_id=words,
)
GOOD = LockRecord(
    name="n",
    token=7,
    owner_id="o",
    holder="h",
    lease_ms=1000,
    waiters=(Ticket(number=1, owner_id="w", holder="x", seen_ms=5, ttl_ms=100),),
    write_id="i",
)


@given(record=records)
def test_record_survives_encoding(record: LockRecord) -> None:
    assert decode_record(encode_record(record), location="here") == record


def test_encoding_never_changes_between_releases() -> None:
    assert encode_record(GOOD) == (
        b'{"format":1,"name":"n","token":7,"owner":"o","holder":"h","lease_ms":1000,"beat":0,'
        b'"acquired_ms":0,"renewed_ms":0,"next_ticket":1,"waiters":[{"ticket":1,"owner":"w",'
        b'"holder":"x","seen_ms":5,"ttl_ms":100}],"write":"i"}'
    )


def test_unknown_fields_are_ignored() -> None:
    raw = json.loads(encode_record(GOOD)) | {"later": {"more": [1]}}
    assert decode_record(json.dumps(raw).encode(), location="here") == GOOD


def test_largest_record_stays_below_size_limit() -> None:
    ticket = Ticket(
        number=(1 << 63) - 1, owner_id="é" * 32, holder="é" * 321, seen_ms=1 << 60, ttl_ms=3_600_000
    )
    record = LockRecord(name="é" * 1024, waiters=(ticket,) * WAITERS_MAX)
    assert len(encode_record(record)) < RECORD_SIZE_MAX_BYTES


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b"\xff\xfe",
        b'{"format":2}',
        b"[" * 100_000,
        b'{"format":1' + b" " * RECORD_SIZE_MAX_BYTES + b"}",
        encode_record(GOOD)[:-1],
    ],
)
def test_bytes_that_are_no_record_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptLockError, match="location=here"):
        decode_record(data, location="here")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("token", -1),
        ("token", 1.5),
        ("token", True),
        ("token", "1"),
        ("token", 1 << 63),
        ("token", None),
        ("lease_ms", 3_600_001),
        ("name", "a" * 1025),
        ("name", 5),
        ("holder", "a\nb"),
        ("holder", "\x1b[2J"),
        ("holder", "\ud800"),
        ("holder", "a" * 601),
        ("owner", ["x"]),
        ("write", None),
        ("waiters", None),
        ("waiters", {}),
        ("waiters", ["x"]),
        ("waiters", [{}]),
        ("waiters", [json.loads(encode_record(GOOD))["waiters"][0]] * (WAITERS_MAX + 1)),
    ],
)
def test_field_of_wrong_kind_is_refused(field: str, value: Any) -> None:
    raw = json.loads(encode_record(GOOD))
    raw[field] = value
    with pytest.raises(CorruptLockError):
        decode_record(json.dumps(raw).encode(), location="here")


@pytest.mark.parametrize("field", json.loads(encode_record(GOOD)))
def test_missing_field_is_refused(field: str) -> None:
    raw = json.loads(encode_record(GOOD))
    del raw[field]
    with pytest.raises(CorruptLockError):
        decode_record(json.dumps(raw).encode(), location="here")


@given(data=st.binary(max_size=200))
def test_random_bytes_give_typed_error(data: bytes) -> None:
    with pytest.raises(CorruptLockError):
        decode_record(data, location="here")


@given(index=st.integers(0, len(encode_record(GOOD)) - 1), value=st.integers(0, 255))
def test_changed_byte_gives_record_or_typed_error(index: int, value: int) -> None:
    data = bytearray(encode_record(GOOD))
    data[index] = value
    with suppress(CorruptLockError):
        assert isinstance(decode_record(bytes(data), location="here"), LockRecord)
