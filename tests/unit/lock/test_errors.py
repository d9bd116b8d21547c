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
