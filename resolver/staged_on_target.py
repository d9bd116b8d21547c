"""Staged data files that are on the target already.

A cherry-pick of a staged snapshot, a tool that adds its files, a writer that commits a file once
more after it was published: the file would be listed, and its rows counted, twice. So

* a staged file that is live on the target is not added again. Its rows there are staged rows: they
  keep the place in the order that their staged snapshot has, and what the target has deleted of
  them stays deleted. So are rows that the target has moved out of it by an UPDATE: they have kept
  their row ids;
* one that has been on the target since it was staged and has left it again is not added either.
  Its rows are where a rewrite took them, told by the row ids that they got on the target;
* one that a publish brought there is named a second time: its place is that of the first time, and
  only the deletes that come with the second do not reach its rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from pyiceberg.table.snapshots import Snapshot
from pyroaring import BitMap64

from resolver.cycle_figures import STAGED_COMMITS
from resolver.cycle_input import CycleInput
from resolver.index.base import Matches
from resolver.match import TARGET_ORDER, Int64s
from resolver.moved_rows import NO_ROW_ID, dead_positions_on_target, row_ids_of
from resolver.resolution import DeadRows, NumberedKeys
from resolver.row_values import ColumnReader
from resolver.target import LiveFiles
from tableformat.catalog.base import TableState
from tableformat.commit.cherry_pick import SOURCE_SNAPSHOT_ID
from tableformat.commit.history import load_changes, snapshots_by_id, walk_back
from tableformat.environment import Environment
from tableformat.errors import UnsupportedError
from tableformat.spec.data_file import DataFile
from tableformat.spec.names import COMMITTED_TO, ROW_ID_FIELD_ID

NO_ROW = -1
_NONE: Int64s = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedOnTarget:
    """Staged data files that the target has, or had.

    Attributes:
        left: Those that are not live there any more, by path, as they were there: with the row ids
            that they had.
        published: Paths of those, live or not, that a publish brought.
    """

    left: Mapping[str, DataFile]
    published: frozenset[str]

    def placed(self, batch: CycleInput) -> CycleInput:
        """The batch, with files that were published before in the place of the target's."""
        if not self.published:
            return batch
        files = [
            replace(each, order=TARGET_ORDER, again=(each.order, *each.again))
            if each.file.file_path in self.published
            else each
            for each in batch.files
        ]
        return replace(batch, files=tuple(files))


def staged_on_target(
    environment: Environment, state: TableState, *, target: str, live: LiveFiles, batch: CycleInput
) -> StagedOnTarget:
    """Look for the batch's data files on the target.

    Cost: the manifests written by those snapshots since the oldest staged one which may have
    brought staged files; commits of icefold that cannot are not read.
    """
    by_id, head = snapshots_by_id(state.metadata), state.head(target)
    staged_at = {each.file.file_path: each.sequence_number for each in batch.files}
    published: set[str] = set()
    for path in staged_at.keys() & live.data.keys():
        entry = live.data[path]
        if (entry.sequence_number or 0) <= staged_at[path] or _is_publish(
            by_id.get(entry.snapshot_id or 0)
        ):
            published.add(path)
    left: dict[str, DataFile] = {}
    wanted = staged_at.keys() - live.data.keys()
    oldest = min((staged_at[path] for path in wanted), default=0)
    for snapshot in walk_back(by_id, head.snapshot_id) if wanted and head is not None else ():
        if (snapshot.sequence_number or 0) <= oldest:
            break
        if not _may_bring_staged_files(snapshot, target):
            continue
        for entry in load_changes(environment.store, snapshot).added_data:
            path = entry.data_file.file_path
            if path in wanted and path not in left:
                left[path] = entry.data_file
                published |= {path} if _is_publish(snapshot) else set()
    return StagedOnTarget(left=left, published=frozenset(published))


def _is_publish(snapshot: Snapshot | None) -> bool:
    summary = _summary(snapshot)
    return STAGED_COMMITS in summary and SOURCE_SNAPSHOT_ID not in summary


def _may_bring_staged_files(snapshot: Snapshot, target: str) -> bool:
    summary = _summary(snapshot)
    is_own = summary.get(COMMITTED_TO) == target
    return not is_own or SOURCE_SNAPSHOT_ID in summary or STAGED_COMMITS in summary


def _summary(snapshot: Snapshot | None) -> Mapping[str, str]:
    if snapshot is None or snapshot.summary is None:
        return {}
    return snapshot.summary.additional_properties


