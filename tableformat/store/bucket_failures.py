"""What failures of an object store mean: which error, and whether another try can help."""

from __future__ import annotations

import re

from obstore.exceptions import (
    AlreadyExistsError as TakenError,
)
from obstore.exceptions import (
    BaseError,
    InvalidPathError,
    NotSupportedError,
    PreconditionError,
)

from tableformat.errors import (
    AccessRefusedError,
    AlreadyExistsError,
    InvalidInputError,
    NotFoundError,
    StoreUnavailableError,
    UnsupportedError,
)
from tableformat.store.locations import ParsedLocation

# The library has few classes, but its texts end in the server's answer.
_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_NO_ANSWER = re.compile(r"\bkind: (\w+)")
_IDENTITY = ("169.254.", "metadata.google.internal", "/latest/api/token", "token request")
_MISSING_BUCKET = {"NoSuchBucket", "ContainerNotFound", "AccountNotFound"}
_PANIC = "pyo3_runtime"  # the module of what Rust's panics are in Python
MISSING_OBJECT = "object does not exist"
_TAKEN = {"BlobAlreadyExists"}  # Azure: 409, and this

# Refusals before any effect; every other failure may have had one.
_TRANSIENT_STATUS = {408, 409, 429}
_KEYS = {
    "s3": "set s3.access-key-id and s3.secret-access-key, or AWS_* variables (no profiles)",
    "gs": "set gcs.oauth2.token, or GOOGLE_APPLICATION_CREDENTIALS",
    "abfss": "set adls.account-key, adls.sas-token or adls.client-*, or AZURE_* variables",
}

_SIGNED = ": the catalog would sign requests itself (remote signing), which is not supported"
_SIGNED_ACTION = f"{_KEYS['s3']}; or let the catalog vend credentials"


class TransientError(Exception):
    """A failure worth another try."""


class RangeError(Exception):
    """The range starts behind the end: 416, or an answer that is not about the range."""


def explain(error: BaseException, at: ParsedLocation, *, is_signed: bool = False) -> BaseException:
    """A failure of obstore as one of ours; `is_signed`: a catalog offers to sign requests on it."""
    if type(error).__module__ == _PANIC:  # no Exception: whoever waits for one would not see it
        return InvalidInputError(
            "the object store's library has given up on its settings",
            action="check bucket, addresses, region and keys: properties and variables",
            location=str(at),
        )
    if not isinstance(error, BaseError | FileNotFoundError):
        return error
    text = str(error)
    if isinstance(error, InvalidPathError | NotSupportedError):
        return UnsupportedError(
            f"object store refused a name: {text.partition(chr(10))[0]}", location=str(at)
        )
    found, code = _STATUS.search(text), _CODE.search(text)
    status, name = int(found[1]) if found else 0, code[1] if code else ""
    if any(server in text for server in _IDENTITY):
        why, action = (_SIGNED, _SIGNED_ACTION) if is_signed else ("", _KEYS.get(at.scheme))
        return AccessRefusedError(f"no {at.scheme} credentials{why}", action=action)
    if isinstance(error, TakenError | PreconditionError) and (status == 412 or name in _TAKEN):
        return AlreadyExistsError("object exists already", location=str(at))
    if status == 416 or "InvalidRangeRequest" in text:
        return RangeError()
    if isinstance(error, FileNotFoundError) or status == 404:
        missing = "bucket does not exist" if name in _MISSING_BUCKET else MISSING_OBJECT
        return NotFoundError(missing, location=str(at))
    if "incorrectly configured region" in text:
        return InvalidInputError(
            "bucket is in another region", action="set s3.region", location=str(at)
        )
    if not status:
        kind = _NO_ANSWER.search(text)
        return TransientError(f"no answer ({kind[1] if kind else type(error).__name__})")
    if status in _TRANSIENT_STATUS or status >= 500 or status < 400:
        return TransientError(f"{status} {name}")
    return StoreUnavailableError(
        f"object store refused: {status} {name}{_SIGNED if is_signed else ''}",
        action=_SIGNED_ACTION if is_signed else "check credentials and permissions",
        location=str(at),
    )
