"""Values of options that are written with a unit."""

from __future__ import annotations

import re

import click

from maintenance.settings import parse_duration_ms
from tableformat.errors import InvalidInputError

_SIZE = re.compile(r"(\d{1,18})\s*(|b|kb|mb|gb|kib|mib|gib)")
_FACTORS = {
    "": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9,
    "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30,
}  # fmt: skip


def size(value: str | int) -> int:
    """Bytes of `134217728`, `128MiB`, `512MB`, `2GB`."""
    found = _SIZE.fullmatch(str(value).strip().lower())
    if found is None or int(found[1]) == 0:
        raise click.BadParameter(f"{value!r} is not a size: write 134217728, 128MiB or 512MB")
    return int(found[1]) * _FACTORS[found[2]]


def duration(value: str | int) -> int:
    """Milliseconds of `500ms`, `30s`, `5m`, `2h`, `1d`."""
    try:
        return value if isinstance(value, int) else parse_duration_ms(value)
    except InvalidInputError as error:
        raise click.BadParameter(str(error)) from error
