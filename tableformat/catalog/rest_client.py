"""The HTTP side of the REST catalog: PyIceberg's client for protocol and authentication, hardened.

| threat                                              | answer                                    |
|-----------------------------------------------------|-------------------------------------------|
| redirect, to another host or from https to http     | refused                                   |
| server's config moves `uri` to another origin       | refused                                   |
| server's config brings endpoints, tokens, classes   | ignored: those come from the operator     |
| `py-io-impl` in table properties or table config    | never looked at: no FileIO is loaded      |
| a request that hangs                                | time-outs on connect and on each read     |
| the transport repeats a commit on its own (R69)     | no retries below this module              |
| a secret in an error                                | error texts are redacted                  |

What a request came to is one of three: a JSON answer, `RefusedError` (answered, nothing was
done), `NoAnswerError` (5xx, time-out, a broken connection, a body that is no JSON).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import requests
from pydantic import ValidationError as PydanticError
from pyiceberg.catalog.rest import API_PREFIX, Endpoint, HttpMethod
from pyiceberg.catalog.rest import RestCatalog as PyIcebergRestCatalog
from pyiceberg.exceptions import (
    AuthorizationExpiredError,
    ForbiddenError,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    OAuthError,
    RESTError,
    UnauthorizedError,
)
from requests.adapters import HTTPAdapter
from urllib3.exceptions import NewConnectionError

from tableformat.catalog.base import Identifier
from tableformat.errors import (
    AccessRefusedError,
    AlreadyExistsError,
    InvalidInputError,
    NotFoundError,
    StoreUnavailableError,
    TableError,
    UnsupportedError,
)
from tableformat.spec.metadata_json import METADATA_BYTES_MAX, parse_json

_CONNECT_TIMEOUT_S = 10.0
_READ_TIMEOUT_S = 60.0
_CHUNK_BYTES = 1 << 20
_TEXT_MAX = 300
_FROM_SERVER = ("prefix", "namespace-separator", "rest-page-size")
_MAIN_ONLY = "nessie.is-nessie-catalog"  # its branches are of the catalog, a table has one
_SECRET_KEYS = re.compile(r"token|secret|credential|password|access-key|authorization", re.I)
_EXPIRED = (401, 419)
CANNOT = "UnsupportedOperationException"  # what Java servers call what they have not got
TRANSACTIONS = "transactions/commit"
_COMMIT_TRANSACTION = Endpoint(http_method=HttpMethod.POST, path=f"{API_PREFIX}/{TRANSACTIONS}")


class RefusedError(Exception):
    """The server answered, and did nothing."""

    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}" if kind else message)
        self.status = status
        self.kind = kind


class NoAnswerError(Exception):
    """Nobody knows what the server did. `sent` is False if it cannot have got the request."""

    def __init__(self, reason: str, *, sent: bool = True, kind: str = "") -> None:
        super().__init__(reason)
        self.sent = sent
        self.kind = kind  # of a failure that the server names


class RestClient(PyIcebergRestCatalog):
    """One server. The constructor asks it for its configuration.

    Attributes:
        main_only: The words in which it says that a table has no branches; None: it does not.
    """

    main_only: str | None

    def __init__(self, name: str, properties: Mapping[str, Any]) -> None:
        # PyIceberg loads classes from these, and would believe them from the server too.
        given = {key: value for key, value in properties.items() if not key.startswith("py-")}
        self._operator = given
        super().__init__(name, **given)

    def table_path(self, identifier: Identifier) -> dict[str, str]:
        """URL parts of a table."""
        return dict(self._split_identifier_for_path(identifier))

    def namespace_path(self, namespace: Identifier) -> dict[str, str]:
        """URL parts of a namespace."""
        return {"namespace": self._encode_namespace_path(namespace)}

    @property
    def has_transactions(self) -> bool:
        """Whether the server's configuration lists the commit of several tables."""
        return _COMMIT_TRANSACTION in self._supported_endpoints

    def send(
        self, method: str, endpoint: str, path: Mapping[str, str], body: object = None
    ) -> dict[str, Any]:
        """One request; an expired token is renewed once, since it means that nothing was done.

        Raises:
            RefusedError: See the class.
            NoAnswerError: See the class.
        """
        try:
            return self._send(method, endpoint, path, body)
        except RefusedError as error:
            if error.status not in _EXPIRED:
                raise
        with self._broken_connections():
            self._refresh_token()
        return self._send(method, endpoint, path, body)

    def _send(
        self, method: str, endpoint: str, path: Mapping[str, str], body: object
    ) -> dict[str, Any]:
        data = None if body is None else json.dumps(body).encode()
        with self._broken_connections():
            reply = self._session.request(
                method, self._url(endpoint, path), data=data, stream=True, allow_redirects=False
            )
            with reply:
                return self._read(reply)

    def _url(self, endpoint: str, path: Mapping[str, str]) -> str:
        parts: dict[str, Any] = dict(path)
        return self.url(endpoint, **parts)

    def _read(self, reply: requests.Response) -> dict[str, Any]:
        content = b""
        for chunk in reply.iter_content(_CHUNK_BYTES):
            content += chunk
            if len(content) > METADATA_BYTES_MAX:
                raise NoAnswerError("the answer is too large")
        status = reply.status_code
        if status == 204 or (status == 200 and not content):
            return {}
        parsed = _json_or_none(content)
        if 200 <= status < 300 and parsed is not None:
            return parsed
        error = parsed.get("error") if parsed else None
        if isinstance(error, dict) and status >= 400:
            message = self.redact(str(error.get("message", "")))
            kind = str(error.get("type", ""))[:100]
            if status < 500:
                raise RefusedError(status, kind, message)
            raise NoAnswerError(f"status {status}: {kind}: {message}", kind=kind)
        raise NoAnswerError(f"status {status}" + ("" if parsed else ", not a catalog's answer"))

    @contextmanager
    def _broken_connections(self) -> Iterator[None]:
        try:
            yield
        except requests.ConnectTimeout as error:
            raise NoAnswerError("connection timed out", sent=False) from error
        except requests.RequestException as error:
            raise NoAnswerError(type(error).__name__, sent=not _never_left(error)) from error
        except OSError as error:  # a certificate file that is not there
            raise NoAnswerError(str(error), sent=False) from error

    def redact(self, text: str) -> str:
        """`redact` with this client's properties."""
        return redact(text, self._operator)

    def _config_headers(self, session: requests.Session) -> None:
        """PyIceberg's hook for a new session: also the place to harden it, before any request."""
        super()._config_headers(session)
        session.max_redirects = 0
        for scheme in ("https://", "http://"):
            session.mount(scheme, _OneTryAdapter())

    def _init_sigv4(self, session: requests.Session) -> None:
        """PyIceberg's hook for `rest.sigv4-enabled`: its adapter, with our time-outs and one try.

        Raises:
            UnsupportedError: boto3, which PyIceberg signs with, is not installed.
            InvalidInputError: There are no credentials to sign with.
        """
        try:
            super()._init_sigv4(session)
        except ImportError as error:
            raise UnsupportedError(
                "rest.sigv4-enabled needs boto3", action="pip install boto3", catalog=self.name
            ) from error
        adapter: Any = session.get_adapter(self.uri)
        if adapter._boto_session.get_credentials() is None:  # noqa: SLF001
            raise InvalidInputError(
                "rest.sigv4-enabled: there are no AWS credentials to sign with",
                action="set client.access-key-id and client.secret-access-key, or AWS_*",
                catalog=self.name,
            )
        adapter.max_retries = _OneTryAdapter().max_retries
        adapter.send = partial(_send_in_time, adapter.send)

    def _fetch_config(self) -> None:
        """Take the server's routing only; everything that could redirect or run code is dropped."""
        origin = _origin(self.uri)
        super()._fetch_config()
        given = str(self.properties.get(_MAIN_ONLY, "")).lower()
        self.main_only = f"{_MAIN_ONLY}=true" if given == "true" else None
        if _origin(self.uri) != origin:
            raise UnsupportedError("REST catalog's configuration moves it to another server")
        server = {key: self.properties[key] for key in _FROM_SERVER if key in self.properties}
        self.properties = self._operator | server


