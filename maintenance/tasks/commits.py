"""Commits of tasks that are cheap to plan again: compare-and-swap, and from the start if lost."""

from __future__ import annotations

from collections.abc import Callable

from pyiceberg.table.snapshots import Snapshot

from maintenance.tasks.base import TaskRun
from tableformat.catalog.base import TableState
from tableformat.commit.changeset import Changeset, CommitKind, Validation
from tableformat.commit.engine import CommitResult, commit
from tableformat.errors import CommitConflictError
from tableformat.spec.data_file import DataFile, ManifestEntry

ATTEMPTS_MAX = 100

PlanChange = Callable[[TableState, Snapshot], Changeset | None]


def commit_until_landed(run: TaskRun, branch: str, plan: PlanChange) -> CommitResult | None:
    """Plan on the newest head and commit if it is still the head; as often as it takes.

    Args:
        run: Table, lease.
        branch: The branch; without a snapshot there is nothing to do.
        plan: Gives the change for a head, or None when nothing is to be done.

    Raises:
        CommitConflictError: Others were faster `ATTEMPTS_MAX` times.
        CommitUnknownError: The commit may have landed.
        FencedError, lock.LeaseLostError: Someone else has taken over.
    """
    for attempt in range(ATTEMPTS_MAX):
        state = run.refresh()
        head = state.head(branch)
        changeset = None if head is None else plan(state, head)
        if changeset is None:
            return None
        run.environment.runtime.fail_point(f"{run.task}.before_commit")
        try:
            return commit(run.environment, run.identifier, changeset, state=state)
        except CommitConflictError:
            if attempt + 1 == ATTEMPTS_MAX:
                raise
    raise AssertionError("unreachable")


def same_rows(
    run: TaskRun,
    branch: str,
    head: Snapshot,
    *,
    removed: tuple[ManifestEntry, ...],
    added_deletes: tuple[DataFile, ...] = (),
) -> Changeset:
    """A change of delete files that changes no row, only if `head` is still the head."""
    return Changeset(
        kind=CommitKind.REWRITE,
        branch=branch,
        added_delete_files=added_deletes,
        removed_entries=removed,
        validation=Validation(starting_snapshot_id=head.snapshot_id),
        expected_head=head.snapshot_id,
        strict_head=True,
        fence=run.fence(),
    )
