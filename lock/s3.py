"""Conditional writes on S3 and on what speaks its protocol."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from lock.codec import RECORD_SIZE_MAX_BYTES
from lock.errors import CorruptLockError, InvalidLockError, LockUnavailableError
from lock.register import SwapOutcome

_CONNECT_TIMEOUT_S = 3.0
_READ_TIMEOUT_S = 5.0  # a hanging request must not eat a lease: heartbeats are 10 s apart
_PRECONDITION_FAILED = 412
_CONFLICT = 409
_NOT_FOUND = 404

_PROPERTIES = {
    "s3.endpoint": "endpoint_url",
    "s3.region": "region_name",
    "s3.access-key-id": "aws_access_key_id",
    "s3.secret-access-key": "aws_secret_access_key",
    "s3.session-token": "aws_session_token",
}


class S3ConditionalStore:
    """See `ConditionalStore`.

    Args:
        bucket: The bucket.
        prefix: What the locks' keys start with, without slashes at its ends; may be empty.
        client: A boto3 S3 client that does not retry by itself (`create_client`).
    """

    # A request is money, and takes tens of milliseconds.
    poll_min_ms = 100.0
    poll_max_ms = 500.0

    def __init__(self, bucket: str, prefix: str, *, client: Any) -> None:
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""
        self._client = client

    def get(self, key: str) -> tuple[bytes, str] | None:
        """See `ConditionalStore`."""
        try:
            reply = self._client.get_object(Bucket=self._bucket, Key=self._prefix + key)
            if reply["ContentLength"] > RECORD_SIZE_MAX_BYTES:
                raise CorruptLockError("lock record refused: too big", location=self.describe(key))
            data: bytes = reply["Body"].read()  # checks the length against the header
            return data, str(reply["ETag"])
        except ClientError as error:
            if error.response.get("Error", {}).get("Code") == "NoSuchKey":
                return None
            raise self._unavailable(error) from error
        except BotoCoreError as error:
            raise self._unavailable(error) from error

    def put_if_absent(self, key: str, data: bytes) -> SwapOutcome:
        """See `ConditionalStore`."""
        return self._put(key, data, {"IfNoneMatch": "*"})

    def put_if_match(self, key: str, data: bytes, etag: str) -> SwapOutcome:
        """See `ConditionalStore`."""
        return self._put(key, data, {"IfMatch": etag})

    def delete(self, key: str) -> None:
        """See `ConditionalStore`."""
        try:
            self._client.delete_object(Bucket=self._bucket, Key=self._prefix + key)
        except (ClientError, BotoCoreError) as error:
            raise self._unavailable(error) from error

    def describe(self, key: str | None = None) -> str:
        """See `ConditionalStore`."""
        return f"s3://{self._bucket}/{self._prefix}{key or ''}"

    def close(self) -> None:
        """See `ConditionalStore`."""
        self._client.close()

    def _put(self, key: str, data: bytes, condition: Mapping[str, str]) -> SwapOutcome:
        try:
            self._client.put_object(
                Bucket=self._bucket,
                Key=self._prefix + key,
                Body=data,
                ContentType="application/json",
                **condition,
            )
            return SwapOutcome.DONE
        except ClientError as error:
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
            code = error.response.get("Error", {}).get("Code")
            if status == _PRECONDITION_FAILED:
                return SwapOutcome.LOST
            if status == _CONFLICT:
                return SwapOutcome.BUSY
            if status == _NOT_FOUND and code == "NoSuchKey":  # If-Match on an object that is gone
                return SwapOutcome.LOST
            raise self._unavailable(error) from error
        except BotoCoreError as error:
            raise self._unavailable(error) from error

    def _unavailable(self, error: Exception) -> LockUnavailableError:
        reason = type(error).__name__
        if isinstance(error, ClientError):
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
            reason = f"{status} {error.response.get('Error', {}).get('Code')}"
        return LockUnavailableError(
            f"lock store failed: {reason}",
            store=self.describe(),
            action="check the store and the credentials; a lease that was held runs out by itself",
        )


def create_client(properties: Mapping[str, str]) -> Any:
    """An S3 client from catalog properties (`s3.endpoint`, `s3.region`, `s3.access-key-id`, ...).

    What is not given comes from boto3's own chain (environment, profile, instance role). Retries
    are off: the caller must see a lost reply to settle it.
    """
    options = {
        argument: properties[name] for name, argument in _PROPERTIES.items() if name in properties
    }
    config = Config(
        connect_timeout=_CONNECT_TIMEOUT_S,
        read_timeout=_READ_TIMEOUT_S,
        retries={"total_max_attempts": 1, "mode": "standard"},
    )
    try:
        return boto3.client("s3", config=config, **options)
    except (BotoCoreError, ValueError) as error:
        raise InvalidLockError(
            f"S3 client refused: {type(error).__name__}", action="check the s3.* properties"
        ) from error
