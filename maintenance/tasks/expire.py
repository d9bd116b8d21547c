"""`expire`: forget old snapshots and refs, then delete what nothing needs any more.

The work is `tableformat.commit.expire`: refs-aware, by Iceberg's properties, staged work kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lock import LockManager
from maintenance.tasks.base import LOCK_TIMEOUT_MS, run_task
from maintenance.tasks.options import ExpireOptions
from maintenance.tasks.reports import ExpireReport
from tableformat import Table
from tableformat.commit.expire import ExpiryReport, apply_expiry
from tableformat.commit.expiry_plan import plan_expiry

if TYPE_CHECKING:  # Spark is an optional dependency
    from pyspark.sql import SparkSession

TASK = "expire"


def expire(
    table: Table,
    options: ExpireOptions | None = None,
    *,
    dry_run: bool = False,
    lock: LockManager | None = None,
    lock_timeout_ms: int = LOCK_TIMEOUT_MS,
    spark: SparkSession | None = None,  # noqa: ARG001 - every task is called alike
) -> ExpireReport:
    """Expire snapshots and refs that the policy, the refs and the table let go.

    Args:
        table: Refreshed.
        options: What may go; None: what the table's `history.expire.*` say.
        dry_run: Only say which snapshots and refs would go; files are not counted then.
        lock: Lock manager; None: the catalog's own.
        lock_timeout_ms: How long to wait for other maintenance of the table.
        spark: Not used.

    Raises:
        InvalidInputError: The table has `gc.enabled` = false, or a malformed property.
        CommitConflictError: The removal lost its swap too often; nothing was deleted.
        CommitUnknownError: The removal may have landed; nothing was deleted.
        FencedError, lock.LeaseLostError: Another holder of the lock has taken over.

    Effects: one commit, then deletes in batches; a crash in between leaves orphans.
    """
    options = options or ExpireOptions()
    with run_task(
        table,
        task=TASK,
        dry_run=dry_run,
        lock=lock,
        lock_timeout_ms=lock_timeout_ms,
        branch=options.branch,
    ) as run:
        if dry_run:
            now_ms = run.environment.runtime.clock.now_ms()
            plan = plan_expiry(table.state.metadata, options.policy, now_ms=now_ms)
            done = ExpiryReport(plan=plan, state=table.state)
        else:
            done = apply_expiry(
                run.environment,
                run.identifier,
                options.policy,
                fence=run.fence(),
                branch=options.branch,
                delete_files=options.delete_files,
            )
        return ExpireReport(
            task=TASK,
            table=table.name,
            dry_run=dry_run,
            changed=bool(done.plan.snapshot_ids or done.plan.refs),
            duration_ms=run.duration_ms,
            snapshots=done.plan.snapshot_ids,
            refs=done.plan.refs,
            protected_snapshots=len(done.plan.protected),
            data_files=done.data_files,
            delete_files=done.delete_files,
            manifests=done.manifests,
            manifest_lists=done.manifest_lists,
            statistics_files=done.statistics_files,
            failed_files=len(done.failed),
        )
