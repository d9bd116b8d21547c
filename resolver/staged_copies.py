"""Staged snapshots that write data files anew: copies that the target has to agree with.

A copy-on-write statement on the staging branch removes a data file, and adds another with the rows
that live on. The first is a delete of all rows by position (`cycle_input`), the second are staged
rows. A file of the same batch goes that way whatever the target has. Of one that is on the target,
or was, the copies are right if its rows there are those that the writer saw; if somebody has
deleted or updated one meanwhile, they would bring it back. They are published if

* the file is live there, and no row of it is deleted that the writer still saw;
* it is gone, and no row of it lived;
* it is gone, by rewrites (`replace`) of it and of what they made of it, or because a publish wrote
  its rows anew; and no other commit has deleted anything in any of these files since.

A snapshot that adds no rows, or that replaces partitions (Iceberg's dynamic overwrite), has no
copies.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from pyiceberg.table.snapshots import Operation, Snapshot
from pyroaring import BitMap64

from resolver.cursor import base_of, covers_staged, down_to_base, marker_of
from resolver.cycle_figures import is_publish, is_rewriting_publish
from resolver.cycle_input import CycleInput
from resolver.located_positions import PositionFiles, deleted_before
from resolver.repeated_batches import left_out
from resolver.rewritten_rows import rewritten_files
from resolver.staged_on_target import StagedOnTarget
from resolver.staged_snapshots import StagedSnapshot
from resolver.staged_view import dead_before
from resolver.target_deletes import deleted_by_key, deleted_positions
from resolver.target_view import TargetView
from tableformat.commit.branch_history import (
    SnapshotChanges,
    branch_history,
    load_changes,
    summary_of,
)
from tableformat.errors import UnsupportedError
from tableformat.scan.delete_index import referenced_path
from tableformat.spec.data_file import FileContent, ManifestEntry


def check_copies(view: TargetView, batch: CycleInput, known: StagedOnTarget) -> None:
    """Refuse copies of rows that the target has deleted or updated since.

    Args:
        view: The target.
        batch: The cycle's input.
        known: Which staged files the target has, or had.

    Raises:
        UnsupportedError: There are such rows, or it cannot be told whether there are.
        CorruptDataError: A file is damaged.

    Cost: nothing without such snapshots; where a file has left the target, what its commits changed
    since staging left it.
    """
    copies = [staged for staged in batch.staged if _copies_rows(staged)]
    if not copies:
        return
    positions = PositionFiles(view)
    own = batch.paths - known.not_added - known.written_anew
    never = left_out(view.state, batch.staged, target=view.target)
    for staged in copies:
        removed = {e.data_file.file_path: e for e in staged.removed}
        here = view.live.find(removed)
        gone = {path: e for path, e in removed.items() if path not in here.keys() | own}
        paths = here.keys() | gone.keys()
        if not paths:
            continue
        seen = dead_before(view.environment, view.state, staged, set(paths), by_key=True)
        for path in paths:
            before = deleted_before(positions, staged, path) or BitMap64()
            seen[path] = seen.get(path, BitMap64()) | before
        changed = _deleted_since(view, here, seen)
        gone = {p: e for p, e in gone.items() if len(seen[p]) < e.data_file.record_count}
        were = {p: e for p, e in gone.items() if e.snapshot_id not in never}
        changed |= gone.keys() - _only_rewritten(view, staged, were)
        if changed:
            _refuse(view, staged, changed)


def _copies_rows(staged: StagedSnapshot) -> bool:
    replaces = summary_of(staged.snapshot).get("replace-partitions") == "true"
    return bool(staged.removed and staged.data_files) and not replaces


def _deleted_since(
    view: TargetView, here: Collection[str], seen: Mapping[str, BitMap64]
) -> set[str]:
    """Live files of which rows are deleted that the writer still saw."""
    store, metadata = view.environment.store, view.metadata
    by_position = deleted_positions(store, metadata, view.live, here)
    by_key = deleted_by_key(store, metadata, view.live, here)
    nothing = BitMap64()
    return {
        path
        for path in here
        if (by_position.get(path, nothing) | by_key.get(path, nothing)) - seen[path]
    }


def _only_rewritten(
    view: TargetView, staged: StagedSnapshot, gone: Mapping[str, ManifestEntry]
) -> set[str]:
    """Those of some files that have left the target whose rows are there as they were."""
    base = base_of(view.state, staged.snapshot, staging=view.staging, target=view.target)
    history = list(branch_history(view.state, view.target)) if gone else []
    if base not in history:  # all that was committed since is known
        return set()
    explained = set(rewritten_files(view, gone))
    watched = set(gone)
    has_seen = _seen_publishes(view, staged)
    for snapshot in reversed(history[: history.index(base)]):
        is_seen = has_seen(snapshot)
        if is_seen and not is_rewriting_publish(snapshot):
            continue
        changes = load_changes(view.environment.store, snapshot)
        taken = watched & _paths(changes.removed_data)
        if is_seen:
            watched |= _paths(changes.added_data)
        elif changes.operation == Operation.REPLACE:
            explained |= taken
            watched |= _paths(changes.added_data) if taken else set()
        elif taken or _may_delete_in(changes, watched):
            return set()
    return explained & gone.keys()


def _seen_publishes(view: TargetView, staged: StagedSnapshot) -> Callable[[Snapshot], bool]:
    """Whether a snapshot publishes what the writer of `staged` saw.

    It did not where staging was moved back meanwhile, to a snapshot of the target before that.
    """
    above, base = down_to_base(
        view.state, staged.snapshot, staging=view.staging, target=view.target
    )
    below = {each.snapshot_id for each in above}

    def has_seen(each: Snapshot) -> bool:
        may_be_newer = base is not None and covers_staged(each)
        return is_publish(each) and (not may_be_newer or marker_of(each) in below)

    return has_seen


def _paths(entries: Iterable[ManifestEntry]) -> set[str]:
    return {entry.data_file.file_path for entry in entries}


def _may_delete_in(changes: SnapshotChanges, paths: Collection[str]) -> bool:
    files = [entry.data_file for entry in changes.added_deletes]
    by_key = any(file.content == FileContent.EQUALITY_DELETES for file in files)
    return by_key or any(referenced_path(file) in (None, *paths) for file in files)


def _refuse(view: TargetView, staged: StagedSnapshot, changed: Collection[str]) -> None:
    raise UnsupportedError(
        "a staged snapshot rewrites data files of which the target has deleted or updated rows "
        "since, or may have: the copies would bring these back",
        table=view.state.name,
        branch=view.target,
        snapshot_id=staged.snapshot.snapshot_id,
        file=min(changed),
        files=len(changed),
        action="run that statement again: roll the staging branch back to before it, resolve, and "
        "run it on the branch as it is then; or roll the target back to before its own change",
    )
