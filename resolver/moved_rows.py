"""Rows that staged snapshots delete by position, wherever the target has them by now.

A staged deletion vector or position delete file names rows of the staging view. Until it is
published, others rewrite the target's files (compaction, copy-on-write, rollback past one), or move
a row by an UPDATE. Such a delete is never dropped:

| the row's file, on the target | what dies |
|---|---|
| live, the row alive | the row |
| live, the row dead there; or the file is gone | what the target has of the row, see below |
| the same, and the row was dead in the staging view | nothing, see `staged_view` |
| gone, and it cannot be read any more | nothing: the cycle is refused |
| gone in a history that has expired | the row of its key and staged id, else see `_check_gone` |

The row's key and `_row_id` are read from its old file, and the index says which rows of the target
have the key. Of those the one with the same `_row_id` dies: a rewrite keeps it (spec: Row Lineage);
if it is a staged row that others have brought, and was not staged before the delete, then the
delete has been brought as well. Where there is none, the rows die that have got their ids since the
target's snapshot that the staging branch stands on: by a rewrite that kept no ids, or newer rows,
since staged changes come after what is on the target. Otherwise the row is gone already.

A row of a data file that is staged in the same batch, and that others brought to the target, is
found there by its row id or has gone; no other row dies for it.

A vector repeats what the one that it replaced deletes, and position delete files of its data file;
only what it adds is looked for (`located_positions`). So with a position delete file that replaces
others. Where a row that it may have added would still have to die, the cycle is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from pyiceberg.table.snapshots import Snapshot
from pyroaring import BitMap64

from resolver.cursor import base_of, down_to_base
from resolver.cycle_figures import file_hash, hashes_of, is_publish, is_rewriting_publish
from resolver.cycle_input import CycleInput, StagedPositions
from resolver.index.base import Matches
from resolver.keys import EncodedKeys, KeySchema, encode_batch, factorize
from resolver.located_positions import PositionKills, locate_positions
from resolver.match import TARGET_ORDER, Bools, Int64s, group_by_file
from resolver.merge_deletes import DeadPositions
from resolver.repeated_batches import left_out
from resolver.rewritten_rows import (
    RewrittenFile,
    first_named,
    ids_as_rewritten,
    rewritten_files,
)
from resolver.row_identity import NO_ROW_ID
from resolver.row_values import ColumnReader, live_matches
from resolver.target import LiveFiles, live_files
from resolver.target_row_ids import row_ids_of
from resolver.target_view import TargetView
from tableformat.codec.puffin.deletion_vector import build_positions, position_array
from tableformat.commit.branch_history import (
    branch_history,
    branch_ids,
    committed_to,
    is_first,
    load_changes,
    snapshots_by_id,
)
from tableformat.errors import NotFoundError, UnsupportedError
from tableformat.scan.key_fields import current_key_schema
from tableformat.spec.data_file import DataFile, FileContent, ManifestEntry
from tableformat.spec.names import ROW_ID_FIELD_ID
from tableformat.spec.properties import publishing

NOT_KILLED = TARGET_ORDER
# What to say of rows that may have to die, and what to do.
REWRITTEN = (
    "a staged delete names rows of a staged data file that was published and rewritten: its row "
    "ids on the target are no longer known, that history has expired",
    "delete these rows by their keys: stage(deletes=...), and take the position delete off the "
    "staging branch",
)
UNKNOWN_VECTOR = (
    "a staged vector names rows that died on the target, whose keys have newer rows there: whether "
    "it deletes them anew is not known, the deletes that it replaced have expired",
    "delete the newer rows of these keys on the target, resolve, and insert again what is to stay",
)
ROLLED_BACK = (
    "a staged delete names rows of a data file that the target lost when it was rolled back, and "
    "which of the rows of these keys there are the same is not known: the file has other row ids",
    "delete these keys on the target and resolve; what is to stay of them, insert again",
)
NO_NEWER_ROWS = np.iinfo(np.int64).max
LookUp = Callable[[EncodedKeys], Matches]


@dataclass(frozen=True, slots=True, kw_only=True)
class _LostRows:
    """Rows that are looked for.

    Attributes:
        keys: Their keys.
        order: Shape `(rows,)`: the place in the order of the staged snapshot that deletes it.
        row_id, next_row_id: Shape `(rows,)`: the row's id; the first id that nobody had when the
            staging branch left the target.
    """

    keys: EncodedKeys
    order: Int64s
    row_id: Int64s
    next_row_id: Int64s

    def take(self, which: Bools) -> _LostRows:
        """Some of them."""
        return _LostRows(
            keys=self.keys.take(np.flatnonzero(which)),
            order=self.order[which],
            row_id=self.row_id[which],
            next_row_id=self.next_row_id[which],
        )


def add_target_positions(
    view: TargetView,
    batch: CycleInput,
    moved: Mapping[str, DataFile],
    look_up: LookUp,
    kills: PositionKills,
) -> None:
    """Add to `kills` what staged snapshots delete by position on the target.

    Args:
        view: The target. Vectors are read, manifests of the staged snapshots, and the old files of
            rows that have moved.
        batch: The cycle's input.
        moved: Staged data files of the batch that were on the target and have left it, as they were
            there, or that it has with a deletion vector; deletes in them are looked for, too.
        look_up: The index at the head of the target.
        kills: Grows.

    Raises:
        CorruptDataError: A file is damaged.
        NotFoundError: An old file is gone, so its rows cannot be found again.
        UnsupportedError: What row ids a file had on the target is no longer known.
    """
    located = locate_positions(view, batch, moved, kills)
    if located.lost:
        _add_lost_rows(view, batch, moved, located.lost, look_up, kills)
    _add_repeated_rows(view, batch, moved, located.repeated, look_up, kills)
    _check_doubtful_rows(view, located.doubtful, look_up, kills.dead)


def _add_lost_rows(
    view: TargetView,
    batch: CycleInput,
    moved: Mapping[str, DataFile],
    lost: Sequence[StagedPositions],
    look_up: LookUp,
    kills: PositionKills,
) -> None:
    ignored = left_out(view.state, batch.staged, target=view.target)
    files, untold, rewritten, left_behind = _files_of(view, lost, batch.paths, ignored)
    untold = {path: file for path, file in untold.items() if path not in moved}
    files |= dict(moved)

    snapshots = {each.staged.snapshot.snapshot_id: each.staged.snapshot for each in lost}
    free_by = {i: _free_row_id(view, each) for i, each in snapshots.items()}

    def rows_in(files: Mapping[str, DataFile]) -> _LostRows:
        there = [each for each in lost if each.path in files]
        free = [
            NO_NEWER_ROWS
            if each.path in moved or each.path in batch.paths
            else free_by[each.staged.snapshot.snapshot_id]
            for each in there
        ]
        return _read_rows(view, there, files, free)

    rows, gone = rows_in(files), None
    if rewritten:
        of_file = [each.path for each in lost if each.path in files for _ in each.positions]
        row_id = ids_as_rewritten(view, rows.keys, rows.row_id, of_file, rewritten)
        is_told = (row_id != NO_ROW_ID) | (rows.row_id == NO_ROW_ID)
        rows, gone = replace(rows, row_id=row_id).take(is_told), rows.take(~is_told)
    if len(rows.keys):
        _add_same_rows(view, batch, moved, rows, look_up, kills)
    if behind := {path: files[path] for path in left_behind - moved.keys()}:
        _check_left_behind(view, lost, rows_in(behind), look_up, kills.dead, min(behind))
    unsure = [(rows_in(untold), min(untold))] if untold else []
    if gone is not None and len(gone.keys):  # the publish did not bring them
        unsure.append((gone, min(rewritten)))
    for unsure_rows, location in unsure:
        is_here = _live_under_their_ids(view, unsure_rows, look_up)
        if is_here.any():
            _add_same_rows(view, batch, moved, unsure_rows.take(is_here), look_up, kills)
        since, rest = _staged_since_base(view, lost), unsure_rows.take(~is_here)
        _check_gone(view, since, rest, look_up, kills.dead, REWRITTEN, location)


def _add_same_rows(
    view: TargetView,
    batch: CycleInput,
    moved: Mapping[str, DataFile],
    rows: _LostRows,
    look_up: LookUp,
    kills: PositionKills,
    *,
    spares_staged: bool = False,
) -> None:
    kills.row_id = np.concatenate([kills.row_id, rows.row_id])
    kills.order = np.concatenate([kills.order, rows.order])
    number, matches, row_id, alive = _of_their_keys(view, rows, look_up)
    order = _orders_of(view, batch, moved, row_id)
    if spares_staged:
        alive &= order == TARGET_ORDER
    killed_at = _same_rows(number, rows, matches, row_id, order, alive)
    for at in np.unique(killed_at[killed_at != NOT_KILLED]).tolist():
        found = killed_at == at
        files = matches.file_id[found].astype(np.int64)
        for group in group_by_file(files, matches.position[found]):
            path = matches.files[group.file].file_path
            kills.add(path, build_positions(group.positions), at)


def _check_left_behind(
    view: TargetView,
    lost: Sequence[StagedPositions],
    rows: _LostRows,
    look_up: LookUp,
    dead: DeadPositions,
    location: str,
) -> None:
    """Refuse rows that the target may have under ids of which the file tells nothing."""
    gone = rows.take(~_live_under_their_ids(view, rows, look_up))
    gone = replace(gone, next_row_id=np.zeros_like(gone.next_row_id))
    _check_gone(view, _staged_since_base(view, lost), gone, look_up, dead, ROLLED_BACK, location)


def _live_under_their_ids(view: TargetView, rows: _LostRows, look_up: LookUp) -> Bools:
    """Which rows the target has under their key and the id that staging shows.

    Those are they, whatever has expired: no other row is ever given that id.
    """
    number, matches, row_id, alive = _of_their_keys(view, rows, look_up)
    ours, theirs = _same_numbers(number, rows, matches, row_id)
    is_here: Bools = np.isin(ours, theirs[alive]) & (rows.row_id != NO_ROW_ID)
    return is_here


def _of_their_keys(
    view: TargetView, rows: _LostRows, look_up: LookUp
) -> tuple[Int64s, Matches, Int64s, Bools]:
    """The number of each row's key; what the target has of these: matches, row ids, which live."""
    [number] = factorize(rows.keys).numbers
    _, first = np.unique(number, return_index=True)
    matches = look_up(rows.keys.take(first))
    alive = live_matches(view, matches)
    row_id = row_ids_of(view.environment, view.state, view.live, matches)
    return number, matches, row_id, alive


