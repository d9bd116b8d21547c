"""S3, and what speaks its protocol, as an object store: exclusive writes, exact reads.

| outcome of a request                | answer                                              |
|-------------------------------------|-----------------------------------------------------|
| 404                                 | `NotFoundError`                                     |
| 412 on the first try of a put       | `AlreadyExistsError`                                |
| 412 after a try without an answer   | done, if the object has this put's nonce (R71)      |
| 409, 429, 5xx, timeouts, cut bodies | tried again, then `StoreUnavailableError` (R74)     |
| other 4xx                           | `StoreUnavailableError` at once                     |

A put is one conditional request (`If-None-Match: *`), so an object is whole or not there. Outputs
are spooled in memory, then on local disk, until they are closed.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import IO, Any, TypeVar

import pyarrow as pa
from pyarrow.fs import S3FileSystem
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from tableformat.errors import (
    AlreadyExistsError,
    CorruptDataError,
    NotFoundError,
    StoreUnavailableError,
    UnsupportedError,
)
from tableformat.store.base import ObjectInfo
from tableformat.store.locations import ParsedLocation
from tableformat.store.s3_failures import RangeError, TransientError, explain
from tableformat.store.s3_session import (
    check_properties,
    create_arrow_file_system,
    create_client,
)

ATTEMPTS_MAX = 5
_WAIT_S = (0.1, 2.0)  # first and longest pause between tries
_PUT_BYTES_MAX = 5 << 30  # S3's limit for one request
_DELETE_BATCH = 1000  # S3's limit
_NONCE = "icefold-put"

_T = TypeVar("_T")


class S3Objects:
    """The objects of all buckets that one set of credentials reaches. Thread-safe.

    Args:
        properties: PyIceberg's `s3.*` names (`client.*` as their fall-back). Never shown.

    Raises:
        UnsupportedError: boto3 is missing, or a property asks for what is not done here.
    """

    def __init__(self, properties: Mapping[str, str]) -> None:
        check_properties(properties)
        self._properties = properties
        self._lock = threading.Lock()
        self._client: Any = None
        self._arrow: S3FileSystem | None = None
        self._pid = os.getpid()

    def get(self, at: ParsedLocation, offset: int, length: int | None) -> bytes:
        """See `ObjectStore.get`."""
        if offset == 0 and length is None:
            return self._call(at, lambda client: _body(client.get_object(**_where(at))))
        if length == 0 or (length is None and offset == self.size_bytes(at)):
            size = self.size_bytes(at)
            return b"" if offset <= size else self._too_short(at, offset, length, size)
        last = "" if length is None else offset + length - 1
        where = {**_where(at), "Range": f"bytes={offset}-{last}"}
        try:
            data = self._call(at, lambda client: _body(client.get_object(**where)))
        except RangeError:
            return self._too_short(at, offset, length, self.size_bytes(at))
        if length is not None and len(data) != length:
            return self._too_short(at, offset, length, self.size_bytes(at))
        return data

    def size_bytes(self, at: ParsedLocation) -> int:
        """See `ObjectStore.size_bytes`."""
        return int(self._call(at, lambda client: client.head_object(**_where(at)))["ContentLength"])

    def put(self, at: ParsedLocation, body: bytes | memoryview | IO[bytes], size: int) -> None:
        """See `ObjectStore.put`; `body` is sent from its start at every try."""
        if size > _PUT_BYTES_MAX:
            raise UnsupportedError(
                "object is too large for one S3 request", location=str(at), size_bytes=size
            )
        # Real randomness, not a runtime id: it must differ between processes that replay ids.
        nonce = os.urandom(16).hex()
        arguments = {**_where(at), **self._encryption(), "Metadata": {_NONCE: nonce}}
        uncertain = False

        def send(client: Any) -> None:
            nonlocal uncertain
            if not isinstance(body, bytes | memoryview):
                body.seek(0)
            data = bytes(body) if isinstance(body, memoryview) else body
            try:
                client.put_object(**arguments, Body=data, ContentLength=size, IfNoneMatch="*")
            except Exception as error:
                found = explain(error, at)
                uncertain = uncertain or (isinstance(found, TransientError) and found.ambiguous)
                raise found from error

        try:
            self._call(at, send)
        except AlreadyExistsError:
            if not (uncertain and self._nonce(at) == nonce):
                raise

    def open_input(self, at: ParsedLocation) -> pa.NativeFile:
        """See `ObjectStore.open_input`."""
        file_system = self._arrow_file_system()
        try:
            return self._call(
                at, lambda _: file_system.open_input_file(f"{at.authority}/{at.path}")
            )
        except IsADirectoryError as error:
            raise NotFoundError("object does not exist", location=str(at)) from error

    def list(self, at: ParsedLocation) -> Iterator[ObjectInfo]:
        """See `ObjectStore.list_prefix`."""
        folder = f"{at.path.rstrip('/')}/" if at.path.strip("/") else ""
        token: dict[str, str] = {}
        while True:
            arguments = {"Bucket": at.authority, "Prefix": folder, **token}
            page = self._call(at, partial(_list_page, arguments))
            for one in page.get("Contents", ()):
                modified_ms = int(one["LastModified"].timestamp() * 1000)
                yield ObjectInfo(f"s3://{at.authority}/{one['Key']}", one["Size"], modified_ms)
            if not page.get("IsTruncated"):
                return
            token = {"ContinuationToken": page["NextContinuationToken"]}

    def delete(self, places: Sequence[ParsedLocation]) -> None:
        """See `ObjectStore.delete`."""
        keys: dict[str, list[ParsedLocation]] = {}
        for at in places:
            keys.setdefault(at.authority, []).append(at)
        for bucket, found in keys.items():
            for start in range(0, len(found), _DELETE_BATCH):
                self._delete_batch(bucket, found[start : start + _DELETE_BATCH])

    def _delete_batch(self, bucket: str, batch: Sequence[ParsedLocation]) -> None:
        objects = [{"Key": key} for key in dict.fromkeys(at.path for at in batch)]
        request = {"Objects": objects, "Quiet": True}

        def send(client: Any) -> None:
            reply = client.delete_objects(Bucket=bucket, Delete=request)
            errors = [one for one in reply.get("Errors", ()) if one.get("Code") != "NoSuchKey"]
            if errors:
                codes = sorted({str(one.get("Code")) for one in errors})
                raise TransientError(f"{len(errors)} not deleted: {codes}", ambiguous=True)

        self._call(batch[0], send)

    def _nonce(self, at: ParsedLocation) -> str | None:
        head = self._call(at, lambda client: client.head_object(**_where(at)))
        found: str | None = head.get("Metadata", {}).get(_NONCE)
        return found

    def _too_short(self, at: ParsedLocation, offset: int, length: int | None, size: int) -> bytes:
        raise CorruptDataError(
            "object is shorter than the range asked for",
            location=str(at),
            offset=offset,
            length=length,
            size_bytes=size,
        )

    def _encryption(self) -> dict[str, str]:
        wanted = {
            "ServerSideEncryption": self._properties.get("s3.server-side-encryption"),
            "SSEKMSKeyId": self._properties.get("s3.sse-kms-key-id"),
        }
        return {key: value for key, value in wanted.items() if value}

    def _call(self, at: ParsedLocation, request: Callable[[Any], _T]) -> _T:
        """One request, repeated while the failure is transient."""
        client = self._boto_client()

        def attempt() -> _T:
            try:
                return request(client)
            except Exception as error:
                found = explain(error, at)
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

    def _boto_client(self) -> Any:
        with self._lock:
            if self._client is None or self._pid != os.getpid():
                self._pid = os.getpid()
                self._arrow = None
                self._client = create_client(self._properties)
            return self._client

    def _arrow_file_system(self) -> S3FileSystem:
        self._boto_client()
        with self._lock:
            if self._arrow is None:
                self._arrow = create_arrow_file_system(self._properties)
            return self._arrow


def _list_page(arguments: Mapping[str, str], client: Any) -> dict[str, Any]:
    page: dict[str, Any] = client.list_objects_v2(**arguments)
    return page


def _where(at: ParsedLocation) -> dict[str, str]:
    return {"Bucket": at.authority, "Key": at.path}


def _body(reply: Mapping[str, Any]) -> bytes:
    stream = reply["Body"]  # as a context manager it would hand out the unchecked raw stream
    try:
        data: bytes = stream.read()
    finally:
        stream.close()
    # botocore compares with Content-Length; a proxy that drops that header is caught here.
    if len(data) != reply.get("ContentLength"):
        raise TransientError("body was cut short", ambiguous=False)
    return data
