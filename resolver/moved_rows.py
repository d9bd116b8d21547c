"""Rows that staged snapshots delete by position, wherever the target has them by now.

A staged deletion vector or position delete file names rows of the staging view. Until it is
published, others rewrite the target's files (compaction, copy-on-write, rollback past one), or move
a row by an UPDATE. Such a delete is never dropped:

| the row's file, on the target | what dies |
|---|---|
| live, the row alive | the row |
| live, the row dead there; or the file is gone | what the target has of the row, see below |
| gone, and it cannot be read any more | nothing: the cycle is refused |

The row's key and `_row_id` are read from its old file, and the index says which rows of the target
have the key. Of those the one with the same `_row_id` dies: a rewrite keeps it (spec: Row Lineage);
if it is a staged row that others have brought, and was not staged before the delete, then the
delete has been brought as well. Where there is none, the rows die that have got their ids since the
target's snapshot that the staging branch stands on: by a rewrite that kept no ids, or newer rows,
since staged changes come after what is on the target. Otherwise the row is gone already.

A row of a data file that is staged in the same batch, and that others brought to the target, is
found there by its row id or has gone; no other row dies for it.

A vector repeats what the one that it replaced deletes; only what it adds is looked for.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np
from pyiceberg.table.snapshots import Snapshot
from pyroaring import BitMap64

from resolver.convert import DeadPositions
from resolver.cycle_input import CycleInput, StagedPositions
from resolver.index.base import Matches
from resolver.keys import EncodedKeys, KeySchema, encode_batch, factorize
from resolver.match import TARGET_ORDER, Bools, Int64s, group_by_file
from resolver.row_values import ColumnReader, live_matches
from resolver.staging import ancestors, base_of, committed_to, head_id
from resolver.target import LiveFiles, live_entries
from tableformat.catalog.base import TableState
from tableformat.commit.history import load_changes, snapshots_by_id, walk_back
from tableformat.environment import Environment
from tableformat.errors import NotFoundError, UnsupportedError
from tableformat.files.dv_file import read_deletion_vectors
from tableformat.files.manifest_store import load_manifest_list
from tableformat.scan.key_fields import key_schema
from tableformat.spec.data_file import DataFile, FileContent, ManifestEntry
from tableformat.spec.names import ROW_ID_FIELD_ID

NO_ROW_ID = -1
NO_NEWER_ROWS = np.iinfo(np.int64).max


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


def add_target_positions(
    environment: Environment,
    state: TableState,
    *,
    staging: str,
    target: str,
    live: LiveFiles,
    batch: CycleInput,
    moved: Mapping[str, DataFile],
    look_up: Callable[[EncodedKeys], Matches],
    dead: DeadPositions,
) -> None:
    """Add to `dead` what staged snapshots delete by position on the target.

    Args:
        environment: Where files are read: vectors, manifests of the staged snapshots, and the old
            files of rows that have moved.
        state: The table version.
        staging: The branch whose changes are resolved.
        target: The branch they are published to.
        live: The live files of the target.
        batch: The cycle's input.
        moved: Staged data files of the batch that were on the target and have left it, as they were
            there, or that it has with a deletion vector; deletes in them are looked for, too.
        look_up: The index at the head of the target.
        dead: Grows.

    Raises:
        CorruptDataError: A file is damaged.
        NotFoundError: An old file is gone, so its rows cannot be found again.
        UnsupportedError: What row ids a file had on the target is no longer known.
    """
    lost = list(_split(environment, batch, live, moved, dead))
    if not lost:
        return
    files = _files_of(environment, state, lost, live, staging=staging, target=target) | dict(moved)
    lost = [each for each in lost if each.path in files]
    free = [
        NO_NEWER_ROWS
        if each.path in moved
        else _free_row_id(state, each.staged.snapshot, staging, target)
        for each in lost
    ]
    rows = _read_rows(environment, state, lost, files, free)
    if not len(rows.keys):
        return
    numbers = factorize(rows.keys)
    [number] = numbers.numbers
    _, first = np.unique(number, return_index=True)
    matches = look_up(rows.keys.take(first))
    row_id = row_ids_of(environment, state, live, matches)
    alive = live_matches(environment, state.metadata, live, matches)
    order = _orders_of(environment, state, live, batch, moved, row_id)
    found = _same_rows(number, rows, matches, row_id, order, alive)
    for group in group_by_file(matches.file_id[found].astype(np.int64), matches.position[found]):
        dead.add(matches.files[group.file].file_path, group.positions)


def _orders_of(
    environment: Environment,
    state: TableState,
    live: LiveFiles,
    batch: CycleInput,
    moved: Mapping[str, DataFile],
    row_id: Int64s,
) -> Int64s:
    """The places in the order of rows of the target: of the batch's rows there, theirs."""
    here = {each.file.file_path: each.order for each in batch.files}
    files = dict(moved) | {path: live.data[path].data_file for path in here.keys() & live.data}
    order = np.full(len(row_id), TARGET_ORDER, dtype=np.int64)
    if not files:
        return order
    reader = ColumnReader(environment, state.metadata, (ROW_ID_FIELD_ID,))
    [column] = reader.flat(reader.read_files(list(files.values())))
    own = column.fill_null(NO_ROW_ID).to_numpy()
    places = [here[path] for path in files]
    own_order = np.repeat(places, [file.record_count for file in files.values()])
    ids, at = np.unique(own, return_inverse=True)
    newest = np.full(len(ids), TARGET_ORDER, dtype=np.int64)
    np.maximum.at(newest, at.reshape(-1), own_order)
    slot = np.minimum(np.searchsorted(ids, row_id), len(ids) - 1)
    return np.where((ids[slot] == row_id) & (row_id != NO_ROW_ID), newest[slot], order)


