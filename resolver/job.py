"""`resolve`: what a person, a scheduler or the command line calls."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

from lock import HeldLease, LockManager
from resolver.cycle import Cycle
from resolver.cycle_options import CycleOptions
from resolver.engine import Engine, EngineName, check_engine
from resolver.index_keeper import Progress
from resolver.key_choice import keyed
from resolver.maintenance_lock import fence_of, hold_maintenance, maintenance_lock
from resolver.open_indexes import OpenIndexes
from resolver.report import ResolveReport
from resolver.resolvable import check_resolvable, is_held_by_load, was_never_staged
from resolver.secondary import maintain_indexes
from resolver.target import live_files
from resolver.workers import Keeper, Workers
from tableformat import Table
from tableformat.after_commit import after_commit, reload_after
from tableformat.spec.names import MAIN_BRANCH, STAGING_BRANCH

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCK_TIMEOUT_MS = 60_000


def resolve(
    table: Table,
    *,
    staging: str = STAGING_BRANCH,
    target: str = MAIN_BRANCH,
    limit: int | None = None,
    until: int | None = None,
    from_snapshot: int | None = None,
    skip_unpublished: bool = False,
    from_staging_state: bool = False,
    staged_after: int | None = None,
    rebuild_index: bool = False,
    index_directory: str | os.PathLike[str] | None = None,
    index_location: str | None = None,
    key: Sequence[str] | None = None,
    engine: EngineName = "auto",
    spark: SparkSession | None = None,
    lock: LockManager | None = None,
    lock_timeout_ms: int = LOCK_TIMEOUT_MS,
    progress: Progress | None = None,
    indexes: OpenIndexes | None = None,
) -> ResolveReport:
    """Turn staged equality deletes into deletion vectors and publish them on `target`.

    On a v2 table they become position delete files (`write.delete.granularity`).

    With `staging == target` the equality deletes that are live on the branch itself are converted
    and removed: the one-time clean-up of a table that a streaming writer filled. Equality deletes
    that foreign writers left on `target` are converted that way before a normal cycle, too.

    Args:
        table: A v2 or v3 table with a primary key. Refreshed.
        staging: Branch with staged changes.
        target: Branch readers read.
        limit: At most so many staged snapshots, the oldest.
        until: The last staged snapshot to publish; nothing is, if it does not wait.
        from_snapshot: Override of a lost cursor: the last staged snapshot that was published.
        skip_unpublished: Go on although `from_snapshot` takes staged snapshots as published that
            are not known to be; without it the call is refused and says how many.
        from_staging_state: Where staged snapshots have expired before they were published, take the
            changes from the files of the staging head; without need it changes nothing.
        staged_after: For `from_staging_state`, where it cannot be told: the highest sequence number
            that is not staged.
        rebuild_index: Build the index afresh.
        index_directory: Folder of a local index; None: see `index_keeper.index_folder`.
        index_location: Folder of shared indexes, reached by all executors; None: the catalog
            property `index-location`, and on a cluster without it a folder in the warehouse.
        key: The columns that name a row; None: those that are declared (`key_choice`).
        engine: `local`: this process. `spark`: a Spark session, started if there is none. `auto`:
            an active session for a large backlog, else this process; see `engine`.
        spark: The session to use; None: the active one.
        lock: Lock manager; None: the catalog's own.
        lock_timeout_ms: How long to wait for other maintenance of the table.
        progress: Told how far an index build is.
        indexes: Where a local index stays open for the next call; None: it is closed.

    Returns:
        What was done; `staged_snapshots == 0` when nothing was waiting.

    Raises:
        NotFoundError: There is no such branch; the default one need not exist before the first
            change is staged.
        InvalidInputError: No primary key, or a cursor that cannot be reached.
        UnsupportedError: A v1 table, staged changes that were rewritten, or no Spark.
        CommitConflictError, CommitUnknownError, FencedError: See `cycle.Cycle.run`.
        lock.LeaseUnavailableError, lock.LeaseLostError: The lock is someone else's.

    Effects: see the steps in `cycle`; killed at any of them and run again, the result is the same.
    """
    engine = check_engine(engine)
    given, table = table, keyed(table.refresh(), key)
    state = table.state
    check_resolvable(state, staging, target)
    if was_never_staged(state, staging, target) or is_held_by_load(state, target):
        return ResolveReport(
            table=state.name,
            target_snapshot_id=state.head_id(target),
            staging_snapshot_id=None,
        )
    options = CycleOptions(
        staging=staging,
        target=target,
        limit=limit,
        until=until,
        from_snapshot=from_snapshot,
        skip_unpublished=skip_unpublished,
        from_staging_state=from_staging_state,
        staged_after=staged_after,
    )
    workers = Workers.of(table, engine, spark)
    keeper = workers.open_keeper(
        table,
        target,
        directory=index_directory,
        location=index_location,
        rebuild=rebuild_index,
        progress=progress,
        indexes=indexes,
    )
    with _held(table, target, lock, lock_timeout_ms) as lease, closing(keeper):
        options = replace(options, fence=lambda: fence_of(lease))
        convert_left_deletes(table, options, keeper, workers.engine)
        cycle = Cycle(table.environment, table.identifier, options, keeper, workers.engine)
        report = cycle.run(table.state)
        is_changed = report.staged_snapshots or report.trimmed
        if not is_changed or reload_after(table, report.done):
            maintain_indexes(
                table.environment, table.state, target, rebuild=rebuild_index, progress=progress
            )
    if given is not table:
        reload_after(given, report.done)
    return report


@contextmanager
def _held(
    table: Table, target: str, lock: LockManager | None, timeout_ms: int
) -> Iterator[HeldLease]:
    """The table's maintenance lock; without a manager that of the catalog."""
    own = closing(maintenance_lock(table.environment)) if lock is None else nullcontext(lock)
    task = f"resolve {table.name}"
    with (
        own as manager,
        hold_maintenance(
            table.state, manager, task=task, branch=target, timeout_ms=timeout_ms
        ) as lease,
    ):
        yield lease


def convert_left_deletes(
    table: Table, options: CycleOptions, keeper: Keeper, engine: Engine
) -> None:
    """Convert equality deletes that somebody left on the target, before a cycle. Refreshes."""
    head = table.refresh().state.head(options.target)
    if options.is_in_place or not live_files(table.environment, head).equality_deletes:
        return
    own = CycleOptions(staging=options.target, target=options.target, fence=options.fence)
    report = Cycle(table.environment, table.identifier, own, keeper, engine).run(table.state)
    with after_commit(f"equality deletes on {options.target}: {report.done}"):
        table.refresh()
