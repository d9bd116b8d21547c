"""JSON Schemas, as Kafka Connect's JSON Schema converter writes them, as Connect's own.

The converter keeps Connect's types beside JSON's: `connect.type`, `title` (the semantic type),
`connect.parameters`, `connect.index`; `oneOf` with null is a column that may be null. In schemas
that it did not write, a property that is not `required` may be null. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tableformat.cdc.connect_schema import NUMBER

Connect = dict[str, Any]

_PLAIN = {
    "boolean": "boolean", "integer": "int64", "number": NUMBER, "string": "string",
}  # fmt: skip
_NULL = {"type": "null"}
_DEPTH_MAX = 32  # references may go in circles


def connect_schema(schema: Mapping[str, Any]) -> Connect:
    """The Connect schema of a JSON Schema."""
    return _of(schema, schema, 0)


def _of(schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> Connect:
    schema, is_optional = _without_null(_resolved(schema, root))
    schema = _resolved(schema, root)
    kind = schema.get("connect.type") or schema.get("type")
    found: Connect = {"optional": is_optional, "type": _PLAIN.get(str(kind), str(kind))}
    if depth >= _DEPTH_MAX:
        return found | {"type": "recursive"}
    properties = schema.get("properties")
    if kind == "object" and isinstance(properties, Mapping):
        found |= {"type": "struct", "fields": _fields(schema, properties, root, depth)}
    elif kind == "array" and isinstance(schema.get("items"), Mapping):
        found["items"] = _of(schema["items"], root, depth + 1)
    for name, given in (("name", "title"), ("doc", "description"), ("default", "default"),
                        ("parameters", "connect.parameters")):  # fmt: skip
        if schema.get(given) is not None:
            found[name] = schema[given]
    return found


def _fields(
    schema: Mapping[str, Any], properties: Mapping[str, Any], root: Mapping[str, Any], depth: int
) -> list[Connect]:
    required = schema.get("required") or ()
    given = [(name, each) for name, each in properties.items() if isinstance(each, Mapping)]
    given.sort(key=lambda one: one[1].get("connect.index", 0))
    fields = []
    for name, each in given:
        found = _of(each, root, depth + 1)
        if "connect.index" not in each and name not in required:
            found["optional"] = True
        fields.append(found | {"field": name})
    return fields


def _without_null(schema: Mapping[str, Any]) -> tuple[Mapping[str, Any], bool]:
    """The schema of what is not null, and whether null is allowed."""
    for word in ("oneOf", "anyOf"):
        branches = schema.get(word)
        if isinstance(branches, list):
            values = [each for each in branches if each != _NULL]
            inner = values[0] if len(values) == 1 else {"type": "union"}
            return inner, len(values) < len(branches)
    kinds = schema.get("type")
    if isinstance(kinds, list):
        values = [each for each in kinds if each != "null"]
        kind = values[0] if len(values) == 1 else "union"
        return {**schema, "type": kind}, len(values) < len(kinds)
    return schema, False


def _resolved(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    reference = schema.get("$ref")
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return schema
    found: Any = root
    for step in reference[2:].split("/"):
        found = found.get(step) if isinstance(found, Mapping) else None
    return found if isinstance(found, Mapping) else schema
