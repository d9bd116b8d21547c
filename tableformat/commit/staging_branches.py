"""Which branches are staging branches, and what expiry must leave on them. Pure: metadata alone.

A branch other than `main` is one when

* the caller declares it, or it is called `staging`;
* a commit of icefold was staged to it, or its retention is what icefold gives staging branches
  (`commit/retention.py`): that is left of it when all is published and it stands on its target;
* above its target's history it has staged commits of any branch (somebody copied or renamed one),
  equality deletes, the snapshot that the target's marker names, or a publish that the target has
  lost, of what waits again: other tools write such branches.

Only a foreign branch that has nothing but appends, and was never published from, looks like any
other branch; it has to be declared.

The target of a branch that nobody declares is the branch that its newest published commit of
icefold was made to, or `main`. Where that commit is in the history of `main` too (one was
fast-forwarded to the other), it is taken for `main`, as that is where `stage` forks branches from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRef, SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot

from tableformat.commit.branch_history import committed_to, snapshots_by_id, summary_of, walk_back
from tableformat.commit.carried_properties import load_carried
from tableformat.commit.retention import STAGING_RETENTION, retention_of
from tableformat.spec.decimal_text import parse_decimal
from tableformat.spec.names import (
    CARRIED,
    MAIN_BRANCH,
    SOURCE_SNAPSHOT_ID,
    STAGING_BRANCH,
    STAGING_MARKER,
)

_DELETED_POSITIONS = (
    "added-position-delete-files",
    "added-position-deletes",
    "added-dvs",
    "deleted-data-files",
)
_ADDED_EQUALITY_DELETES = ("added-equality-delete-files", "added-equality-deletes")


@dataclass(frozen=True, slots=True, kw_only=True)
class StagingBranch:
    """One staging branch. `is_certain`: it and its target are known, not guessed from contents."""

    name: str
    target: str
    is_certain: bool


def staging_branches(
    metadata: TableMetadata, declared: Mapping[str, str]
) -> dict[str, StagingBranch]:
    """The staging branches of a table, by name.

    Args:
        metadata: One version of the table.
        declared: Targets by name of staging branches; those that do not exist are left out.
    """
    by_id = snapshots_by_id(metadata)
    branches = {
        name: ref
        for name, ref in metadata.refs.items()
        if ref.snapshot_ref_type == SnapshotRefType.BRANCH and ref.snapshot_id in by_id
    }
    targets = _Targets(by_id, branches)
    staged_to = {committed_to(each) for each in metadata.snapshots if _is_staged_commit(each)}
    found: dict[str, StagingBranch] = {}
    for name, ref in branches.items():
        if name in declared:
            if declared[name] != name:
                found[name] = StagingBranch(name=name, target=declared[name], is_certain=True)
            continue
        if name == MAIN_BRANCH:
            continue
        is_own = (
            name == STAGING_BRANCH or name in staged_to or retention_of(ref) == STAGING_RETENTION
        )
        target, is_certain = targets.find(name)
        if is_own or targets.has_staged_above(name, target):
            found[name] = StagingBranch(name=name, target=target, is_certain=is_own and is_certain)
    return found


def has_unpublished(metadata: TableMetadata, staging: StagingBranch) -> bool:
    """Whether something on a staging branch may wait to be published."""
    by_id, refs = snapshots_by_id(metadata), metadata.refs
    target = refs.get(staging.target)
    target_id = None if target is None else target.snapshot_id
    head_id = refs[staging.name].snapshot_id
    if str(head_id) == load_carried(by_id, target_id).marker:
        return False
    return all(each.snapshot_id != head_id for each in walk_back(by_id, target_id))


def snapshots_needed(metadata: TableMetadata, staging: StagingBranch) -> Iterator[int]:
    """What the resolver needs to publish from `staging`, and to prove where it stands (R18).

    The snapshots from its head back to the target's marker or history, inclusive. A publish that
    the target has lost again (rollback) stands for the staged snapshots that it covered: they are
    unpublished once more, so the way goes on at its marker, too.

    Where staging meets the target's history at a snapshot that does not carry the marker, nothing
    but the target's own chain tells that it is not a staged one: then the chain stays down to it
    and to the marker below it (or whole, when the two have no snapshot in common), unless something
    else was published since, as then it proves nothing.

    The chain stays, too, while a staged snapshot waits that deletes by position: it tells which row
    ids the rows had whose files were rewritten meanwhile. And while one waits, down to the first
    commit since that may have brought its files to the target (a cherry-pick, or another tool's):
    they are not to be added again, whatever became of them. While one of another tool waits, which
    may repeat a commit, so does what the branch has of published staged snapshots.
    """
    by_id, refs = snapshots_by_id(metadata), metadata.refs
    target = refs.get(staging.target)
    target_id = None if target is None else target.snapshot_id
    chain = list(walk_back(by_id, target_id))
    ids = [each.snapshot_id for each in chain]
    ends, marker = set(ids), load_carried(by_id, target_id).marker
    if marker is not None:
        yield from _down_to_marker(by_id, target_id)
    seen: set[int] = set()
    starts = [refs[staging.name].snapshot_id]
    while starts:
        for snapshot in walk_back(by_id, starts.pop()):
            if snapshot.snapshot_id in seen:
                break
            seen.add(snapshot.snapshot_id)
            if str(snapshot.snapshot_id) == marker:
                break
            if snapshot.snapshot_id in ends:
                below = ids.index(snapshot.snapshot_id)
                if _marker_of(snapshot) != marker or marker is None:
                    marked = [at for at, e in enumerate(chain) if at >= below and _marker_of(e)][:1]
                    if not marked:
                        yield from ids[:below] if marker is None else ()
                    elif _marker_of(chain[marked[0]]) == marker:
                        yield from ids[: marked[0] + 1]
                break
            covered = _lost_marker(snapshot, staging.name)
            if covered is not None:
                starts.append(covered)
        else:
            yield from ids if marker is None else ()
    yield from seen
    waiting = [by_id[each] for each in seen if each not in ends and str(each) != marker]
    if any(_may_delete_by_position(each) for each in waiting):
        own = _ancestors(by_id, refs[staging.name])
        meeting = [i for i, each in enumerate(ids) if each in own]
        yield from ids[: meeting[0]] if meeting else ids
    oldest = min((each.sequence_number or 0 for each in waiting), default=None)
    if oldest is not None:
        since = takewhile(lambda each: (each.sequence_number or 0) > oldest, chain)
        brings = [at for at, each in enumerate(since) if _may_bring_staged_files(each)]
        yield from ids[: brings[-1] + 1] if brings else ()
    if any(committed_to(each) is None for each in waiting):
        for snapshot in walk_back(by_id, refs[staging.name].snapshot_id):
            if snapshot.snapshot_id in ends or _lost_marker(snapshot, staging.name) is not None:
                break
            yield snapshot.snapshot_id
    yield from _cursors_of_others(metadata, staging, seen)


def others_wait_since_ms(
    metadata: TableMetadata, staging: StagingBranch, by_id: Mapping[int, Snapshot]
) -> int | None:
    """When, by `by_id`, the oldest commit of another tool that waits was staged; None: none is."""
    refs = metadata.refs
    target = refs.get(staging.target)
    target_id = None if target is None else target.snapshot_id
    ends = {each.snapshot_id for each in walk_back(by_id, target_id)}
    marker = load_carried(by_id, target_id).marker
    waiting = takewhile(
        lambda each: each.snapshot_id not in ends and str(each.snapshot_id) != marker,
        walk_back(by_id, refs[staging.name].snapshot_id),
    )
    return min((each.timestamp_ms for each in waiting if committed_to(each) is None), default=None)


def _ancestors(by_id: Mapping[int, Snapshot], ref: SnapshotRef) -> frozenset[int]:
    return frozenset(each.snapshot_id for each in walk_back(by_id, ref.snapshot_id))


@dataclass(slots=True)
class _Targets:
    """Finds targets; walks the history of each once."""

    by_id: Mapping[int, Snapshot]
    branches: Mapping[str, SnapshotRef]
    _histories: dict[str, frozenset[int]]

    def __init__(self, by_id: Mapping[int, Snapshot], branches: Mapping[str, SnapshotRef]) -> None:
        self.by_id, self.branches = by_id, branches
        self._histories = {}

    def find(self, name: str) -> tuple[str, bool]:
        """The target of a branch, and whether it is certain."""
        for snapshot in walk_back(self.by_id, self.branches[name].snapshot_id):
            branch = committed_to(snapshot)
            if branch in (None, name) or _is_staged_commit(snapshot):
                continue
            is_shared = snapshot.snapshot_id in self._history(MAIN_BRANCH)
            if branch == MAIN_BRANCH or branch not in self.branches or is_shared:
                return MAIN_BRANCH, branch == MAIN_BRANCH
            return branch, True
        return MAIN_BRANCH, True

    def has_staged_above(self, name: str, target: str) -> bool:
        """Whether a branch has staged changes, or the target's marker, above the target."""
        history, done = self._history(target), load_carried(self.by_id, self._head_id(target))
        for snapshot in walk_back(self.by_id, self.branches[name].snapshot_id):
            if snapshot.snapshot_id in history:
                return False
            if str(snapshot.snapshot_id) == done.marker or _is_staged(snapshot):
                return True
            covered = self.by_id.get(_lost_marker(snapshot, name) or 0)
            if covered and (covered.sequence_number or 0) > (done.marker_sequence_number or 0):
                return True
        return False

    def _history(self, name: str) -> frozenset[int]:
        if name not in self._histories:
            ref = self.branches.get(name)
            self._histories[name] = frozenset() if ref is None else _ancestors(self.by_id, ref)
        return self._histories[name]

    def _head_id(self, name: str) -> int | None:
        return self.branches[name].snapshot_id if name in self.branches else None


def _cursors_of_others(
    metadata: TableMetadata, staging: StagingBranch, needed: set[int]
) -> Iterator[int]:
    """Where other branches that were published to say so: one of them may be the real target."""
    by_id = snapshots_by_id(metadata)
    for name, ref in metadata.refs.items():
        if name not in (staging.name, staging.target):
            marker = load_carried(by_id, ref.snapshot_id).marker
            if marker is not None and parse_decimal(marker) in needed:
                yield from _down_to_marker(by_id, ref.snapshot_id)


def _down_to_marker(by_id: Mapping[int, Snapshot], target_id: int | None) -> Iterator[int]:
    """From the target's head to the first snapshot with a marker; other writers repeat none."""
    for snapshot in walk_back(by_id, target_id):
        yield snapshot.snapshot_id
        if _marker_of(snapshot) is not None:
            return


def _lost_marker(snapshot: Snapshot, staging: str) -> int | None:
    """What a publish above the target's history covered; an append to staging may repeat one."""
    marker = None if committed_to(snapshot) == staging else _marker_of(snapshot)
    return None if marker is None else parse_decimal(marker)


def _is_staged(snapshot: Snapshot) -> bool:
    """Whether a commit can only have been meant for a staging branch."""
    if _is_staged_commit(snapshot):
        return True
    found = (summary_of(snapshot).get(name) or "0" for name in _ADDED_EQUALITY_DELETES)
    return any(parse_decimal(count) != 0 for count in found)


def _may_bring_staged_files(snapshot: Snapshot) -> bool:
    """Whether a commit to a target may have added data files that are staged."""
    if snapshot.summary is None or snapshot.summary.operation == Operation.REPLACE:
        return False
    return committed_to(snapshot) is None or SOURCE_SNAPSHOT_ID in summary_of(snapshot)


def _may_delete_by_position(snapshot: Snapshot) -> bool:
    """Counts are optional (spec: Optional Snapshot Summary Fields); without any it may."""
    summary = snapshot.summary
    if summary is None or not any(e.startswith("added-") for e in summary.additional_properties):
        return summary is None or summary.operation != Operation.APPEND
    return any(parse_decimal(summary.get(name) or "0") != 0 for name in _DELETED_POSITIONS)


def _is_staged_commit(snapshot: Snapshot) -> bool:
    """Whether icefold staged it; what it commits elsewhere repeats what older summaries say."""
    is_own = committed_to(snapshot) not in (None, MAIN_BRANCH)
    return is_own and CARRIED not in summary_of(snapshot)


def _marker_of(snapshot: Snapshot) -> str | None:
    return summary_of(snapshot).get(STAGING_MARKER)
