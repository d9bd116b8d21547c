"""`icefold index`: the primary-key index of a table."""

from __future__ import annotations

import sys
from dataclasses import asdict

import click

from maintenance.cli.context import CliContext, json_option, pass_context, print_json
from resolver.index_check import verify
from tableformat.spec.names import MAIN_BRANCH


@click.group()
def index() -> None:
    """Inspect the primary-key index that resolve keeps."""


@index.command("verify")
@click.argument("table_name", metavar="TABLE")
@click.option("--target", default=MAIN_BRANCH, show_default=True, help="The published branch.")
@json_option
@pass_context
def verify_command(context: CliContext, table_name: str, target: str, as_json: bool) -> None:
    """Compare the index with a full scan; exit code 1 when they differ."""
    check = verify(context.table(table_name), target=target)
    report = check.report
    if as_json:
        print_json(asdict(check))
    elif report.is_sound:
        click.echo(
            f"sound: {report.index_rows:,} entries equal the {report.live_rows:,} live rows of "
            f"snapshot {check.snapshot_id} ({report.deleted_rows:,} entries of deleted rows)"
        )
    else:
        click.echo(
            f"DAMAGED: {report.missing:,} rows missing, {report.extra:,} entries too many, in "
            f"{report.differing_files:,} files; run resolve --rebuild-index"
        )
    sys.exit(0 if report.is_sound else 1)
