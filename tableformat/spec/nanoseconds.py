"""Nanosecond timestamps as literals, defaults and filter values.

PyIceberg has the types and their binary form, but neither turns text or numbers into such values
nor reads and writes them as JSON: a filter on such a column and a table with a default on one are
refused. Its conversions are open for further types; importing this module adds these two. Values
are integers, nanoseconds since 1970-01-01, as in its binary form.

Source: spec, "Single-value serialization" (JSON: up to nine digits of a second; an offset for
`timestamptz_ns`, which is written as +00:00).
"""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa
from pyiceberg import conversions
from pyiceberg.expressions.literals import (
    DateLiteral,
    LongLiteral,
    StringLiteral,
    TimestampLiteral,
)
from pyiceberg.types import TimestampNanoType, TimestamptzNanoType

_TEXT = re.compile(
    r"(\d{4}-\d\d-\d\d)(?:[T ](\d\d:\d\d(?::\d\d)?)(?:\.(\d{1,9}))?(Z|[+-]\d\d:?\d\d)?)?"
)
_SECOND_NS = 1_000_000_000
_MICROSECOND_NS = 1_000
_DAY_NS = 86_400 * _SECOND_NS
_INT64_MAX = 2**63 - 1


def parse_nanoseconds(text: str, *, zoned: bool) -> int:
    """Nanoseconds since 1970-01-01 of `2024-01-31T12:00:00.123456789`, with `+01:00` if zoned.

    Raises:
        ValueError: Another form, no such time, or outside 1677 to 2262.
    """
    found = _TEXT.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"not a timestamp: {text!r:.60}")
    day, time, digits, offset = found.groups()
    if zoned != (offset is not None):
        wanted = "needs an offset such as +00:00" if zoned else "takes no offset"
        raise ValueError(f"the column's type {wanted}: {text!r:.60}")
    seconds = pa.scalar(f"{day}T{(time or '00:00') + ':00'}"[:19])
    value = seconds.cast(pa.timestamp("s")).value * _SECOND_NS
    value += int((digits or "0").ljust(9, "0"))
    if offset not in (None, "Z"):
        hours, minutes = int(offset[1:3]), int(offset[-2:])
        away = (hours * 60 + minutes) * 60 * _SECOND_NS
        value += away if offset.startswith("-") else -away
    return _checked(value)


def format_nanoseconds(value: int, *, zoned: bool) -> str:
    """The JSON form."""
    text = pa.scalar(value // _SECOND_NS, pa.timestamp("s")).cast(pa.string()).as_py()
    offset = "+00:00" if zoned else ""
    return f"{text.replace(' ', 'T')}.{value % _SECOND_NS:09d}{offset}"


def _checked(value: int) -> int:
    if not -_INT64_MAX - 1 <= value <= _INT64_MAX:
        raise ValueError("outside the years 1677 to 2262, which nanoseconds reach")
    return value


def _register(kind: type, *, zoned: bool) -> None:
    def from_text(self: Any, _type: Any) -> LongLiteral:
        return LongLiteral(parse_nanoseconds(self.value, zoned=zoned))

    def from_number(self: Any, _type: Any) -> LongLiteral:
        return LongLiteral(self.value)

    def from_microseconds(self: Any, _type: Any) -> LongLiteral:
        return LongLiteral(_checked(self.value * _MICROSECOND_NS))

    def from_days(self: Any, _type: Any) -> LongLiteral:
        return LongLiteral(_checked(self.value * _DAY_NS))

    for literal, convert in (
        (StringLiteral, from_text),
        (LongLiteral, from_number),
        (TimestampLiteral, from_microseconds),
        (DateLiteral, from_days),
    ):
        vars(literal)["to"].register(kind, convert)
    # PyIceberg declares its JSON conversions without a result type.
    to_json: Any = conversions.to_json
    from_json: Any = conversions.from_json
    to_json.register(kind, lambda _type, value: format_nanoseconds(value, zoned=zoned))
    from_json.register(
        # The models pass values through here that are numbers already.
        kind,
        lambda _type, value: (
            parse_nanoseconds(value, zoned=zoned) if isinstance(value, str) else value
        ),
    )


_register(TimestampNanoType, zoned=False)
_register(TimestamptzNanoType, zoned=True)