class _OneTryAdapter(HTTPAdapter):
    """Time-outs for every request, no retry for any."""

    def __init__(self) -> None:
        super().__init__(max_retries=0)

    def send(self, request: Any, **options: Any) -> Any:  # type: ignore[override]
        return _send_in_time(super().send, request, **options)


def _send_in_time(send: Callable[..., Any], request: Any, **options: Any) -> Any:
    if options.get("timeout") is None:
        options["timeout"] = (_CONNECT_TIMEOUT_S, _READ_TIMEOUT_S)
    return send(request, **options)


def redact(text: str, properties: Mapping[str, Any]) -> str:
    """`text` on one line, without any secret of the operator's properties, cut to a size."""
    for secret in _secrets(properties):
        text = text.replace(secret, "***")
    return text.replace("\n", " ")[:_TEXT_MAX]


@contextmanager
def reading(client_name: str, clean: Callable[[str], str]) -> Iterator[None]:
    """Failures of a request that changes nothing, or can be repeated, as our errors."""
    try:
        yield
    except TableError:
        raise
    except NoSuchTableError:
        raise NotFoundError("table does not exist") from None
    except NoSuchNamespaceError:
        raise NotFoundError("namespace does not exist") from None
    except NamespaceAlreadyExistsError:
        raise AlreadyExistsError("namespace exists already") from None
    except (UnauthorizedError, ForbiddenError, AuthorizationExpiredError, OAuthError) as error:
        raise _not_authorized(client_name, clean(str(error))) from None
    except RefusedError as error:
        raise refused(error, client_name) from None
    except (NoAnswerError, OSError, RESTError) as error:
        raise unavailable(client_name, clean(f"{type(error).__name__}: {error}")) from None
    except (PydanticError, ValueError, TypeError, KeyError, AttributeError) as error:
        # PyIceberg lets these through when an answer is not what the protocol says.
        raise unavailable(client_name, f"{type(error).__name__} in its answer") from None


