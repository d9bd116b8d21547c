from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lock import InvalidLockError, lock_name
from lock.lock_names import KEY_LENGTH_MAX, check_lease_ms, check_lock_name, storage_key

names = st.text(min_size=1, max_size=200)


@given(name=names)
def test_storage_key_is_short_and_plain(name: str) -> None:
    key = storage_key(name)
    assert len(key) <= KEY_LENGTH_MAX
    assert re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*", key)


@given(first=names, second=names)
def test_storage_keys_differ_when_names_do_even_ignoring_case(first: str, second: str) -> None:
    assert (storage_key(first).lower() == storage_key(second).lower()) == (first == second)


def test_storage_key_never_changes_between_releases() -> None:
    assert storage_key("shop.orders") == "shop.orders-7458f44cdbf1d509ad510234ebaad178"
    assert storage_key("../../etc") == "_.._etc-74ccf3c5b4c19a8167f9a3d1dd63e0e4"


def test_storage_key_of_short_name_cannot_be_chosen_to_equal_another() -> None:
    victim = storage_key("shop.orders")
    assert storage_key(victim) != victim


@given(
    first=st.lists(names, min_size=1, max_size=3), second=st.lists(names, min_size=1, max_size=3)
)
def test_lock_name_keeps_different_parts_apart(first: list[str], second: list[str]) -> None:
    assert (lock_name(*first) == lock_name(*second)) == (first == second)


def test_lock_name_reads_like_its_parts() -> None:
    assert lock_name("shop", "orders", "maintenance") == "shop/orders/maintenance"
    assert lock_name("a/b", "c") == "a%2Fb/c"


@pytest.mark.parametrize("name", ["", "a" * 1025, "a\nb", "a\x00b", "a\x1b[0m", "a\ud800"])
def test_lock_name_that_could_do_harm_is_refused(name: str) -> None:
    with pytest.raises(InvalidLockError) as caught:
        check_lock_name(name)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("lease_ms", [-1, 0, 99, 3_600_001])
def test_lease_time_out_of_range_is_refused(lease_ms: int) -> None:
    with pytest.raises(InvalidLockError):
        check_lease_ms(lease_ms)


def test_lock_name_of_bytes_that_are_no_text_keeps_them_apart() -> None:
    first, second = (lock_name(part) for part in ("a\udc80", "a\udc81"))
    assert first != second
    check_lock_name(first)
