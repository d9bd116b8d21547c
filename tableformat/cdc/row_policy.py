"""What a sink does to rows besides writing them: sequence, soft deletes, order within files.

The sequence column (`spec.constraints`) orders the versions of a row, in a batch and across
batches. It is a column of the table, so that the version of the row that is there can be compared;
equality deletes carry it too. Its values are those of the rows, or with the option `sequence` of a
JSON format the field of the event, which deletes have as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import BooleanType, PrimitiveType

from tableformat.cdc.encodings import ColumnDecoder, decode_rows
from tableformat.cdc.events import KIND, SEQUENCE_PREFIX, EventBatch, ParsedEvents
from tableformat.cdc.format_options import KEY_ONLY_REASON, KeyedOptions
from tableformat.cdc.formats import ChangeFormat, FormatChoice
from tableformat.cdc.message_keys import storage
from tableformat.cdc.missing_values import lacks_values, without_missing
from tableformat.cdc.reduce import ReducedChanges, is_truncate
from tableformat.cdc.row_codec import key_columns
from tableformat.cdc.rowkind import adding
from tableformat.errors import InvalidInputError
from tableformat.spec.computed_columns import stored_columns
from tableformat.spec.constraints import sequence_field_id
from tableformat.spec.options import Names, Options
from tableformat.spec.types import arrow_type

UNSORTED = "none"
INT_BITS = 32
EVENT_SEQUENCE = f"{SEQUENCE_PREFIX}0"


class PolicyOptions(Options):
    """What a sink may be told about rows."""

    sequence_column: str | None = Field(
        None,
        description="column of the table that orders the versions of a row, also across batches: "
        "an older change never replaces a newer row. Declared on the table by its first use. "
        "Filled from the field of `sequence`, if a JSON format has that option",
    )
    soft_delete: str | None = Field(
        None,
        description="boolean column of the table: deleted rows stay and have true there. With "
        "deletes=row or columns=partial they keep their values",
    )
    sort_by: Names = Field(
        (),
        description="columns that order the rows within a file, or `none` for arrival order. "
        "Default: the primary key",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPolicy:
    """The choices for one version of one table.

    Attributes:
        sequence: The table's sequence column, None without one.
        sequence_type: Its Arrow type.
        fill_sequence: Take its values from the event's sequence field.
        soft_delete: Boolean column that marks deleted rows; None: deleted rows go.
        sort_by: Columns that order the rows of a file.
        whole: Where deletes hold rows: columns besides the key, and whether they are required.
    """

    sequence: str | None = None
    sequence_type: pa.DataType | None = None
    fill_sequence: bool = False
    soft_delete: str | None = None
    sort_by: tuple[str, ...] = ()
    whole: Mapping[str, bool] = field(default_factory=dict)

    @classmethod
    def of(cls, metadata: TableMetadata, choice: FormatChoice, values: PolicyOptions) -> RowPolicy:
        """Check the options against the table.

        Raises:
            InvalidInputError: A column is unknown or of the wrong type, or the format's deletes
                cannot have what the option needs.
        """
        schema = metadata.schema()
        field_id = sequence_field_id(metadata)
        change_format = choice.build(schema)
        sequence, kind, fills = None, None, False
        if field_id is not None and choice.deletes_rows:
            column = schema.find_field(field_id)
            sequence, kind = column.name, arrow_type(column.field_type, path=column.name)
            fills = _check_sequence(sequence, kind, choice, change_format)
        soft_delete = values.soft_delete
        if soft_delete is not None:
            _check_soft_delete(soft_delete, schema, choice)
        return cls(
            sequence=sequence,
            sequence_type=kind,
            fill_sequence=fills,
            soft_delete=soft_delete,
            sort_by=_sort_columns(values.sort_by, schema),
            whole=_whole_columns(
                schema,
                choice,
                {
                    soft_delete,
                    sequence if fills else None,
                    *stored_columns(metadata.properties, schema),
                },
            ),
        )

    def order(self, change_format: ChangeFormat) -> list[str]:
        """Columns of the changes that order those of one key, before the file and the ordinal."""
        if self.sequence is not None:
            return [self.sequence]
        return [column.name for column in change_format.order]

    def complete(self, parsed: ParsedEvents, events: EventBatch) -> ParsedEvents:
        """Give every change its sequence; events without one become bad records.

        Rows of a Debezium snapshot may lack it: they are the oldest. Deletes that should hold the
        whole row and hold its key only are bad too: nulls would send them to another partition.
        """
        parsed = parsed.without(self._not_whole(parsed), events)
        if self.sequence is None:
            return parsed
        if self.fill_sequence:
            return self._filled(parsed, events)
        absent = parsed.changes.column(self.sequence).is_null().to_numpy()
        reason = f"the change lacks a value of the sequence column '{self.sequence}'"
        return parsed.without({int(row): reason for row in parsed.rows[absent]}, events)

    def _not_whole(self, parsed: ParsedEvents) -> dict[int, str]:
        removed = ~adding(parsed.changes.column(KIND).combine_chunks())
        removed &= ~is_truncate(parsed.changes)
        bare, lacks = removed.copy(), np.zeros(len(removed), np.bool_)
        reasons: dict[int, str] = {}
        for name, required in self.whole.items():
            if not removed.any():
                break
            column = parsed.changes.column(name)
            absent = column.is_null().to_numpy()
            zero = _is_zero(column)
            lacks |= absent | (zero if _is_moment(column.type) else False)
            bare &= absent | zero
            if required:
                reason = f"the delete has no value of required column '{name}' (deletes=row)"
                reasons |= dict.fromkeys(parsed.rows[removed & absent].tolist(), reason)
        if self.whole:
            reasons |= dict.fromkeys(parsed.rows[bare & lacks].tolist(), KEY_ONLY_REASON)
        return reasons

    def _filled(self, parsed: ParsedEvents, events: EventBatch) -> ParsedEvents:
        """The changes with the sequence of their events; what the column cannot hold is bad."""
        assert self.sequence is not None
        given = parsed.changes.column(EVENT_SEQUENCE).combine_chunks()
        decoder = ColumnDecoder(
            name=self.sequence,
            target=self.sequence_type,
            wires=(given.type,),
            decode=lambda values: values.cast(self.sequence_type),
        )
        filled, wrong = decode_rows(given, decoder)
        place = parsed.changes.schema.get_field_index(self.sequence)
        changes = parsed.changes.set_column(place, parsed.changes.schema.field(place), filled)
        parsed = replace(parsed, changes=changes)
        reasons = {
            int(parsed.rows[row]): f"the event's sequence does not fit its column: {reason}"
            for row, reason in wrong.items()
        }
        return parsed.without(reasons, events)

    def rows(
        self, reduced: ReducedChanges, columns: list[str], field_ids: Mapping[str, int]
    ) -> pa.Table:
        """The rows to write: those that stay, with soft deletes also those that go."""
        if self.soft_delete is None:
            return self.sorted(reduced.rows(columns))
        rows = reduced.last.select(columns)
        place = rows.schema.get_field_index(self.soft_delete)
        given = pc.fill_null(rows.column(place), False)
        marks = pc.or_(given, pa.chunked_array([pa.array(~reduced.upserts)]))
        rows = rows.set_column(place, rows.schema.field(place), marks)
        if lacks_values(rows):
            rows = without_missing(rows, self.soft_delete, field_ids)
        return self.sorted(rows)

    def sorted_keys(self, keys: pa.Table) -> pa.Table:
        """Keys to delete in the order of `sort_by`, as far as they have its columns."""
        names = tuple(name for name in self.sort_by if name in keys.column_names)
        return replace(self, sort_by=names).sorted(keys)

    def sorted(self, rows: pa.Table) -> pa.Table:
        """The rows in the order of `sort_by`, nulls first; equal ones as they came."""
        if not self.sort_by or rows.num_rows < 2:
            return rows
        keys: dict[str, pa.Array] = {}
        for number, name in enumerate(self.sort_by):
            column = storage(rows.column(name).combine_chunks())
            if column.null_count:  # False sorts before True
                keys[f"valid_{number}"] = column.is_valid()
            keys[f"value_{number}"] = column
        indices = pc.sort_indices(pa.table(keys), sort_keys=[(name, "ascending") for name in keys])
        return rows.take(indices)


def _check_sequence(
    column: str, kind: pa.DataType, choice: FormatChoice, change_format: ChangeFormat
) -> bool:
    """Whether the column is filled from the event's sequence field."""
    order = list(change_format.order)
    if choice.factory.is_typed:
        given = choice.values.sequence if isinstance(choice.values, KeyedOptions) else ()
        if given not in ((), (column,)):
            raise InvalidInputError(
                "the table orders changes by another column",
                sequence=list(given),
                sequence_column=column,
                action="leave out the option 'sequence'",
            )
        return False
    if not order:
        if not choice.deletes_carry_rows:
            raise InvalidInputError(
                "deletes have nothing that says how old they are",
                sequence_column=column,
                action="set sequence=FIELD to fill the column from the event, or deletes=row if "
                "deletes hold the whole old row",
            )
        return False
    if len(order) > 1:
        raise InvalidInputError(
            "one column cannot hold a sequence of several fields",
            sequence_column=column,
            action="name one field in the option 'sequence'",
        )
    try:
        pa.array([], order[0].type).cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidInputError(
            f"the sequence field's type {order[0].type} does not fit the column's type {kind}",
            sequence_column=column,
        ) from error
    return True


