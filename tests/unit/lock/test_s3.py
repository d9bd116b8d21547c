"""What S3's answers mean. The client is real, the answers are not."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("boto3")

from botocore.exceptions import ConnectTimeoutError, ReadTimeoutError
from botocore.response import StreamingBody
from botocore.stub import Stubber

from lock import CorruptLockError, InvalidLockError, LockUnavailableError
from lock.codec import RECORD_SIZE_MAX_BYTES
from lock.register import SwapOutcome
from lock.s3 import S3ConditionalStore, create_client

PROPERTIES = {
    "s3.endpoint": "http://127.0.0.1:1",
    "s3.region": "us-east-1",
    "s3.access-key-id": "testing",
    "s3.secret-access-key": "hunter2",
}


@pytest.fixture
def client() -> Iterator[Any]:
    client = create_client(PROPERTIES)
    yield client
    client.close()


@pytest.fixture
def store(client: Any) -> S3ConditionalStore:
    return S3ConditionalStore("bucket", "pre/fix", client=client)


@pytest.mark.parametrize(
    ("status", "code", "outcome"),
    [
        (412, "PreconditionFailed", SwapOutcome.LOST),
        (409, "ConditionalRequestConflict", SwapOutcome.BUSY),
        (409, "OperationAborted", SwapOutcome.BUSY),
        (404, "NoSuchKey", SwapOutcome.LOST),
    ],
)
def test_refusals_are_told_apart(
    client: Any, store: S3ConditionalStore, status: int, code: str, outcome: SwapOutcome
) -> None:
    with Stubber(client) as stub:
        stub.add_client_error("put_object", code, http_status_code=status)
        assert store.put_if_match("k", b"x", '"tag"') is outcome


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
def test_other_errors_decide_nothing(
    client: Any, store: S3ConditionalStore, status: int, code: str
) -> None:
    with Stubber(client) as stub:
        stub.add_client_error("put_object", code, http_status_code=status)
        with pytest.raises(LockUnavailableError, match=f"{status} {code}; store=s3://bucket/pre/"):
            store.put_if_absent("k", b"x")


def test_conditions_are_sent(client: Any, store: S3ConditionalStore) -> None:
    common = {
        "Bucket": "bucket",
        "Key": "pre/fix/k",
        "Body": b"x",
        "ContentType": "application/json",
    }
    with Stubber(client) as stub:
        stub.add_response("put_object", {}, {**common, "IfNoneMatch": "*"})
        stub.add_response("put_object", {}, {**common, "IfMatch": '"tag"'})
        assert store.put_if_absent("k", b"x") is SwapOutcome.DONE
        assert store.put_if_match("k", b"x", '"tag"') is SwapOutcome.DONE
        stub.assert_no_pending_responses()


def test_missing_object_is_none(client: Any, store: S3ConditionalStore) -> None:
    with Stubber(client) as stub:
        stub.add_client_error("get_object", "NoSuchKey", http_status_code=404)
        assert store.get("k") is None


def test_missing_bucket_is_not_a_free_lock(client: Any, store: S3ConditionalStore) -> None:
    with Stubber(client) as stub:
        stub.add_client_error("get_object", "NoSuchBucket", http_status_code=404)
        with pytest.raises(LockUnavailableError):
            store.get("k")


def test_short_body_is_not_a_record(client: Any, store: S3ConditionalStore) -> None:
    body = StreamingBody(io.BytesIO(b"abc"), 10)
    with Stubber(client) as stub:
        stub.add_response("get_object", {"Body": body, "ContentLength": 10, "ETag": '"t"'})
        with pytest.raises(LockUnavailableError, match="IncompleteRead"):
            store.get("k")


def test_giant_object_is_not_read(client: Any, store: S3ConditionalStore) -> None:
    size = RECORD_SIZE_MAX_BYTES + 1
    with Stubber(client) as stub:
        stub.add_response("get_object", {"Body": b"", "ContentLength": size, "ETag": '"t"'})
        with pytest.raises(CorruptLockError):
            store.get("k")


@pytest.mark.parametrize("error_class", [ReadTimeoutError, ConnectTimeoutError])
def test_timeout_decides_nothing(
    store: S3ConditionalStore, monkeypatch: pytest.MonkeyPatch, error_class: type[Exception]
) -> None:
    def hang(**_: Any) -> None:
        raise error_class(endpoint_url="http://x")  # type: ignore[call-arg]

    monkeypatch.setattr(store._client, "put_object", hang)
    monkeypatch.setattr(store._client, "delete_object", hang)
    with pytest.raises(LockUnavailableError, match=error_class.__name__):
        store.put_if_absent("k", b"x")
    with pytest.raises(LockUnavailableError, match=error_class.__name__):
        store.delete("k")


def test_client_does_not_retry_on_its_own(client: Any) -> None:
    """R69, R71: a repeated conditional write would answer 412 to its own success."""
    assert client.meta.config.retries["total_max_attempts"] == 1


def test_unreachable_endpoint_is_unavailable_and_shows_no_secret(
    store: S3ConditionalStore,
) -> None:
    with pytest.raises(LockUnavailableError, match="EndpointConnectionError") as caught:
        store.get("k")
    assert "hunter2" not in str(caught.value)


def test_broken_endpoint_is_refused() -> None:
    with pytest.raises(InvalidLockError, match="ValueError"):
        create_client({**PROPERTIES, "s3.endpoint": "not a url"})
