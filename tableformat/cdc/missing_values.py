"""Changes that leave columns out, within one batch: filled from earlier changes of their key.

The changes carry the text of `spec.missing_columns` in a column of its own. What the batch cannot
fill stays missing in the row that is staged, and the resolver fills it. After a delete in the batch
there is no row: what is missing then is nowhere, and the text says so.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from tableformat.array_types import Int64s
from tableformat.cdc.events import KIND
from tableformat.cdc.rowkind import RowKind
from tableformat.integer_order import distinct_inverse, stable_order
from tableformat.spec.missing_columns import MISSING, RowMasks, mask_texts


def lacks_values(changes: pa.Table) -> bool:
    """Whether some changes leave columns out."""
    if MISSING not in changes.column_names:
        return False
    return bool(changes.column(MISSING).null_count < changes.num_rows)


def filled_last(
    changes: pa.Table,
    key: list[pa.Array],
    order: Int64s,
    last: Int64s,
    *,
    field_ids: Mapping[str, int],
    keeps_deleted: bool,
) -> pa.Table:
    """The last changes of all keys, with what earlier changes of the batch know.

    Args:
        changes: All changes.
        key: Key columns of the changes in `order`.
        order: Shape `(n,)`: row numbers of `changes` in change order.
        last: Shape `(keys,)`: row numbers of the last changes.
        field_ids: Of the table's columns, by name.
        keeps_deleted: Deleted rows stay, so a delete is a change like others.
    """
    number = _key_numbers(key)
    by_key = stable_order(number)
    rows = order[by_key]
    masks = RowMasks.parse(changes.column(MISSING).combine_chunks())
    masks = RowMasks(masks.code[rows], masks.masks)
    ordinal = np.arange(len(rows), dtype=np.int64)
    is_first = np.r_[True, np.diff(number[by_key]) != 0][: len(rows)]
    after_delete = masks.is_new
    kinds = changes.column(KIND).to_numpy()[rows]
    if not keeps_deleted:
        after_delete[1:] |= kinds[:-1] == RowKind.DELETE.value
    is_before = kinds == RowKind.UPDATE_BEFORE.value  # says nothing of the row that follows
    after_delete &= ~is_first | masks.is_new
    start = np.maximum.accumulate(np.where(is_first | after_delete, ordinal, 0))
    at = np.empty(changes.num_rows, dtype=np.int64)
    at[rows] = ordinal
    at = at[last]

    result = changes.take(pa.array(last))
    lacks = {}
    for name, field_id in field_ids.items():
        lacking = masks.lacks(field_id)
        if not lacking.any():
            continue
        known = np.maximum.accumulate(np.where(lacking | is_before, -1, ordinal))[at]
        is_known = known >= start[at]
        lacks[field_id] = ~is_known
        source = pa.array(rows[np.where(is_known, known, at)])
        place = result.schema.get_field_index(name)
        column = changes.column(name).take(source)
        result = result.set_column(place, result.schema.field(place), column)
    # A row that names what it carries lacks all else, unless an earlier one is known whole.
    named = np.maximum.accumulate(np.where(masks.carries | is_before, -1, ordinal))[at]
    texts = mask_texts(
        lacks,
        len(last),
        field_ids=list(field_ids.values()),
        carries=named < start[at],
        is_new=after_delete[start[at]],
    )
    place = result.schema.get_field_index(MISSING)
    return result.set_column(place, result.schema.field(place), texts)


def without_missing(rows: pa.Table, column: str, field_ids: Mapping[str, int]) -> pa.Table:
    """The rows, none of which lacks one column any more."""
    masks = RowMasks.parse(rows.column(MISSING))
    lacks = {i: masks.lacks(i) for name, i in field_ids.items() if name != column}
    texts = mask_texts(
        lacks,
        rows.num_rows,
        field_ids=list(field_ids.values()),
        carries=masks.carries,
        is_new=masks.is_new,
    )
    place = rows.schema.get_field_index(MISSING)
    return rows.set_column(place, rows.schema.field(place), texts)


def _key_numbers(key: list[pa.Array]) -> Int64s:
    numbers = np.zeros(len(key[0]), dtype=np.int64)
    for column in key:
        encoded = column.dictionary_encode()
        codes = np.asarray(encoded.indices).astype(np.int64)
        size = max(len(encoded.dictionary), 1)
        numbers = distinct_inverse(numbers * size + codes)[1]
    return numbers
