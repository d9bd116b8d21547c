"""Where the missing columns of staged rows come from. Pure NumPy.

A row that lacks columns (`tableformat.spec.missing_columns`) has them from the row of its key as of
just before it: the newest older one, if no delete came between. That may be an earlier row of the
batch, which may lack the column, too; then the way goes on from there. So every column has a chain
of its own, which ends at a row that has it.

    older      by arrival (docs/design/0007), or by the table's sequence column and then arrival
    between    a delete that reaches the older row, after it and before the row itself; the delete
               of the row's own commit is the other half of the upsert

Of several rows of one key and order the one with the greatest row id is the newest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from resolver.match import Bools, Int64s
from resolver.row_identity import KeyDeletes, Lives, first_deaths, roots

NOWHERE = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Versions:
    """Orders by the sequence column and then arrival, comparable with each other.

    Attributes:
        rows: Shape `(rows,)`.
        deletes: Shape `(deletes,)`.
        is_known: Shape `(deletes,)`: which deletes have one; the others go by arrival.
    """

    rows: Int64s
    deletes: Int64s
    is_known: Bools

    @classmethod
    def by_arrival(cls, rows: Lives, deletes: KeyDeletes) -> Versions:
        """Of a table without a sequence column."""
        known = np.zeros(len(deletes.key), dtype=np.bool_)
        return cls(rows=rows.order, deletes=deletes.order, is_known=known)


def previous_rows(
    rows: Lives, deletes: KeyDeletes, wanted: Int64s, versions: Versions | None = None
) -> Int64s:
    """The row that each row replaces.

    Args:
        rows: All rows.
        deletes: The deletes by key.
        wanted: Shape `(n,)`: ordinals of rows.
        versions: Where the table has a sequence column.

    Returns:
        Shape `(n,)`: ordinals of rows; `NOWHERE` for a row that is new.
    """
    versions = versions or Versions.by_arrival(rows, deletes)
    size = len(rows.key)
    dense = np.unique(np.concatenate([versions.rows, versions.deletes]), return_inverse=True)[1]
    order, delete_order = dense[:size], dense[size:]
    known = versions.is_known
    died = first_deaths(deletes.take(known), rows, (delete_order[known], order))
    died_by_arrival = first_deaths(deletes.take(~known), rows)

    by_order = np.lexsort((rows.row_id, order, rows.key))
    steps = len(dense) + 1
    pair = rows.key * steps + order
    slot = np.searchsorted(pair[by_order], pair[wanted]) - 1
    arrival = rows.order[wanted]
    while True:
        found = by_order[np.maximum(slot, 0)]
        is_older = (slot >= 0) & (rows.key[found] == rows.key[wanted])
        # What another delete took says nothing of the rows before it.
        killed = is_older & (rows.killed_at[found] <= arrival)
        if not killed.any():
            break
        slot[killed] -= 1
    lived = is_older & (died[found] >= order[wanted]) & (died_by_arrival[found] >= arrival)
    return np.where(lived, found, NOWHERE)


def column_sources(
    partial: Int64s, previous: Int64s, lacks: Mapping[int, Bools], count: int
) -> dict[int, Int64s]:
    """The rows that have the missing columns.

    Args:
        partial: Shape `(n,)`: the rows that lack columns, as ordinals.
        previous: Shape `(n,)`: the row that each replaces; `NOWHERE`.
        lacks: By field id, shapes `(n,)`: which of them lack the column.
        count: How many rows there are.

    Returns:
        By field id, shapes `(n,)`: the row that has the column, `NOWHERE` where there is none; of
        no meaning for rows that do not lack it.
    """
    place = np.full(count + 1, NOWHERE, dtype=np.int64)
    place[partial] = np.arange(len(partial), dtype=np.int64)
    before = place[previous]  # of row NOWHERE: the one more
    own = np.arange(len(partial), dtype=np.int64)
    found: dict[int, Int64s] = {}
    for field_id, lacking in lacks.items():
        goes_on = lacking & (before != NOWHERE) & lacking[before]
        found[field_id] = previous[roots(np.where(goes_on, before, own))]
    return found
