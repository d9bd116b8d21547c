"""`icefold drop-dead-deletes`: take delete files off that reach nothing."""

from __future__ import annotations

import click

from maintenance.cli.context import CliContext, pass_context
from maintenance.cli.tasks import branch_option, show_report, task_options
from maintenance.tasks.drop_dead_deletes import drop_dead_deletes
from maintenance.tasks.options import DropDeadDeletesOptions


@click.command("drop-dead-deletes")
@task_options
@branch_option
@pass_context
def drop_dead_deletes_command(
    context: CliContext,
    table_name: str,
    branch: str,
    dry_run: bool,
    lock_timeout_ms: int,
    as_json: bool,
) -> None:
    """Remove TABLE's delete files that reach no live row file any more."""
    report = drop_dead_deletes(
        context.table(table_name),
        DropDeadDeletesOptions(branch=branch),
        dry_run=dry_run,
        lock_timeout_ms=lock_timeout_ms,
    )
    show_report(report, as_json=as_json)
