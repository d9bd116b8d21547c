"""Whole numbers that are stored as text: snapshot summaries, table properties."""

from __future__ import annotations

_DIGITS_MAX = 40  # Python refuses to read thousands; no number here has more than 20


def parse_decimal(text: str) -> int | None:
    """A number of at least 0 in ASCII digits; None for anything else."""
    if len(text) > _DIGITS_MAX or not (text.isascii() and text.isdecimal()):
        return None
    return int(text)