def row_ids_of(
    environment: Environment, state: TableState, live: LiveFiles, matches: Matches
) -> Int64s:
    """The `_row_id` of each match, shape `(matches,)`; `NO_ROW_ID` where the row has none."""
    ids = np.array(sorted(matches.files), dtype=np.int64)
    files = [live.data[matches.files[int(file_id)].file_path].data_file for file_id in ids]
    reader = ColumnReader(environment, state.metadata, (ROW_ID_FIELD_ID,))
    slot = np.searchsorted(ids, matches.file_id)
    [column] = reader.flat(reader.read_rows(files, slot, matches.position))
    found: Int64s = column.fill_null(NO_ROW_ID).to_numpy()
    return found


def _split(
    environment: Environment,
    batch: CycleInput,
    live: LiveFiles,
    moved: Mapping[str, DataFile],
    dead: DeadPositions,
) -> Iterator[StagedPositions]:
    """Add what dies where it is; give what has to be looked for."""
    for each in batch.target_positions:
        before = _deleted_before(environment, each)
        if before is None:
            _check_is_live(each, live)
            dead.add(each.path, each.positions)
            continue
        lost = each.positions - before
        if each.path in live.data:
            dead.add(each.path, lost)
            lost = lost & _read_vector(environment, live.dvs.get(each.path))
        if lost:
            yield StagedPositions(path=each.path, positions=lost, staged=each.staged)
    seen: dict[str, BitMap64] = defaultdict(BitMap64)
    for each in sorted(batch.own_positions, key=lambda own: own.staged.order):
        if each.path in moved:
            lost = each.positions - seen[each.path]  # a vector repeats what older ones delete
            seen[each.path] |= each.positions
            if each.path in live.data:
                lost = lost & _read_vector(environment, live.dvs.get(each.path))
            if lost:
                yield StagedPositions(path=each.path, positions=lost, staged=each.staged)


def _deleted_before(environment: Environment, each: StagedPositions) -> BitMap64 | None:
    """What the vector that it replaced deletes; None: not known any more."""
    if each.staged.replaced_dvs is None:
        return None
    try:
        return _read_vector(environment, each.staged.replaced_dvs.get(each.path))
    except NotFoundError:
        return None


def _check_is_live(each: StagedPositions, live: LiveFiles) -> None:
    if each.path not in live.data:
        raise UnsupportedError(
            "a vector on the staging branch names rows of a data file that has left the target, "
            "and what it deletes anew is not known without the vector that it replaced",
            location=each.path,
            action="roll the target back to before that file was rewritten, resolve, and rewrite "
            "again",
        )


def _read_vector(environment: Environment, entry: ManifestEntry | None) -> BitMap64:
    if entry is None:
        return BitMap64()
    [positions] = read_deletion_vectors(environment.store, [(entry.data_file, None)])
    return positions


def _files_of(
    environment: Environment,
    state: TableState,
    lost: Sequence[StagedPositions],
    live: LiveFiles,
    *,
    staging: str,
    target: str,
) -> dict[str, DataFile]:
    """The files of lost rows, with the row ids that they had on the target.

    A path that was not live in the staging view is left out: deletes of such a file say nothing.
    So is a staged one that never was on the target: it was left out, as all its rows had died.
    """
    known: dict[str, ManifestEntry] = {}
    here = {e.path: live.data[e.path].data_file for e in lost if e.path in live.data}
    for each in lost:
        if each.path not in known and each.path not in here:
            found = _entry_in(environment, each)
            known |= {} if found is None else {each.path: found}
    by_id = snapshots_by_id(state.metadata)

    def branch_of(entry: ManifestEntry) -> str | None:
        added_by = by_id.get(entry.snapshot_id or 0)
        return None if added_by is None else committed_to(added_by)

    on_target = {each.snapshot_id for each in ancestors(state.metadata, head_id(state, target))}
    moved = {path for path, entry in known.items() if entry.snapshot_id not in on_target}
    files = {path: entry.data_file for path, entry in known.items()}
    removed, never_there = _as_removed(
        environment, state, target, {path: known[path] for path in moved}
    )
    since = _staged_since_base(state, [each.staged.snapshot for each in lost], staging, target)
    left_out = {path for path in never_there if known[path].snapshot_id in since}
    files = {path: file for path, file in files.items() if path not in left_out}
    moved -= removed.keys() | left_out
    unknown = sorted(path for path in moved if branch_of(known[path]) == staging)
    if unknown:
        raise UnsupportedError(
            "a staged delete names rows of a staged data file that was published and rewritten: "
            "its row ids on the target are no longer known, that history has expired",
            table=state.name,
            location=unknown[0],
            action="delete these rows by their keys: stage(deletes=...), and take the position "
            "delete off the staging branch",
        )
    return files | removed | here