def refused(error: RefusedError, client_name: str) -> TableError:
    """A refusal as the error that says what to fix."""
    if error.status in (401, 403, 419):
        return _not_authorized(client_name, str(error))
    if error.status == 404:
        what = "namespace" if "Namespace" in error.kind else "table"
        return NotFoundError(f"{what} does not exist")
    if error.status == 409:
        return AlreadyExistsError(f"exists already: {error}")
    if error.status in (406, 501):
        return UnsupportedError(f"REST catalog cannot do this: {error}", catalog=client_name)
    if error.status == 429:
        return unavailable(client_name, str(error))
    return InvalidInputError(f"REST catalog refused: {error}", catalog=client_name)


def unavailable(client_name: str, reason: str) -> StoreUnavailableError:
    """No answer to a request that changed nothing."""
    return StoreUnavailableError(
        f"REST catalog did not answer: {reason[:_TEXT_MAX]}", catalog=client_name
    )


def _not_authorized(client_name: str, reason: str) -> AccessRefusedError:
    return AccessRefusedError(
        f"REST catalog refused: not authorized: {reason[:_TEXT_MAX]}",
        action="check token or credential",
        catalog=client_name,
    )


def _origin(uri: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(uri)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidInputError("REST catalog needs an http or https uri", key="uri")
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return (parts.scheme, parts.hostname, port)


def _never_left(error: requests.RequestException) -> bool:
    reason = getattr(error.args[0], "reason", None) if error.args else None
    return isinstance(reason, NewConnectionError)


def _json_or_none(content: bytes) -> dict[str, Any] | None:
    try:
        return parse_json(content)
    except (ValueError, RecursionError, TableError):
        return None


def _secrets(properties: Mapping[str, Any]) -> Iterator[str]:
    for key, value in properties.items():
        if isinstance(value, Mapping):
            yield from _secrets(value)
        elif _SECRET_KEYS.search(key) and len(str(value)) > 3:
            yield str(value)
            yield from (part for part in str(value).split(":") if len(part) > 3)
