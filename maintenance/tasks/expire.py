"""`expire`: forget old snapshots and refs, then delete what nothing needs any more.

The work is `tableformat.commit.expire`: refs-aware, by Iceberg's properties, staged work kept. A
staging branch that nothing waits on is moved to its target first, else it would keep what it is at.
"""

from __future__ import annotations

from pyiceberg.table.metadata import TableMetadata

from maintenance.tasks.base import TaskRun, maintenance_task
from maintenance.tasks.deletion_time import deletion_time_ms
from maintenance.tasks.options import ExpireOptions
from maintenance.tasks.reports import ExpireReport
from resolver.trim import idle_position, trim_idle
from tableformat.catalog.base import TableState
from tableformat.commit.expire import ExpiryReport, apply_expiry, check_owns_files
from tableformat.commit.expiry_plan import ExpiryPolicy, plan_expiry
from tableformat.commit.staging_branches import StagingBranch, staging_branches


@maintenance_task("expire", ExpireOptions())
def expire(run: TaskRun, options: ExpireOptions) -> ExpireReport:
    """Expire snapshots and refs that the policy, the refs and the table let go.

    Raises:
        InvalidInputError: The table has `gc.enabled` = false, or a malformed property.
        CommitConflictError: The removal lost its swap too often; nothing was deleted.
        CommitUnknownError: The removal may have landed; nothing was deleted.

    Effects: the move of an idle staging branch, one commit, then deletes in batches; a crash in
    between leaves orphans.
    """
    if run.lease is None:
        now_ms = deletion_time_ms(run)
        metadata = _with_idle_staging_trimmed(run.table.state, options.policy)
        plan = plan_expiry(metadata, options.policy, now_ms=now_ms)
        done = ExpiryReport(plan=plan, state=run.table.state)
    else:
        check_owns_files(run.table.state, "expire snapshots")
        latest_ms = deletion_time_ms(run) if options.delete_files else None
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
            latest_ms=latest_ms,
            state=run.refresh(),
        )
    return run.report(
        ExpireReport,
        changed=bool(done.plan.snapshot_ids or done.plan.refs),
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
