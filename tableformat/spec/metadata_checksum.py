"""A checksum of a metadata file, as the last member of its JSON object.

A flipped bit in JSON is often JSON still: another field id, and a column reads as nulls; another
property, and a table behaves otherwise. So the files that icefold writes end with a CRC-32 of all
bytes before that member, as eight hexadecimal digits. Other writers drop the member with the rest
of the file that they replace, and other readers ignore it. On disk: never change.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from tableformat.crc32_parts import crc32_of_joined
from tableformat.errors import CorruptDataError
from tableformat.spec.kept_text import KeptText

CHECKSUM_KEY = "icefold.crc32"
_MEMBER_BYTES = len(f',"{CHECKSUM_KEY}":"00000000"}}')


def with_checksum(parts: Sequence[bytes | KeptText]) -> tuple[list[bytes | KeptText], int]:
    """A JSON object of at least one member, with its checksum.

    Args:
        parts: Its text, without the last brace. Only what is not kept is looked at.

    Returns:
        The text, to be joined; and the CRC-32 of all of it, which took no second look.
    """
    checksum = 0
    for part in parts:
        if isinstance(part, KeptText):
            checksum = crc32_of_joined(checksum, part.checksum, part.shift)
        else:
            checksum = zlib.crc32(part, checksum)
    member = _member(checksum)
    return [*parts, member], zlib.crc32(member, checksum)


def check_checksum(data: bytes) -> None:
    """Check the bytes of a JSON object that has a checksum.

    Raises:
        CorruptDataError: They are not what was written.
    """
    begin, member = memoryview(data)[:-_MEMBER_BYTES], data[-_MEMBER_BYTES:]
    if member != _member(zlib.crc32(begin)):
        raise CorruptDataError(
            "table metadata does not match its checksum",
            action=f"restore the file; if it was changed by hand, take {CHECKSUM_KEY!r} out of it",
        )


def _member(checksum: int) -> bytes:
    return b',"%s":"%08x"}' % (CHECKSUM_KEY.encode(), checksum)
