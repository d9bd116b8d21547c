"""What was read from an index's own files has the types it was written with, or is damaged."""

from __future__ import annotations

from functools import cache
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints


def check_fields(instance: object) -> None:
    """Compare every field of a dataclass with the type it declares.

    Knows classes, `X | None` and `tuple[X, ...]`, of other containers the outside; true and false
    are no integers.

    Raises:
        TypeError: A field has another type; names it.
    """
    kind: Any = type(instance)
    for name, hint in _hints(kind).items():
        if not _has_type(getattr(instance, name), hint):
            raise TypeError(f"{name} is not {hint}")


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _has_type(value: object, hint: Any) -> bool:
    if hint is Any:
        return True
    origin = get_origin(hint)
    if origin is UnionType:
        return any(_has_type(value, each) for each in get_args(hint))
    if origin is tuple:
        item = get_args(hint)[0]
        return isinstance(value, tuple) and all(_has_type(each, item) for each in value)
    if origin is not None:
        return isinstance(value, origin)
    return isinstance(value, hint) and not (hint is int and isinstance(value, bool))
