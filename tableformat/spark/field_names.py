"""Under which names Spark's reader can read columns by field id without being misled by names.

Spark finds columns by id, but some of its steps go by name:

| step                | goes wrong when                          | so such columns        |
|---------------------|------------------------------------------|------------------------|
| filter push-down    | a name was ever used for another field   | get a name no file has |
| subfield pruning    | the column is not named as in the file   | are not read by Spark  |

Both are silent: row groups with wanted rows are skipped, subfields read as NULL. Names in files
are taken to be those of the table's schemas, which is what every writer does.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from pyiceberg.schema import Schema
from pyiceberg.types import IcebergType, ListType, MapType, NestedField, StructType

from tableformat.spark.native_types import is_native

HIDDEN_NAME = "__icefold_field_{}"


class FieldNames:
    """What the names of a table's columns have meant so far.

    Args:
        schemas: Every schema of the table.
    """

    def __init__(self, schemas: Sequence[Schema]) -> None:
        self._ids_by_path: defaultdict[str, set[int]] = defaultdict(set)
        self._names_by_id: defaultdict[int, set[str]] = defaultdict(set)
        for schema in schemas:
            for each in schema.fields:
                self._names_by_id[each.field_id].add(each.name)
                for path, field_id in paths(each):
                    self._ids_by_path[path].add(field_id)

    def obstacle(self, field: NestedField) -> str | None:
        """Why Spark cannot read a top-level column; None if it can."""
        if not is_native(field.field_type):
            return f"column {field.name} is {field.field_type}"
        if _holds_struct(field.field_type) and (
            self._is_reused(field) or self._names_by_id[field.field_id] - {field.name}
        ):
            return f"column {field.name} has subfields and was renamed"
        return None

    def read_name(self, field: NestedField) -> str:
        """The name to read a column under."""
        return HIDDEN_NAME.format(field.field_id) if self._is_reused(field) else field.name

    def _is_reused(self, field: NestedField) -> bool:
        return any(self._ids_by_path.get(path, {at}) != {at} for path, at in paths(field))


def paths(column: NestedField, prefix: str = "") -> Iterable[tuple[str, int]]:
    """Lower-cased paths (Spark ignores case) of a field and everything below it, with ids."""
    path = f"{prefix}{column.name}".lower()
    yield path, column.field_id
    for child in _children(column.field_type):
        yield from paths(child, f"{path}\0")


def _holds_struct(kind: IcebergType) -> bool:
    if isinstance(kind, StructType):
        return True
    return any(_holds_struct(child.field_type) for child in _children(kind))


def _children(kind: IcebergType) -> tuple[NestedField, ...]:
    if isinstance(kind, StructType):
        return kind.fields
    if isinstance(kind, ListType):
        return (kind.element_field,)
    if isinstance(kind, MapType):
        return (kind.key_field, kind.value_field)
    return ()
