"""What a table declares about the versions of a row: out-of-order guard and IMMUTABLE columns.

With a sequence column, "later" means a greater sequence, and arrival only among equal ones. So the
order of a row or a delete is the pair (sequence, staged ordinal) in place of the ordinal, and the
comparison is the same as always (`match`): a row dies iff a later delete reaches it. In addition a
staged row dies if the target has a later row of its key: that row's delete was resolved long ago.

| sequence | of a row | of an equality delete |
|---|---|---|
| a value | as it is | as it is |
| none | the oldest | that of the row of its key in the same commit; without one: arrival decides |

Hard deletes leave no row to compare with: a delete guards against older changes in its own cycle
only. Rows that were soft-deleted are rows, and guard for ever.

In place (staging is the target) the spec's sequence numbers decide alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.table.metadata import TableMetadata

from resolver.column_sources import Versions
from resolver.cycle_input import CycleInput
from resolver.match import (
    NEVER_DELETED,
    TARGET_ORDER,
    Bools,
    Int64s,
    NewestDeletes,
    dead_rows,
    newest_deletes,
)
from resolver.resolution import (
    DeadRows,
    MatchedBatch,
    NumberedKeys,
    dead_by_position,
    match_scopes,
)
from resolver.row_values import ColumnReader, live_matches
from resolver.target_view import TargetView
from tableformat.integer_order import pair_order
from tableformat.spec.constraints import immutable_columns, sequence_field_id

UNSEQUENCED = 0  # ranks of real sequences start at 1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sequences:
    """Ranks of the sequences of one cycle, over all that is compared; 0 without a value.

    Attributes:
        deletes, rows, matches: Shapes `(deletes,)`, `(staged rows,)`, `(matches,)`.
    """

    deletes: Int64s
    rows: Int64s
    matches: Int64s


def compares_versions(metadata: TableMetadata) -> bool:
    """Whether the rows of a cycle are compared with the rows of the target, not only their keys."""
    constraint = immutable_columns(metadata)
    is_enforced = constraint is not None and constraint.enforced
    return is_enforced or sequence_field_id(metadata) is not None


def guarded_dead_rows(view: TargetView, matched: MatchedBatch) -> DeadRows | None:
    """Which rows die by the table's sequence column; None for a table without one.

    The column is read of all staged rows and deletes, and of those rows of the target that have one
    of their keys.

    Raises:
        CorruptDataError: A file is damaged.
    """
    sequences = _read_sequences(view, matched)
    if sequences is None:
        return None
    alive = live_matches(view, matched.matches, is_in_place=not matched.batch.staged)
    return _judge(matched, sequences, alive)


def read_versions(view: TargetView, matched: MatchedBatch) -> Versions | None:
    """The versions of some rows of the target, then of the batch; see `guarded_dead_rows`."""
    sequences = _read_sequences(view, matched)
    if sequences is None:
        return None
    batch = matched.batch
    order, steps = _arrival(batch)
    deletes, known = _delete_sequences(batch, matched.numbered, sequences, order, steps)
    on_target = sequences.matches * steps + TARGET_ORDER
    return Versions(
        rows=np.concatenate([on_target, sequences.rows * steps + order]),
        deletes=deletes * steps + batch.deletes.order,
        is_known=known,
    )


def _arrival(batch: CycleInput) -> tuple[Int64s, int]:
    """The order of each staged row by arrival, and how many such orders there are."""
    order = batch.file_order[batch.rows.file]
    newest = max(int(order.max(initial=0)), int(batch.deletes.order.max(initial=0)))
    return order, 1 + max(newest, TARGET_ORDER)


def _read_sequences(view: TargetView, matched: MatchedBatch) -> _Sequences | None:
    """None: the table declares no sequence."""
    field_id = sequence_field_id(view.metadata)
    if field_id is None:
        return None
    reader = ColumnReader(view.environment, view.metadata, (field_id,), view.runner)
    batch, matches = matched.batch, matched.matches
    ids = np.array(sorted(matches.files), dtype=np.int64)
    paths = [matches.files[int(file_id)].file_path for file_id in ids]
    found = view.live.find(paths)
    parts = [
        reader.read_files(batch.deletes.files, defaults=False),
        reader.read_files([each.file for each in batch.files]),
        reader.read_rows(
            [found[path].data_file for path in paths],
            np.searchsorted(ids, matches.file_id),
            matches.position,
        ),
    ]
    columns = [reader.flat(part)[0] for part in parts]
    ranks = _ranks(pa.concat_arrays(columns))
    deletes, rows, targets = np.split(ranks, np.cumsum([len(column) for column in columns])[:-1])
    return _Sequences(deletes=deletes, rows=rows, matches=targets)


def _ranks(values: pa.Array) -> Int64s:
    """Dense ranks from 1; `UNSEQUENCED` for null."""
    ranks = pc.rank(values, tiebreaker="dense").to_numpy().astype(np.int64)
    valid = values.is_valid().to_numpy(zero_copy_only=False)
    return np.where(valid, ranks, UNSEQUENCED)


def _judge(matched: MatchedBatch, sequences: _Sequences, alive: Bools) -> DeadRows:
    batch, numbered, matches = matched.batch, matched.numbered, matched.matches
    (row_order, steps), row_scope = _arrival(batch), batch.file_scope[batch.rows.file]
    delete_sequence, known = _delete_sequences(batch, numbered, sequences, row_order, steps)
    by_sequence = _newest(batch, numbered, delete_sequence * steps + batch.deletes.order, known)
    by_arrival = _newest(batch, numbered, batch.deletes.order, ~known)

    match_key = numbered.lookup_number[matches.key_ordinal]
    scope = match_scopes(batch, matches)
    match_order = sequences.matches * steps + TARGET_ORDER
    arrival = np.full(len(matches), TARGET_ORDER, dtype=np.int64)
    replaced = dead_rows(by_arrival, key=match_key, order=arrival, scope=scope)
    dead_matches = replaced | dead_rows(by_sequence, key=match_key, order=match_order, scope=scope)

    newest_on_target = np.full(len(numbered.newest.global_order), NEVER_DELETED, dtype=np.int64)
    compared = alive & ~replaced
    np.maximum.at(newest_on_target, match_key[compared], match_order[compared])
    order = sequences.rows * steps + row_order
    outdated = order < newest_on_target[numbered.row_number]
    dead_in_batch = (
        dead_rows(by_sequence, key=numbered.row_number, order=order, scope=row_scope)
        | dead_rows(by_arrival, key=numbered.row_number, order=row_order, scope=row_scope)
        | outdated
    )
    return DeadRows(
        matches=dead_matches, staged=dead_in_batch, outdated=int(np.count_nonzero(outdated))
    )


def _delete_sequences(
    batch: CycleInput,
    numbered: NumberedKeys,
    sequences: _Sequences,
    row_order: Int64s,
    steps: int,
) -> tuple[Int64s, Bools]:
    """The sequence of every delete, and which have one.

    A delete without a value belongs to the row of its key in the same commit, if there is one: it
    is one half of an upsert.
    """
    known = sequences.deletes != UNSEQUENCED
    if known.all():
        return sequences.deletes, known
    stays = ~dead_by_position(batch)
    row_pair = (numbered.row_number * steps + row_order)[stays]
    by_pair = pair_order(row_pair, sequences.rows[stays])
    pairs, newest = row_pair[by_pair], sequences.rows[stays][by_pair]
    pair = numbered.delete_number * steps + batch.deletes.order
    slot = np.searchsorted(pairs, pair, side="right") - 1
    found = np.zeros(len(pair), dtype=np.bool_)
    if len(pairs):
        found = (slot >= 0) & (pairs[slot] == pair)
    adopted = ~known & found
    sequence = sequences.deletes.copy()
    sequence[adopted] = newest[slot[adopted]]
    return sequence, known | adopted


def _newest(
    batch: CycleInput, numbered: NumberedKeys, order: Int64s, which: Bools
) -> NewestDeletes:
    return newest_deletes(
        key=numbered.delete_number[which],
        order=order[which],
        scope=batch.deletes.scope[which],
        key_count=len(numbered.newest.global_order),
        scope_count=len(batch.scopes),
    )
