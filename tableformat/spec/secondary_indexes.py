"""Secondary indexes that a table declares: a name and the columns rows are found by.

| property | value |
|---|---|
| `icefold.index.<name>.columns` | the columns' names when they were declared, for people |
| `icefold.index.<name>.field-ids` | their field ids, which decide: a rename changes nothing |

The declaration is part of the table; the index itself is derived state beside it, like the primary
key's. On disk: never change.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import DoubleType, FloatType, PrimitiveType

from tableformat.errors import InvalidInputError, NotFoundError
from tableformat.spec.field_paths import field_path

_PREFIX = "icefold.index."
_COLUMNS = ".columns"
_FIELD_IDS = ".field-ids"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SecondaryIndex:
    """A declared index.

    Attributes:
        name: Its name.
        field_ids: The columns, ascending: the order does not matter for equality.
        columns: Their present names; a dropped one by its id.
        dropped: Whether a column of it is gone, so that it cannot be kept any more.
    """

    name: str
    field_ids: tuple[int, ...]
    columns: tuple[str, ...]
    dropped: bool = False


def secondary_indexes(metadata: TableMetadata) -> dict[str, SecondaryIndex]:
    """All declared indexes by name.

    Raises:
        InvalidInputError: A property that was set by hand cannot be read.
    """
    schema, found = metadata.schema(), {}
    for key, text in sorted(metadata.properties.items()):
        if not (key.startswith(_PREFIX) and key.endswith(_FIELD_IDS)):
            continue
        name = key[len(_PREFIX) : -len(_FIELD_IDS)]
        try:
            ids = tuple(sorted({int(part) for part in text.split(",")}))
        except ValueError as error:
            raise InvalidInputError(
                "the field ids of an index are no numbers", property=key, value=text
            ) from error
        names = [schema.find_column_name(field_id) for field_id in ids]
        found[name] = SecondaryIndex(
            name=name,
            field_ids=ids,
            columns=tuple(
                name or f"<field {field_id}>" for name, field_id in zip(names, ids, strict=True)
            ),
            dropped=None in names,
        )
    return found


def secondary_index(metadata: TableMetadata, name: str) -> SecondaryIndex:
    """One declared index.

    Raises:
        NotFoundError: There is none of that name.
        InvalidInputError: One of its columns has been dropped.
    """
    declared = secondary_indexes(metadata)
    if name not in declared:
        raise NotFoundError(
            f"there is no index {name!r}",
            indexes=", ".join(declared) or "none",
            action="declare it with add_index(name, columns)",
        )
    if declared[name].dropped:
        raise InvalidInputError(
            f"a column of the index {name!r} has been dropped",
            columns=", ".join(declared[name].columns),
            action="drop the index",
        )
    return declared[name]


def define_index(schema: Schema, name: str, columns: Sequence[str]) -> Mapping[str, str]:
    """The properties that declare an index.

    Raises:
        InvalidInputError: Not a name, no columns, one twice, or one that cannot be compared.
    """
    if not _NAME.fullmatch(name):
        raise InvalidInputError(
            "not a name for an index", index=repr(name), action="use letters, digits, _ and -"
        )
    if isinstance(columns, str) or not columns:
        raise InvalidInputError("an index needs a list of columns", index=name)
    ids = [_column_id(schema, column, name) for column in columns]
    if len(set(ids)) != len(ids):
        raise InvalidInputError("an index names a column twice", index=name)
    return {
        f"{_PREFIX}{name}{_COLUMNS}": ",".join(columns),
        f"{_PREFIX}{name}{_FIELD_IDS}": ",".join(map(str, sorted(ids))),
    }


def index_properties(name: str) -> tuple[str, str]:
    """The properties of one index."""
    return (f"{_PREFIX}{name}{_COLUMNS}", f"{_PREFIX}{name}{_FIELD_IDS}")


def _column_id(schema: Schema, column: str, index: str) -> int:
    try:
        field = schema.find_field(column)
    except ValueError as error:
        raise InvalidInputError(
            "the index names an unknown column",
            index=index,
            column=column,
            columns=", ".join(schema.column_names),
        ) from error
    kind = field.field_type
    if not isinstance(kind, PrimitiveType) or isinstance(kind, FloatType | DoubleType):
        raise InvalidInputError(
            "a column of this type cannot be indexed", index=index, column=column, type=kind
        )
    if field_path(schema, field.field_id) is None:
        raise InvalidInputError(
            "a column inside a list or a map cannot be indexed", index=index, column=column
        )
    return field.field_id
