"""What an object store's answers mean. The answers are obstore's, the store is not there."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from obstore.exceptions import GenericError

from lock import CorruptLockError, LockUnavailableError
from lock.buckets import BucketConditionalStore
from lock.codec import RECORD_SIZE_MAX_BYTES
from lock.register import SwapOutcome
from resolver.maintenance_lock import bucket_client
from tests.support.fake_bucket import refusal


class Answers:
    """A client that gives one answer, and remembers what it was asked."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.asked: list[Any] = []

    def put(self, *arguments: Any, **options: Any) -> Any:
        self.asked.append((*arguments, options.get("mode")))
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer

    get = delete = put


def store_with(answer: Any, url: str = "s3://bucket") -> BucketConditionalStore:
    return BucketConditionalStore(url, "pre/fix", client=Answers(answer))


@pytest.mark.parametrize(
    ("status", "code", "is_create", "outcome"),
    [
        (412, "PreconditionFailed", False, SwapOutcome.LOST),
        (412, "PreconditionFailed", True, SwapOutcome.LOST),
        (409, "BlobAlreadyExists", True, SwapOutcome.LOST),
        (409, "ConditionalRequestConflict", True, SwapOutcome.BUSY),
        (409, "OperationAborted", False, SwapOutcome.BUSY),
    ],
)
def test_refusals_are_told_apart(
    status: int, code: str, is_create: bool, outcome: SwapOutcome
) -> None:
    store = store_with(refusal(status, code, is_create=is_create))
    found = store.put_if_absent("k", b"x") if is_create else store.put_if_match("k", b"x", '"tag"')
    assert found is outcome


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (500, "InternalError"),
        (503, "SlowDown"),
        (429, "TooManyRequests"),
        (403, "AccessDenied"),
        (404, "NoSuchBucket"),
        (501, "NotImplemented"),
        (307, "TemporaryRedirect"),
    ],
)
def test_other_errors_decide_nothing(status: int, code: str) -> None:
    with pytest.raises(LockUnavailableError, match=f"{status} {code}; store=s3://bucket/pre/"):
        store_with(refusal(status, code)).put_if_absent("k", b"x")


@pytest.mark.parametrize(("url", "tag"), [("s3://b", "e_tag"), ("gs://b", "version")])
def test_conditions_are_sent(url: str, tag: str) -> None:
    store = store_with(None, url)
    assert store.put_if_absent("k", b"x") is SwapOutcome.DONE
    assert store.put_if_match("k", b"x", "7") is SwapOutcome.DONE
    assert store._client.asked == [
        ("pre/fix/k", b"x", "create"),
        ("pre/fix/k", b"x", {tag: "7"}),
    ]


@pytest.mark.parametrize("code", ["NoSuchKey", "BlobNotFound"])
def test_missing_object_is_none(code: str) -> None:
    assert store_with(refusal(404, code)).get("k") is None


@pytest.mark.parametrize("code", ["NoSuchBucket", "ContainerNotFound"])
def test_missing_bucket_is_not_a_free_lock(code: str) -> None:
    with pytest.raises(LockUnavailableError):
        store_with(refusal(404, code)).get("k")


def test_short_body_is_not_a_record() -> None:
    reply = SimpleNamespace(meta={"size": 10, "e_tag": '"t"'}, bytes=lambda: b"abc")
    with pytest.raises(LockUnavailableError):
        store_with(reply).get("k")


def test_giant_object_is_not_read() -> None:
    reply = SimpleNamespace(meta={"size": RECORD_SIZE_MAX_BYTES + 1, "e_tag": '"t"'})
    with pytest.raises(CorruptLockError):
        store_with(reply).get("k")


@pytest.mark.parametrize("kind", ["Timeout", "Connect"])
def test_timeout_decides_nothing(kind: str) -> None:
    store = store_with(GenericError(f"HTTP error\nHttpError {{\n kind: {kind},\n"))
    with pytest.raises(LockUnavailableError, match=kind):
        store.put_if_absent("k", b"x")
    with pytest.raises(LockUnavailableError, match=kind):
        store.delete("k")


PROPERTIES = {
    "s3.endpoint": "http://127.0.0.1:1",
    "s3.access-key-id": "testing",
    "s3.secret-access-key": "hunter2",
}


def test_client_does_not_retry_on_its_own() -> None:
    """R69, R71: a repeated conditional write would answer 412 to its own success."""
    assert bucket_client("s3://bucket", PROPERTIES).retry_config["max_retries"] == 0


def test_unreachable_endpoint_is_unavailable_and_shows_no_secret() -> None:
    client = bucket_client("s3://bucket", PROPERTIES)
    with pytest.raises(LockUnavailableError, match="Connect") as caught:
        BucketConditionalStore("s3://bucket", "", client=client).get("k")
    assert "hunter2" not in f"{caught.value}{caught.value.__cause__}"


@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.get("k"),
        lambda store: store.put_if_absent("k", b"x"),
        lambda store: store.put_if_match("k", b"x", '"tag"'),
        lambda store: store.delete("k"),
    ],
)
def test_panic_of_the_library_is_a_lock_store_that_failed(call: Any) -> None:
    """A heartbeat's thread that waits for an `Exception` ended with it, in silence."""
    panic = type("PanicException", (BaseException,), {"__module__": "pyo3_runtime"})
    with pytest.raises(LockUnavailableError, match="lock store failed"):
        call(store_with(panic()))
    with pytest.raises(KeyboardInterrupt):
        call(store_with(KeyboardInterrupt()))