def _check_gone(
    view: TargetView,
    since: Collection[int],
    rows: _LostRows,
    look_up: LookUp,
    dead: DeadPositions,
    refusal: tuple[str, str],
    location: str,
) -> None:
    """Refuse rows of which it is not known whether or where they live, unless they must be gone.

    The rows of their keys that live, and do not die in this cycle, would have to be older than what
    staging stands on, or be in the file that they were staged in: those were never rewritten. Where
    a publish may have handed older ids on, only the latter.
    """
    number, matches, row_id, alive = _of_their_keys(view, rows, look_up)
    free = np.full(int(number.max(initial=-1)) + 1, NO_NEWER_ROWS, dtype=np.int64)
    np.minimum.at(free, number, rows.next_row_id)
    if _may_have_older_ids(view):
        free[:] = 0  # an id tells nothing of a row's age
    may_be = alive & ((row_id >= free[matches.key_ordinal]) | (row_id == NO_ROW_ID))
    by_id = snapshots_by_id(view.metadata)
    staged = {
        entry.data_file.file_path
        for each in since
        for entry in load_changes(view.environment.store, by_id[each]).added_data
    }
    for group in group_by_file(matches.file_id[may_be].astype(np.int64), matches.position[may_be]):
        path = matches.files[group.file].file_path
        dying = dead.by_path.get(path, BitMap64())
        if path not in staged and build_positions(group.positions) - dying:
            raise UnsupportedError(
                refusal[0],
                table=view.state.name,
                location=location,
                action=refusal[1],
            )


