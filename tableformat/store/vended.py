"""Credentials that a catalog hands out with a table, by location prefix; renewed in time.

A location takes those of the longest prefix that it begins with, and the operator's own properties
where there is none. The library asks again for credentials that are about to expire, and so does
this module ask the catalog, on executors too. Source: `LoadTableResult` of Iceberg's REST
specification.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from tableformat.errors import InvalidInputError
from tableformat.runtime import machine_ms
from tableformat.store.locations import canonical_location

RENEWED_BEFORE_MS = 300_000  # as the library does; of a short life the last half
_KINDS = ("s3.", "gcs.", "adls.", "client.region")
# What a catalog says that would sign requests itself; beside credentials, which are used, no need.
SIGNING = ("s3.remote-signing-enabled", "s3.signer")
_EXPIRY = (
    "s3.session-token-expires-at-ms",
    "gcs.oauth2.token-expires-at",
    "adls.sas-token-expires-at-ms",
)
# What an operator gives to say who they are; credentials of a catalog take the place of all of it.
_IDENTITY = frozenset(
    [
        "s3.access-key-id", "s3.secret-access-key", "s3.session-token", "s3.anonymous",
        "client.access-key-id", "client.secret-access-key", "client.session-token",
        "gcs.oauth2.token", "gcs.no-auth",
        "adls.account-key", "adls.sas-token", "adls.token", "adls.anon",
        "adls.tenant-id", "adls.client-id", "adls.client-secret",
    ]
)  # fmt: skip
_PLACES = ("s3.endpoint", "gcs.service.host", "adls.account-host", "adls.blob-storage-authority")

Renew = Callable[[], Sequence["VendedCredentials"]]


@dataclass(frozen=True, slots=True, repr=False)
class VendedCredentials:
    """What one catalog handed out for one prefix. Never shown.

    Attributes:
        prefix: Locations that begin with it.
        properties: PyIceberg's names, as in the catalog's properties.
    """

    prefix: str
    properties: Mapping[str, str]

    @classmethod
    def of(cls, prefix: str, config: Mapping[str, Any]) -> VendedCredentials | None:
        """What of a server's configuration concerns buckets; None without any credentials."""
        known = {
            k: str(v)
            for k, v in config.items()
            if k.startswith(_KINDS) and not k.startswith(SIGNING)
        }
        for key in list(known):
            for name in ("adls.sas-token", "adls.sas-token-expires-at-ms"):
                if key.startswith(f"{name}."):  # followed by the account's host
                    known[name] = known.pop(key)
        if _IDENTITY.isdisjoint(known):
            return None
        with suppress(InvalidInputError):  # "s3" alone is a prefix, too
            prefix = canonical_location(prefix)
        return cls(prefix, known)

    @property
    def expires_at_ms(self) -> int | None:
        """When they end, by the server's clock; None: it did not say."""
        given = next((self.properties[key] for key in _EXPIRY if key in self.properties), "")
        return int(given) if given.isdecimal() else None

    def over(self, own: Mapping[str, str]) -> dict[str, str]:
        """The properties to connect with; where to connect is the operator's word, if given."""
        rest = {key: value for key, value in own.items() if key not in _IDENTITY}
        places = {key: own[key] for key in _PLACES if key in own}
        return {**rest, **self.properties, **places}

    def as_credential(self) -> dict[str, Any]:
        """As `obstore` wants them from a provider."""
        at_ms, given = self.expires_at_ms, self.properties.get
        expires_at = None if at_ms is None else datetime.fromtimestamp(at_ms / 1000, UTC)
        if "gcs.oauth2.token" in self.properties:
            return {"token": given("gcs.oauth2.token"), "expires_at": expires_at}
        if "adls.sas-token" in self.properties:
            return {"sas_token": given("adls.sas-token"), "expires_at": expires_at}
        return {
            "access_key_id": given("s3.access-key-id"),
            "secret_access_key": given("s3.secret-access-key"),
            "token": given("s3.session-token"),
            "expires_at": expires_at,
        }


@dataclass(slots=True, repr=False)
class _Granted:
    credentials: VendedCredentials
    renew: Renew
    received_ms: int
    version: int = 0  # rises when credentials that do not say when they end are replaced


@dataclass(slots=True, repr=False)
class CredentialVault:
    """All that catalogs have handed out. Thread-safe; pickles with the means to renew it."""

    _granted: dict[str, _Granted] = field(default_factory=dict)
    _signed: set[str] = field(default_factory=set)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def __reduce__(self) -> tuple[Any, ...]:
        with self._lock:
            return (CredentialVault, (dict(self._granted), set(self._signed)))

    def offer_signing(self, prefix: str) -> None:
        """Note that a catalog hands out nothing for a prefix, and would sign requests instead."""
        self._signed.add(prefix)

    def is_signed(self, location: str) -> bool:
        """Whether a catalog only offers to sign requests there."""
        return self.find(location) is None and any(map(location.startswith, tuple(self._signed)))

    def grant(self, credentials: Sequence[VendedCredentials], renew: Renew) -> None:
        """Take what a catalog hands out; `renew` asks it again, and pickles."""
        now_ms = machine_ms()
        with self._lock:
            for each in credentials:
                known = self._granted.get(each.prefix)
                version = 0 if known is None else known.version
                if known is not None and each.expires_at_ms is None:
                    version += known.credentials.properties != each.properties
                self._granted[each.prefix] = _Granted(each, renew, now_ms, version)

    def find(self, location: str) -> tuple[str, int] | None:
        """The longest prefix of a location, and which version of its credentials a client has."""
        with self._lock:
            found = max(filter(location.startswith, self._granted), key=len, default=None)
            return None if found is None else (found, self._granted[found].version)

    def current(self, prefix: str) -> VendedCredentials:
        """The credentials of a prefix, asked for anew if they are about to end.

        Raises:
            TableError: The catalog does not answer, and they have ended.
        """
        with self._lock:
            granted = self._granted[prefix]
        ends_ms, now_ms = granted.credentials.expires_at_ms, machine_ms()
        if ends_ms is None:
            return granted.credentials
        if ends_ms - now_ms > min(RENEWED_BEFORE_MS, (ends_ms - granted.received_ms) // 2):
            return granted.credentials
        try:
            self.grant(granted.renew(), granted.renew)
        except Exception:
            if ends_ms <= now_ms:
                raise
        with self._lock:
            return self._granted[prefix].credentials
