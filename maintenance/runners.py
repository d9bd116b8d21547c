"""How the scheduler calls each task, and what it keeps of the report."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from lock import LockManager
from maintenance.settings import MaintainConfig, TaskName
from maintenance.tasks.base import Task, TaskReport
from maintenance.tasks.compact import compact
from maintenance.tasks.drop_dead_deletes import drop_dead_deletes
from maintenance.tasks.expire import expire
from maintenance.tasks.options import (
    CompactOptions,
    DropDeadDeletesOptions,
    ExpireOptions,
    RemoveOrphansOptions,
    RewriteManifestsOptions,
    RewriteVectorsOptions,
)
from maintenance.tasks.remove_orphans import remove_orphans
from maintenance.tasks.rewrite_manifests import rewrite_manifests
from maintenance.tasks.rewrite_vectors import rewrite_vectors
from resolver import ResolveReport, resolve
from resolver.open_indexes import OpenIndexes
from tableformat import Table
from tableformat.commit.expiry_plan import ExpiryPolicy

FACT_TEXT_LENGTH_MAX = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """What a task did: whether anything, one line, and the numbers of its report.

    `failed`: there was something to do, and none of it could be done.
    """

    changed: bool
    text: str
    failed: bool = False
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskCall:
    """What a runner is given.

    `until`: the last staged snapshot to publish; None: all. `indexes`: those that stay open.
    """

    table: Table
    lock: LockManager
    lock_timeout_ms: int
    staging: str
    target: str
    config: MaintainConfig
    until: int | None = None
    indexes: OpenIndexes | None = None


class Runner(Protocol):
    """Runs one task on one table."""

    def __call__(self, call: TaskCall) -> TaskResult:
        """Run it; any exception is a failed run."""


def run_resolve(call: TaskCall) -> TaskResult:
    """One cycle over all that waits."""
    report = resolve(
        call.table,
        staging=call.staging,
        target=call.target,
        until=call.until,
        lock=call.lock,
        lock_timeout_ms=call.lock_timeout_ms,
        indexes=call.indexes,
    )
    return cycle_result(report)


def cycle_result(report: ResolveReport) -> TaskResult:
    """What a cycle did."""
    return TaskResult(
        changed=report.staged_snapshots > 0,
        text=report.describe(),
        facts=plain_facts(report.to_dict()),
    )


def _compact_options(call: TaskCall) -> CompactOptions:
    """Rewrite what is worth it, in groups small enough for cycles to get their turns."""
    return CompactOptions(
        branch=call.target,
        group_bytes_max=int(call.config["compact.group-bytes"]),
        partial_progress=bool(call.config["compact.partial-progress"]),
        partial_progress_commits_max=int(call.config["compact.max-commits"]),
    )


def _expire_options(call: TaskCall) -> ExpireOptions:
    """By the table's `history.expire.*`."""
    in_place = call.staging == call.target
    policy = ExpiryPolicy(staging={} if in_place else {call.staging: call.target})
    return ExpireOptions(policy=policy, branch=call.target)


def _remove_orphans_options(call: TaskCall) -> RemoveOrphansOptions:
    age_ms = int(call.config["remove-orphans.older-than-ms"])
    return RemoveOrphansOptions(branch=call.target, older_than_ms=age_ms)


def _runner(task: Task[Any, TaskReport], options: Callable[[TaskCall], Any]) -> Runner:
    def run(call: TaskCall) -> TaskResult:
        report = task(
            call.table, options(call), lock=call.lock, lock_timeout_ms=call.lock_timeout_ms
        )
        return TaskResult(
            changed=report.changed,
            text=report.describe(),
            failed=report.failed,
            facts=plain_facts(report.to_dict()),
        )

    return run


RUNNERS: Mapping[TaskName, Runner] = {
    TaskName.RESOLVE: run_resolve,
    TaskName.DROP_DEAD_DELETES: _runner(
        drop_dead_deletes, lambda call: DropDeadDeletesOptions(branch=call.target)
    ),
    TaskName.COMPACT: _runner(compact, _compact_options),
    TaskName.REWRITE_VECTORS: _runner(
        rewrite_vectors, lambda call: RewriteVectorsOptions(branch=call.target)
    ),
    TaskName.EXPIRE: _runner(expire, _expire_options),
    TaskName.REWRITE_MANIFESTS: _runner(
        rewrite_manifests, lambda call: RewriteManifestsOptions(branch=call.target)
    ),
    TaskName.REMOVE_ORPHANS: _runner(remove_orphans, _remove_orphans_options),
}


def plain_facts(report: Mapping[str, Any]) -> dict[str, Any]:
    """The scalars of a report, and dicts of numbers; lists become their lengths."""
    facts: dict[str, Any] = {}
    for key, value in report.items():
        if isinstance(value, str):
            facts[key] = value[:FACT_TEXT_LENGTH_MAX]
        elif isinstance(value, list | tuple):
            facts[key] = len(value)
        elif isinstance(value, dict):
            facts[key] = {name: round(part, 1) for name, part in value.items()}
        else:
            facts[key] = round(value, 1) if isinstance(value, float) else value
    return {key: value for key, value in facts.items() if key not in ("task", "table", "dry_run")}
