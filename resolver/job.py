"""`resolve`: what a person, a scheduler or the command line calls."""

from __future__ import annotations

import os
from contextlib import closing, nullcontext
from pathlib import Path

from lock import HeldLease, LockManager
from resolver.cycle import Cycle, CycleOptions
from resolver.index_keeper import LocalIndexKeeper, Progress, index_folder
from resolver.maintenance_lock import fence_of, hold_maintenance, maintenance_lock
from resolver.report import ResolveReport
from resolver.target import live_files
from tableformat import InvalidInputError, NotFoundError, Table, UnsupportedError
from tableformat.catalog.base import TableState
from tableformat.spec.names import MAIN_BRANCH, STAGING_BRANCH

LOCK_TIMEOUT_MS = 60_000


def resolve(
    table: Table,
    *,
    staging: str = STAGING_BRANCH,
    target: str = MAIN_BRANCH,
    limit: int | None = None,
    from_snapshot: int | None = None,
    rebuild_index: bool = False,
    index_directory: str | os.PathLike[str] | None = None,
    lock: LockManager | None = None,
    lock_timeout_ms: int = LOCK_TIMEOUT_MS,
    progress: Progress | None = None,
) -> ResolveReport:
    """Turn staged equality deletes into deletion vectors and publish them on `target`.

    With `staging == target` the equality deletes that are live on the branch itself are converted
    and removed: the one-time clean-up of a table that a streaming writer filled. Equality deletes
    that foreign writers left on `target` are converted that way before a normal cycle, too.

    Args:
        table: A v3 table with a primary key. Refreshed.
        staging: Branch with staged changes.
        target: Branch readers read.
        limit: At most so many staged snapshots, the oldest.
        from_snapshot: Override of a lost cursor: the last staged snapshot that was published.
        rebuild_index: Build the index afresh.
        index_directory: Folder of the index; None: see `index_keeper.index_folder`.
        lock: Lock manager; None: the catalog's own.
        lock_timeout_ms: How long to wait for other maintenance of the table.
        progress: Told how far an index build is.

    Returns:
        What was done; `staged_snapshots == 0` when nothing was waiting.

    Raises:
        NotFoundError: There is no such branch.
        InvalidInputError: No primary key, or a cursor that cannot be reached.
        UnsupportedError: A v1 or v2 table, or staged changes that were rewritten.
        CommitConflictError, CommitUnknownError, FencedError: See `cycle.Cycle.run`.
        lock.LeaseUnavailableError, lock.LeaseLostError: The lock is someone else's.

    Effects: see the steps in `cycle`; killed at any of them and run again, the result is the same.
    """
    state = table.refresh().state
    _check(state, staging, target)
    task = f"resolve {state.name}"
    with (
        closing(maintenance_lock(table.environment))
        if lock is None
        else nullcontext(lock) as manager,
        hold_maintenance(
            state, manager, task=task, branch=target, timeout_ms=lock_timeout_ms
        ) as lease,
    ):
        folder = (
            index_folder(table.environment, state, target)
            if index_directory is None
            else Path(index_directory)
        )
        keeper = LocalIndexKeeper(
            table.environment, folder, rebuild=rebuild_index, progress=progress
        )
        with keeper:
            report = _run(table, staging, target, limit, from_snapshot, lease, keeper)
    table.refresh()
    return report


def _run(
    table: Table,
    staging: str,
    target: str,
    limit: int | None,
    from_snapshot: int | None,
    lease: HeldLease,
    keeper: LocalIndexKeeper,
) -> ResolveReport:
    def cycle(source: str) -> ResolveReport:
        options = CycleOptions(
            staging=source,
            target=target,
            limit=limit,
            from_snapshot=from_snapshot,
            fence=lambda: fence_of(lease),
        )
        return Cycle(table.environment, table.identifier, options, keeper).run()

    head = table.refresh().state.head(target)
    if staging != target and live_files(table.environment, head).equality_deletes:
        cycle(target)
    return cycle(staging)


def _check(state: TableState, staging: str, target: str) -> None:
    version = state.metadata.format_version
    if version < 3:
        raise UnsupportedError(
            f"cannot resolve a v{version} table: deletion vectors need v3",
            table=state.name,
            action="upgrade the table to format version 3",
        )
    if not state.metadata.schema().identifier_field_ids:
        raise InvalidInputError("cannot resolve a table without a primary key", table=state.name)
    for branch in (staging, target):
        ref = state.ref(branch)
        if not branch or (ref is not None and ref.snapshot_ref_type.value != "branch"):
            raise InvalidInputError("not a branch", table=state.name, branch=repr(branch))
    if state.head(staging) is None:
        raise NotFoundError(
            "there is no staging branch" if staging != target else "there is no such branch",
            table=state.name,
            branch=staging,
            action="stage something first, or name another branch with --staging",
        )
