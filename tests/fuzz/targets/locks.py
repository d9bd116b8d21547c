"""Lock records."""

from __future__ import annotations

from lock.codec import decode_record, encode_record
from lock.errors import CorruptLockError
from tests.fuzz.mutate_bytes import BYTE_MUTATORS
from tests.fuzz.mutate_text import JSON_MUTATORS
from tests.fuzz.target import Accepted, Target


def _parse(data: bytes) -> None:
    record = decode_record(data, location="memory:locks/t")
    if decode_record(encode_record(record), location="again") != record:
        raise Accepted("written again it is another record")


LOCK_RECORD = Target(
    name="lock_record",
    parse=_parse,
    mutators=(*JSON_MUTATORS, *JSON_MUTATORS, *BYTE_MUTATORS),
    errors=(CorruptLockError,),
    inputs=20_000,
)
