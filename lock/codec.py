"""Lock records as bytes: one JSON object, ASCII, readable by an operator in the store itself.

| field         | type           | meaning                                                   |
|---------------|----------------|-----------------------------------------------------------|
| `format`      | 1              | on disk: changes only with an incompatible change         |
| `name`        | string         | the lock's whole name (its key may be a digest)           |
| `token`       | int >= 0       | last fence token handed out                               |
| `owner`       | string or null | nonce of the acquisition that holds the lock              |
| `holder`      | string or null | task, host and process of the holder                      |
| `lease_ms`    | int            | the holder's lease time                                   |
| `beat`        | int            | renewals of this lease                                    |
| `acquired_ms`, `renewed_ms` | int | store clock, or else the holder's: labels              |
| `next_ticket` | int >= 1       | next place in the queue                                   |
| `waiters`     | array          | `ticket`, `owner`, `holder`, `seen_ms`, `ttl_ms` of each  |
| `write`       | string         | nonce of the write that made this record                  |

Unknown fields are ignored and dropped by the next write.
"""

from __future__ import annotations

import json
from typing import Any

from lock.errors import CorruptLockError
from lock.names import LEASE_MAX_MS, LOCK_NAME_LENGTH_MAX
from lock.record import WAITERS_MAX, LockRecord, Ticket

FORMAT = 1
RECORD_SIZE_MAX_BYTES = 1 << 20
"""Far above WAITERS_MAX tickets of the longest holder text; bounds what a bad store makes us read.
"""

HOLDER_LENGTH_MAX = 600
_ID_LENGTH_MAX = 64
_INT_MAX = (1 << 63) - 1


def encode_record(record: LockRecord) -> bytes:
    """The record as it is stored."""
    return json.dumps(
        {
            "format": FORMAT,
            "name": record.name,
            "token": record.token,
            "owner": record.owner_id,
            "holder": record.holder,
            "lease_ms": record.lease_ms,
            "beat": record.beat,
            "acquired_ms": record.acquired_ms,
            "renewed_ms": record.renewed_ms,
            "next_ticket": record.next_ticket,
            "waiters": [
                {
                    "ticket": ticket.number,
                    "owner": ticket.owner_id,
                    "holder": ticket.holder,
                    "seen_ms": ticket.seen_ms,
                    "ttl_ms": ticket.ttl_ms,
                }
                for ticket in record.waiters
            ],
            "write": record.write_id,
        },
        separators=(",", ":"),
    ).encode("ascii")


def decode_record(data: bytes, *, location: str) -> LockRecord:
    """Decode and check one stored record.

    Raises:
        CorruptLockError: Too big, not JSON, another format, or a field of the wrong kind.
    """
    if len(data) > RECORD_SIZE_MAX_BYTES:
        raise _corrupt("too big", location)
    try:
        raw = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise _corrupt("not JSON", location) from error
    if not isinstance(raw, dict) or raw.get("format") != FORMAT:
        raise _corrupt(f"not format {FORMAT}", location)
    waiters = raw.get("waiters")
    if not isinstance(waiters, list) or len(waiters) > WAITERS_MAX:
        raise _corrupt("waiters is not a list, or too long", location)
    fields = _Fields(raw, location)
    return LockRecord(
        name=fields.text("name", LOCK_NAME_LENGTH_MAX),
        token=fields.integer("token"),
        owner_id=fields.text_or_none("owner", _ID_LENGTH_MAX),
        holder=fields.text_or_none("holder", HOLDER_LENGTH_MAX),
        lease_ms=fields.integer("lease_ms", high=LEASE_MAX_MS),
        beat=fields.integer("beat"),
        acquired_ms=fields.integer("acquired_ms"),
        renewed_ms=fields.integer("renewed_ms"),
        next_ticket=fields.integer("next_ticket"),
        waiters=tuple(_decode_ticket(ticket, location) for ticket in waiters),
        write_id=fields.text("write", _ID_LENGTH_MAX),
    )


def _decode_ticket(raw: object, location: str) -> Ticket:
    if not isinstance(raw, dict):
        raise _corrupt("a waiter is not an object", location)
    fields = _Fields(raw, location)
    return Ticket(
        number=fields.integer("ticket"),
        owner_id=fields.text("owner", _ID_LENGTH_MAX),
        holder=fields.text("holder", HOLDER_LENGTH_MAX),
        seen_ms=fields.integer("seen_ms"),
        ttl_ms=fields.integer("ttl_ms", high=LEASE_MAX_MS),
    )


class _Fields:
    """Typed access to one JSON object."""

    def __init__(self, raw: dict[str, Any], location: str) -> None:
        self._raw = raw
        self._location = location

    def integer(self, key: str, *, high: int = _INT_MAX) -> int:
        value = self._raw.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= high:
            raise _corrupt(f"{key} is not an integer in range", self._location)
        return value

    def text(self, key: str, length_max: int) -> str:
        value = self._raw.get(key)
        # Unprintable text would be a line break in someone's log or terminal.
        if not isinstance(value, str) or len(value) > length_max or not value.isprintable():
            raise _corrupt(f"{key} is not printable text", self._location)
        return value

    def text_or_none(self, key: str, length_max: int) -> str | None:
        return None if self._raw.get(key) is None else self.text(key, length_max)


def _corrupt(why: str, location: str) -> CorruptLockError:
    return CorruptLockError(
        f"lock record refused: {why}",
        location=location,
        action="stop all tasks on this lock, then remove the record; tokens restart above the "
        "branch's newest",
    )
