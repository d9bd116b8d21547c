"""Computed columns that a table declares: a name, an expression, a type.

| property | value |
|---|---|
| `icefold.computed.<name>.expression` | Spark SQL over the table's columns, as it was declared |
| `icefold.computed.<name>.type` | `int`, `long` or `double` |
| `icefold.computed.<name>.field-ids` | JSON: the field id of each name in the expression |
| `icefold.computed.<name>.stored` | the field id of the column that holds the values |

Without the last one nothing is stored: whoever reads computes (a virtual column). With it the
column is one of the schema, and whoever writes a row computes it.

The ids decide which columns are meant: a rename changes nothing. On disk: never change.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, IntegerType, LongType, PrimitiveType

from tableformat.errors import InvalidInputError

_PREFIX = "icefold.computed."
_EXPRESSION, _TYPE, _FIELD_IDS, _STORED = ".expression", ".type", ".field-ids", ".stored"
ID_DIGITS_MAX = 10
TYPES: Mapping[str, PrimitiveType] = {
    "int": IntegerType(),
    "long": LongType(),
    "double": DoubleType(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputedColumn:
    """A declared column.

    Attributes:
        name: The name it was declared with.
        expression: Spark SQL, with the names that the table's columns had then.
        type: A name of `TYPES`.
        inputs: Field ids by name in the expression.
        field_id: Of the column that holds the values; None: it is virtual.
    """

    name: str
    expression: str
    type: str
    inputs: Mapping[str, int]
    field_id: int | None = None

    def __str__(self) -> str:
        stored = " (stored)" if self.is_stored else ""
        return f"{self.name} {self.type} = {self.expression}{stored}"

    @property
    def is_stored(self) -> bool:
        """Whether the values are in data files."""
        return self.field_id is not None

    def is_in(self, schema: Schema) -> bool:
        """Whether it is computed of rows of the schema: every input is there, nothing is stored."""
        if self.is_stored:
            return False
        ids = {field.field_id for field in schema.fields}
        taken = any(field.name.lower() == self.name.lower() for field in schema.fields)
        return not taken and ids.issuperset(self.inputs.values())

    @property
    def properties(self) -> dict[str, str]:
        """What declares it."""
        prefix = _PREFIX + self.name
        stored = {} if self.field_id is None else {prefix + _STORED: str(self.field_id)}
        return stored | {
            prefix + _EXPRESSION: self.expression,
            prefix + _TYPE: self.type,
            prefix + _FIELD_IDS: json.dumps(dict(self.inputs), ensure_ascii=False),
        }


def computed_columns(properties: Mapping[str, str]) -> dict[str, ComputedColumn]:
    """All declared columns by name, from the table's properties.

    Raises:
        InvalidInputError: Properties that were set by hand cannot be read.
    """
    return {name: _column(properties, name) for name in _names(properties, _EXPRESSION)}


def stored_columns(properties: Mapping[str, str], schema: Schema) -> dict[str, ComputedColumn]:
    """The stored ones that the schema has, by the name that they have in it.

    Raises:
        InvalidInputError: Properties that were set by hand cannot be read.
    """
    found = {}
    for each in (_column(properties, name) for name in _names(properties, _STORED)):
        assert each.field_id is not None
        name = schema.find_column_name(each.field_id)
        if name is not None:
            found[name] = each
    return found


def _names(properties: Mapping[str, str], ending: str) -> list[str]:
    found = (key for key in properties if key.startswith(_PREFIX) and key.endswith(ending))
    return sorted(key[len(_PREFIX) : -len(ending)] for key in found)


def _column(properties: Mapping[str, str], name: str) -> ComputedColumn:
    prefix = _PREFIX + name
    kind, expression = properties.get(prefix + _TYPE, ""), properties.get(prefix + _EXPRESSION)
    inputs = _inputs(properties.get(prefix + _FIELD_IDS, ""))
    stored = properties.get(prefix + _STORED)
    is_id = stored is None or (stored.isdecimal() and len(stored) <= ID_DIGITS_MAX)
    if expression is None or kind not in TYPES or inputs is None or not is_id:
        raise InvalidInputError(
            "the properties of a computed column cannot be read",
            column=name,
            action="remove them, and declare the column again",
        )
    return ComputedColumn(
        name=name,
        expression=expression,
        type=kind,
        inputs=inputs,
        field_id=None if stored is None else int(stored),
    )


def _inputs(text: str) -> dict[str, int] | None:
    try:
        given = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(given, dict) or not all(type(each) is int for each in given.values()):
        return None
    return given
