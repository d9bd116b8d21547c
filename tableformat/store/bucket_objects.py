"""S3, GCS and Azure as one object store, on obstore: exclusive writes, exact reads.

| outcome of a request                     | answer                                               |
|------------------------------------------|------------------------------------------------------|
| 404                                      | `NotFoundError`                                      |
| a put is told that the object exists     | `AlreadyExistsError`, unless it is this put's (R71)   |
| 408, 409, 429, 5xx, timeouts, cut bodies | tried again, then `StoreUnavailableError` (R74)      |
| other 4xx                                | `StoreUnavailableError` at once                      |

A put is one conditional request, so an object is whole or not there. Names with an empty segment
(`a//b`) or a slash at the end are refused: the library would mean another object.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import pyarrow as pa
from obstore.exceptions import GenericError
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from tableformat.errors import (
    AlreadyExistsError,
    CorruptDataError,
    NotFoundError,
    StoreUnavailableError,
    UnsupportedError,
)
from tableformat.store.base import ObjectInfo
from tableformat.store.bucket_failures import (
    MISSING_OBJECT,
    RangeError,
    TransientError,
    explain,
)
from tableformat.store.bucket_files import BucketInput
from tableformat.store.buckets import Buckets
from tableformat.store.locations import ParsedLocation
from tableformat.store.vended import CredentialVault

ATTEMPTS_MAX = 5
_WAIT_S = (0.1, 2.0)  # first and longest pause between tries
_PUT_BYTES_MAX = 5_000 << 20  # the smallest limit of the three for one request: Azure's
_TAIL_BYTES = 64 << 10  # what Arrow reads first: a footer, or the whole of a small file
_NO_RANGE = "NotPartial"  # in the library's text, where the answer is the whole object
_PAGE = 1000  # objects per answer of a list; the most that S3 gives
# Objects per request to delete, where one request can name several; else the library sends ten
# at once.
_DELETE_BATCH = 1000
_NONCE = "icefoldput"  # Azure takes no dash

_T = TypeVar("_T")


class BucketObjects:
    """The objects of all buckets that one set of properties reaches. Thread-safe.

    Args:
        properties: See `buckets.connect`. Never shown.
        vault: Credentials that catalogs hand out, which win.
    """

    def __init__(self, properties: Mapping[str, str], vault: CredentialVault | None = None) -> None:
        self._buckets = Buckets(properties, vault or CredentialVault())

    def get(self, at: ParsedLocation, offset: int, length: int | None) -> bytes:
        """See `ObjectStore.get`."""
        return bytes(self.read(at, offset, length))

    def read(self, at: ParsedLocation, offset: int, length: int | None) -> Any:
        """As `get`, as a buffer that is not copied."""
        if length == 0:
            return self._nothing_at(at, offset, length)
        options: dict[str, Any] = {}
        if length is not None:
            options["range"] = (offset, offset + length)
        elif offset:
            options["range"] = {"offset": offset}

        def ask(client: Any) -> Any:
            reply = client.get(at.path, options=options)
            size = reply.meta["size"]
            data = reply.bytes()
            return _checked(data, at, offset, length, size)

        try:
            return self._call(at, ask)
        except RangeError:
            return self._nothing_at(at, offset, length)

    def size_bytes(self, at: ParsedLocation) -> int:
        """See `ObjectStore.size_bytes`."""
        return int(self._call(at, lambda client: client.head(at.path))["size"])

    def put(self, at: ParsedLocation, data: Any, size: int) -> None:
        """See `ObjectStore.put`; `data` is a buffer of `size` bytes."""
        if size > _PUT_BYTES_MAX:
            raise UnsupportedError(
                "object is too large for one request", location=str(at), size_bytes=size
            )
        # Real randomness, not a runtime id: it must differ between processes that replay ids.
        nonce = os.urandom(16).hex()
        ours = {_NONCE: nonce}

        def send(client: Any) -> None:
            client.put(at.path, data, mode="create", attributes=ours, use_multipart=False)

        try:
            self._call(at, send, upload_bytes=size)
        except AlreadyExistsError:
            if self._nonce(at) != nonce:
                raise

    def open_input(self, at: ParsedLocation) -> pa.NativeFile:
        """See `ObjectStore.open_input`."""
        size, tail = self._tail(at)
        file = BucketInput(lambda *where: self.read(at, *where), size, tail)
        return pa.PythonFile(file, mode="r")

    def list(self, at: ParsedLocation) -> Iterator[ObjectInfo]:
        """See `ObjectStore.list_prefix`."""
        at = at._replace(path=at.path.strip("/"))
        last: str | None = None
        pages: Iterator[Any] | None = None

        def turn(client: Any) -> Sequence[Mapping[str, Any]]:
            nonlocal pages
            # A list that failed has ended, as if there were no more: the next try starts anew.
            going_on, pages = pages, None
            if going_on is None:
                going_on = iter(client.list(at.path or None, offset=last, chunk_size=_PAGE))
            page: Sequence[Mapping[str, Any]] = next(going_on, ())
            pages = going_on
            return page

        while page := self._call(at, turn, has_name=False):
            for one in page:
                last = one["path"]
                modified_ms = int(one["last_modified"].timestamp() * 1000)
                yield ObjectInfo(str(at._replace(path=last)), one["size"], modified_ms)

    def delete(self, places: Sequence[ParsedLocation]) -> None:
        """See `ObjectStore.delete`."""
        by_bucket: dict[ParsedLocation, dict[str, None]] = {}
        for at in places:
            _check_name(at)
            by_bucket.setdefault(at._replace(path=""), {})[at.path] = None
        for at, paths in by_bucket.items():
            names = list(paths)
            for start in range(0, len(names), _DELETE_BATCH):
                self._delete_batch(at, names[start : start + _DELETE_BATCH])

    def _delete_batch(self, at: ParsedLocation, names: Sequence[str]) -> None:
        try:
            self._call(at._replace(path=names[0]), lambda client: client.delete(names))
        except NotFoundError as error:  # on Azure and GCS, and it stops there
            if error.message != MISSING_OBJECT:
                raise
            if len(names) > 1:
                for name in names:
                    self._delete_batch(at, [name])

    def _tail(self, at: ParsedLocation) -> tuple[int, Any]:
        """An object's size and its last bytes; by one request, but on Azure, which cannot."""

        def ask(client: Any) -> tuple[int, Any]:
            try:
                reply = client.get(at.path, options={"range": {"suffix": _TAIL_BYTES}})
            except GenericError as error:
                if _NO_RANGE in str(error):
                    raise RangeError from error
                raise
            size, tail = int(reply.meta["size"]), reply.bytes()
            if len(tail) != min(size, _TAIL_BYTES):
                raise TransientError("body was cut short")
            return size, tail

        if at.scheme != "abfss":
            with suppress(RangeError):  # an empty object has no last bytes; others may not do it
                return self._call(at, ask)
        return self.size_bytes(at), b""

    def _nonce(self, at: ParsedLocation) -> str | None:
        try:
            reply = self._call(at, lambda client: client.get(at.path, options={"head": True}))
        except NotFoundError:
            return None
        found: str | None = reply.attributes.get(_NONCE)
        return found

    def _nothing_at(self, at: ParsedLocation, offset: int, length: int | None) -> bytes:
        size = self.size_bytes(at)
        if offset + (length or 0) > size:
            raise _too_short(at, offset, length, size)
        return b""

    def _call(
        self,
        at: ParsedLocation,
        request: Callable[[Any], _T],
        *,
        upload_bytes: int = 0,
        has_name: bool = True,
    ) -> _T:
        """One request, repeated while the failure is transient."""
        if has_name:
            _check_name(at)
        client = self._buckets.client(at, upload_bytes)

        def attempt() -> _T:
            try:
                return request(client)
            except BaseException as error:
                found = explain(error, at, is_signed=self._buckets.is_signed(at))
                if found is error:
                    raise
                raise found from error

        retrying = Retrying(
            stop=stop_after_attempt(ATTEMPTS_MAX),
            wait=wait_random_exponential(multiplier=_WAIT_S[0], max=_WAIT_S[1]),
            retry=retry_if_exception_type(TransientError),
            reraise=True,
        )
        try:
            return retrying(attempt)
        except TransientError as error:
            raise StoreUnavailableError(
                f"object store did not answer: {error}", location=str(at), attempts=ATTEMPTS_MAX
            ) from error


def _check_name(at: ParsedLocation) -> None:
    if "" in at.path.split("/"):
        raise UnsupportedError(
            "an object's name cannot have empty parts in an object store", location=str(at)
        )


def _checked(data: Any, at: ParsedLocation, offset: int, length: int | None, size: int) -> Any:
    """The body, if it is what was asked for; the library does not compare."""
    wanted = size - offset if length is None else length
    if offset + wanted > size:
        raise _too_short(at, offset, length, size)
    if len(data) != wanted:
        raise TransientError("body was cut short")
    return data


def _too_short(at: ParsedLocation, offset: int, length: int | None, size: int) -> CorruptDataError:
    return CorruptDataError(
        "object is shorter than the range asked for",
        location=str(at),
        offset=offset,
        length=length,
        size_bytes=size,
    )
