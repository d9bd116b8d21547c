"""One row per key: what a batch of changes comes down to, as rows to write and keys to delete.

Changes of a key are ordered by the explicit sequence if the format has one, else by arrival; equal
sequences by arrival. The last one decides (R07, R08): it leaves a row, or none. Every key touched
is deleted by one equality delete, which reaches older commits only, so that a batch is one commit
of rows and deletes that never meet (spec: an equality delete applies to strictly older data).

-U counts as a delete: if its +U follows in the same batch the row is there again, and if the +U has
another key the old row is gone, as it must be.

Changes up to the last truncate mean nothing any more: what they leave goes with all other rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tableformat.cdc.events import KIND, ORDINAL
from tableformat.cdc.message_keys import storage
from tableformat.cdc.missing_values import filled_last, lacks_values
from tableformat.cdc.rowkind import TRUNCATE, RowKind, adding

ROW = "_row"  # beside key columns that are called k0, k1, ...


@dataclass(frozen=True, slots=True)
class ReducedChanges:
    """Change rows that matter.

    Attributes:
        last: For every key its last change, all columns of the changes.
        upserts: Mask over `last`: the key has a row afterwards.
        deletes: Mask over `last`: an older row of the key may exist and must go.
        truncate: The last truncate, or nothing; all of `last` came after it.
    """

    last: pa.Table
    upserts: npt.NDArray[np.bool_]
    deletes: npt.NDArray[np.bool_]
    truncate: pa.Table

    def rows(self, columns: Sequence[str]) -> pa.Table:
        """The surviving rows."""
        return self.last.select(list(columns)).filter(pa.array(self.upserts))

    def keys(self, columns: Sequence[str]) -> pa.Table:
        """The keys to delete, with other columns that place the delete."""
        return self.last.select(list(columns)).filter(pa.array(self.deletes))


def reduce_changes(
    changes: pa.Table,
    *,
    key: Sequence[str],
    order: Sequence[str],
    assume_new_keys: bool = False,
    field_ids: Mapping[str, int] | None = None,
    keeps_deleted: bool = False,
) -> ReducedChanges:
    """Keep the last change of each key.

    Args:
        changes: Change rows (see `events`), key columns without nulls but for truncates.
        key: Key columns.
        order: Columns that order changes before `_ordinal` does; a null is oldest.
        assume_new_keys: An insert says that its key was not in the table before: if it is the
            first change of its key here, nothing needs to be deleted.
        field_ids: Of the table's columns by name, for changes that leave some out.
        keeps_deleted: Deleted rows stay (soft deletes).

    Cost: one sort if there is an order, one hash aggregation; a few bytes per change besides.
    """
    changes = changes.combine_chunks()
    indices, truncate = _after_truncate(changes, _sorted(changes, order))
    columns = [storage(changes.column(name).combine_chunks()) for name in key]
    if indices is not None:
        columns = [column.take(indices) for column in columns]
    rows = pa.array(np.arange(changes.num_rows)) if indices is None else indices.cast(pa.int64())
    names = [f"k{number}" for number in range(len(columns))]
    groups = (
        pa.table([*columns, rows], names=[*names, ROW])
        .group_by(names, use_threads=False)  # first and last are by order of appearance
        .aggregate([(ROW, "last"), (ROW, "first")])
    )
    places = groups.column(f"{ROW}_last").combine_chunks()
    if lacks_values(changes):
        last = filled_last(
            changes,
            columns,
            rows.to_numpy(),
            places.to_numpy(),
            field_ids=field_ids or {},
            keeps_deleted=keeps_deleted,
        )
    else:
        last = changes.take(places)
    upserts = adding(last.column(KIND).combine_chunks())
    deletes = np.ones(last.num_rows, np.bool_)
    if assume_new_keys:
        first = changes.select([KIND]).take(groups.column(f"{ROW}_first").combine_chunks())
        deletes = first.column(KIND).to_numpy() != RowKind.INSERT.value
    return ReducedChanges(last=last, upserts=upserts, deletes=deletes, truncate=truncate)


def is_truncate(changes: pa.Table) -> npt.NDArray[np.bool_]:
    """Which change rows are truncates."""
    mask: npt.NDArray[np.bool_] = changes.column(KIND).to_numpy() == TRUNCATE
    return mask


def _after_truncate(
    changes: pa.Table, indices: pa.Array | None
) -> tuple[pa.Array | None, pa.Table]:
    """The row numbers after the last truncate in change order, and that truncate."""
    found = is_truncate(changes)
    if not found.any():
        return indices, changes.slice(0, 0)
    ordered = np.arange(len(found)) if indices is None else indices.to_numpy()
    at = int(np.flatnonzero(found[ordered])[-1])
    return pa.array(ordered[at + 1 :]), changes.take(pa.array(ordered[at : at + 1]))


def _sorted(changes: pa.Table, order: Sequence[str]) -> pa.Array | None:
    """Row numbers in change order; None if the rows are in it already."""
    if not order:
        ordinals = changes.column(ORDINAL).to_numpy()
        if bool(np.all(ordinals[1:] >= ordinals[:-1])):
            return None
    columns: dict[str, pa.ChunkedArray] = {}
    for name in (*order, ORDINAL):
        column = changes.column(name)
        if column.null_count:  # False sorts before True, so that a null is oldest
            columns[f"{name}_is_valid"] = column.is_valid()
        columns[name] = column
    return pc.sort_indices(pa.table(columns), sort_keys=[(name, "ascending") for name in columns])
