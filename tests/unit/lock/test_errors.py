from __future__ import annotations

import pickle

import pytest

from lock import (
    CorruptLockError,
    InvalidLockError,
    LeaseLostError,
    LeaseUnavailableError,
    LockError,
    LockUnavailableError,
    UnsafeStoreError,
)

CLASSES = [
    LeaseUnavailableError,
    LeaseLostError,
    LockUnavailableError,
    UnsafeStoreError,
    InvalidLockError,
    CorruptLockError,
]


@pytest.mark.parametrize("error_class", CLASSES)
def test_error_survives_pickling(error_class: type[LockError]) -> None:
    error = error_class("it failed", action="try again", lock="a", token=3)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is error_class
    assert str(copy) == str(error) == "it failed; lock=a, token=3; try again"
    assert copy.context == {"lock": "a", "token": "3"}


def test_error_is_one_line() -> None:
    assert str(LeaseLostError("a\nb", lock="c\nd")) == "a b; lock=c d"


def test_invalid_call_is_a_value_error() -> None:
    assert issubclass(InvalidLockError, ValueError)


def test_unavailable_lease_names_its_holder() -> None:
    assert LeaseUnavailableError("no", holder="compact (host a, pid 1)").holder.startswith(
        "compact"
    )


@pytest.mark.parametrize("part", ["a\rb", "a\u2028b", "a\x1b[31mb", "a\x00b", "a\ud800b"])
def test_error_can_be_printed_whatever_a_record_holds(part: str) -> None:
    text = str(LeaseLostError(part, action=part, lock=part))
    assert text.isprintable()
    assert text.encode()


def test_error_quotes_a_long_text_in_part() -> None:
    assert len(str(LeaseLostError("x" * 100_000, lock="z" * 100_000))) < 3_000
