"""Where the rows that staged snapshots delete by position are, before any is looked for by its key.

A row that lives in the file that the delete names dies there. A vector repeats what the one that it
replaced deletes, so only what it adds counts. What the replaced one deleted may not be known any
more (its file is gone, or the log of staging): then the vector adds at least what the target had
not deleted yet when staging left it, or when it published last.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Never

import numpy as np
from pyroaring import BitMap64

from resolver.cursor import base_of
from resolver.cycle_figures import staged_commits
from resolver.cycle_input import CycleInput, StagedPositions
from resolver.match import Int64s
from resolver.merge_deletes import DeadPositions
from resolver.position_files import read_position_file
from resolver.staged_snapshots import StagedSnapshot
from resolver.staged_view import without_dead_before
from resolver.target import live_files
from resolver.target_deletes import deleted_positions
from resolver.target_view import TargetView
from tableformat.codec.puffin.dv_file import read_deletion_vectors
from tableformat.commit.branch_history import branch_history
from tableformat.errors import NotFoundError, UnsupportedError
from tableformat.spec.data_file import DataFile, ManifestEntry


@dataclass(slots=True)
class PositionKills:
    """What the staged snapshots of a batch delete by position, but for rows of the batch.

    Attributes:
        dead: Positions by file of the target.
        killed: The same piece by piece: file, positions, and the place in the order of the staged
            snapshot that deletes them.
        row_id, order: Shape `(rows,)`: the rows that were looked for, as staging knew them, and the
            places of the snapshots that delete them.
    """

    dead: DeadPositions
    killed: list[tuple[str, BitMap64, int]] = field(default_factory=list)
    row_id: Int64s = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    order: Int64s = field(default_factory=lambda: np.empty(0, dtype=np.int64))

    def add(self, path: str, positions: BitMap64, order: int) -> None:
        """Kill rows of the target."""
        self.dead.add(path, positions)
        self.killed.append((path, positions, order))


@dataclass(frozen=True, slots=True)
class LocatedPositions:
    """Staged positions whose rows are not alive where they were.

    Attributes:
        lost: These are looked for.
        repeated: Their rows died on the target since; what they repeat is not known.
        doubtful: They may repeat what the target had deleted before.
    """

    lost: list[StagedPositions] = field(default_factory=list)
    repeated: list[StagedPositions] = field(default_factory=list)
    doubtful: list[StagedPositions] = field(default_factory=list)


def locate_positions(
    view: TargetView, batch: CycleInput, moved: Mapping[str, DataFile], kills: PositionKills
) -> LocatedPositions:
    """Add what dies where it is; give what has to be looked for."""
    live, position_files, located = view.live, PositionFiles(view), LocatedPositions()
    named, untold = list[StagedPositions](), set[tuple[int, str]]()
    for each in batch.target_positions:
        before = deleted_before(position_files, each.staged, each.path)
        if before is None:
            untold.add((each.staged.order, each.path))
        new = each.positions - (before or BitMap64())
        if new:
            named.append(replace(each, positions=new))
    for each in without_dead_before(view.environment, view.state, named):
        lost, is_untold = each.positions, (each.staged.order, each.path) in untold
        if each.path in live.data:
            kills.add(each.path, lost, each.staged.order)
            lost = lost & _deleted(view, each.path)
        elif is_untold:
            _refuse(each)
        if lost and is_untold:
            before, is_certain = _deleted_by_then(view, each)
            located.repeated.append(replace(each, positions=lost - before))
            if not is_certain:
                located.doubtful.append(replace(each, positions=lost & before))
        elif lost:
            located.lost.append(replace(each, positions=lost))
    seen: dict[str, BitMap64] = defaultdict(BitMap64)
    for each in sorted(batch.own_positions, key=lambda own: own.staged.order):
        if each.path in moved:
            lost = each.positions - seen[each.path]  # a vector repeats what older ones delete
            seen[each.path] |= each.positions
            if each.path in live.data:
                lost = lost & _deleted(view, each.path)
            if lost:
                located.lost.append(replace(each, positions=lost))
    return located


def _deleted_by_then(view: TargetView, each: StagedPositions) -> tuple[BitMap64, bool]:
    """What of a live file the target had deleted when staging left it, and whether it is that.

    Else more: what it had deleted when it published last, or where its log ends above that; after
    a rollback behind that, all.
    """
    staged = each.staged.snapshot
    base = base_of(view.state, staged, staging=view.staging, target=view.target)
    history = list(branch_history(view.state, view.target))
    if base is not None and base.snapshot_id not in {one.snapshot_id for one in history}:
        return each.positions, False
    then = next((one for one in history if one == base or staged_commits(one)), history[-1])
    live = live_files(view.environment, then)
    store, metadata = view.environment.store, view.metadata
    deleted = deleted_positions(store, metadata, live, [each.path])
    return deleted.get(each.path, BitMap64()), then == base


class PositionFiles:
    """Positions by data file of deletes that staged commits removed, each file read once."""

    def __init__(self, view: TargetView) -> None:
        """Over the files of `view`'s table; nothing is read yet."""
        self._store, self._metadata = view.environment.store, view.metadata
        self._read: dict[str, dict[str, BitMap64]] = {}

    def of(self, entry: ManifestEntry, path: str) -> BitMap64:
        """What a vector or a position delete file deletes in one data file."""
        file = entry.data_file
        if file.is_dv:
            [positions] = read_deletion_vectors(self._store, [(file, None)])
            return positions
        if file.file_path not in self._read:
            self._read[file.file_path] = read_position_file(self._store, self._metadata, file)
        return self._read[file.file_path].get(path, BitMap64())


def deleted_before(files: PositionFiles, staged: StagedSnapshot, path: str) -> BitMap64 | None:
    """What the deletes that a commit removed delete in a data file; None: not known any more."""
    if (replaced := staged.replaced) is None:
        return None
    entries = (*replaced.get(path, ()), *replaced.get(None, ()))
    try:
        return BitMap64().union(*(files.of(entry, path) for entry in entries))
    except NotFoundError:
        return None


def _refuse(each: StagedPositions) -> Never:
    raise UnsupportedError(
        "a vector on the staging branch names rows of a data file that has left the target, "
        "and what it deletes anew is not known without the deletes that it replaced",
        location=each.path,
        action="roll the target back to before that file was rewritten, resolve, and rewrite again",
    )


def _deleted(view: TargetView, path: str) -> BitMap64:
    """What of a live file is deleted by position on the target."""
    found = deleted_positions(view.environment.store, view.metadata, view.live, [path])
    return found.get(path, BitMap64())