def _may_have_older_ids(view: TargetView) -> bool:
    """Whether a publish may have given staged rows the ids of the rows that they replaced."""
    history = list(branch_history(view.state, view.target))
    if any(is_rewriting_publish(each) for each in history):
        return True
    has_expired = bool(history) and not is_first(history[-1])
    return has_expired and publishing(view.metadata.properties) == "rewrite"


def _orders_of(
    view: TargetView, batch: CycleInput, moved: Mapping[str, DataFile], row_id: Int64s
) -> Int64s:
    """The places in the order of rows of the target: of the batch's rows there, theirs."""
    live = view.live
    here = {each.file.file_path: each.order for each in batch.files}
    files = dict(moved) | {path: live.data[path].data_file for path in here.keys() & live.data}
    order = np.full(len(row_id), TARGET_ORDER, dtype=np.int64)
    if not files:
        return order
    reader = ColumnReader(view.environment, view.metadata, (ROW_ID_FIELD_ID,))
    [column] = reader.flat(reader.read_files(list(files.values())))
    own = column.fill_null(NO_ROW_ID).to_numpy()
    places = [here[path] for path in files]
    own_order = np.repeat(places, [file.record_count for file in files.values()])
    ids, at = np.unique(own, return_inverse=True)
    newest = np.full(len(ids), TARGET_ORDER, dtype=np.int64)
    np.maximum.at(newest, at.reshape(-1), own_order)
    slot = np.minimum(np.searchsorted(ids, row_id), len(ids) - 1)
    return np.where((ids[slot] == row_id) & (row_id != NO_ROW_ID), newest[slot], order)


