"""Names the column of table metadata whose type PyIceberg does not have (variant, later types)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pyiceberg.types import NestedField

from tableformat.errors import UnsupportedError

_CURRENT = "leave the table to other tools, or keep such values as string or binary"
_OLD = (
    "expire that schema with the tool that made it (Java: expire_snapshots with"
    " clean_expired_metadata)"
)


def unknown_type(raw: Mapping[str, Any]) -> UnsupportedError | None:
    """The error for the first such column of `raw`, a table's metadata; None: there is none.

    The current schema comes first, for its columns are those that people know. What is no schema
    at all is passed over: whoever reads the metadata as a whole says what is wrong with it.
    """
    current_id = raw.get("current-schema-id", 0)
    schemas = raw.get("schemas") or [raw.get("schema")]
    schemas = [schema for schema in _list(schemas) if isinstance(schema, Mapping)]
    schemas.sort(key=lambda schema: schema.get("schema-id", 0) != current_id)
    for schema in schemas:
        found = next((each for each in _columns(schema) if not _is_known(each[1])), None)
        if found is not None:
            path, kind = found
            is_current = schema.get("schema-id", 0) == current_id
            return UnsupportedError(
                f"the table {'has' if is_current else 'had'} a column of type {kind}, which"
                " icefold cannot read",
                action=_CURRENT if is_current else _OLD,
                column=path,
            )
    return None


def _columns(kind: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Dotted names and types of all primitive columns within a type, and of nested defaults."""
    if isinstance(kind, str):
        yield path, kind
    elif isinstance(kind, Mapping):
        fields = [each for each in _list(kind.get("fields")) if isinstance(each, Mapping)]
        inner = [(str(field.get("name")), _with_default(field)) for field in fields]
        inner += [(name, kind[name]) for name in ("element", "key", "value") if name in kind]
        for name, child in inner:
            yield from _columns(child, f"{path}.{name}" if path else name)


def _with_default(field: Mapping[str, Any]) -> Any:
    kind = field.get("type")
    has_default = any(field.get(f"{each}-default") is not None for each in ("initial", "write"))
    return (
        f"{kind.get('type')} with a default" if has_default and isinstance(kind, Mapping) else kind
    )


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _is_known(kind: str) -> bool:
    try:
        NestedField(field_id=1, name="x", type=kind, required=False)
    except ValueError:  # pydantic's error is one
        return False
    return True
