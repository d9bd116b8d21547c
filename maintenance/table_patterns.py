"""Which tables a command means: names, and patterns such as `shop.*`."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from tableformat.catalog.base import Catalog, Identifier
from tableformat.table_definition import parse_table_name

_WILDCARDS = frozenset("*?[")


def is_pattern(name: str) -> bool:
    """Whether `name` may stand for several tables."""
    return not _WILDCARDS.isdisjoint(name)


def find_tables(catalog: Catalog, names: Sequence[str]) -> list[Identifier]:
    """The tables that `names` mean: exact names as they are, patterns by what the catalog lists.

    Raises:
        InvalidInputError: A name that cannot be one.
    """
    found = {parse_table_name(name): None for name in names if not is_pattern(name)}
    patterns = [name for name in names if is_pattern(name)]
    if patterns:
        for identifier in catalog.list_tables():
            dotted = ".".join(identifier)
            if any(fnmatchcase(dotted, pattern) for pattern in patterns):
                found.setdefault(identifier)
    return list(found)