def _check_soft_delete(column: str, schema: Schema, choice: FormatChoice) -> None:
    found = next((each for each in schema.fields if each.name == column), None)
    if not choice.deletes_rows:
        raise InvalidInputError("soft-delete has no effect: the format has no deletes")
    if found is None or not isinstance(found.field_type, BooleanType) or found.required:
        raise InvalidInputError(
            "soft-delete needs an optional boolean column of the table",
            column=column,
            columns=list(schema.column_names),
            action="add the column first",
        )
    keys = key_columns(schema)
    needed = [
        each.name
        for each in schema.fields
        if each.required and each.name not in keys and each.write_default is None
    ]
    if needed and not (choice.deletes_carry_rows or choice.is_partial):
        raise InvalidInputError(
            "a deleted row cannot stay: deletes hold the key only, and a column is required",
            column=needed[0],
            action="set deletes=row if deletes hold the whole old row, or make the column optional",
        )


def _whole_columns(
    schema: Schema, choice: FormatChoice, without: set[str | None]
) -> Mapping[str, bool]:
    if choice.is_partial or not choice.deletes_are_whole:
        return {}
    others = {*key_columns(schema), *without}
    return {each.name: each.required for each in schema.fields if each.name not in others}


def _sort_columns(names: tuple[str, ...], schema: Schema) -> tuple[str, ...]:
    if names == (UNSORTED,):
        return ()
    fields: Mapping[str, object] = {each.name: each.field_type for each in schema.fields}
    for name in names:
        if not isinstance(fields.get(name), PrimitiveType):
            raise InvalidInputError(
                "sort-by needs columns of primitive types", column=name, columns=list(fields)
            )
    return names or key_columns(schema)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _is_moment(kind: pa.DataType) -> bool:
    """Types of which nobody's value is zero: a counter may be 0, hardly a date 1970-01-01."""
    return bool(pa.types.is_date(kind) or pa.types.is_timestamp(kind))


def _is_zero(column: pa.ChunkedArray) -> npt.NDArray[np.bool_]:
    """What Debezium puts into a NOT NULL column of which it has the key only: '', 0, 1970, [].

    A struct (a point at 0, 0) says nothing.
    """
    kind = column.type
    if pa.types.is_temporal(kind):
        column = column.cast(pa.int32() if kind.bit_width == INT_BITS else pa.int64())
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        zero = pc.equal(pc.binary_length(column), 0)
        if pa.types.is_string(kind):
            zero = pc.or_(zero, pc.equal(column, "{}"))  # an hstore
    elif pa.types.is_list(kind):
        zero = pc.equal(pc.list_value_length(column), 0)
    elif pa.types.is_struct(kind):
        return np.ones(len(column), np.bool_)
    elif pa.types.is_boolean(kind):
        zero = pc.invert(column)
    elif pa.types.is_temporal(kind) or pa.types.is_decimal(kind) or _is_number(kind):
        zero = pc.equal(pc.sign(column), 0)
    else:
        return np.zeros(len(column), np.bool_)
    mask: npt.NDArray[np.bool_] = pc.fill_null(zero, False).to_numpy().astype(np.bool_)
    return mask
