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
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import IO, Any, Self, TypeVar, cast

import pyarrow as pa
from pyarrow.fs import S3FileSystem
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from tableformat.errors import (
    AlreadyExistsError,
    CorruptDataError,
    InvalidInputError,
    NotFoundError,
    StoreUnavailableError,
    UnsupportedError,
)
from tableformat.store.base import ObjectInfo
from tableformat.store.locations import ParsedLocation

ATTEMPTS_MAX = 5
_WAIT_S = (0.1, 2.0)  # first and longest pause between tries
_SPOOL_BYTES = 32 << 20
_PUT_BYTES_MAX = 5 << 30  # S3's limit for one request
_DELETE_BATCH = 1000  # S3's limit
_NONCE = "icefold-put"
_TRANSIENT_STATUS = {408, 409, 429}
_UNSUPPORTED_PROPERTIES = ("s3.role-arn", "s3.signer", "s3.proxy-uri")

_T = TypeVar("_T")


class _TransientError(Exception):
    """A failure worth another try; `ambiguous` if the request may have taken effect."""

    def __init__(self, reason: str, *, ambiguous: bool) -> None:
        super().__init__(reason)
        self.ambiguous = ambiguous


class S3Objects:
    """The objects of all buckets that one set of credentials reaches. Thread-safe.

    Args:
        properties: PyIceberg's `s3.*` names (`client.*` as their fall-back). Never shown.

    Raises:
        UnsupportedError: boto3 is missing, or a property asks for what is not done here.
    """

    def __init__(self, properties: Mapping[str, str]) -> None:
        for key in _UNSUPPORTED_PROPERTIES:
            if key in properties:
                raise UnsupportedError("S3 property is not supported", key=key)
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
        except _RangeError:
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
                found = self._explain(error, at)
                uncertain = uncertain or (isinstance(found, _TransientError) and found.ambiguous)
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
                raise _TransientError(f"{len(errors)} not deleted: {codes}", ambiguous=True)

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
                raise self._explain(error, at) from error

        retrying = Retrying(
            stop=stop_after_attempt(ATTEMPTS_MAX),
            wait=wait_random_exponential(multiplier=_WAIT_S[0], max=_WAIT_S[1]),
            retry=retry_if_exception_type(_TransientError),
            reraise=True,
        )
        try:
            return retrying(attempt)
        except _TransientError as error:
            raise StoreUnavailableError(
                f"object store did not answer: {error}", location=str(at), attempts=ATTEMPTS_MAX
            ) from error

    def _explain(self, error: Exception, at: ParsedLocation) -> Exception:
        """A failure of boto3 or pyarrow as one of ours."""
        from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError

        if isinstance(error, ClientError):
            return _explain_reply(error.response, at)
        if isinstance(error, NoCredentialsError):
            return InvalidInputError("no S3 credentials", action="set s3.access-key-id ...")
        if isinstance(error, BotoCoreError):
            return _TransientError(type(error).__name__, ambiguous=True)
        if isinstance(error, FileNotFoundError):
            return NotFoundError("object does not exist", location=str(at))
        if isinstance(error, OSError) and not isinstance(error, IsADirectoryError):
            return _TransientError(type(error).__name__, ambiguous=True)
        return error

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
                self._arrow = _create_arrow(self._properties)
            return self._arrow


class S3Output:
    """Collects bytes and puts them when closed; as a context manager it aborts on an error."""

    def __init__(self, objects: S3Objects, at: ParsedLocation) -> None:
        self._objects = objects
        self._at = at
        spool = tempfile.SpooledTemporaryFile(max_size=_SPOOL_BYTES)  # noqa: SIM115
        self._spool: IO[bytes] | None = cast("IO[bytes]", spool)

    @property
    def closed(self) -> bool:
        """Whether nothing can be written any more."""
        return self._spool is None

    def writable(self) -> bool:
        """Always."""
        return True

    def readable(self) -> bool:
        """Never."""
        return False

    def seekable(self) -> bool:
        """Never."""
        return False

    def tell(self) -> int:
        """Bytes written so far."""
        return 0 if self._spool is None else self._spool.tell()

    def flush(self) -> None:
        """Nothing leaves before `close`."""

    def write(self, data: bytes | memoryview) -> int:
        """Append all of `data`."""
        if self._spool is None:
            raise ValueError("write to a closed object")
        return self._spool.write(data)

    def abort(self) -> None:
        """Forget the bytes; nothing appears."""
        spool, self._spool = self._spool, None
        if spool is not None:
            spool.close()

    def close(self) -> None:
        """Put the object."""
        spool, self._spool = self._spool, None
        if spool is None:
            return
        with spool:
            size = spool.seek(0, os.SEEK_END)
            self._objects.put(self._at, spool, size)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        else:
            self.abort()

    def __del__(self) -> None:
        self.abort()