def _staged_since_base(
    state: TableState, staged: Iterable[Snapshot], staging: str, target: str
) -> frozenset[int]:
    """The staged snapshots that some stand on, and these, down to where staging left the target."""
    newest = max(staged, key=lambda each: each.sequence_number or 0)
    base = base_of(state, newest, staging=staging, target=target)
    chain = ancestors(state.metadata, newest.snapshot_id)
    return frozenset(each.snapshot_id for each in takewhile(lambda each: each != base, chain))


def _free_row_id(state: TableState, staged: Snapshot, staging: str, target: str) -> int:
    """The first row id that nobody had when staging left the target; 0 where that has expired."""
    base = base_of(state, staged, staging=staging, target=target)
    return 0 if base is None else (base.first_row_id or 0) + (base.added_rows or 0)


def _entry_in(environment: Environment, lost: StagedPositions) -> ManifestEntry | None:
    """A data file as the staged snapshot has it."""
    manifests = load_manifest_list(environment.store, lost.staged.snapshot)
    for entry in live_entries(environment.store, manifests):
        file = entry.data_file
        if file.content == FileContent.DATA and file.file_path == lost.path:
            return entry
    return None


def _as_removed(
    environment: Environment,
    state: TableState,
    target: str,
    wanted: Mapping[str, ManifestEntry],
) -> tuple[dict[str, DataFile], frozenset[str]]:
    """Files as they were on the target when it removed them; a publish gives new row ids.

    Returns:
        Those, and the paths that the target has never had.
    """
    found: dict[str, DataFile] = {}
    since = min((entry.sequence_number or 0 for entry in wanted.values()), default=0)
    head = state.head(target)
    chain = walk_back(snapshots_by_id(state.metadata), None if head is None else head.snapshot_id)
    reached = None if head is None else head.snapshot_id
    for snapshot in chain:
        if found.keys() == wanted.keys() or (snapshot.sequence_number or 0) <= since:
            reached = None
            break
        reached = snapshot.parent_snapshot_id
        for entry in load_changes(environment.store, snapshot).removed:
            path = entry.data_file.file_path
            if path in wanted and entry.data_file.content == FileContent.DATA:
                found.setdefault(path, entry.data_file)
    return found, frozenset() if reached is not None else frozenset(wanted.keys() - found.keys())


def _read_rows(
    environment: Environment,
    state: TableState,
    lost: Sequence[StagedPositions],
    files: Mapping[str, DataFile],
    free: Sequence[int],
) -> _LostRows:
    metadata = state.metadata
    key_ids = tuple(sorted(metadata.schema().identifier_field_ids))
    key = KeySchema.of(key_schema(metadata.schemas, key_ids), key_ids)
    counts = [len(each.positions) for each in lost]
    reader = ColumnReader(environment, metadata, (*key_ids, ROW_ID_FIELD_ID))
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
            table=state.name,
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
    parts = [np.fromiter(each, dtype=np.int64, count=len(each)) for each in bitmaps]
    return np.concatenate([np.empty(0, dtype=np.int64), *parts])


def _same_rows(
    number: Int64s,
    rows: _LostRows,
    matches: Matches,
    row_id: Int64s,
    order: Int64s,
    alive: Bools,
) -> Bools:
    """Which live matches are lost rows; `number`: of each one's key in the lookup."""
    count = len(number)
    pairs = np.stack([np.r_[number, matches.key_ordinal], np.r_[rows.row_id, row_id]], axis=1)
    _, pair = np.unique(pairs, axis=0, return_inverse=True)
    ours, theirs = pair.reshape(-1)[:count], pair.reshape(-1)[count:]
    deleted_at = np.full(int(pair.max(initial=-1)) + 1, TARGET_ORDER, dtype=np.int64)
    np.maximum.at(deleted_at, ours, rows.order)
    missing = ~np.isin(ours, theirs[alive])
    keys = int(number.max(initial=-1)) + 1
    given_out_later = np.full(keys, NO_NEWER_ROWS, dtype=np.int64)
    np.minimum.at(given_out_later, number[missing], rows.next_row_id[missing])
    lost_at = np.full(keys, TARGET_ORDER, dtype=np.int64)
    np.maximum.at(lost_at, number[missing], rows.order[missing])
    is_newer = row_id >= given_out_later[matches.key_ordinal]
    dead: Bools = order < deleted_at[theirs]
    return (dead | (is_newer & (order < lost_at[matches.key_ordinal]))) & alive
