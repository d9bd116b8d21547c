"""Rows of a table whose columns change, by field id, with nothing of the product.

A struct is a dict by field id, at any depth; a row is one. What a row lacks was not a column when
it was written, so it has the initial default. Types are those of metadata JSON.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

Kind = Any  # a name, or a JSON object
Field = Mapping[str, Any]
Row = dict[int, Any]
FIRST_DAY = date(2026, 1, 1)


def drawn(rng: random.Random, kind: Kind) -> Any:
    """A value of a type."""
    match kind:
        case {"type": "struct", "fields": fields}:
            return {each["id"]: drawn_field(rng, each) for each in fields}
        case {"type": "list", "element": element}:
            return [drawn(rng, element) for _ in range(rng.randrange(3))]
        case {"type": "map", "value": value}:
            return {key: drawn(rng, value) for key in rng.sample("ab", rng.randrange(3))}
        case "int":
            return rng.randint(-3, 30)
        case "long":
            return rng.choice([rng.randint(-3, 30), 1 << 40])
        case "float" | "double":
            return rng.choice([-1.5, 0.0, 2.25, 1e10 if kind == "double" else 1.0])
        case "date":
            return FIRST_DAY + timedelta(days=rng.randrange(0, 500, 20))
        case "timestamp":
            hours = rng.randrange(0, 10_000, 400)
            return datetime.combine(FIRST_DAY, time()) + timedelta(hours=hours)
        case "string":
            return rng.choice(["eu", "us", "asia", ""])
    digits = int(kind.removeprefix("decimal(").split(",")[0])
    return Decimal(rng.choice([-125, 0, 99, 10**digits - 1])).scaleb(-2)


def drawn_field(rng: random.Random, field: Field) -> Any:
    """A value of a column; NULL now and then, where it may be."""
    return None if not field["required"] and rng.random() < 0.2 else drawn(rng, field["type"])


def shown(value: Any, kind: Kind) -> Any:
    """A value as a reader sees it under a schema, hashable."""
    if value is None:
        return None
    match kind:
        case {"type": "struct", "fields": fields}:
            return tuple(shown_field(value, each) for each in fields)
        case {"type": "list", "element": element}:
            return tuple(shown(each, element) for each in value)
        case {"type": "map", "value": inner}:
            return tuple(sorted((key, shown(each, inner)) for key, each in value.items()))
        case "timestamp" if not isinstance(value, datetime):
            return datetime.combine(value, time())
    return value


def shown_field(struct: Row, field: Field) -> Any:
    """The value of one column."""
    at = field["id"]
    value = struct[at] if at in struct else default(field, "initial-default")
    return shown(value, field["type"])


def default(field: Field, which: str) -> Any:
    """A default as metadata JSON has it, as a value."""
    text, kind = field.get(which), field["type"]
    if text is None or not isinstance(kind, str):
        return text
    if kind.startswith("decimal"):
        return Decimal(text)
    return date.fromisoformat(text) if kind == "date" else text


def found(value: Any, kind: Kind) -> Any:
    """What `shown` gives, of a value that a reader gave."""
    if value is None:
        return None
    match kind:
        case {"type": "struct", "fields": fields}:
            return tuple(found(value[each["name"]], each["type"]) for each in fields)
        case {"type": "list", "element": element}:
            return tuple(found(each, element) for each in value)
        case {"type": "map", "value": inner}:
            return tuple(sorted((key, found(each, inner)) for key, each in value))
    return value


def named(value: Any, kind: Kind) -> Any:
    """A value as Arrow takes it."""
    if value is None:
        return None
    match kind:
        case {"type": "struct", "fields": fields}:
            return {each["name"]: named(value.get(each["id"]), each["type"]) for each in fields}
        case {"type": "list", "element": element}:
            return [named(each, element) for each in value]
        case {"type": "map", "value": inner}:
            return [(key, named(each, inner)) for key, each in value.items()]
    return shown(value, kind)
