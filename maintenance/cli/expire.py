"""`icefold expire`: forget old snapshots."""

from __future__ import annotations

import click

from maintenance.cli.context import CliContext, pass_context
from maintenance.cli.maintain import DurationType
from maintenance.cli.tasks import show_report, task_options
from maintenance.tasks.expire import expire
from maintenance.tasks.options import ExpireOptions
from tableformat.commit.expiry_plan import ExpiryPolicy


@click.command("expire")
@task_options
@click.option(
    "--older-than",
    type=DurationType(),
    metavar="AGE",
    help="e.g. 12h, 5d.  [the table's history.expire.max-snapshot-age-ms, else 5d]",
)
@click.option(
    "--keep",
    type=click.IntRange(min=1),
    help="Snapshots to keep per branch.  [history.expire.min-snapshots-to-keep, else 1]",
)
@click.option("--keep-files", is_flag=True, help="Delete no file; orphan removal finds them.")
@pass_context
def expire_command(
    context: CliContext,
    table_name: str,
    older_than: int | None,
    keep: int | None,
    keep_files: bool,
    dry_run: bool,
    lock_timeout_ms: int,
    as_json: bool,
) -> None:
    """Expire TABLE's old snapshots and refs, and delete what nothing needs any more."""
    policy = ExpiryPolicy(max_snapshot_age_ms=older_than, min_snapshots_to_keep=keep)
    report = expire(
        context.table(table_name),
        ExpireOptions(policy=policy, delete_files=not keep_files),
        dry_run=dry_run,
        lock_timeout_ms=lock_timeout_ms,
    )
    show_report(report, as_json=as_json)
