"""`icefold orphans`: list or delete files that nothing needs."""

from __future__ import annotations

import click

from maintenance.cli.context import CliContext, json_option, pass_context, table_argument
from maintenance.cli.maintain import DurationType
from maintenance.cli.tasks import lock_timeout_option, show_report
from maintenance.tasks.options import RemoveOrphansOptions
from maintenance.tasks.remove_orphans import remove_orphans


@click.command("orphans")
@table_argument
@click.option(
    "--older-than",
    type=DurationType(),
    metavar="AGE",
    default=RemoveOrphansOptions().older_than_ms,
    help="More than the longest write takes; at least 1h.  [3d]",
)
@click.option(
    "--dry-run/--delete", default=True, show_default=True, help="Only list them, or delete them."
)
@lock_timeout_option
@json_option
@pass_context
def orphans_command(
    context: CliContext,
    table_name: str,
    older_than: int,
    dry_run: bool,
    lock_timeout_ms: int,
    as_json: bool,
) -> None:
    """List TABLE's unreferenced old files; with --delete, delete them."""
    report = remove_orphans(
        context.table(table_name),
        RemoveOrphansOptions(older_than_ms=older_than),
        dry_run=dry_run,
        lock_timeout_ms=lock_timeout_ms,
    )
    show_report(report, as_json=as_json)
    if not as_json and dry_run:
        for location in report.locations:
            click.echo(f"  {location}")
        if report.orphan_files:
            click.echo("nothing was deleted; run again with --delete")
