"""Staged changes that no branch leads to any more: somebody dropped or moved the staging branch.

A branch that is gone stops `resolve`. One that is there again, because a writer has staged since or
somebody made it anew elsewhere, does not: to drop a branch is how what waits on it is given up. So
it is told, while the snapshots are still there to make a branch of.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from functools import lru_cache

from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Snapshot

from resolver.cursor import cursor_of, without_replaced
from resolver.number_text import plural
from tableformat.catalog.base import TableState
from tableformat.commit.branch_history import ancestors, branch_history, committed_to, summary_of
from tableformat.commit.carried_properties import published_number
from tableformat.spec.names import SOURCE_SNAPSHOT_ID

_NAMED_MAX = 5
logger = logging.getLogger("icefold.resolver")


def unpublished_snapshots(
    state: TableState, *, staging: str, target: str, known: Collection[int] = ()
) -> list[int]:
    """What was staged on a branch and not published, oldest first, wherever it is. Pure.

    Commits of other tools do not say their branch: they count where they stand on one that was
    staged. Of a branch that only others have written, and that was never published, nothing tells.
    What was staged before REPLACE TABLE changed another table, and does not count.

    Args:
        state: One version of the table.
        staging: The branch; it may be gone.
        target: Where it is published to.
        known: Ids of snapshots to leave out.
    """
    done = published_number(state.metadata, state.head_id(target), staging=staging) or 0
    newer = [each for each in _newer(state, done) if committed_to(each) in (None, staging)]
    if all(each.snapshot_id in known for each in newer):
        return []
    on_target = _ids_above(branch_history(state, target), done)
    newer = [each for each in newer if each.snapshot_id not in on_target]
    if all(each.snapshot_id in known for each in newer):
        return []
    was_main = {each.snapshot_id for each in state.metadata.snapshot_log}
    staged = {cursor_of(state, target)} - {None}
    found: list[Snapshot] = []
    for each in sorted(newer, key=lambda each: each.sequence_number or 0):
        stands_on = each.parent_snapshot_id in staged and each.snapshot_id not in was_main
        if committed_to(each) == staging or stands_on:
            staged.add(each.snapshot_id)
            found.append(each)
    found = [each for each in found if each.snapshot_id not in known]
    left = without_replaced(state, found, staging=staging, target=target)
    return [each.snapshot_id for each in left]


def lost_snapshots(
    state: TableState, *, staging: str, target: str, waiting: Iterable[Snapshot]
) -> list[int]:
    """Those of `unpublished_snapshots` that do not wait and are on no branch, oldest first. Pure.

    One that was cherry-picked to the target is not lost.
    """
    known = {each.snapshot_id for each in waiting}
    found = unpublished_snapshots(state, staging=staging, target=target, known=known)
    if not found:
        return []
    metadata = state.metadata
    for ref in metadata.refs.values():
        if ref.snapshot_ref_type == SnapshotRefType.BRANCH:
            known.update(each.snapshot_id for each in ancestors(metadata, ref.snapshot_id))
    history = branch_history(state, target)
    picked = {summary_of(each).get(SOURCE_SNAPSHOT_ID) for each in history}
    return [each for each in found if each not in known and str(each) not in picked]


def warn_of_lost_snapshots(
    state: TableState, *, staging: str, target: str, waiting: Iterable[Snapshot]
) -> None:
    """Log which staged changes nobody will publish; once for the same ones in a process."""
    lost = lost_snapshots(state, staging=staging, target=target, waiting=waiting)
    if lost:
        _warn(state.name, staging, tuple(lost))


@lru_cache(maxsize=1_000)
def _warn(name: str, staging: str, lost: tuple[int, ...]) -> None:
    more = f" and {len(lost) - _NAMED_MAX} more" if len(lost) > _NAMED_MAX else ""
    logger.warning(
        "%s: %s of %s not published and on no branch any more, as the branch was dropped or moved: "
        "%s%s. Nobody will publish what is lost there: stage it again, or look at it on a branch "
        "made of the last one (icefold ref create-branch %s NAME --snapshot-id %d) before expiry "
        "takes it",
        name,
        plural(len(lost), "staged snapshot"),
        f"{staging} is" if len(lost) == 1 else f"{staging} are",
        ", ".join(map(str, lost[-_NAMED_MAX:])),
        more,
        name,
        lost[-1],
    )


def _newer(state: TableState, number: int) -> list[Snapshot]:
    """All snapshots with a higher sequence number, in any order.

    Each number is taken once, so there are at most as many as numbers. New ones are listed last: of
    20,000 old ones, nearly none is looked at.
    """
    found: list[Snapshot] = []
    most = getattr(state.metadata, "last_sequence_number", 0) - number
    for each in reversed(state.metadata.snapshots):
        if len(found) >= most:
            break
        if (each.sequence_number or 0) > number:
            found.append(each)
    return found


def _ids_above(history: Iterable[Snapshot], number: int) -> set[int]:
    """Of the snapshots of a history that are newer than a sequence number."""
    found: set[int] = set()
    for each in history:
        if (each.sequence_number or 0) <= number:
            break
        found.add(each.snapshot_id)
    return found