def without_staged_rows(matches: Matches, batch: CycleInput) -> Matches:
    """The rows of the target that are no rows of the batch."""
    paths = batch.paths
    staged = [file_id for file_id, file in matches.files.items() if file.file_path in paths]
    if not staged:
        return matches
    keep = ~np.isin(matches.file_id, staged)
    return Matches(
        key_ordinal=matches.key_ordinal[keep],
        file_id=matches.file_id[keep],
        position=matches.position[keep],
        files={i: file for i, file in matches.files.items() if i not in staged},
    )


def judge_moved_rows(
    environment: Environment,
    state: TableState,
    *,
    live: LiveFiles,
    batch: CycleInput,
    left: Mapping[str, DataFile],
    numbered: NumberedKeys,
    matches: Matches,
    judged: DeadRows,
) -> DeadRows:
    """Let rows of the target that are staged rows, moved to another file, die as these do.

    Args:
        environment: Where row ids are read.
        state: The table version.
        live: The live files of the target.
        batch: The cycle's input.
        left: See `StagedOnTarget`.
        numbered: The batch's keys.
        matches: Rows of the target with a deleted key.
        judged: Which rows die if all matches are older than the batch.

    Raises:
        UnsupportedError: A staged row lives, and which row of the target it is cannot be told: a
            rewrite did not keep row ids.
    """
    changed = dead_positions_on_target(environment, batch, live)
    if not (left or changed) or not len(matches):
        return judged
    row, row_id = _staged_rows(environment, state, batch, left, dict.fromkeys(left))
    rows_left, first_left = len(row), row_id.min(initial=np.iinfo(np.int64).max)
    here = {path: live.data[path].data_file for path in changed}
    more, more_id = _staged_rows(environment, state, batch, here, changed)
    row, row_id = np.concatenate([row, more]), np.concatenate([row_id, more_id])
    found_id = row_ids_of(environment, state, live, matches)
    at = _find(row_id, found_id)
    is_staged = at != NO_ROW
    dead = judged.matches.copy()
    dead[is_staged] = judged.staged[row[at[is_staged]]]
    unseen = ~np.isin(np.arange(len(row)), at) & ~judged.staged[row]
    unseen[rows_left:] = (
        False  # the file is live: no rewrite has taken their ids, they were deleted
    )
    number = numbered.lookup_number[matches.key_ordinal]
    unsure = dead & ~is_staged & (found_id >= first_left)
    unsure &= np.isin(number, numbered.row_number[row[unseen]])
    if unsure.any():
        raise UnsupportedError(
            "staged rows are on the target already, in a file that was rewritten without their "
            "row ids: which rows they are cannot be told",
            table=state.name,
            location=min(left),
            rows=int(np.count_nonzero(unsure)),
            action="roll the target back to before that rewrite, resolve, and rewrite again",
        )
    return DeadRows(matches=dead, staged=judged.staged, outdated=judged.outdated)


def _staged_rows(
    environment: Environment,
    state: TableState,
    batch: CycleInput,
    files: Mapping[str, DataFile],
    positions: Mapping[str, BitMap64 | None],
) -> tuple[Int64s, Int64s]:
    """The batch's rows at `positions` of `files`, as ordinals of its rows, and their ids there.

    None: all positions.
    """
    own, slot, position = [_NONE], [_NONE], [_NONE]
    paths = [each.file.file_path for each in batch.files]
    for at, path in enumerate(files):
        rows = np.flatnonzero(batch.rows.file == paths.index(path))
        wanted = positions[path]
        taken = np.arange(len(rows)) if wanted is None else np.fromiter(wanted, dtype=np.int64)
        own.append(rows[taken])
        slot.append(np.full(len(taken), at))
        position.append(taken)
    reader = ColumnReader(environment, state.metadata, (ROW_ID_FIELD_ID,))
    found = reader.read_rows(list(files.values()), np.concatenate(slot), np.concatenate(position))
    [row_id] = reader.flat(found)
    return np.concatenate(own), row_id.fill_null(NO_ROW_ID).to_numpy()


def _find(values: Int64s, wanted: Int64s) -> Int64s:
    """Where in `values` each of `wanted` is; `NO_ROW` if nowhere, or if it is no row id."""
    order = np.argsort(values, kind="stable")
    slot = np.minimum(np.searchsorted(values[order], wanted), max(len(values) - 1, 0))
    at = order[slot] if len(values) else np.zeros(len(wanted), dtype=np.int64)
    is_there = (values[at] == wanted) if len(values) else np.zeros(len(wanted), dtype=np.bool_)
    return np.where(is_there & (wanted != NO_ROW_ID), at, NO_ROW)
