"""Names of columns that are not ASCII, as Debezium's connector for PostgreSQL tells them.

Snapshots have them right. While it streams it takes each byte of a name in UTF-8 for a character,
with its sign: é, the bytes C3 A9, comes as U+FFC3 U+FFA9 (source: `PgOutputMessageDecoder`). So a
column has two names, and changes would leave null in the one that is right.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

import pyarrow as pa
import pyarrow.compute as pc

from tableformat.errors import InvalidInputError

_ASCII_END, _NEGATIVE_BEGIN = 0x80, 0xFF80  # bytes from 0x80 on are negative in Java


def check_names(names: Iterable[str], known: Collection[str] | None = None) -> None:
    """Refuse columns of events whose names are mangled.

    Args:
        names: Of the events' columns.
        known: Those of the table's columns; None: there is none yet, and all would become some.

    Raises:
        InvalidInputError: There is one, and the table has a column of the right name.
    """
    for name in names:
        meant = None if name.isascii() else _meant(name)
        if meant is not None and (known is None or meant in known):
            raise InvalidInputError(
                f"Debezium tells column '{meant}' by another name while it streams, '{name}', so "
                "its values would be lost",
                column=meant,
                action="give it a name of ASCII letters in PostgreSQL, or leave it out "
                "(column.exclude.list)",
            )


def names_in(texts: pa.StringArray, known: Collection[str]) -> set[str]:
    """Mangled names of the table's columns that fields of JSON objects have.

    For objects of which only the table's columns are read. Nothing is read where all names are
    ASCII.
    """
    mangled = {_mangled(name) for name in known if not name.isascii()} - set(known)
    return {name for name in mangled if _is_field(name, texts)}


def _is_field(name: str, texts: pa.StringArray) -> bool:
    letters = (
        re.escape(each) if each.isascii() else rf"(?:{each}|\\u(?i:{ord(each):04x}))"
        for each in name
    )
    pattern = rf'"{"".join(letters)}"\s*:'  # no text has it: its quotes are escaped
    return bool(pc.any(pc.match_substring_regex(texts, pattern), min_count=0).as_py())


def _mangled(name: str) -> str:
    """As Debezium makes it of the name's bytes."""
    beyond = _NEGATIVE_BEGIN - _ASCII_END
    return "".join(chr(each if each < _ASCII_END else each + beyond) for each in name.encode())


def _meant(name: str) -> str | None:
    """The name that was mangled; None: this is none."""
    codes = [ord(each) for each in name]
    if any(_ASCII_END <= code < _NEGATIVE_BEGIN or code > 0xFFFF for code in codes):
        return None
    try:
        return bytes(code & 0xFF for code in codes).decode()
    except UnicodeDecodeError:
        return None
