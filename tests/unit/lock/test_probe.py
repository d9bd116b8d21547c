from __future__ import annotations

import threading

import pytest

from lock import LockUnavailableError, UnsafeStoreError
from lock.probe import check_conditional_writes
from lock.register import SwapOutcome
from tests.support.goals import goal
from tests.support.lock_seams import SeededIds


class HonestStore:
    """Objects in a dict; each hook is one way to lie."""

    def __init__(self) -> None:
        self.mutex = threading.Lock()
        self.objects: dict[str, bytes] = {}

    def get(self, key: str) -> tuple[bytes, str] | None:
        found = self.objects.get(key)
        return None if found is None else (found, f"tag of {found!r}")

    def put_if_absent(self, key: str, data: bytes) -> SwapOutcome:
        with self.mutex:
            return self.write(key, data) if key not in self.objects else SwapOutcome.LOST

    def put_if_match(self, key: str, data: bytes, etag: str) -> SwapOutcome:
        with self.mutex:
            found = self.get(key)
            matches = found is not None and found[1] == etag
            return self.write(key, data) if matches else SwapOutcome.LOST

    def write(self, key: str, data: bytes) -> SwapOutcome:
        self.objects[key] = data
        return SwapOutcome.DONE

    def delete(self, key: str) -> None:
        self.objects.pop(key, None)

    def describe(self, key: str | None = None) -> str:
        return f"honest://{key or ''}"


class IgnoresIfNoneMatch(HonestStore):
    def put_if_absent(self, key: str, data: bytes) -> SwapOutcome:
        return self.write(key, data)


class IgnoresIfMatch(HonestStore):
    def put_if_match(self, key: str, data: bytes, etag: str) -> SwapOutcome:
        return self.write(key, data)


class MatchesAnyVersion(HonestStore):
    """Refuses nonsense tags, grants old ones."""

    def put_if_match(self, key: str, data: bytes, etag: str) -> SwapOutcome:
        return self.write(key, data) if "tag of" in etag else SwapOutcome.LOST


class RefusesAndWrites(HonestStore):
    def put_if_absent(self, key: str, data: bytes) -> SwapOutcome:
        outcome = super().put_if_absent(key, data)
        self.objects[key] = data
        return outcome


class RefusesEverything(HonestStore):
    def put_if_absent(self, key: str, data: bytes) -> SwapOutcome:
        return SwapOutcome.LOST


class LooksFirst(HonestStore):
    """Honest in turn, wrong in a race (R73): whoever looks waits until a rival has looked too."""

    def __init__(self) -> None:
        super().__init__()
        self.looking = threading.Condition()
        self.lookers = 0

    def wait_for_rival(self) -> None:
        if threading.current_thread() is threading.main_thread():
            return  # in turn
        with self.looking:
            self.lookers += 1
            self.looking.notify_all()
            self.looking.wait_for(lambda: self.lookers > 1, timeout=30)


class LooksThenCreates(LooksFirst):
    def put_if_absent(self, key: str, data: bytes) -> SwapOutcome:
        if key in self.objects:
            return SwapOutcome.LOST
        self.wait_for_rival()
        return self.write(key, data)


class LooksThenReplaces(LooksFirst):
    def put_if_match(self, key: str, data: bytes, etag: str) -> SwapOutcome:
        found = self.get(key)
        if found is None or found[1] != etag:
            return SwapOutcome.LOST
        self.wait_for_rival()
        return self.write(key, data)


class TellsAllTheyWon(LooksFirst):
    """Keeps one of the racing writes; only the answers are wrong."""

    def put_if_absent(self, key: str, data: bytes) -> SwapOutcome:
        if key in self.objects:
            return SwapOutcome.LOST
        self.wait_for_rival()
        return self.write(key, min(data, self.objects.get(key, data)))


class ForgetsAtOnce(HonestStore):
    def get(self, key: str) -> tuple[bytes, str] | None:
        return None


class AlwaysBusy(HonestStore):
    def put_if_absent(self, key: str, data: bytes) -> SwapOutcome:
        return SwapOutcome.BUSY


class SometimesBusy(HonestStore):
    """As S3 under contention: 409 to some."""

    count = 0

    def write(self, key: str, data: bytes) -> SwapOutcome:
        self.count += 1
        return SwapOutcome.BUSY if self.count % 2 else super().write(key, data)


class Unreachable(HonestStore):
    def put_if_absent(self, key: str, data: bytes) -> SwapOutcome:
        raise LockUnavailableError("no answer")

    def delete(self, key: str) -> None:
        raise LockUnavailableError("no answer")


class CannotDelete(IgnoresIfMatch):
    def delete(self, key: str) -> None:
        raise LockUnavailableError("no answer")


@pytest.mark.parametrize("store_class", [HonestStore, SometimesBusy])
def test_honest_store_is_accepted_and_left_clean(store_class: type[HonestStore]) -> None:
    store = store_class()
    check_conditional_writes(store, ids=SeededIds(), rounds=50)
    assert store.objects == {}


@pytest.mark.parametrize(
    "store_class",
    [
        IgnoresIfNoneMatch,
        IgnoresIfMatch,
        MatchesAnyVersion,
        RefusesAndWrites,
        RefusesEverything,
        LooksThenCreates,
        LooksThenReplaces,
        TellsAllTheyWon,
        ForgetsAtOnce,
        CannotDelete,
    ],
)
def test_lying_store_is_refused(store_class: type[HonestStore]) -> None:
    with pytest.raises(UnsafeStoreError, match="store=honest://"):
        check_conditional_writes(store_class(), ids=SeededIds(), rounds=3)


@pytest.mark.parametrize("store_class", [LooksThenCreates, LooksThenReplaces, TellsAllTheyWon])
def test_store_that_lies_in_races_only_is_found_every_time(store_class: type[HonestStore]) -> None:
    for seed in range(25):
        with pytest.raises(UnsafeStoreError):
            check_conditional_writes(store_class(), ids=SeededIds(seed), rounds=1)
        goal("G8", races=1)


@pytest.mark.parametrize("store_class", [AlwaysBusy, Unreachable])
def test_store_that_gives_no_answer_is_not_judged(store_class: type[HonestStore]) -> None:
    with pytest.raises(LockUnavailableError):
        check_conditional_writes(store_class(), ids=SeededIds(), rounds=3)
