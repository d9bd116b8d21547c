"""Virtual columns that a table declares: a name, an expression, a type; nothing is stored of them.

| property | value |
|---|---|
| `icefold.computed.<name>.expression` | Spark SQL over the table's columns, as it was declared |
| `icefold.computed.<name>.type` | `int`, `long` or `double` |
| `icefold.computed.<name>.field-ids` | JSON: the field id of each name in the expression |

The ids decide which columns are meant: a rename changes nothing. On disk: never change.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import DoubleType, IntegerType, LongType, PrimitiveType

from tableformat.errors import InvalidInputError

_PREFIX = "icefold.computed."
_EXPRESSION, _TYPE, _FIELD_IDS = ".expression", ".type", ".field-ids"
TYPES: Mapping[str, PrimitiveType] = {
    "int": IntegerType(),
    "long": LongType(),
    "double": DoubleType(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputedColumn:
    """A declared column.

    Attributes:
        name: Its name.
        expression: Spark SQL, with the names that the table's columns had then.
        type: A name of `TYPES`.
        inputs: Field ids by name in the expression.
    """

    name: str
    expression: str
    type: str
    inputs: Mapping[str, int]

    def is_in(self, schema: Schema) -> bool:
        """Whether rows of the schema have it: every input is there, and no column of its name."""
        ids = {field.field_id for field in schema.fields}
        taken = any(field.name.lower() == self.name.lower() for field in schema.fields)
        return not taken and ids.issuperset(self.inputs.values())

    @property
    def properties(self) -> dict[str, str]:
        """What declares it."""
        prefix = _PREFIX + self.name
        return {
            prefix + _EXPRESSION: self.expression,
            prefix + _TYPE: self.type,
            prefix + _FIELD_IDS: json.dumps(dict(self.inputs), ensure_ascii=False),
        }


def computed_columns(metadata: TableMetadata) -> dict[str, ComputedColumn]:
    """All declared columns by name.

    Raises:
        InvalidInputError: Properties that were set by hand cannot be read.
    """
    properties, found = metadata.properties, {}
    for key, expression in sorted(properties.items()):
        if not (key.startswith(_PREFIX) and key.endswith(_EXPRESSION)):
            continue
        name = key[len(_PREFIX) : -len(_EXPRESSION)]
        kind = properties.get(f"{_PREFIX}{name}{_TYPE}", "")
        inputs = _inputs(properties.get(f"{_PREFIX}{name}{_FIELD_IDS}", ""))
        if kind not in TYPES or inputs is None:
            raise InvalidInputError(
                "the properties of a computed column cannot be read",
                column=name,
                action="remove them, and declare the column again",
            )
        found[name] = ComputedColumn(name=name, expression=expression, type=kind, inputs=inputs)
    return found


def _inputs(text: str) -> dict[str, int] | None:
    try:
        given = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(given, dict) or not all(type(each) is int for each in given.values()):
        return None
    return given
