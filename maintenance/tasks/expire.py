"""`expire`: forget old snapshots and refs, then delete what nothing needs any more.

The work is `tableformat.commit.expire`: refs-aware, by Iceberg's properties, staged work kept. A
staging branch that nothing waits on is moved to its target first, else it would keep what it is at.
"""

from __future__ import annotations

from pyiceberg.table.metadata import TableMetadata

from lock import LockManager
from maintenance.tasks.base import LOCK_TIMEOUT_MS, run_task
from maintenance.tasks.options import ExpireOptions
from maintenance.tasks.reports import ExpireReport
from resolver.trim import idle_position, trim_idle
from tableformat import Table
from tableformat.catalog.base import TableState
from tableformat.commit.expire import ExpiryReport, apply_expiry
from tableformat.commit.expiry_plan import ExpiryPolicy, plan_expiry
from tableformat.commit.staging_branches import StagingBranch, staging_branches

TASK = "expire"


def expire(
    table: Table,
    options: ExpireOptions | None = None,
    *,
    dry_run: bool = False,
    lock: LockManager | None = None,
    lock_timeout_ms: int = LOCK_TIMEOUT_MS,
) -> ExpireReport:
    """Expire snapshots and refs that the policy, the refs and the table let go.

    Args:
        table: Refreshed.
        options: What may go; None: what the table's `history.expire.*` say.
        dry_run: Only say which snapshots and refs would go; files are not counted then.
        lock: Lock manager; None: the catalog's own.
        lock_timeout_ms: How long to wait for other maintenance of the table.

    Raises:
        InvalidInputError: The table has `gc.enabled` = false, or a malformed property.
        CommitConflictError: The removal lost its swap too often; nothing was deleted.
        CommitUnknownError: The removal may have landed; nothing was deleted.
        FencedError, lock.LeaseLostError: Another holder of the lock has taken over.

    Effects: the move of an idle staging branch, one commit, then deletes in batches; a crash in
    between leaves orphans.
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
            metadata = _with_idle_staging_trimmed(table.state, options.policy)
            plan = plan_expiry(metadata, options.policy, now_ms=now_ms)
            done = ExpiryReport(plan=plan, state=table.state)
        else:
            for each in _followers(run.refresh(), options.policy):
                trim_idle(
                    run.environment,
                    run.refresh(),
                    staging=each.name,
                    target=each.target,
                    fence=run.fence,
                )
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


def _followers(state: TableState, policy: ExpiryPolicy) -> list[StagingBranch]:
    """Staging branches that may be moved: not what only looks like one, for a guessed target."""
    found = staging_branches(state.metadata, policy.staging)
    return [each for each in found.values() if each.is_certain]


def _with_idle_staging_trimmed(state: TableState, policy: ExpiryPolicy) -> TableMetadata:
    """The metadata as it is once idle staging branches have followed their targets."""
    refs = dict(state.metadata.refs)
    for each in _followers(state, policy):
        goal = idle_position(state, staging=each.name, target=each.target)
        if goal is not None:
            refs[each.name] = refs[each.name].model_copy(update={"snapshot_id": goal})
    return state.metadata.model_copy(update={"refs": refs})
