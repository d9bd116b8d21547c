"""Columns that icefold takes for a table's key, where the schema declares none: names to field ids.

A name is what people give, a field id what is meant: a rename changes no key, whoever does it. A
name stands for the field that had it in any schema that the table remembers; one that two fields
have had is refused, never guessed. `#7` is field 7. Where the table's property holds the ids beside
the names (`icefold adopt --apply key`), they decide, so schemas may be forgotten.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata

from tableformat.errors import InvalidInputError
from tableformat.spec.key_column import check_key_column
from tableformat.spec.names import PRIMARY_KEY, PRIMARY_KEY_FIELD_IDS


def believed_key_ids(metadata: TableMetadata, names: Sequence[str]) -> tuple[int, ...]:
    """The field ids of a key's columns, in the order of the names.

    Raises:
        InvalidInputError: A column that is not there, was dropped, is named twice or cannot be in a
            key, a name that two columns have had, or names of the property that are not those of
            its field ids.
    """
    schema = metadata.schema()
    recorded = _recorded_ids(metadata, names)
    ids = [
        _field_id(metadata, name) if recorded is None else recorded[at]
        for at, name in enumerate(names)
    ]
    for name, field_id in zip(names, ids, strict=True):
        if schema.find_column_name(field_id) is None:
            raise InvalidInputError(
                "the key names a column that was dropped",
                column=name,
                field_id=field_id,
                action="name others with --key",
            )
        check_key_column(schema, field_id)
    if len(set(ids)) < len(ids):
        raise InvalidInputError("the key names a column twice", columns=",".join(names))
    return tuple(ids)


def _recorded_ids(metadata: TableMetadata, names: Sequence[str]) -> list[int] | None:
    """Those beside the property, if the names are the property's."""
    properties = metadata.properties
    texts = _parts(properties.get(PRIMARY_KEY_FIELD_IDS, ""))
    if not texts or _parts(properties.get(PRIMARY_KEY, "")) != list(names):
        return None
    ids = [int(text) for text in texts if text.isdecimal() and len(text) <= 10]
    known = len(ids) == len(texts) == len(names) and all(
        not (meant := _ids_of(metadata, name)) or field_id in meant
        for name, field_id in zip(names, ids, strict=False)
    )
    if not known:
        raise InvalidInputError(
            f"{PRIMARY_KEY} and {PRIMARY_KEY_FIELD_IDS} do not mean the same columns",
            columns=",".join(names),
            field_ids=",".join(texts),
            action="set both anew: icefold adopt TABLE --key COLUMNS --apply key",
        )
    return ids


def _field_id(metadata: TableMetadata, name: str) -> int:
    found = _ids_of(metadata, name)
    if not found and name.startswith("#") and name[1:].isdecimal() and len(name) <= 11:
        return int(name[1:])
    if not found:
        raise InvalidInputError(
            "the key names a column that the table does not have",
            column=name,
            action="name others with --key",
        )
    if len(found) > 1:
        fields = ", ".join(f"#{each}" for each in sorted(found))
        raise InvalidInputError(
            "the key names a column whose name another column has had",
            column=name,
            fields=fields,
            action=f"name the field that is meant, as #{max(found)}",
        )
    return found.pop()


def _ids_of(metadata: TableMetadata, name: str) -> set[int]:
    found = (_find(schema, name) for schema in metadata.schemas)
    return {each for each in found if each is not None}


def _find(schema: Schema, name: str) -> int | None:
    try:
        return schema.find_field(name).field_id
    except ValueError:
        return None


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
