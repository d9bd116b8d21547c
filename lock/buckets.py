"""Conditional writes on S3 and what speaks its protocol, on Google Cloud Storage and on Azure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError

from lock.codec import RECORD_SIZE_MAX_BYTES
from lock.errors import CorruptLockError, LockUnavailableError
from lock.register import SwapOutcome

CONNECT_TIMEOUT_S = 3.0
REQUEST_TIMEOUT_S = 5.0  # a hanging request must not eat a lease: heartbeats are 10 s apart

# The library has few classes, but its texts end in the server's answer.
_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_NO_ANSWER = re.compile(r"\bkind: (\w+)")
_PANIC = "pyo3_runtime"  # the module of what Rust's panics are in Python
_NO_OBJECT = {"NoSuchKey", "BlobNotFound"}
_TAKEN = {"BlobAlreadyExists"}  # Azure: 409, and this

Connect = Callable[[str], Any]
"""From a bucket's URL to its `obstore` client.

It must not retry by itself: the store must see a lost reply to settle it (R69, R71).
"""


class BucketConditionalStore:
    """See `ConditionalStore`.

    Args:
        url: The bucket: scheme and authority.
        prefix: What the locks' keys start with, without slashes at its ends; may be empty.
        client: The bucket's client; see `Connect`.
    """

    # A request is money, and takes tens of milliseconds.
    poll_min_ms = 100.0
    poll_max_ms = 500.0

    def __init__(self, url: str, prefix: str, *, client: Any) -> None:
        self._url = url
        self._prefix = f"{prefix}/" if prefix else ""
        self._client = client
        # What names one version of an object: GCS compares numbers, the others tags.
        self._tag: Literal["version", "e_tag"] = "version" if url.startswith("gs:") else "e_tag"

    def get(self, key: str) -> tuple[bytes, str] | None:
        """See `ConditionalStore`."""
        try:
            with _surviving_panics():
                reply = self._client.get(self._prefix + key)
            if reply.meta["size"] > RECORD_SIZE_MAX_BYTES:
                raise CorruptLockError("lock record refused: too big", location=self.describe(key))
            data = bytes(reply.bytes())
        except (BaseError, OSError) as error:
            if isinstance(error, FileNotFoundError) and _answer(error)[1] in _NO_OBJECT:
                return None
            raise self._unavailable(error) from error
        if len(data) != reply.meta["size"]:
            raise self._unavailable(EOFError())
        return data, str(reply.meta[self._tag])

    def put_if_absent(self, key: str, data: bytes) -> SwapOutcome:
        """See `ConditionalStore`."""
        return self._put(key, data, "create")

    def put_if_match(self, key: str, data: bytes, etag: str) -> SwapOutcome:
        """See `ConditionalStore`."""
        return self._put(key, data, {self._tag: etag})

    def delete(self, key: str) -> None:
        """See `ConditionalStore`."""
        try:
            with _surviving_panics():
                self._client.delete(self._prefix + key)
        except FileNotFoundError:
            return
        except (BaseError, OSError) as error:
            raise self._unavailable(error) from error

    def describe(self, key: str | None = None) -> str:
        """See `ConditionalStore`."""
        return f"{self._url}/{self._prefix}{key or ''}"

    def close(self) -> None:
        """See `ConditionalStore`. The library closes connections that nobody uses."""

    def _put(self, key: str, data: bytes, mode: Any) -> SwapOutcome:
        try:
            with _surviving_panics():
                self._client.put(self._prefix + key, data, mode=mode)
            return SwapOutcome.DONE
        except PreconditionError:  # also If-Match on an object that is gone
            return SwapOutcome.LOST
        except AlreadyExistsError as error:
            # The library's word for any 409, too: lost against a write under way.
            status, code = _answer(error)
            return SwapOutcome.LOST if status == 412 or code in _TAKEN else SwapOutcome.BUSY
        except (BaseError, OSError) as error:
            raise self._unavailable(error) from error

    def _unavailable(self, error: Exception) -> LockUnavailableError:
        status, code = _answer(error)
        kind = _NO_ANSWER.search(str(error))
        reason = f"{status} {code}" if status else kind[1] if kind else type(error).__name__
        return LockUnavailableError(
            f"lock store failed: {reason}",
            store=self.describe(),
            action="check the store and the credentials; a lease that was held runs out by itself",
        )


class _PanicError(OSError):
    """The library has given up on its settings: an address, a key."""


@contextmanager
def _surviving_panics() -> Iterator[None]:
    """The library's panics are no `Exception` in Python: a thread that waits for one would end."""
    try:
        yield
    except BaseException as error:
        if type(error).__module__ != _PANIC:
            raise
        raise _PanicError from error


def _answer(error: Exception) -> tuple[int, str]:
    """Status and code of the server's answer; 0 and nothing if there was none."""
    status, code = _STATUS.search(str(error)), _CODE.search(str(error))
    return int(status[1]) if status else 0, code[1] if code else ""
