"""Staging that was moved while a cycle runs: what it does not have any more was given up.

Somebody drops the branch, points it at the target's head or at an earlier staged snapshot, or drops
it and stages anew. To publish what a cycle has planned before that would bring back what was given
up, and leave a cursor that staging never meets. So each attempt of a publish looks whether the
covered snapshots wait still, on the version that it is committed to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pyiceberg.table.snapshots import Snapshot

from resolver.lost_snapshots import unpublished_snapshots
from resolver.number_text import plural
from tableformat.catalog.base import TableState
from tableformat.commit.branch_history import (
    branch_history,
    branch_ids,
    committed_to,
    is_first,
    snapshots_by_id,
)
from tableformat.errors import CommitConflictError, InvalidInputError, NotFoundError

Plan = Callable[[TableState], Sequence[Snapshot] | None]


class StagingMovedError(CommitConflictError):
    """What was to be published is not on staging any more; a new plan has what is."""


def check_still_staged(
    state: TableState,
    *,
    planned: TableState,
    covered: Sequence[Snapshot],
    staging: str,
    target: str,
    plan: Plan,
) -> None:
    """Refuse to publish what was given up. Pure.

    Args:
        state: The version to publish on.
        planned: The one where `covered` waited.
        covered: Staged snapshots, oldest first; not empty.
        staging: Their branch.
        target: Where they are published to.
        plan: What waits on a version, oldest first; None if its history does not tell.

    Raises:
        StagingMovedError: Other staged changes wait.
        NotFoundError: The branch was dropped.
    """
    head_id = state.head_id(staging)
    if head_id is None:
        found = unpublished_snapshots(state, staging=staging, target=target)
        raise dropped_staging(state, staging, found or _ids(covered))
    if head_id == planned.head_id(staging) or _stands_on(state, covered[-1], staging, target):
        return
    if not snapshots_by_id(state.metadata).keys() >= set(_ids(covered)):
        return  # the commit refuses what has expired
    try:
        waiting = plan(state) or ()
    except InvalidInputError:
        waiting = ()
    if _ids(waiting)[: len(covered)] == _ids(covered):
        return  # staging has moved onto a publish of them that the target has lost
    raise StagingMovedError(
        "the staging branch was moved meanwhile, and does not have what was to be published",
        table=state.name,
        branch=staging,
        snapshot_id=covered[-1].snapshot_id,
        head=head_id,
        action="run resolve again: it publishes what waits now",
    )


def dropped_staging(state: TableState, staging: str, dropped: Sequence[int]) -> NotFoundError:
    """What to say of a staging branch that is gone, while those snapshots of it waited."""
    return NotFoundError(
        f"the staging branch was dropped with {plural(len(dropped), 'unpublished snapshot')}",
        table=state.name,
        branch=staging,
        snapshot_id=dropped[-1],
        action="create the branch again at that snapshot, and run resolve again",
    )


def _stands_on(state: TableState, last: Snapshot, staging: str, target: str) -> bool:
    """Whether staging's history has a staged snapshot, or may have it where it has expired.

    Cut above it, the history tells nothing against it, as long as it is staging's own.
    """
    number, oldest = last.sequence_number or 0, None
    for oldest in branch_history(state, staging):
        if oldest.snapshot_id == last.snapshot_id:
            return True
        if (oldest.sequence_number or 0) < number:
            return False
    if oldest is None or is_first(oldest):
        return False
    of_target = branch_ids(state, target)
    return all(
        committed_to(each) != target and each.snapshot_id not in of_target
        for each in branch_history(state, staging)
    )


def _ids(snapshots: Sequence[Snapshot]) -> list[int]:
    return [each.snapshot_id for each in snapshots]