def _add_repeated_rows(
    view: TargetView,
    batch: CycleInput,
    moved: Mapping[str, DataFile],
    repeated: Sequence[StagedPositions],
    look_up: LookUp,
    kills: PositionKills,
) -> None:
    """Rows that others brought with a row id of these were staged after the row had died."""
    if there := [each for each in repeated if each.positions]:
        rows = _rows_where_they_are(view, there)
        _add_same_rows(view, batch, moved, rows, look_up, kills, spares_staged=True)


def _check_doubtful_rows(
    view: TargetView, doubtful: Sequence[StagedPositions], look_up: LookUp, dead: DeadPositions
) -> None:
    if there := [each for each in doubtful if each.positions]:
        rows, location = _rows_where_they_are(view, there), min(each.path for each in there)
        _check_gone(view, (), rows, look_up, dead, UNKNOWN_VECTOR, location)


def _rows_where_they_are(view: TargetView, there: Sequence[StagedPositions]) -> _LostRows:
    free = [_free_row_id(view, each.staged.snapshot) for each in there]
    return _read_rows(view, there, {e.path: view.live.data[e.path].data_file for e in there}, free)


def _files_of(
    view: TargetView,
    lost: Sequence[StagedPositions],
    staged: Collection[str],
    ignored: Collection[int],
) -> tuple[dict[str, DataFile], dict[str, DataFile], dict[str, RewrittenFile], set[str]]:
    """The files of lost rows, with the row ids that they had on the target; and as they are staged.

    A path that was not live in the staging view is left out: deletes of such a file say nothing.
    So is a staged one that never was on the target: all its rows had died, or its whole snapshot
    was left out, as one of `ignored`.
    Second are those that were on the target in a history that has expired, third those whose rows a
    publish has written into other files, last those that the target lost with the commit that added
    them: these two are among the first, with the ids that staging shows.
    """
    known: dict[str, ManifestEntry] = {}
    state, live = view.state, view.live
    here = {e.path: live.data[e.path].data_file for e in lost if e.path in live.data}
    views: dict[int, LiveFiles] = {}
    for each in lost:
        if each.path not in known and each.path not in here:
            snapshot = each.staged.snapshot
            if snapshot.snapshot_id not in views:
                views[snapshot.snapshot_id] = live_files(view.environment, snapshot)
            taken = {e.data_file.file_path: e for e in each.staged.removed}
            found = taken.get(each.path) or views[snapshot.snapshot_id].data.get(each.path)
            known |= {} if found is None else {each.path: found}
    by_id, on_target = snapshots_by_id(state.metadata), branch_ids(state, view.target)

    def is_lost(entry: ManifestEntry) -> bool:
        """A publish that the target has lost linked it; another one may have written it anew."""
        snapshot_id = entry.snapshot_id or 0
        return snapshot_id not in on_target and is_publish(by_id.get(snapshot_id))

    again = {path for path, entry in known.items() if path in staged or is_lost(entry)}
    known |= first_named(view, again | _covered_twice(view, known.keys() - again))

    def branch_of(entry: ManifestEntry) -> str | None:
        added_by = by_id.get(entry.snapshot_id or 0)
        return None if added_by is None else committed_to(added_by)

    moved = {path for path, entry in known.items() if entry.snapshot_id not in on_target}
    files = {path: entry.data_file for path, entry in known.items()}
    removed, never_there = _as_removed(view, {path: known[path] for path in moved})
    since = _staged_since_base(view, lost)
    moved -= removed.keys()
    never = {path for path in moved if known[path].snapshot_id in ignored}
    rewritten = rewritten_files(view, {path: known[path] for path in moved - never})
    moved -= rewritten.keys()
    never |= {path for path in never_there & moved if known[path].snapshot_id in since}
    files = {path: file for path, file in files.items() if path not in never}
    moved -= never
    untold = {path: files.pop(path) for path in moved if branch_of(known[path]) == view.staging}
    files |= removed | here
    return files, untold, rewritten, moved - untold.keys()


