"""The commit engine: one atomic change of one branch, on SQLite, PostgreSQL, REST or memory alike.

```
attempt: head of the branch ─> strict head? fence? ─> conflicts since the scan ─> files to remove
         ─> manifests ─> manifest list (sequence number, row ids) ─> swap
```

Fixed for the commit: snapshot id, new data files, manifests of added files. New in every attempt:
parent, sequence number, row ids, rewritten and merged manifests, manifest list (spec: Optimistic
Concurrency; iceberg-core SnapshotProducer).

Durable after a crash: before the swap, objects that no snapshot names (orphan removal collects
them); after it, the commit. A definite failure removes the manifests and lists of this commit and
nothing else; data and delete files are the caller's, and `files_safe_to_delete` tells it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pyiceberg.table.snapshots import Snapshot

from tableformat.catalog.base import Identifier, TableState
from tableformat.commit.changeset import Changeset
from tableformat.commit.request import check_changeset, check_delete_forms
from tableformat.commit.snapshot_change import SnapshotChange
from tableformat.commit.swap import PlannedChange, SwapOutcome, swap_group_until_settled
from tableformat.environment import Environment
from tableformat.errors import TableError


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitResult:
    """A commit that is in the table.

    Attributes:
        state: The table after it (or a later version, when the outcome had to be looked up).
        snapshot: The committed snapshot.
        attempts: How often it was tried.
        looked_up: True when the catalog's answer was lost and the commit was found afterwards.
    """

    state: TableState
    snapshot: Snapshot
    attempts: int
    looked_up: bool = False


def commit(
    environment: Environment,
    identifier: Identifier,
    changeset: Changeset,
    *,
    state: TableState | None = None,
    check: Callable[[TableState], None] | None = None,
) -> CommitResult:
    """Commit `changeset` as one snapshot.

    A branch that does not exist is forked from the head of `main` (or starts empty with the table).

    Args:
        environment: Catalog, store, clock.
        identifier: The table.
        changeset: The change and the conditions under which it may happen.
        state: A recent version of the table, which saves a load.
        check: Called with the table before every attempt; may refuse by raising a `TableError`.

    Raises:
        CommitConflictError: Not landed: something else did that excludes it, the head is not the
            expected one, or the swap was lost too often.
        CommitUnknownError: It may have landed; nothing was deleted.
        AlreadyExistsError: With `refuse_live_files`: an added data file is live already.
        FencedError: The branch has seen a newer holder of the fence.
        InvalidInputError: The change cannot be right.
        UnsupportedError: The table is not v3.
        TableError: Raised before the swap; nothing landed.

    Effects: writes manifests and a manifest list, then one swap; retried by `commit.retry.*`.
    """
    change = _checked_change(environment, changeset, check)
    return commit_change(environment, identifier, change, state)


def commit_change(
    environment: Environment,
    identifier: Identifier,
    change: SnapshotChange,
    state: TableState | None = None,
) -> CommitResult:
    """As `commit`, for a change that makes its manifests in its own way."""
    [result] = _commit_all(environment, {identifier: (change, state)})
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class TableChangeset:
    """One table of a `commit_group`: what to change in it, and a recent version of it.

    `check`: as that of `commit`.
    """

    identifier: Identifier
    changeset: Changeset
    state: TableState | None = None
    check: Callable[[TableState], None] | None = None


def commit_group(environment: Environment, changes: Sequence[TableChangeset]) -> list[CommitResult]:
    """Commit a snapshot in each of several tables, in one atomic step.

    Args:
        environment: Catalog, store, clock. The catalog `commits_groups`.
        changes: Each table once.

    Returns:
        As `changes`.

    Raises:
        As `commit`, for the group: all landed, none did, or nobody knows of all.

    Effects: manifests and a manifest list for each, then one swap of all.
    """
    return _commit_all(
        environment,
        {
            each.identifier: (_checked_change(environment, each.changeset, each.check), each.state)
            for each in changes
        },
    )


def _checked_change(
    environment: Environment,
    changeset: Changeset,
    check: Callable[[TableState], None] | None = None,
) -> SnapshotChange:
    """A change that is refused, too, where its deletes have not the form that the table takes."""
    check_changeset(changeset)

    def check_all(state: TableState) -> None:
        check_delete_forms(changeset, state.metadata)
        if check is not None:
            check(state)

    return SnapshotChange(environment, changeset, check_all)


def _commit_all(
    environment: Environment,
    changes: Mapping[Identifier, tuple[SnapshotChange, TableState | None]],
) -> list[CommitResult]:
    planned = [
        PlannedChange(identifier=identifier, change=change, state=state)
        for identifier, (change, state) in changes.items()
    ]
    try:
        outcomes = swap_group_until_settled(environment, planned)
    except TableError as error:
        if error.files_safe_to_delete:
            for change, _ in changes.values():
                change.delete_objects(keep=frozenset())
        raise
    return [
        _landed(change, outcome)
        for (change, _), outcome in zip(changes.values(), outcomes, strict=True)
    ]


def _landed(change: SnapshotChange, outcome: SwapOutcome) -> CommitResult:
    snapshot = change.landed_snapshot(outcome.state)
    change.remember(snapshot)
    change.delete_objects(keep=change.objects_of(snapshot))
    return CommitResult(
        state=outcome.state,
        snapshot=snapshot,
        attempts=outcome.attempts,
        looked_up=outcome.looked_up,
    )
