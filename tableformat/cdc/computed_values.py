"""Stored computed columns of changes: nobody has to give them, and who does gives the right value.

What a change gives is compared and then left out: only when a batch has one row per key, and when
missing columns are filled, is it known what the row is computed from.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from pyiceberg.table.metadata import TableMetadata

from tableformat.cdc.events import KIND, EventBatch, ParsedEvents
from tableformat.cdc.rowkind import adding
from tableformat.cdc.split_on_failure import read_in_halves
from tableformat.errors import InvalidInputError
from tableformat.spec.missing_columns import MISSING
from tableformat.sql.computed_columns import StoredValues


def without_computed(
    parsed: ParsedEvents, events: EventBatch, metadata: TableMetadata
) -> ParsedEvents:
    """The changes without values of stored computed columns.

    Args:
        parsed: Changes of a batch.
        events: The batch.
        metadata: A table that has such columns.

    Returns:
        That; a row that comes with another value than the expression's, or for which the expression
        has no value that fits, is bad.
    """
    stored = StoredValues.of(metadata.properties, metadata.schema())
    if stored is None or not parsed.changes.num_rows:
        return parsed
    inputs = stored.inputs(stored.columns, metadata.schema())
    parsed = parsed.without(_wrong(parsed, stored, inputs), events)
    changes = parsed.changes
    for name in stored.columns:
        place = changes.schema.get_field_index(name)
        field = changes.schema.field(place)
        changes = changes.set_column(place, field, pa.nulls(changes.num_rows, field.type))
    parsed.changes = changes
    return parsed


def _wrong(parsed: ParsedEvents, stored: StoredValues, inputs: set[str]) -> dict[int, str]:
    """Reasons by row. A block is computed at once, and halved only where a row of it is wrong."""
    changes, used = parsed.changes, {*inputs, *stored.columns, MISSING}
    comes = np.flatnonzero(adding(changes.column(KIND).combine_chunks()))
    given = changes.select([name for name in changes.column_names if name in used])
    rows = pa.RecordBatch.from_struct_array(
        given.take(pa.array(comes)).to_struct_array().combine_chunks()
    )
    found = read_in_halves(
        len(comes),
        lambda start, stop: stored.written(rows.slice(start, stop - start), checks=True),
        (InvalidInputError,),
    )
    return {
        int(parsed.rows[comes[start]]): str(piece)
        for start, _, piece in found
        if isinstance(piece, InvalidInputError)
    }
