"""Connections to buckets: PyIceberg's property names as obstore's settings.

| locations                            | properties         | else from the environment           |
|--------------------------------------|--------------------|-------------------------------------|
| `s3://bucket/...`                    | `s3.*`, `client.*` | `AWS_*`, web identity, ECS/EC2 role |
| `gs://bucket/...`                    | `gcs.*`            | `GOOGLE_*`, metadata server         |
| `abfss://container@account.host/...` | `adls.*`           | `AZURE_*`, workload identity, MSI   |

The library's own retries are off: a conditional write that it repeated would be told that its own
success is somebody else's object (R61, R71). Whoever calls repeats, and reads back.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from obstore.exceptions import BaseError
from obstore.store import AzureStore, GCSStore, S3Store

from tableformat.errors import InvalidInputError, UnsupportedError
from tableformat.store.locations import ParsedLocation, parse_location
from tableformat.store.vended import CredentialVault

# A property whose effect would be missing silently, and what to do instead.
_PROFILE = "export the profile's keys: aws configure export-credentials --format env"
_ROLE = "assume the role outside, and give its keys"
_ENCRYPTION = "give s3.server-side-encryption and s3.sse-kms-key-id, or let the bucket encrypt"
_UNSUPPORTED = {
    "s3.profile-name": _PROFILE,
    "client.profile-name": _PROFILE,
    "s3.role-arn": _ROLE,
    "client.role-arn": _ROLE,
    "client.assume-role.arn": _ROLE,
    "s3.sse.type": _ENCRYPTION,
    "s3.sse.key": _ENCRYPTION,
    "s3.acl": "let the bucket's policy say who may read",
    "s3.signer": "give keys, or let the catalog vend them",
    "gcs.requester-pays": "use a bucket that its owner pays for",
    "gcs.user-project": "use a bucket that its owner pays for",
    "gcs.encryption-key": "let the bucket encrypt, with a key of its project",
    "adls.connection-string": "give adls.account-name and adls.account-key",
    "adls.credential": "give a key, a token, or tenant-id, client-id and client-secret",
}
_READ_TIMEOUT = "1h"  # of a whole answer; one that stalls is given up much earlier
_UPLOAD_BITS = 26  # the time for an answer doubles with each doubling above 64 MiB

_S3_KEYS = ("access-key-id", "secret-access-key", "session-token")
# What goes into a header beside the properties that the library is given by name.
_TEXTS = {
    "s3": ("s3.proxy-uri", *(f"{at}.{key}" for at in ("s3", "client") for key in _S3_KEYS)),
    "gs": ("gcs.oauth2.token",),
    "abfss": ("adls.token",),
}
_AWS_ENDPOINTS = ("AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3")
_AWS_PLACES = ("AWS_REGION", "AWS_DEFAULT_REGION")
_AWS_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
_WRONG = re.compile(r"[^!-~]")  # in an address or a header: what is not printable ASCII
_HOST = re.compile(r"[\w.-]+|[0-9a-fA-F:.]+")

_process_id: int | None = None


def connect(
    location: str, properties: Mapping[str, str], *, connect_timeout_s: float, timeout_s: float
) -> Any:
    """An `obstore` client for the bucket of a location, for requests that are small.

    Args:
        location: Any location in the bucket.
        properties: PyIceberg's names, see the module. May hold secrets: never shown.
        connect_timeout_s: Limit of the connection attempt, seconds.
        timeout_s: Limit of a whole request, seconds.

    Raises:
        InvalidInputError: A property is missing or wrong.
        UnsupportedError: A property asks for what is not done here, or the scheme does.
    """
    _refuse_fork()
    timeouts = {"connect_timeout": f"{connect_timeout_s}s", "timeout": f"{timeout_s}s"}
    return _create(parse_location(location), properties, timeouts)


class Buckets:
    """The buckets that one set of properties reaches. Thread-safe.

    Args:
        properties: See `connect`.
        vault: Credentials that catalogs hand out, which win.
    """

    def __init__(self, properties: Mapping[str, str], vault: CredentialVault) -> None:
        self._properties = properties
        self._vault = vault
        self._lock = threading.Lock()
        self._clients: dict[object, Any] = {}

    def is_signed(self, at: ParsedLocation) -> bool:
        """Whether a catalog offers to sign requests on `at`, and no credentials for them."""
        return self._vault.is_signed(str(at))

    def client(self, at: ParsedLocation, upload_bytes: int = 0) -> Any:
        """The client for requests on `at` that send so many bytes.

        Raises:
            InvalidInputError: See `connect`.
            UnsupportedError: See `connect`; or this process was forked from one that used it.
        """
        _refuse_fork()
        effort = (upload_bytes >> _UPLOAD_BITS).bit_length()
        vended = self._vault.find(str(at))
        key = (at.scheme, at.authority, effort, vended)
        with self._lock:
            if key not in self._clients:
                self._clients[key] = self._connect(at, vended, self._timeouts(1 << effort))
            return self._clients[key]

    def _connect(
        self, at: ParsedLocation, vended: tuple[str, int] | None, timeouts: dict[str, str]
    ) -> Any:
        if vended is None:
            return _create(at, self._properties, timeouts)
        prefix, _ = vended
        properties = self._vault.current(prefix).over(self._properties)
        return _create(
            at, properties, timeouts, lambda: self._vault.current(prefix).as_credential()
        )

    def _timeouts(self, times: int) -> dict[str, str]:
        return {
            "connect_timeout": f"{_seconds(self._properties, 's3.connect-timeout', '5')}s",
            "read_timeout": f"{times * _seconds(self._properties, 's3.request-timeout', '60')}s",
            "timeout": _READ_TIMEOUT,
        }


def _refuse_fork() -> None:
    """The library's threads do not live on in a forked process, where a request would hang."""
    global _process_id
    _process_id = _process_id or os.getpid()
    if _process_id != os.getpid():
        raise UnsupportedError(
            "object stores cannot be used in a forked process",
            action='start processes with multiprocessing.get_context("spawn")',
        )


