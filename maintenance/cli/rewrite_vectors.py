"""`icefold rewrite-vectors`: pack deletion vectors."""

from __future__ import annotations

import click

from maintenance.cli.context import CliContext, pass_context
from maintenance.cli.tasks import branch_option, show_report, task_options
from maintenance.tasks.options import RewriteVectorsOptions
from maintenance.tasks.rewrite_vectors import rewrite_vectors

DEFAULTS = RewriteVectorsOptions()


@click.command("rewrite-vectors")
@task_options
@branch_option
@click.option(
    "--min-files",
    type=click.IntRange(min=2),
    default=DEFAULTS.small_files_min,
    show_default=True,
    help="Small or mostly dead Puffin files that are worth a rewrite.",
)
@click.option("--rewrite-all", is_flag=True, help="Rewrite every deletion vector.")
@pass_context
def rewrite_vectors_command(
    context: CliContext,
    table_name: str,
    branch: str,
    min_files: int,
    rewrite_all: bool,
    dry_run: bool,
    lock_timeout_ms: int,
    as_json: bool,
) -> None:
    """Merge TABLE's Puffin files, and turn position delete files into deletion vectors."""
    report = rewrite_vectors(
        context.table(table_name),
        RewriteVectorsOptions(branch=branch, small_files_min=min_files, rewrite_all=rewrite_all),
        dry_run=dry_run,
        lock_timeout_ms=lock_timeout_ms,
    )
    show_report(report, as_json=as_json)
