"""What a table declares about its columns beyond the schema: IMMUTABLE columns, a sequence column.

Iceberg has no place for either, so both are table properties. A property names the columns for
people, another one holds their field ids, and the ids decide: a rename changes no meaning, whoever
does it. A table whose properties were set by hand has the names only; then these decide.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pyiceberg import types as iceberg
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata

from tableformat.errors import InvalidInputError
from tableformat.spec.computed_columns import (
    ComputedColumn,
    computed_columns,
    stored_columns,
)
from tableformat.spec.field_paths import field_path
from tableformat.spec.names import (
    IMMUTABLE_COLUMNS,
    IMMUTABLE_DELETES,
    IMMUTABLE_ENFORCED,
    IMMUTABLE_FIELD_IDS,
    IMMUTABLE_NAME,
    SEQUENCE_COLUMN,
    SEQUENCE_FIELD_ID,
)
from tableformat.spec.properties import property_bool

IMMUTABLE_PROPERTIES = (
    IMMUTABLE_NAME,
    IMMUTABLE_COLUMNS,
    IMMUTABLE_FIELD_IDS,
    IMMUTABLE_ENFORCED,
    IMMUTABLE_DELETES,
)
SEQUENCE_PROPERTIES = (SEQUENCE_COLUMN, SEQUENCE_FIELD_ID)
FORBIDDEN = "forbidden"
EXCEPT_DELETE = "except-delete"
Enforcement = bool | Literal["except-delete"]
NO_KEY = "IMMUTABLE constraints must be defined on tables with a primary key."
# Values without an order that all engines share, or with none at all.
UNORDERED = (
    iceberg.FloatType,
    iceberg.DoubleType,
    iceberg.BooleanType,
    iceberg.UUIDType,
    iceberg.BinaryType,
    iceberg.FixedType,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImmutableColumns:
    """The IMMUTABLE constraint: for one primary key, these columns never change.

    Attributes:
        name: Of the constraint.
        columns: Their present names, nested ones with dots.
        field_ids: Their field ids, in the same order.
        enforced: Whether changes that break it are refused.
        forbids_deletes: Whether rows may not be deleted either: a key that is deleted could come
            back with other values, and nothing would remember the first ones.
    """

    name: str
    columns: tuple[str, ...]
    field_ids: tuple[int, ...]
    enforced: bool
    forbids_deletes: bool = False

    @property
    def enforcement(self) -> str:
        """`not enforced`, `enforced` or `enforced except delete`."""
        if not self.enforced:
            return "not enforced"
        return "enforced" if self.forbids_deletes else "enforced except delete"


def immutable_columns(metadata: TableMetadata) -> ImmutableColumns | None:
    """The table's IMMUTABLE constraint; None without one.

    Raises:
        InvalidInputError: Properties that were set by hand name an unknown column, or say
            something else than true or false.
    """
    properties, schema = metadata.properties, metadata.schema()
    ids = _declared_ids(properties, schema, IMMUTABLE_COLUMNS, IMMUTABLE_FIELD_IDS)
    if not ids:
        return None
    columns = tuple(_name(schema, field_id) for field_id in ids)
    return ImmutableColumns(
        name=properties.get(IMMUTABLE_NAME) or default_name(columns),
        columns=columns,
        field_ids=ids,
        enforced=(enforced := property_bool(properties, IMMUTABLE_ENFORCED, default=False)),
        forbids_deletes=enforced and properties.get(IMMUTABLE_DELETES) == FORBIDDEN,
    )


def check_deletes_allowed(metadata: TableMetadata) -> None:
    """Refuse an operation that deletes rows where the IMMUTABLE constraint forbids it.

    Raises:
        InvalidInputError: It is enforced, and not except for deletes.
    """
    constraint = immutable_columns(metadata)
    if constraint is not None and constraint.forbids_deletes:
        raise InvalidInputError(
            "rows cannot be deleted: the IMMUTABLE constraint is enforced, and a deleted key could "
            "come back with other values",
            constraint=constraint.name,
            action="enforce it except for deletes: icefold table immutable NAME --columns "
            f"{','.join(constraint.columns)} --enforced-except-delete",
        )


def define_immutable(
    schema: Schema,
    columns: Sequence[str],
    *,
    name: str | None = None,
    enforced: Enforcement = False,
) -> dict[str, str]:
    """The properties that declare columns IMMUTABLE.

    Args:
        schema: The table's schema. Columns of the key may be among `columns`, and all there are.
        columns: Which; nested ones with dots, not inside lists and maps, of primitive types.
        name: Of the constraint; default `IMMUTABLE_COLUMNS_a_b`.
        enforced: Refuse changes that break it, deletes of rows among them unless `except-delete`.

    Raises:
        InvalidInputError: The table has no primary key, no column is given, one cannot be declared,
            or `enforced` is something else.
    """
    if not schema.identifier_field_ids:
        raise InvalidInputError(NO_KEY)
    if not columns:
        raise InvalidInputError("an IMMUTABLE constraint needs at least one column")
    if len(set(columns)) != len(columns):
        repeated = next(c for c in columns if list(columns).count(c) > 1)
        raise InvalidInputError("an IMMUTABLE column is named twice", column=repeated)
    if not isinstance(enforced, bool) and enforced != EXCEPT_DELETE:
        raise InvalidInputError(
            "an IMMUTABLE constraint is enforced, not, or except for deletes",
            enforced=repr(enforced),
            known=f"True, False, {EXCEPT_DELETE!r}",
        )
    ids = [_column_id(schema, column, "the IMMUTABLE constraint") for column in columns]
    return {
        IMMUTABLE_NAME: name or default_name(columns),
        IMMUTABLE_COLUMNS: ",".join(columns),
        IMMUTABLE_FIELD_IDS: ",".join(map(str, ids)),
        IMMUTABLE_ENFORCED: str(bool(enforced)).lower(),
        IMMUTABLE_DELETES: FORBIDDEN if enforced is True else "allowed",
    }


def default_name(columns: Sequence[str]) -> str:
    """`IMMUTABLE_COLUMNS_a_b`."""
    return "_".join(["IMMUTABLE_COLUMNS", *(column.replace(".", "_") for column in columns)])


def sequence_field_id(metadata: TableMetadata) -> int | None:
    """The column that orders the versions of a row (the out-of-order guard); None without one.

    Raises:
        InvalidInputError: A property that was set by hand names an unknown column.
    """
    schema = metadata.schema()
    ids = _declared_ids(metadata.properties, schema, SEQUENCE_COLUMN, SEQUENCE_FIELD_ID)
    return ids[0] if ids else None


def define_sequence(schema: Schema, column: str) -> dict[str, str]:
    """The properties that declare the sequence column.

    Raises:
        InvalidInputError: No primary key, an unknown or nested column, one of the key, or one whose
            type has no order (float, boolean, uuid, binary).
    """
    if not schema.identifier_field_ids:
        raise InvalidInputError("a sequence column needs a table with a primary key", column=column)
    field_id = _column_id(schema, column, "the sequence column")
    if all(field.field_id != field_id for field in schema.fields):
        raise InvalidInputError("the sequence column cannot be inside a struct", column=column)
    if field_id in schema.identifier_field_ids:
        raise InvalidInputError("the sequence column cannot be in the primary key", column=column)
    kind = schema.find_field(field_id).field_type
    if isinstance(kind, UNORDERED):
        raise InvalidInputError(
            "a sequence column needs a type with an order",
            column=column,
            type=kind,
            action="use an integer, a decimal, a timestamp or a string",
        )
    return {SEQUENCE_COLUMN: column, SEQUENCE_FIELD_ID: str(field_id)}


def properties_after(metadata: TableMetadata, schema: Schema) -> dict[str, str]:
    """What the properties have to say when `schema` becomes the table's: renames are followed.

    Raises:
        InvalidInputError: The new schema drops a declared column, or the key that the IMMUTABLE
            constraint is about, or has a column with the name of a computed one.
    """
    for each in computed_columns(metadata.properties).values():
        if each.is_stored:
            _check_stored(each, metadata, schema)
            continue
        if not each.is_in(metadata.schema()):
            continue  # another tool's change; reads do without the column
        ids = list(each.inputs.values())
        _surviving(metadata.schema(), schema, ids, f"computed column {each.name}")
        if not each.is_in(schema):
            raise InvalidInputError(
                "the table has a computed column of this name",
                column=each.name,
                action="drop the declaration first",
            )
    changed: dict[str, str] = {}
    constraint = immutable_columns(metadata)
    if constraint is not None:
        changed |= _immutable_after(metadata, schema, constraint)
    sequence = sequence_field_id(metadata)
    if sequence is not None:
        names = _surviving(metadata.schema(), schema, [sequence], "the sequence column")
        changed |= {SEQUENCE_COLUMN: names[0], SEQUENCE_FIELD_ID: str(sequence)}
    return {key: text for key, text in changed.items() if metadata.properties.get(key) != text}


def _check_stored(column: ComputedColumn, metadata: TableMetadata, schema: Schema) -> None:
    """Refuse to drop, rename, require or key a stored column, or to drop what it is made of."""
    before = metadata.schema()
    held = next((f for f in before.fields if f.field_id == column.field_id), None)
    if held is None:
        return  # another tool has dropped it
    ids = [i for i in (held.field_id, *column.inputs.values()) if before.find_column_name(i)]
    _surviving(before, schema, ids, f"computed column {column.name}")
    now = schema.find_field(held.field_id)
    is_key = held.field_id in schema.identifier_field_ids
    if now.name != held.name or now.required or is_key:
        raise InvalidInputError(
            "a stored computed column cannot be renamed, be required or be of the key",
            column=held.name,
            action="drop its declaration first: the column stays",
        )


def check_not_stored(metadata: TableMetadata, columns: Sequence[str], what: str) -> None:
    """Refuse a stored computed column where deletes, which name no other columns, need values.

    Raises:
        InvalidInputError: One of the columns is; `what` says what it was to be.
    """
    stored = stored_columns(metadata.properties, metadata.schema())
    for name in columns:
        if name in stored:
            raise InvalidInputError(f"a stored computed column cannot be {what}", column=name)


def _immutable_after(
    metadata: TableMetadata, schema: Schema, constraint: ImmutableColumns
) -> dict[str, str]:
    if not schema.identifier_field_ids:
        raise InvalidInputError(NO_KEY, action="drop the constraint first")
    lost = set(metadata.schema().identifier_field_ids) - set(schema.identifier_field_ids)
    if lost:
        # Columns that are fixed for (a, b) need not be fixed for a alone.
        raise InvalidInputError(
            "the IMMUTABLE constraint is about the present primary key",
            column=_name(metadata.schema(), min(lost)),
            constraint=constraint.name,
            action="drop the constraint first",
        )
    names = _surviving(metadata.schema(), schema, constraint.field_ids, constraint.name)
    changed = {
        IMMUTABLE_COLUMNS: ",".join(names),
        IMMUTABLE_FIELD_IDS: ",".join(map(str, constraint.field_ids)),
    }
    if metadata.properties.get(IMMUTABLE_NAME) is None:
        changed[IMMUTABLE_NAME] = constraint.name  # a name does not change with a column's
    return changed


def _surviving(before: Schema, after: Schema, ids: Sequence[int], what: str) -> list[str]:
    names = []
    for field_id in ids:
        name = after.find_column_name(field_id)
        if name is None:
            raise InvalidInputError(
                "cannot drop a column that the table's properties declare",
                column=_name(before, field_id),
                declared_as=what,
                action="drop the declaration first",
            )
        names.append(name)
    return names


def _declared_ids(
    properties: Mapping[str, str], schema: Schema, names_key: str, ids_key: str
) -> tuple[int, ...]:
    """Ids of the declared columns that the schema still has."""
    given = _items(properties.get(ids_key, ""))
    if given:
        wrong = [text[:20] for text in given if not text.isdecimal() or len(text) > 10]
        if wrong:
            raise InvalidInputError("not a field id", property=ids_key, value=repr(wrong[0]))
        return tuple(int(text) for text in given if schema.find_column_name(int(text)) is not None)
    names = _items(properties.get(names_key, ""))
    return tuple(_column_id(schema, name, f"the property {names_key}") for name in names)


def _column_id(schema: Schema, column: str, what: str) -> int:
    try:
        field = schema.find_field(column)
    except ValueError as error:
        raise InvalidInputError(
            f"{what} names an unknown column", column=column, columns=list(schema.column_names)
        ) from error
    if not isinstance(field.field_type, iceberg.PrimitiveType):
        raise InvalidInputError(
            f"{what} needs columns of primitive types", column=column, type=field.field_type
        )
    if field_path(schema, field.field_id) is None:
        raise InvalidInputError(
            f"{what} cannot name a column inside a list or a map", column=column
        )
    return field.field_id


def _name(schema: Schema, field_id: int) -> str:
    return schema.find_column_name(field_id) or str(field_id)


def _items(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]
