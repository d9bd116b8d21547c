"""Rows that left and rows that came, as changes: what is in both is no change, the rest is paired.

1. A row that left and came back equal in every column was only moved (compaction, copy-on-write):
   both are dropped, one against one.
2. What is left of a key on both sides is an update: -U and +U, neighbours in the result.
3. What is left of a key on one side only is a delete or an insert.

Rows are a multiset: a key that occurs several times is paired as often as it can be.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tableformat.cdc.rowkind import RowKind
from tableformat.changelog.value_codes import Codes, value_codes
from tableformat.integer_order import stable_order
from tableformat.spec.types import ROW_ID_FIELD

KIND = "\0kind"  # a name no table column can have: control characters are refused
KeyPath = tuple[str, ...]
Mask = NDArray[np.bool_]


def pair_rows(
    removed: pa.Table,
    added: pa.Table,
    *,
    key: Sequence[KeyPath],
    values: Sequence[str],
) -> pa.Table:
    """The changes between two sets of rows.

    Args:
        removed: Rows of the old version.
        added: Rows of the new version, with the same columns.
        key: Columns that tell which row is which, by path. NULL equals NULL; but a row without a
            `_row_id`, where that is the key, is never part of an update.
        values: Columns that are compared.

    Returns:
        Rows of both with the int8 column `KIND` (a `RowKind`) at the end: deletes, then updates,
        then inserts.
    """
    rows = pa.concat_tables([removed, added]).combine_chunks()
    count = removed.num_rows
    is_old = np.arange(rows.num_rows) < count
    keys = key_columns(rows, key)
    codes = value_codes(keys)
    known = np.ones(rows.num_rows, dtype=np.bool_)
    for column in keys if tuple(key) == ((ROW_ID_FIELD.name,),) else ():
        known &= column.is_valid().to_numpy(zero_copy_only=False)
    changed = ~_matched(value_codes([one_array(rows, name) for name in values]), is_old)
    updated = np.zeros(rows.num_rows, dtype=np.bool_)
    candidates = np.flatnonzero(changed & known)
    updated[candidates] = _matched(codes[candidates], is_old[candidates])
    deletes = np.flatnonzero(changed & ~updated & is_old)
    inserts = np.flatnonzero(changed & ~updated & ~is_old)
    updates = _interleaved(codes, np.flatnonzero(updated), count)
    order = np.concatenate([deletes, updates, inserts])
    kinds = np.concatenate(
        [
            np.full(deletes.size, RowKind.DELETE, np.int8),
            np.tile(
                np.array([RowKind.UPDATE_BEFORE, RowKind.UPDATE_AFTER], np.int8), updates.size // 2
            ),
            np.full(inserts.size, RowKind.INSERT, np.int8),
        ]
    )
    return rows.take(pa.array(order)).append_column(KIND, pa.array(kinds))


def key_columns(rows: pa.Table | pa.RecordBatch, key: Sequence[KeyPath]) -> list[pa.Array]:
    """The columns at some paths."""
    columns = []
    for first, *rest in key:
        column = one_array(rows, first)
        for name in rest:
            column = pc.struct_field(column, name)
        columns.append(column)
    return columns


def one_array(rows: pa.Table | pa.RecordBatch, name: str) -> pa.Array:
    """A column in one piece."""
    column = rows.column(name)
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _matched(codes: Codes, is_old: Mask) -> Mask:
    """Rows that have a partner of the same code on the other side, one against one."""
    ranks = np.empty(codes.size, np.int64)
    for side in (is_old, ~is_old):
        rows = np.flatnonzero(side)
        ranks[rows] = _ranks(codes[rows])
    occurrences = value_codes([pa.array(codes), pa.array(ranks)])
    size = int(occurrences.max()) + 1 if occurrences.size else 0
    on_old = np.zeros(size, np.bool_)
    on_new = np.zeros(size, np.bool_)
    on_old[occurrences[is_old]] = True
    on_new[occurrences[~is_old]] = True
    found: Mask = (on_old & on_new)[occurrences]
    return found


def _ranks(codes: Codes) -> Codes:
    """How many earlier rows have the row's code."""
    order = stable_order(codes)
    ordered = codes[order]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    lengths = np.diff(np.append(starts, ordered.size))
    ranks = np.empty(codes.size, np.int64)
    ranks[order] = np.arange(ordered.size) - np.repeat(starts, lengths)
    return ranks


def _interleaved(codes: Codes, rows: Codes, count: int) -> Codes:
    """Rows below `count` and their partners in turns; each key has as many of either."""
    old, new = rows[rows < count], rows[rows >= count]
    order = np.empty(rows.size, np.int64)
    order[0::2] = old[stable_order(codes[old])]
    order[1::2] = new[stable_order(codes[new])]
    return order
