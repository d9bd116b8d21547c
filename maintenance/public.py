"""What the package offers, as `maintenance` does when it is first asked for it."""

from __future__ import annotations

from maintenance.scheduler import Scheduler, SchedulerEnd
from maintenance.scheduler_options import SchedulerOptions
from maintenance.settings import TaskName
from maintenance.status import TableStatus, read_status
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
from maintenance.tasks.reports import (
    CompactReport,
    DropDeadDeletesReport,
    ExpireReport,
    RemoveOrphansReport,
    RewriteManifestsReport,
    RewriteVectorsReport,
)
from maintenance.tasks.rewrite_manifests import rewrite_manifests
from maintenance.tasks.rewrite_vectors import rewrite_vectors
from tableformat.commit.expiry_plan import ExpiryPolicy

__all__ = [
    "CompactOptions",
    "CompactReport",
    "DropDeadDeletesOptions",
    "DropDeadDeletesReport",
    "ExpireOptions",
    "ExpireReport",
    "ExpiryPolicy",
    "RemoveOrphansOptions",
    "RemoveOrphansReport",
    "RewriteManifestsOptions",
    "RewriteManifestsReport",
    "RewriteVectorsOptions",
    "RewriteVectorsReport",
    "Scheduler",
    "SchedulerEnd",
    "SchedulerOptions",
    "TableStatus",
    "TaskName",
    "compact",
    "drop_dead_deletes",
    "expire",
    "read_status",
    "remove_orphans",
    "rewrite_manifests",
    "rewrite_vectors",
]