class _RangeError(Exception):
    """416: the range starts behind the end."""


def create_client(properties: Mapping[str, str]) -> Any:
    """A boto3 client that does not retry by itself: a repeated conditional put must be seen."""
    try:
        import boto3
        from botocore.config import Config
    except ModuleNotFoundError as error:
        raise UnsupportedError(
            "S3 needs boto3", action="pip install 'icefold[s3]'", module=error.name
        ) from error
    endpoint = properties.get("s3.endpoint")
    style = "virtual" if _flag(properties, "s3.force-virtual-addressing") else "path"
    config = Config(
        retries={"total_max_attempts": 1},
        connect_timeout=float(properties.get("s3.connect-timeout", "5")),
        read_timeout=float(properties.get("s3.request-timeout", "60")),
        s3={"addressing_style": style if endpoint else "auto"},
        # Servers that are not AWS know neither newer checksum; TLS and our own checks remain.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        **_anonymous(properties),
    )
    session = boto3.session.Session(profile_name=properties.get("s3.profile-name"))
    return session.client(
        "s3",
        endpoint_url=endpoint,
        region_name=_first(properties, "region") or ("us-east-1" if endpoint else None),
        aws_access_key_id=_first(properties, "access-key-id"),
        aws_secret_access_key=_first(properties, "secret-access-key"),
        aws_session_token=_first(properties, "session-token"),
        config=config,
    )


def _create_arrow(properties: Mapping[str, str]) -> S3FileSystem:
    endpoint = properties.get("s3.endpoint")
    return S3FileSystem(
        access_key=_first(properties, "access-key-id"),
        secret_key=_first(properties, "secret-access-key"),
        session_token=_first(properties, "session-token"),
        anonymous=_flag(properties, "s3.anonymous"),
        region=_first(properties, "region") or ("us-east-1" if endpoint else None),
        endpoint_override=endpoint,
        connect_timeout=float(properties.get("s3.connect-timeout", "5")),
        request_timeout=float(properties.get("s3.request-timeout", "60")),
        force_virtual_addressing=_flag(properties, "s3.force-virtual-addressing"),
    )


def _anonymous(properties: Mapping[str, str]) -> dict[str, Any]:
    from botocore import UNSIGNED

    return {"signature_version": UNSIGNED} if _flag(properties, "s3.anonymous") else {}


def _first(properties: Mapping[str, str], name: str) -> str | None:
    return properties.get(f"s3.{name}") or properties.get(f"client.{name}")


def _flag(properties: Mapping[str, str], key: str) -> bool:
    return properties.get(key, "false").lower() == "true"


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
    if len(data) != reply["ContentLength"]:
        raise _TransientError("body was cut short", ambiguous=False)
    return data


def _explain_reply(response: Mapping[str, Any], at: ParsedLocation) -> Exception:
    status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    code = str(response.get("Error", {}).get("Code", ""))
    if status == 412:
        return AlreadyExistsError("object exists already", location=str(at))
    if status == 416:
        return _RangeError()
    if status == 404:
        missing = "bucket" if code == "NoSuchBucket" else "object"
        return NotFoundError(f"{missing} does not exist", location=str(at))
    if status in _TRANSIENT_STATUS or status >= 500 or status < 400:
        # 409 and 429 are refusals before any effect; anything else may have happened.
        return _TransientError(f"{status} {code}", ambiguous=status not in _TRANSIENT_STATUS)
    return StoreUnavailableError(
        f"object store refused: {status} {code}",
        action="check credentials and permissions",
        location=str(at),
    )
