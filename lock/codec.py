"""Lock records as bytes: one JSON object, ASCII, readable by an operator in the store itself.

| field         | type           | meaning                                                   |
|---------------|----------------|-----------------------------------------------------------|
| `format`      | 1              | on disk: changes only with an incompatible change         |
| `name`        | string         | the lock's whole name (its key may be a digest)           |
| `token`       | int >= 0       | last fence token handed out                               |
| `owner`       | string or null | which acquisition holds the lock: see `lock.owners`       |
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

from pydantic import TypeAdapter, ValidationError

from lock.errors import CorruptLockError
from lock.record import LockRecord

FORMAT = 1
RECORD_SIZE_MAX_BYTES = 1 << 20
"""Far above WAITERS_MAX tickets of the longest holder text; bounds what a bad store makes us read.
"""
_RECORD = TypeAdapter(LockRecord)


def encode_record(record: LockRecord) -> bytes:
    """The record as it is stored."""
    return json.dumps(_stored(record), separators=(",", ":")).encode("ascii")


def decode_record(data: bytes, *, location: str) -> LockRecord:
    """Decode and check one stored record.

    Raises:
        CorruptLockError: Too big, not JSON, another format, or a field is missing or wrong.
    """
    if len(data) > RECORD_SIZE_MAX_BYTES:
        raise _corrupt("too big", location)
    try:
        raw = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise _corrupt("not JSON", location) from error
    if not isinstance(raw, dict) or raw.get("format") != FORMAT:
        raise _corrupt(f"not format {FORMAT}", location)
    if missing := _NAMES - raw.keys():  # no default may stand for a token that is lost
        raise _corrupt(f"without {min(missing)}", location)
    try:
        return _RECORD.validate_json(data, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        where = first["loc"][0] if first["loc"] else "record"
        raise _corrupt(f"{where}: {first['msg']}", location) from error


def _corrupt(why: str, location: str) -> CorruptLockError:
    return CorruptLockError(
        f"lock record refused: {why}",
        location=location,
        action="stop all tasks on this lock, then remove the record; tokens restart above the "
        "branch's newest",
    )


def _stored(record: LockRecord) -> dict[str, object]:
    fields: dict[str, object] = _RECORD.dump_python(record, by_alias=True)
    return {"format": FORMAT} | fields


_NAMES = _stored(LockRecord(name="")).keys()
