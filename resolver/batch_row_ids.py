"""The row ids that the rows of a batch get when they are written once more (`row_identity`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from pyroaring import BitMap64

from resolver.cycle_input import CycleInput, KeyedDeletes
from resolver.index.base import Matches
from resolver.keys import encode_batch, factorize
from resolver.located_positions import PositionKills
from resolver.match import TARGET_ORDER, Bools, Int64s
from resolver.resolution import MatchedBatch, match_scopes
from resolver.row_identity import (
    NEVER,
    NO_ROW_ID,
    KeyDeletes,
    Lives,
    first_after,
    first_deletes,
    kept_row_ids,
)
from resolver.row_values import ColumnReader, live_matches
from resolver.staged_on_target import StagedOnTarget, only
from resolver.target_row_ids import row_ids_of
from resolver.target_view import TargetView
from tableformat.codec.puffin.deletion_vector import position_array
from tableformat.codec.puffin.dv_file import read_deletion_vectors
from tableformat.integer_order import distinct_inverse, stable_order
from tableformat.spec.data_file import DataFile
from tableformat.spec.names import ROW_ID_FIELD_ID

NEVER_LIVED = -1
READ_ROWS = 1 << 20  # of staged files at a time
INHERITED = -(1 << 62)  # as a file's first row id: tells ids that it does not store

ToldIds = Sequence[tuple[int, Int64s]]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRowIds:
    """What the rows of a batch are on the target.

    Attributes:
        row_id: Shape `(staged rows,)`; of no meaning for rows that the target has already.
        rows: The rows of the target that have a key of the batch, then the staged rows.
        replaced: Where those of the target are.
        killed: Shape `(staged rows,)`: rows that a staged snapshot deletes by their position in a
            file of a publish that the target has lost; the rows are staged ones again.
    """

    row_id: Int64s
    killed: Bools
    rows: Lives
    replaced: Matches


def batch_row_ids(
    view: TargetView,
    known: StagedOnTarget,
    matched: MatchedBatch,
    kills: PositionKills,
    told: ToldIds,
    *,
    keeps_ids: bool,
    remembers: bool = True,
) -> BatchRowIds:
    """The row ids of a batch.

    Args:
        view: The target. Ids are read of its rows that staged rows replace (the stored column,
            where their file has it).
        known: Staged files that the target has, or had.
        matched: The batch, and rows of the target with a deleted key, without those of staged
            files.
        kills: What staged snapshots delete by position.
        told: See `told_row_ids`; of the whole batch.
        keeps_ids: A row keeps the id of the row that it replaces; else all have those that staging
            shows.
        remembers: As in `row_ids_of`.

    Raises:
        CorruptDataError: A file is damaged.
    """
    batch = matched.batch
    staged = _staged_lives(view, known, matched, told)
    matches, replaced = _replaced_lives(view, known, matched, kills, staged, remembers)
    size = len(replaced.key)
    deletes = KeyDeletes(
        key=matched.numbered.delete_number, order=batch.deletes.order, scope=batch.deletes.scope
    )
    rows = _together(replaced, staged)
    for each in batch.other_deletes:
        killed_at = _killed_by(view, batch, each, matches, rows)
        np.minimum(rows.killed_at, killed_at, out=rows.killed_at)

    def row_ids() -> Int64s:
        return (kept_row_ids(deletes, rows) if keeps_ids else rows.row_id)[size:]

    ids = row_ids()
    killed_at = _killed_again(ids, staged, kills)
    killed: Bools = killed_at != NEVER
    if killed.any():
        rows.killed_at[size:] = np.minimum(rows.killed_at[size:], killed_at)
        ids = row_ids()
    return BatchRowIds(row_id=ids, killed=killed, rows=rows, replaced=matches)


def _staged_lives(
    view: TargetView, known: StagedOnTarget, matched: MatchedBatch, told: ToldIds
) -> Lives:
    batch = matched.batch
    files = [each.file for each in batch.files]
    file, position = batch.rows.file, batch.rows.position
    row_id = np.full(len(file), NO_ROW_ID, dtype=np.int64)
    is_heir = np.ones(len(file), dtype=np.bool_)
    for ordinal, ids in told:
        rows = _rows_of(batch, ordinal)
        own_ids = ids[position[rows]]
        is_heir[rows] = own_ids < NO_ROW_ID
        row_id[rows] = np.maximum(own_ids, NO_ROW_ID)
    first = np.array([-1 if f.first_row_id is None else f.first_row_id for f in files], np.int64)
    own = is_heir & (first[file] >= 0)
    row_id[own] = first[file[own]] + position[own]
    killed_at = _killed_in_batch(batch)
    dead = _dead_on_target(view, view.live.find(batch.paths).keys())
    for ordinal, each in enumerate(files):
        rows = _rows_of(batch, ordinal)
        gone = dead.get(each.file_path)
        if gone is not None:
            killed_at[rows][position_array(gone)] = NEVER_LIVED
        if each.file_path in known.not_added:  # what the target has of them are matches
            killed_at[rows] = NEVER_LIVED
            is_heir[rows] = False
    return Lives(
        key=matched.numbered.row_number,
        order=batch.file_order[file],
        scope=batch.file_scope[file],
        row_id=row_id,
        killed_at=killed_at,
        is_heir=is_heir,
        spared=tuple(
            (np.arange(*_rows_of(batch, ordinal).indices(len(file))), each.again)
            for ordinal, each in enumerate(batch.files)
            if each.again
        ),
    )


def told_row_ids(view: TargetView, known: StagedOnTarget, batch: CycleInput) -> ToldIds:
    """The row ids that staged files bring, or have on the target; by ordinal, for all their rows.

    Below `NO_ROW_ID` where a file brings none. Files none of whose rows have any are left out.

    Raises:
        CorruptDataError: A file is damaged.

    Cost: each staged file is opened, by the view's runner.
    """
    here = view.live.find_whole(batch.paths)
    there = {path: entry.data_file for path, entry in here.items()} | dict(known.left)
    reader = ColumnReader(view.environment, view.metadata, (ROW_ID_FIELD_ID,), view.runner)
    return tuple(_told_ids(reader, [each.file for each in batch.files], there))


def _told_ids(
    reader: ColumnReader, files: Sequence[DataFile], there: Mapping[str, DataFile]
) -> Iterator[tuple[int, Int64s]]:
    told = [there.get(f.file_path, f.with_(first_row_id=INHERITED)) for f in files]
    rows = np.cumsum([file.record_count for file in told])
    cuts = np.flatnonzero(np.diff(rows // READ_ROWS)) + 1
    for group in np.split(np.arange(len(told)), cuts) if told else ():
        [column] = reader.flat(reader.read_files([told[ordinal] for ordinal in group]))
        ids: Int64s = column.fill_null(NO_ROW_ID).to_numpy()
        ends = np.cumsum([told[ordinal].record_count for ordinal in group])
        for ordinal, of_file in zip(group.tolist(), np.split(ids, ends[:-1]), strict=True):
            if (of_file >= NO_ROW_ID).any():
                yield ordinal, of_file


def _rows_of(batch: CycleInput, ordinal: int) -> slice:
    """The rows of a staged file: those of one follow those of the one before it."""
    first, last = np.searchsorted(batch.rows.file, [ordinal, ordinal + 1])
    return slice(int(first), int(last))


def _killed_in_batch(batch: CycleInput) -> Int64s:
    killed_at = np.full(len(batch.rows.file), NEVER, dtype=np.int64)
    ordinals = {each.file.file_path: at for at, each in enumerate(batch.files)}
    for each in batch.own_positions:
        rows = killed_at[_rows_of(batch, ordinals[each.path])]
        gone = position_array(each.positions)
        rows[gone] = np.minimum(rows[gone], each.staged.order)
    return killed_at


def _dead_on_target(view: TargetView, paths: Iterable[str]) -> dict[str, BitMap64]:
    dvs = view.live.find_dvs(tuple(paths))
    vectors = read_deletion_vectors(
        view.environment.store, [(each.data_file, None) for each in dvs.values()]
    )
    return dict(zip(dvs, vectors, strict=True))


def _replaced_lives(
    view: TargetView,
    known: StagedOnTarget,
    matched: MatchedBatch,
    kills: PositionKills,
    staged: Lives,
    remembers: bool,
) -> tuple[Matches, Lives]:
    """Rows of the target whose key a staged row has, too."""
    matches, number = matched.matches, matched.numbered.lookup_number
    matches = only(matches, np.isin(number[matches.key_ordinal], staged.key[staged.is_heir]))
    matches = only(matches, live_matches(view, matches))
    row_id = row_ids_of(view.environment, view.state, view.live, matches, remembers=remembers)
    order = np.full(len(matches), TARGET_ORDER, dtype=np.int64)
    if known.moved:
        order = _orders_by_id(row_id, staged)
    return matches, Lives(
        key=number[matches.key_ordinal],
        order=order,
        scope=match_scopes(matched.batch, matches),
        row_id=row_id,
        killed_at=_killed_on_target(matches, kills),
        is_heir=np.zeros(len(matches), dtype=np.bool_),
    )


def _orders_by_id(row_id: Int64s, staged: Lives) -> Int64s:
    """Rows of the target that are staged ones, which others have brought, have their order."""
    fixed = np.flatnonzero(~staged.is_heir & (staged.row_id != NO_ROW_ID))
    fixed = fixed[stable_order(staged.row_id[fixed])]
    if not len(fixed):
        return np.full(len(row_id), TARGET_ORDER, dtype=np.int64)
    slot = np.minimum(np.searchsorted(staged.row_id[fixed], row_id), len(fixed) - 1)
    is_staged = staged.row_id[fixed][slot] == row_id
    return np.where(is_staged, staged.order[fixed][slot], TARGET_ORDER)


def _killed_on_target(matches: Matches, kills: PositionKills) -> Int64s:
    killed_at = np.full(len(matches), NEVER, dtype=np.int64)
    ids: Mapping[str, int] = {file.file_path: i for i, file in matches.files.items()}
    for path, positions, order in kills.killed:
        rows = np.flatnonzero(matches.file_id == ids[path]) if path in ids else ()
        if len(rows):
            gone = np.isin(matches.position[rows], position_array(positions))
            killed_at[rows[gone]] = np.minimum(killed_at[rows[gone]], order)
    return killed_at


def _killed_by(
    view: TargetView, batch: CycleInput, deletes: KeyedDeletes, matches: Matches, rows: Lives
) -> Int64s:
    """The first commit that deletes each row by other columns than the key; `NEVER`.

    Shape `(rows of the target and of the batch,)`.
    """
    numbers = np.array(sorted(matches.files), dtype=np.int64)
    paths = [matches.files[int(number)].file_path for number in numbers]
    found = view.live.find(paths)
    files = [*(found[path].data_file for path in paths), *(each.file for each in batch.files)]
    file = np.r_[np.searchsorted(numbers, matches.file_id), len(numbers) + batch.rows.file]
    position = np.r_[matches.position, batch.rows.position]
    reader = ColumnReader(view.environment, view.metadata, deletes.key.field_ids, view.runner)
    keys = encode_batch(reader.read_rows(files, file, position), deletes.key)
    deleted, key = factorize(deletes.keys, keys).numbers
    by_key = KeyDeletes(key=deleted, order=deletes.order, scope=deletes.scope)
    return first_deletes(by_key, key, rows.order, rows.scope)


def _killed_again(ids: Int64s, staged: Lives, kills: PositionKills) -> Int64s:
    """The first commit that deletes each staged row where a publish that is lost had it; `NEVER`.

    Shape `(staged rows,)`.
    """
    known, number = distinct_inverse(kills.row_id)
    killed_at = np.full(len(ids), NEVER, dtype=np.int64)
    if len(known):
        slot = np.minimum(np.searchsorted(known, ids), len(known) - 1)
        rows = np.flatnonzero((known[slot] == ids) & (ids != NO_ROW_ID))
        killed_at[rows] = first_after(number, kills.order, slot[rows], staged.order[rows])
    return killed_at


def _together(first: Lives, second: Lives) -> Lives:
    size = len(first.key)
    names = ("key", "order", "scope", "row_id", "killed_at", "is_heir")
    joined = {name: np.concatenate([getattr(first, name), getattr(second, name)]) for name in names}
    spared = tuple((ordinals + size, orders) for ordinals, orders in second.spared)
    return replace(second, **joined, spared=spared)
