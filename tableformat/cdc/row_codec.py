"""Table rows inside JSON objects: their wire layout, and from wire columns to table columns."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema
from pyiceberg.types import IcebergType, ListType, StructType

from tableformat.array_types import Bools, Int64s
from tableformat.cdc.encodings import (
    ELEMENT,
    ColumnDecoder,
    Encoding,
    EncodingDefaults,
    Hint,
    column_decoder,
    decode_rows,
    overlaid,
)
from tableformat.cdc.json_objects import Path
from tableformat.errors import InvalidInputError, UnsupportedError


@dataclass(frozen=True, slots=True)
class RowCodec:
    """The decoders of a table's columns, in schema order, and what rows must have."""

    decoders: Mapping[str, ColumnDecoder]
    field_ids: Mapping[str, int]
    key: tuple[str, ...]
    required: frozenset[str]

    @classmethod
    def of(cls, schema: Schema, hints: Mapping[str, Hint], defaults: EncodingDefaults) -> RowCodec:
        """The codec of a table's rows.

        Raises:
            InvalidInputError: A hint does not fit its column's type.
            UnsupportedError: A column cannot be read from JSON, or a key column is nested.
        """
        decoders = {
            column.name: column_decoder(column, hints.get(column.name), defaults)
            for column in schema.fields
        }
        return cls(
            decoders=decoders,
            field_ids={column.name: column.field_id for column in schema.fields},
            key=key_columns(schema),
            required=required_columns(schema),
        )

    def struct(self, names: Collection[str] | None = None) -> pa.DataType:
        """The struct of some columns (None: all) with their first wire types."""
        return pa.struct(
            [
                (name, decoder.wires[0])
                for name, decoder in self.decoders.items()
                if names is None or name in names
            ]
        )

    def alternatives(self, path: Path) -> dict[Path, tuple[pa.DataType, ...]]:
        """The wire types of the columns of a struct at `path`, where there are several."""
        return dict(_alternatives(path, self.decoders))

    def structs(self, path: Path) -> tuple[Path, ...]:
        """Paths of a row at `path` and of all structs in it, as in `JsonLayout.closed`."""
        nested = (
            found
            for name, decoder in self.decoders.items()
            for found in _structs((*path, name), decoder.target)
        )
        return (path, *nested)

    def decode(
        self,
        columns: Mapping[str, pa.Array],
        *,
        rows: Int64s,
        bad: dict[int, str],
        check_required: Collection[str],
        lacks: Mapping[str, npt.NDArray[np.bool_]] | None = None,
    ) -> dict[str, pa.Array]:
        """Decode wire columns of the events `rows`; wrong values go to `bad`, by event.

        Raises:
            InvalidInputError: Nothing says how a column is encoded; see `encodings`.

        Args:
            columns: Wire columns by name, each of shape `(len(rows),)`.
            rows: The event each value belongs to.
            bad: Receives event number and reason; an event that is in it already keeps its reason.
            check_required: Columns in which a null is wrong.
            lacks: Where it is not: rows that leave the column out.
        """
        decoded: dict[str, pa.Array] = {}
        for name, wire in columns.items():
            decoded[name], wrong = decode_rows(wire, self.decoders[name])
            for place, reason in wrong.items():
                bad.setdefault(int(rows[place]), reason)
            if name in check_required and decoded[name].null_count:
                wrong_nulls = pc.is_null(decoded[name]).to_numpy(zero_copy_only=False)
                if lacks and name in lacks:
                    wrong_nulls = wrong_nulls & ~lacks[name]
                nulls = np.flatnonzero(wrong_nulls)
                what = "key column" if name in self.key else "required column"
                for place in nulls.tolist():
                    bad.setdefault(int(rows[place]), f"{what} '{name}' has no value")
            kind = self.decoders[name].target
            inside = _lack_inside(decoded[name], kind) if pa.types.is_nested(kind) else ()
            for place in np.flatnonzero(inside).tolist():
                reason = f"column '{name}': something required in it has no value"
                bad.setdefault(int(rows[place]), reason)
        return decoded


