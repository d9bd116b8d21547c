"""`resolve`: what a person, a scheduler or the command line calls."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from lock import HeldLease, LockManager
from resolver.cycle import Cycle
from resolver.cycle_options import CycleOptions
from resolver.engine import Engine, EngineName, check_engine
from resolver.index_keeper import LocalIndexKeeper, Progress, index_folder
from resolver.key_choice import keyed
from resolver.lost_snapshots import unpublished_snapshots
from resolver.maintenance_lock import fence_of, hold_maintenance, maintenance_lock
from resolver.moved_staging import dropped_staging
from resolver.open_indexes import OpenIndexes
from resolver.report import ResolveReport
from resolver.secondary import maintain_indexes
from resolver.shared_keeper import (
    INDEX_CACHE,
    SharedIndexKeeper,
    cache_name,
    configured_root,
    default_root,
    index_depot,
)
from resolver.target import live_files
from tableformat import InvalidInputError, NotFoundError, Table, UnsupportedError
from tableformat.after_commit import after_commit, reload_after
from tableformat.catalog.base import TableState
from tableformat.commit.request import check_writable
from tableformat.spec.names import LOAD, MAIN_BRANCH, STAGING_BRANCH

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCK_TIMEOUT_MS = 60_000
logger = logging.getLogger("icefold.resolver")
Keeper = LocalIndexKeeper | SharedIndexKeeper
SUBMITTED = "PYSPARK_GATEWAY_PORT"  # spark-submit has started a JVM for this process


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
    keeper = open_keeper(
        table,
        state,
        target,
        workers,
        index_directory,
        index_location,
        rebuild_index,
        progress,
        indexes=indexes,
    )
    task = f"resolve {state.name}"
    with (
        closing(maintenance_lock(table.environment))
        if lock is None
        else nullcontext(lock) as manager,
        hold_maintenance(
            state, manager, task=task, branch=target, timeout_ms=lock_timeout_ms
        ) as lease,
        closing(keeper),
    ):
        report = _run(table, options, lease, keeper, workers.engine)
        if not is_changed(report) or reload_after(table, report.done):
            maintain_indexes(
                table.environment,
                table.state,
                target,
                rebuild=rebuild_index,
                progress=progress,
            )
    if given is not table:
        reload_after(given, report.done)
    return report


@dataclass(frozen=True, slots=True)
class Workers:
    """The engine, and what it means for the place of the index."""

    engine: Engine
    is_cluster: bool = False
    executor_cache: Callable[[str], Path] | None = None

    @staticmethod
    def of(table: Table, name: EngineName, spark: SparkSession | None) -> Workers:
        """For an engine's name: see `resolve`."""
        is_loaded = spark is not None or "pyspark" in sys.modules or SUBMITTED in os.environ
        if name == "local" or (name == "auto" and not is_loaded):
            return Workers(Engine(name=name))
        try:
            from resolver import spark_runner
        except ImportError as error:
            if name == "auto":
                return Workers(Engine(name=name))
            raise UnsupportedError(
                "the engine spark needs PySpark", action="pip install 'icefold[spark]'"
            ) from error
        session = spark_runner.open_session(
            spark, is_submitted=SUBMITTED in os.environ, start=name == "spark"
        )
        if session is None:
            return Workers(Engine(name=name))
        environment = table.environment
        try:
            runner = spark_runner.SparkRunner(session, environment.store)
        except UnsupportedError:
            if name == "spark":
                raise
            return Workers(Engine(name=name))  # a store in this process: nothing to choose
        configured = environment.catalog.properties.get(INDEX_CACHE)
        return Workers(
            Engine(name=name, spark=runner),
            spark_runner.is_cluster(session),
            partial(spark_runner.executor_cache, configured),
        )


def open_keeper(
    table: Table,
    state: TableState,
    target: str,
    workers: Workers,
    directory: str | os.PathLike[str] | None = None,
    location: str | None = None,
    rebuild: bool = False,
    progress: Progress | None = None,
    *,
    indexes: OpenIndexes | None = None,
) -> Keeper:
    """What brings the index of `target` along, in a local folder or in shared storage; close it."""
    environment = table.environment
    if directory is not None and location is not None:
        raise InvalidInputError(
            "an index is in a local folder or in shared storage, not in both",
            index_directory=directory,
            index_location=location,
        )
    root = None if directory is not None else location or configured_root(environment)
    if root is None and directory is None and workers.is_cluster:
        root = default_root(environment)
    if root is None:
        folder = index_folder(environment, state, target) if directory is None else Path(directory)
        return LocalIndexKeeper(
            environment, folder, rebuild=rebuild, progress=progress, indexes=indexes
        )
    depot = index_depot(environment, root, state, target)
    cache: Callable[[], Path] = Path  # without executors nobody asks
    if workers.executor_cache is not None:
        cache = partial(workers.executor_cache, cache_name(depot.root))
    return SharedIndexKeeper(
        environment, depot, workers.engine, cache, rebuild=rebuild, progress=progress
    )


def _run(
    table: Table,
    options: CycleOptions,
    lease: HeldLease,
    keeper: Keeper,
    engine: Engine,
) -> ResolveReport:
    options = replace(options, fence=lambda: fence_of(lease))
    convert_left_deletes(table, options, keeper, engine)
    return Cycle(table.environment, table.identifier, options, keeper, engine).run(table.state)


def is_changed(report: ResolveReport) -> bool:
    """Whether a cycle has committed anything."""
    return bool(report.staged_snapshots or report.trimmed)


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


def is_held_by_load(state: TableState, target: str) -> bool:
    """Whether nothing is published because rows are loaded (`tableformat.cdc.load`)."""
    is_held = target == MAIN_BRANCH and LOAD in state.metadata.properties
    if is_held:
        _tell_held(state.name, state.metadata.properties[LOAD])
    return is_held


@lru_cache(maxsize=1_000)
def _tell_held(name: str, load: str) -> None:
    """Once per load: a scheduler comes every second."""
    del load
    logger.warning("%s: nothing is published until its load is through", name)


def was_never_staged(state: TableState, staging: str, target: str) -> bool:
    """Whether the default staging branch does not exist yet: a scheduled job may come too early.

    Raises:
        NotFoundError: It is gone, and what was staged on it and not published is still there.
    """
    if staging != STAGING_BRANCH or state.ref(staging) is not None:
        return False
    dropped = unpublished_snapshots(state, staging=staging, target=target)
    if dropped:
        raise dropped_staging(state, staging, dropped)
    return True


def check_resolvable(state: TableState, staging: str, target: str) -> None:
    """Refuse a table that cannot be resolved, and branches that are none; see `resolve`."""
    check_writable(state.metadata, table=state.name)
    state.required_key_ids("resolve")
    for branch in (staging, target):
        ref = state.ref(branch)
        if not branch or (ref is not None and ref.snapshot_ref_type.value != "branch"):
            raise InvalidInputError("not a branch", table=state.name, branch=repr(branch))
    if target != MAIN_BRANCH and state.ref(target) is None:
        raise NotFoundError(
            "there is no such branch",
            table=state.name,
            branch=target,
            action="create it first; only main may begin with a publish",
        )
    if state.head(staging) is None and staging != STAGING_BRANCH:
        raise NotFoundError(
            "there is no staging branch" if staging != target else "there is no such branch",
            table=state.name,
            branch=staging,
            action="stage something first, or name another branch with --staging",
        )
