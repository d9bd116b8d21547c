"""How the scheduler calls each task, and what it keeps of the report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from lock import LockManager
from maintenance.settings import MaintainConfig, TaskName
from maintenance.tasks.base import TaskReport
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
from resolver import resolve
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
    """What a runner is given."""

    table: Table
    lock: LockManager
    lock_timeout_ms: int
    staging: str
    target: str
    config: MaintainConfig


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
        lock=call.lock,
        lock_timeout_ms=call.lock_timeout_ms,
    )
    return TaskResult(
        changed=report.staged_snapshots > 0,
        text=report.describe(),
        facts=plain_facts(report.to_dict()),
    )


def run_compact(call: TaskCall) -> TaskResult:
    """Rewrite what is worth it, in groups small enough for cycles to get their turns."""
    options = CompactOptions(
        branch=call.target,
        group_bytes_max=int(call.config["compact.group-bytes"]),
        partial_progress=bool(call.config["compact.partial-progress"]),
        partial_progress_commits_max=int(call.config["compact.max-commits"]),
    )
    return _result(compact(call.table, options, **_lock(call)))


def run_rewrite_vectors(call: TaskCall) -> TaskResult:
    """Pack deletion vectors."""
    options = RewriteVectorsOptions(branch=call.target)
    return _result(rewrite_vectors(call.table, options, **_lock(call)))


def run_rewrite_manifests(call: TaskCall) -> TaskResult:
    """Cluster manifests."""
    options = RewriteManifestsOptions(branch=call.target)
    return _result(rewrite_manifests(call.table, options, **_lock(call)))


def run_expire(call: TaskCall) -> TaskResult:
    """Expire by the table's `history.expire.*`."""
    policy = ExpiryPolicy(staging={call.staging: call.target})
    options = ExpireOptions(policy=policy, branch=call.target)
    return _result(expire(call.table, options, **_lock(call)))


def run_remove_orphans(call: TaskCall) -> TaskResult:
    """Delete unreferenced files that are old enough."""
    options = RemoveOrphansOptions(
        branch=call.target, older_than_ms=int(call.config["remove-orphans.older-than-ms"])
    )
    return _result(remove_orphans(call.table, options, **_lock(call)))


def run_drop_dead_deletes(call: TaskCall) -> TaskResult:
    """Remove delete files that reach nothing."""
    options = DropDeadDeletesOptions(branch=call.target)
    return _result(drop_dead_deletes(call.table, options, **_lock(call)))


RUNNERS: Mapping[TaskName, Runner] = {
    TaskName.RESOLVE: run_resolve,
    TaskName.DROP_DEAD_DELETES: run_drop_dead_deletes,
    TaskName.COMPACT: run_compact,
    TaskName.REWRITE_VECTORS: run_rewrite_vectors,
    TaskName.EXPIRE: run_expire,
    TaskName.REWRITE_MANIFESTS: run_rewrite_manifests,
    TaskName.REMOVE_ORPHANS: run_remove_orphans,
}


def _lock(call: TaskCall) -> dict[str, Any]:
    return {"lock": call.lock, "lock_timeout_ms": call.lock_timeout_ms}


def _result(report: TaskReport) -> TaskResult:
    return TaskResult(
        changed=report.changed,
        text=report.describe(),
        failed=report.failed,
        facts=plain_facts(report.to_dict()),
    )


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
