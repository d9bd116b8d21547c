"""What S3's failures mean: which error, and whether another try can help."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tableformat.errors import (
    AlreadyExistsError,
    InvalidInputError,
    NotFoundError,
    StoreUnavailableError,
)
from tableformat.store.locations import ParsedLocation

# Refusals before any effect; every other failure may have had one.
_TRANSIENT_STATUS = {408, 409, 429}


class TransientError(Exception):
    """A failure worth another try; `ambiguous` if the request may have taken effect."""

    def __init__(self, reason: str, *, ambiguous: bool) -> None:
        super().__init__(reason)
        self.ambiguous = ambiguous


class RangeError(Exception):
    """416: the range starts behind the end."""


def explain(error: Exception, at: ParsedLocation) -> Exception:
    """A failure of boto3 or pyarrow as one of ours."""
    from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError

    if isinstance(error, ClientError):
        return _explain_reply(error.response, at)
    if isinstance(error, NoCredentialsError):
        return InvalidInputError("no S3 credentials", action="set s3.access-key-id ...")
    if isinstance(error, BotoCoreError):
        return TransientError(type(error).__name__, ambiguous=True)
    if isinstance(error, FileNotFoundError):
        return NotFoundError("object does not exist", location=str(at))
    if isinstance(error, OSError) and not isinstance(error, IsADirectoryError):
        return TransientError(type(error).__name__, ambiguous=True)
    return error


def _explain_reply(response: Mapping[str, Any], at: ParsedLocation) -> Exception:
    status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    code = str(response.get("Error", {}).get("Code", ""))
    if status == 412:
        return AlreadyExistsError("object exists already", location=str(at))
    if status == 416:
        return RangeError()
    if status == 404:
        missing = "bucket" if code == "NoSuchBucket" else "object"
        return NotFoundError(f"{missing} does not exist", location=str(at))
    if status in _TRANSIENT_STATUS or status >= 500 or status < 400:
        return TransientError(f"{status} {code}", ambiguous=status not in _TRANSIENT_STATUS)
    return StoreUnavailableError(
        f"object store refused: {status} {code}",
        action="check credentials and permissions",
        location=str(at),
    )