def _covered_twice(view: TargetView, paths: Collection[str]) -> frozenset[str]:
    """Data files that more than one publish may have covered: only the first wrote their rows."""
    history = branch_history(view.state, view.target)
    hashes = [hashes_of(each) for each in history if is_rewriting_publish(each)]
    if len(hashes) < 2:
        return frozenset()
    wanted = {path: file_hash(path) for path in paths}
    return frozenset(
        path
        for path, wanted_hash in wanted.items()
        if sum(known is None or wanted_hash in known for known in hashes) > 1
    )


def _staged_since_base(view: TargetView, lost: Iterable[StagedPositions]) -> frozenset[int]:
    """The staged snapshots of some deletes and those below, to where staging left the target."""
    staged = (each.staged.snapshot for each in lost)
    newest = max(staged, key=lambda each: each.sequence_number or 0)
    above, _ = down_to_base(view.state, newest, staging=view.staging, target=view.target)
    return frozenset(each.snapshot_id for each in above)


def _free_row_id(view: TargetView, staged: Snapshot) -> int:
    """The first row id that nobody had when staging left the target; 0 where that has expired."""
    base = base_of(view.state, staged, staging=view.staging, target=view.target)
    return 0 if base is None else (base.first_row_id or 0) + (base.added_rows or 0)


