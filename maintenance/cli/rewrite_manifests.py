"""`icefold rewrite-manifests`: cluster manifests by partition."""

from __future__ import annotations

import click

from maintenance.cli.context import CliContext, pass_context
from maintenance.cli.tasks import SizeType, branch_option, show_report, task_options
from maintenance.tasks.options import RewriteManifestsOptions
from maintenance.tasks.rewrite_manifests import rewrite_manifests


@click.command("rewrite-manifests")
@task_options
@branch_option
@click.option(
    "--target-size", type=SizeType(), help="[the table's commit.manifest.target-size-bytes]"
)
@click.option("--rewrite-all", is_flag=True, help="Rewrite also where there are few enough.")
@pass_context
def rewrite_manifests_command(
    context: CliContext,
    table_name: str,
    branch: str,
    target_size: int | None,
    rewrite_all: bool,
    dry_run: bool,
    lock_timeout_ms: int,
    as_json: bool,
) -> None:
    """Write TABLE's data manifests again: full ones, each about few partitions."""
    report = rewrite_manifests(
        context.table(table_name),
        RewriteManifestsOptions(
            branch=branch, target_size_bytes=target_size, rewrite_all=rewrite_all
        ),
        dry_run=dry_run,
        lock_timeout_ms=lock_timeout_ms,
    )
    show_report(report, as_json=as_json)