def _lack_inside(values: pa.Array, kind: pa.DataType) -> Bools:
    """Rows with a null in a required field of a struct, or a required element of a list."""
    wrong = np.zeros(len(values), np.bool_)
    if pa.types.is_struct(kind):
        for part in kind:
            wrong |= _lacks(pc.struct_field(values, part.name), part)
    elif pa.types.is_list(kind):
        elements = _lacks(pc.list_flatten(values), kind.value_field)
        wrong[pc.list_parent_indices(values).to_numpy(zero_copy_only=False)[elements]] = True
    valid: Bools = values.is_valid().to_numpy(zero_copy_only=False)
    return wrong & valid


def _lacks(values: pa.Array, field: pa.Field) -> Bools:
    inside = _lack_inside(values, field.type)
    if field.nullable:
        return inside
    null: Bools = values.is_null().to_numpy(zero_copy_only=False)
    return inside | null


def user_hints(schema: Schema, given: Mapping[str, str]) -> dict[str, Hint]:
    """The option `encodings`: by column, or `column.field` inside a struct; a list's is its items'.

    Raises:
        InvalidInputError: It names an unknown column.
    """
    hints: dict[str, Hint] = {}
    columns = {column.name: column.field_type for column in schema.fields}
    for path, text in given.items():
        name, _, rest = (path, "", "") if path in columns else path.partition(".")
        parts = rest.split(".") if rest else []
        hint = _hint_at(columns[name], parts, Encoding(text)) if name in columns else None
        if hint is None:
            raise InvalidInputError(
                "an encoding is given for an unknown column", column=path, columns=list(columns)
            )
        hints = overlaid(hints, {name: hint})
    return hints


def _hint_at(kind: IcebergType, path: Sequence[str], encoding: Encoding) -> Hint | None:
    if isinstance(kind, ListType):
        inner = _hint_at(kind.element_type, path, encoding)
        return None if inner is None else Hint(parts={ELEMENT: inner})
    if not path:
        return Hint(encoding=encoding)
    fields = {f.name: f.field_type for f in kind.fields} if isinstance(kind, StructType) else {}
    inner = _hint_at(fields[path[0]], path[1:], encoding) if path[0] in fields else None
    return None if inner is None else Hint(parts={path[0]: inner})


def _alternatives(
    path: Path, decoders: Mapping[str, ColumnDecoder]
) -> Iterator[tuple[Path, tuple[pa.DataType, ...]]]:
    for name, decoder in decoders.items():
        if len(decoder.wires) > 1:
            yield (*path, name), decoder.wires
        yield from _alternatives((*path, name), decoder.parts)


def _structs(path: Path, kind: pa.DataType) -> Iterator[Path]:
    if pa.types.is_list(kind):
        yield from _structs((*path, "element"), kind.value_type)
    elif pa.types.is_struct(kind):
        yield path
        for child in kind:
            yield from _structs((*path, child.name), child.type)


def key_columns(schema: Schema) -> tuple[str, ...]:
    """Names of the primary key's columns in field-id order; empty without a key.

    Raises:
        UnsupportedError: A key column is nested in a struct.
    """
    names = []
    for field_id in sorted(schema.identifier_field_ids):
        name = schema.find_column_name(field_id) or str(field_id)
        if all(column.field_id != field_id for column in schema.fields):
            raise UnsupportedError(
                "change streams need key columns at top level, this one is nested", column=name
            )
        names.append(name)
    return tuple(names)


def required_columns(schema: Schema) -> frozenset[str]:
    """Columns that the row of a change must have.

    The key's are among them also where the table leaves them optional: an event without its key
    would look like one of the row whose key is NULL.
    """
    return frozenset(c.name for c in schema.fields if c.required) | {*key_columns(schema)}


def struct_columns(
    structs: pa.StructArray, names: Sequence[str], mask: npt.NDArray[np.bool_] | None
) -> dict[str, pa.Array]:
    """Children of the structs where `mask` is set (None: everywhere)."""
    picked = structs if mask is None else structs.filter(pa.array(mask))
    return {name: pc.struct_field(picked, name) for name in names}