def _create(
    at: ParsedLocation,
    properties: Mapping[str, str],
    options: dict[str, Any],
    provider: Callable[[], dict[str, Any]] | None = None,
) -> Any:
    for key, action in _UNSUPPORTED.items():
        if properties.get(key, "false").lower() not in {"false", "none"}:
            raise UnsupportedError("store property is not supported", key=key, action=action)
    if at.scheme not in _SCHEMES:
        raise UnsupportedError(
            f"no object store for the scheme {at.scheme!r}",
            action="use file, s3, gs or abfss locations",
            location=str(at),
        )
    store, names, complete = _SCHEMES[at.scheme]
    given: dict[str, Any] = {
        ours: properties[key] for key, ours in names.items() if properties.get(key)
    }
    complete(at, properties, given)
    _check_texts(at.scheme, names, properties)
    if provider is not None:
        given.pop("sas_key", None)
        given["credential_provider"] = provider
    endpoint = given.get("endpoint") or given.get("base_url", "")
    if endpoint.startswith("http://"):  # without TLS only where the operator says so
        options["allow_http"] = True
    if proxy := properties.get("s3.proxy-uri"):
        options["proxy_url"] = proxy
    bucket = at.authority.partition("@")[0]
    try:
        return store(bucket, client_options=options, retry_config={"max_retries": 0}, **given)
    except (BaseError, ValueError) as error:
        # The library's text may quote a secret.
        raise InvalidInputError(
            f"object store settings refused: {type(error).__name__}",
            action=f"check the catalog properties for {at.scheme} locations",
            location=f"{at.scheme}://{at.authority}",
        ) from None


def _complete_s3(at: ParsedLocation, properties: Mapping[str, str], given: dict[str, Any]) -> None:
    endpoint = _address("s3.endpoint", given.get("endpoint"))
    if not endpoint:
        for name in _AWS_ENDPOINTS:  # the library reads them
            _address(name, os.environ.get(name))
    else:
        regions = (os.environ.get(name) for name in ("AWS_REGION", "AWS_DEFAULT_REGION"))
        given.setdefault("region", next(filter(None, regions), "us-east-1"))
        if given.get("virtual_hosted_style_request", "").lower() == "true":
            endpoint = endpoint.replace("://", f"://{at.authority}.", 1)
        given["endpoint"] = endpoint
    # Over TLS a second digest of the body is time for nothing.
    given["unsigned_payload"] = not (endpoint or "").startswith("http://")
    key, secret, token = (
        properties.get(f"s3.{name}") or properties.get(f"client.{name}") for name in _S3_KEYS
    )
    if (key is None) != (secret is None):
        raise InvalidInputError(
            "one half of the S3 credentials is missing",
            action="give s3.access-key-id and s3.secret-access-key",
        )
    if key is not None:
        # All of it from one place: a session token from the environment belongs to other keys.
        given["credential_provider"] = _always(
            access_key_id=key, secret_access_key=secret, token=token
        )