def _as_removed(
    view: TargetView, wanted: Mapping[str, ManifestEntry]
) -> tuple[dict[str, DataFile], frozenset[str]]:
    """Files as they were on the target when it removed them; a publish gives new row ids.

    Returns:
        Those, and the paths that the target has never had.
    """
    found: dict[str, DataFile] = {}
    since = min((entry.sequence_number or 0 for entry in wanted.values()), default=0)
    is_whole = True
    for snapshot in branch_history(view.state, view.target):
        if found.keys() == wanted.keys() or (snapshot.sequence_number or 0) <= since:
            return found, frozenset(wanted.keys() - found.keys())
        is_whole = is_first(snapshot)
        for entry in load_changes(view.environment.store, snapshot).removed:
            path = entry.data_file.file_path
            if path in wanted and entry.data_file.content == FileContent.DATA:
                found.setdefault(path, entry.data_file)
    return found, frozenset(wanted.keys() - found.keys() if is_whole else ())


def _read_rows(
    view: TargetView,
    lost: Sequence[StagedPositions],
    files: Mapping[str, DataFile],
    free: Sequence[int],
) -> _LostRows:
    metadata = view.metadata
    key_ids = tuple(sorted(metadata.schema().identifier_field_ids))
    key = KeySchema.of(current_key_schema(metadata, key_ids), key_ids)
    counts = [len(each.positions) for each in lost]
    reader = ColumnReader(view.environment, metadata, (*key_ids, ROW_ID_FIELD_ID))
    try:
        rows = reader.read_rows(
            [files[each.path] for each in lost],
            np.repeat(np.arange(len(lost), dtype=np.int64), counts),
            _flat(each.positions for each in lost),
        )
    except NotFoundError as error:
        raise NotFoundError(
            "a staged delete names rows of a data file that has left the target and is gone: "
            "which rows it means is not known",
            table=view.state.name,
            location=error.context.get("location"),
            action="restore the file, and run resolve again",
        ) from error
    row_id = reader.flat(rows)[-1].fill_null(NO_ROW_ID).to_numpy()
    next_row_id = np.array(free, dtype=np.int64)
    return _LostRows(
        keys=encode_batch(rows, key),
        order=np.repeat([each.staged.order for each in lost], counts),
        row_id=row_id,
        next_row_id=np.repeat(next_row_id, counts),
    )


def _flat(bitmaps: Iterable[BitMap64]) -> Int64s:
    return np.concatenate([np.empty(0, dtype=np.int64), *map(position_array, bitmaps)])


def _same_rows(
    number: Int64s,
    rows: _LostRows,
    matches: Matches,
    row_id: Int64s,
    order: Int64s,
    alive: Bools,
) -> Int64s:
    """The orders that live matches die at which are lost rows; `NOT_KILLED` for the others.

    `number`: of the key of each lost row in the lookup.
    """
    ours, theirs = _same_numbers(number, rows, matches, row_id)
    rows_named = int(max(ours.max(initial=-1), theirs.max(initial=-1))) + 1
    deleted_at = np.full(rows_named, TARGET_ORDER, dtype=np.int64)
    np.maximum.at(deleted_at, ours, rows.order)
    missing = ~np.isin(ours, theirs[alive])
    keys = int(number.max(initial=-1)) + 1
    given_out_later = np.full(keys, NO_NEWER_ROWS, dtype=np.int64)
    np.minimum.at(given_out_later, number[missing], rows.next_row_id[missing])
    lost_at = np.full(keys, TARGET_ORDER, dtype=np.int64)
    np.maximum.at(lost_at, number[missing], rows.order[missing])
    is_newer = row_id >= given_out_later[matches.key_ordinal]
    killed_at = np.maximum(deleted_at[theirs], np.where(is_newer, lost_at[matches.key_ordinal], 0))
    return np.where(alive & (order < killed_at), killed_at, NOT_KILLED)


def _same_numbers(
    number: Int64s, rows: _LostRows, matches: Matches, row_id: Int64s
) -> tuple[Int64s, Int64s]:
    """Numbers of lost rows and of matches; two have one if they have key and id in common."""
    pairs = np.stack([np.r_[number, matches.key_ordinal], np.r_[rows.row_id, row_id]], axis=1)
    _, pair = np.unique(pairs, axis=0, return_inverse=True)
    pair = pair.reshape(-1)
    return pair[: len(number)], pair[len(number) :]
