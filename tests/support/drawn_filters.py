"""Filters over rows of a table whose columns change, drawn, and what SQL keeps by them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

from tests.support.evolving_rows import Field, Row, drawn, shown_field

COMPARED: dict[str, Callable[[Any, Any], bool]] = {
    "=": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}
Truth = bool | None  # None: unknown


@dataclass(frozen=True)
class DrawnFilter:
    """A text, and what it says of a row."""

    text: str
    truth: Callable[[Row], Truth]

    def keeps(self, row: Row) -> bool:
        return self.truth(row) is True


def drawn_filter(
    rng: random.Random, fields: Sequence[Field], rows: Iterable[Row], depth: int = 2
) -> DrawnFilter:
    """Of columns of plain types, at the top or in a struct, and values that are there or near."""
    if depth and rng.random() < 0.5:
        one = drawn_filter(rng, fields, rows, depth - 1)
        if rng.random() < 0.3:
            return DrawnFilter(f"NOT ({one.text})", lambda row: _not(one.truth(row)))
        other = drawn_filter(rng, fields, rows, depth - 1)
        if rng.random() < 0.5:
            return DrawnFilter(
                f"({one.text}) AND ({other.text})",
                lambda row: _and(one.truth(row), other.truth(row)),
            )
        return DrawnFilter(
            f"({one.text}) OR ({other.text})",
            lambda row: _not(_and(_not(one.truth(row)), _not(other.truth(row)))),
        )
    name, kind, value = rng.choice([*_columns(fields)])
    if rng.random() < 0.2:
        if rng.random() < 0.5:
            return DrawnFilter(f"{name} IS NULL", lambda row: value(row) is None)
        return DrawnFilter(f"{name} IS NOT NULL", lambda row: value(row) is not None)
    there = [each for each in map(value, rows) if each is not None]
    if rng.random() < 0.2:
        some = {rng.choice([*there, drawn(rng, kind)]) for _ in range(3)}
        texts = ", ".join(map(_literal, some))
        return DrawnFilter(
            f"{name} IN ({texts})", lambda row: None if value(row) is None else value(row) in some
        )
    bound = rng.choice([*there, drawn(rng, kind)])
    sign = rng.choice([*COMPARED])
    return DrawnFilter(
        f"{name} {sign} {_literal(bound)}",
        lambda row: None if value(row) is None else COMPARED[sign](value(row), bound),
    )


def _columns(fields: Sequence[Field]) -> Iterable[tuple[str, Any, Callable[[Row], Any]]]:
    for each in fields:
        kind = each["type"]
        if isinstance(kind, str):
            yield each["name"], kind, lambda row, each=each: shown_field(row, each)
        elif kind["type"] == "struct":
            for name, its, value in _columns(kind["fields"]):
                yield f"{each['name']}.{name}", its, _within(each, value)


def _within(struct: Field, value: Callable[[Row], Any]) -> Callable[[Row], Any]:
    def of(row: Row) -> Any:
        held = row.get(struct["id"])
        return None if held is None else value(held)

    return of


def _literal(value: Any) -> str:
    match value:
        case datetime() | date():
            return f"'{value.isoformat()}'"
        case str():
            return f"'{value}'"
    return f"{value:f}" if not isinstance(value, int) else str(value)


def _not(truth: Truth) -> Truth:
    return None if truth is None else not truth


def _and(one: Truth, other: Truth) -> Truth:
    if one is False or other is False:
        return False
    return None if one is None or other is None else True