def _complete_gcs(_: ParsedLocation, properties: Mapping[str, str], given: dict[str, Any]) -> None:
    if endpoint := _address("gcs.service.host", given.get("base_url")):
        given["base_url"] = endpoint
    if token := properties.get("gcs.oauth2.token"):
        given["credential_provider"] = _always(token=token)


def _complete_azure(
    at: ParsedLocation, properties: Mapping[str, str], given: dict[str, Any]
) -> None:
    host = at.authority.partition("@")[2]
    account = given["account_name"] = host.partition(".")[0] or given.get("account_name")
    if account is None:
        raise InvalidInputError(
            "which Azure account is not known",
            action="give adls.account-name, or abfss://container@account.dfs.core.windows.net/...",
            location=str(at),
        )
    if token := properties.get("adls.token"):
        given["credential_provider"] = _always(token=token)
    scheme = properties.get("adls.blob-storage-scheme", "https")
    named = properties.get("adls.account-host") or host.replace(".dfs.", ".blob.", 1)
    if authority := properties.get("adls.blob-storage-authority"):
        named = f"{account}{authority}" if authority[0] == "." else f"{authority}/{account}"
    if named:
        given["endpoint"] = _address("adls.blob-storage-authority", f"{scheme}://{named}")


_SCHEMES: dict[str, tuple[Callable[..., Any], dict[str, str], Callable[..., None]]] = {
    "s3": (
        S3Store,
        {
            "s3.endpoint": "endpoint",
            "client.region": "region",
            "s3.region": "region",
            "s3.force-virtual-addressing": "virtual_hosted_style_request",
            "s3.anonymous": "skip_signature",
            "s3.server-side-encryption": "server_side_encryption",
            "s3.sse-kms-key-id": "sse_kms_key_id",
        },
        _complete_s3,
    ),
    "gs": (
        GCSStore,
        {"gcs.service.host": "base_url", "gcs.no-auth": "skip_signature"},
        _complete_gcs,
    ),
    "abfss": (
        AzureStore,
        {
            "adls.account-name": "account_name",
            "adls.account-key": "account_key",
            "adls.sas-token": "sas_key",
            "adls.tenant-id": "tenant_id",
            "adls.client-id": "client_id",
            "adls.client-secret": "client_secret",
            "adls.anon": "skip_signature",
        },
        _complete_azure,
    ),
}


def _address(key: str, value: str | None) -> str | None:
    """An endpoint, checked here: the library gives up the whole process on a wrong one."""
    if not value:
        return None
    try:
        parts = urlsplit(value)
        _ = parts.port
    except ValueError:  # in brackets that are not an IPv6 address; a port that is none
        parts = urlsplit("")
    is_host = _HOST.fullmatch(parts.hostname or "") is not None
    if parts.scheme not in {"http", "https"} or not is_host or _WRONG.search(value):
        raise InvalidInputError("not an http(s) address", key=key)
    return value.rstrip("/")


def _check_texts(scheme: str, names: Iterable[str], properties: Mapping[str, str]) -> None:
    """The library gives up on a key that was read from a file with its line break, too.

    Raises:
        InvalidInputError: A text cannot be in a header or an address. Its value is not shown.
    """
    given = {key: properties[key] for key in (*names, *_TEXTS[scheme]) if properties.get(key)}
    if scheme == "s3":
        has_keys = not given.keys().isdisjoint(("s3.access-key-id", "client.access-key-id"))
        read = _AWS_PLACES if has_keys else (*_AWS_PLACES, *_AWS_KEYS)
        given |= {name: os.environ[name] for name in read if name in os.environ}
    for key, text in given.items():
        if _WRONG.search(text):
            raise InvalidInputError(
                "a setting of the object store holds a blank, a line break or another character "
                "that it cannot have",
                key=key,
            )


def _always(**credential: Any) -> Callable[[], dict[str, Any]]:
    return partial(dict, credential, expires_at=None)


def _seconds(properties: Mapping[str, str], key: str, default: str) -> float:
    try:
        found = float(properties.get(key, default))
    except ValueError:
        found = 0.0
    if not 0 < found < 1e6:  # and not NaN
        raise InvalidInputError("not a time in seconds", key=key)
    return found
