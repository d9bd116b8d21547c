"""`icefold compact`: fewer, larger files without dead rows."""

from __future__ import annotations

import sys

import click

from maintenance.cli.context import CliContext, parse_columns, pass_context
from maintenance.cli.tasks import (
    SizeType,
    branch_option,
    session_for,
    show_report,
    spark_option,
    task_options,
)
from maintenance.tasks.compact import compact
from maintenance.tasks.options import CompactOptions, Strategy

DEFAULTS = CompactOptions()


@click.command("compact")
@task_options
@branch_option
@click.option("--filter", "row_filter", help="Only files that may hold rows matching it.")
@click.option(
    "--strategy",
    type=click.Choice(["bin-pack", "sort", "z-order"]),
    default=DEFAULTS.strategy,
    show_default=True,
)
@click.option("--sort-by", metavar="'A, B desc'", help="Columns for sort and z-order.")
@click.option(
    "--target-size",
    type=SizeType(),
    help="Size of new files.  [the table's write.target-file-size-bytes]",
)
@click.option(
    "--group-size",
    type=SizeType(),
    default=DEFAULTS.group_bytes_max,
    help="Bytes that are rewritten together.  [2 GiB]",
)
@click.option("--max-bytes", type=SizeType(), help="Leave what exceeds this to the next run.")
@click.option(
    "--min-files",
    type=click.IntRange(min=1),
    default=DEFAULTS.input_files_min,
    show_default=True,
    help="Small files that are worth a rewrite.",
)
@click.option(
    "--dv-share",
    type=click.FloatRange(min=0, max=1, min_open=True),
    default=DEFAULTS.dv_share_min,
    show_default=True,
    help="Share of dead rows in a file that is worth a rewrite.",
)
@click.option("--rewrite-all", is_flag=True, help="Rewrite every file.")
@click.option("--partial-progress", is_flag=True, help="Commit groups in several parts.")
@click.option(
    "--max-commits",
    type=click.IntRange(min=1),
    default=DEFAULTS.partial_progress_commits_max,
    show_default=True,
    help="With --partial-progress: how many parts at most.",
)
@spark_option
@pass_context
def compact_command(
    context: CliContext,
    table_name: str,
    branch: str,
    row_filter: str | None,
    strategy: Strategy,
    sort_by: str | None,
    target_size: int | None,
    group_size: int,
    max_bytes: int | None,
    min_files: int,
    dv_share: float,
    rewrite_all: bool,
    partial_progress: bool,
    max_commits: int,
    use_spark: bool,
    dry_run: bool,
    lock_timeout_ms: int,
    as_json: bool,
) -> None:
    """Rewrite TABLE's small files and files with many dead rows; rows keep their row ids."""
    options = CompactOptions(
        branch=branch,
        filter=row_filter,
        strategy=strategy,
        sort_by=tuple(parse_columns(sort_by) or ()),
        target_size_bytes=target_size,
        input_files_min=min_files,
        dv_share_min=dv_share,
        rewrite_all=rewrite_all,
        group_bytes_max=group_size,
        rewrite_bytes_max=max_bytes,
        partial_progress=partial_progress,
        partial_progress_commits_max=max_commits,
    )
    report = compact(
        context.table(table_name),
        options,
        dry_run=dry_run,
        lock_timeout_ms=lock_timeout_ms,
        spark=session_for(use_spark, "icefold compact"),
    )
    show_report(report, as_json=as_json)
    for error in report.errors:
        click.echo(f"icefold: not compacted: {error}", err=True)
    if report.failed_groups:
        sys.exit(1)
