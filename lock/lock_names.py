"""Names of locks and of tasks: what is accepted, and how a name becomes a storage key."""

from __future__ import annotations

import hashlib
import re
from urllib.parse import quote

from lock.errors import InvalidLockError

LOCK_NAME_LENGTH_MAX = 1024
TASK_LENGTH_MAX = 200
LEASE_MIN_MS = 100  # below this, scheduling noise alone loses leases
LEASE_MAX_MS = 3_600_000  # a dead holder blocks for one lease: an hour is a typing mistake already

# On disk: never change. Two releases that disagree here would not exclude each other.
_KEY_PREFIX_LENGTH = 60
_KEY_DIGEST_LENGTH = 32  # hex digits, 128 bits: collisions are out of reach
KEY_LENGTH_MAX = _KEY_PREFIX_LENGTH + 1 + _KEY_DIGEST_LENGTH


def lock_name(*parts: str) -> str:
    """Join parts (catalog, namespace, table, scope) into one name; different parts never collide.

    Each part is percent-encoded, so that a dot or slash inside one cannot pass for a separator.
    """
    # Python has undecodable bytes of a command line as lone surrogates.
    return "/".join(quote(part, safe="-_", errors="surrogatepass") for part in parts)


def check_lock_name(name: str) -> None:
    """Refuse an empty, overlong or unprintable lock name with `InvalidLockError`."""
    _check_text("lock name", name, LOCK_NAME_LENGTH_MAX)


def check_task(task: str) -> None:
    """Refuse an empty, overlong or unprintable task name with `InvalidLockError`."""
    _check_text("task name", task, TASK_LENGTH_MAX)


def check_lease_ms(lease_ms: int) -> None:
    """Refuse a lease time outside `[LEASE_MIN_MS, LEASE_MAX_MS]` with `InvalidLockError`."""
    if not LEASE_MIN_MS <= lease_ms <= LEASE_MAX_MS:
        raise InvalidLockError(
            "lease time refused: out of range",
            lease_ms=lease_ms,
            action=f"use {LEASE_MIN_MS} to {LEASE_MAX_MS} milliseconds",
        )


def storage_key(name: str) -> str:
    """The row or object a lock lives in: a readable prefix, then a digest of the whole name.

    Always with the digest, so that a short name cannot be chosen to equal the key of a long one,
    and so that names which differ only in case stay apart on stores that ignore case. The result
    uses `[A-Za-z0-9_.-]` only, is at most `KEY_LENGTH_MAX` long and never starts with a dot.
    """
    readable = re.sub(r"[^A-Za-z0-9_.-]+", "_", name)[:_KEY_PREFIX_LENGTH].lstrip(".")
    digest = hashlib.sha256(name.encode()).hexdigest()[:_KEY_DIGEST_LENGTH]
    return f"{readable}-{digest}"


def _check_text(what: str, text: str, length_max: int) -> None:
    if not text or len(text) > length_max:
        raise InvalidLockError(
            f"{what} refused: empty or too long",
            length=len(text),
            action=f"use 1 to {length_max} characters",
        )
    if not text.isprintable():  # also keeps line breaks out of logs, and lone surrogates out of SQL
        raise InvalidLockError(
            f"{what} refused: unprintable character",
            name=ascii(text[:80]),
            action="use printable characters",
        )
