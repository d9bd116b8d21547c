"""Staged data files that others have brought to the target already.

A cherry-pick of a staged snapshot, a tool that adds its files, a writer that commits a file once
more after it was published: the file would be listed, and its rows counted, twice. So

* a staged file that is live on the target is not added again. Its rows there are staged rows: they
  keep the place in the order that their staged snapshot has, and what the target has deleted of
  them stays deleted;
* one that has been on the target since it was staged and has left it again is not added either.
  Its rows are where a rewrite took them, told by the row ids that they got on the target.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from pyiceberg.table.snapshots import Snapshot

from resolver.cycle_figures import STAGED_COMMITS
from resolver.cycle_input import CycleInput
from resolver.index.base import Matches
from resolver.match import Int64s
from resolver.moved_rows import NO_ROW_ID, row_ids_of
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


def files_that_left(
    environment: Environment, state: TableState, *, target: str, live: LiveFiles, batch: CycleInput
) -> dict[str, DataFile]:
    """Staged data files that were on the target since they were staged and are not any more.

    Cost: the manifests written by those snapshots since the oldest staged one which may have
    brought staged files; commits of icefold that cannot are not read.

    Returns:
        By path, the files as they were on the target, with the row ids that they had there.
    """
    staged = [each.snapshot.sequence_number or 0 for each in batch.staged]
    paths, head = batch.paths - live.data.keys(), state.head(target)
    found: dict[str, DataFile] = {}
    if not paths or head is None:
        return found
    for snapshot in walk_back(snapshots_by_id(state.metadata), head.snapshot_id):
        if (snapshot.sequence_number or 0) <= min(staged):
            break
        if not _may_bring_staged_files(snapshot, target):
            continue
        for entry in load_changes(environment.store, snapshot).added_data:
            if entry.data_file.file_path in paths:
                found.setdefault(entry.data_file.file_path, entry.data_file)
    return found


def _may_bring_staged_files(snapshot: Snapshot, target: str) -> bool:
    summary = {} if snapshot.summary is None else snapshot.summary.additional_properties
    is_own = summary.get(COMMITTED_TO) == target
    return not is_own or SOURCE_SNAPSHOT_ID in summary or STAGED_COMMITS in summary


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
    """Let rows of the target that are staged rows of `left` die as these do.

    Args:
        environment: Where row ids are read.
        state: The table version.
        live: The live files of the target.
        batch: The cycle's input.
        left: See `files_that_left`.
        numbered: The batch's keys.
        matches: Rows of the target with a deleted key.
        judged: Which rows die if all matches are older than the batch.

    Raises:
        UnsupportedError: A staged row lives, and which row of the target it is cannot be told: a
            rewrite did not keep row ids.
    """
    if not left or not len(matches):
        return judged
    row, row_id = _staged_rows(environment, state, batch, left)
    found_id = row_ids_of(environment, state, live, matches)
    at = _find(row_id, found_id)
    is_staged = at != NO_ROW
    dead = judged.matches.copy()
    dead[is_staged] = judged.staged[row[at[is_staged]]]
    unseen = ~np.isin(np.arange(len(row)), at) & ~judged.staged[row]
    number = numbered.lookup_number[matches.key_ordinal]
    unsure = dead & ~is_staged & (found_id >= row_id.min(initial=np.iinfo(np.int64).max))
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
    environment: Environment, state: TableState, batch: CycleInput, left: Mapping[str, DataFile]
) -> tuple[Int64s, Int64s]:
    """The batch's rows in files of `left`, as ordinals of its rows, and their ids on the target."""
    ordinals = [i for i, each in enumerate(batch.files) if each.file.file_path in left]
    reader = ColumnReader(environment, state.metadata, (ROW_ID_FIELD_ID,))
    rows = reader.read_files([left[batch.files[i].file.file_path] for i in ordinals])
    [row_id] = reader.flat(rows)
    own = [np.flatnonzero(batch.rows.file == ordinal) for ordinal in ordinals]
    return np.concatenate(own), row_id.fill_null(NO_ROW_ID).to_numpy()


def _find(values: Int64s, wanted: Int64s) -> Int64s:
    """Where in `values` each of `wanted` is; `NO_ROW` if nowhere, or if it is no row id."""
    order = np.argsort(values, kind="stable")
    slot = np.minimum(np.searchsorted(values[order], wanted), max(len(values) - 1, 0))
    at = order[slot] if len(values) else np.zeros(len(wanted), dtype=np.int64)
    is_there = (values[at] == wanted) if len(values) else np.zeros(len(wanted), dtype=np.bool_)
    return np.where(is_there & (wanted != NO_ROW_ID), at, NO_ROW)
