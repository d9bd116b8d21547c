"""Names of namespaces and tables."""

from __future__ import annotations

from tableformat.catalog.base import Identifier
from tableformat.errors import InvalidInputError
from tableformat.spec.unicode import is_unicode

_NAME_CHARS_MAX = 255
_RESERVED = './\\%"*?#:'


def check_table_name(identifier: Identifier) -> None:
    """Refuse what cannot be a table of any catalog."""
    shown = ".".join(identifier)
    if len(identifier) < 2:
        raise InvalidInputError(
            "a table name needs a namespace", action="write namespace.table", table=shown
        )
    if any(not part or "." in part or not is_unicode(part) for part in identifier):
        raise InvalidInputError("not a usable table name", table=repr(shown[:200]))


def check_new_names(identifier: Identifier) -> None:
    """New names become folders and URL parts: they must not be able to mean something else."""
    if not identifier:
        raise InvalidInputError("a namespace needs a name")
    for part in identifier:
        usable = part and part.strip() == part and len(part) <= _NAME_CHARS_MAX
        if not usable or not part.isprintable() or any(char in part for char in _RESERVED):
            raise InvalidInputError("not a usable name", name=repr(part[:80]))


def namespace_not_empty(namespace: Identifier) -> InvalidInputError:
    """The error for a namespace that cannot be dropped."""
    return InvalidInputError(
        "there are tables or namespaces in the namespace",
        namespace=".".join(namespace),
        action="drop or rename these first",
    )
