"""Everything that runs on a schedule, the status view and the command line.

What is offered here is imported when it is first asked for: the `icefold` script goes through this
module, and tells what goes wrong while all else is imported (`maintenance.cli.start`).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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

_HOMES = {
    "Scheduler": "maintenance.scheduler",
    "SchedulerEnd": "maintenance.scheduler",
    "SchedulerOptions": "maintenance.scheduler_options",
    "TaskName": "maintenance.settings",
    "TableStatus": "maintenance.status",
    "read_status": "maintenance.status",
    "compact": "maintenance.tasks.compact",
    "drop_dead_deletes": "maintenance.tasks.drop_dead_deletes",
    "expire": "maintenance.tasks.expire",
    "CompactOptions": "maintenance.tasks.options",
    "DropDeadDeletesOptions": "maintenance.tasks.options",
    "ExpireOptions": "maintenance.tasks.options",
    "RemoveOrphansOptions": "maintenance.tasks.options",
    "RewriteManifestsOptions": "maintenance.tasks.options",
    "RewriteVectorsOptions": "maintenance.tasks.options",
    "remove_orphans": "maintenance.tasks.remove_orphans",
    "CompactReport": "maintenance.tasks.reports",
    "DropDeadDeletesReport": "maintenance.tasks.reports",
    "ExpireReport": "maintenance.tasks.reports",
    "RemoveOrphansReport": "maintenance.tasks.reports",
    "RewriteManifestsReport": "maintenance.tasks.reports",
    "RewriteVectorsReport": "maintenance.tasks.reports",
    "rewrite_manifests": "maintenance.tasks.rewrite_manifests",
    "rewrite_vectors": "maintenance.tasks.rewrite_vectors",
    "ExpiryPolicy": "tableformat.commit.expiry_plan",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(home), name)
