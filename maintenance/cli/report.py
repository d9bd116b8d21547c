"""`icefold report`: a table's state and history as one HTML file."""

from __future__ import annotations

from pathlib import Path

import click

from maintenance.cli.context import CliContext, pass_context, table_argument
from maintenance.cycle_history import read_history
from maintenance.page.report import render_report
from maintenance.status import read_status
from tableformat.errors import InvalidInputError
from tableformat.spec.names import MAIN_BRANCH, STAGING_BRANCH


@click.command("report")
@table_argument
@click.option(
    "--output", "-o", type=click.Path(path_type=Path), default=Path("report.html"),
    show_default=True, help="The HTML file; replaced if it is there.",
)  # fmt: skip
@click.option("--staging", default=STAGING_BRANCH, show_default=True, help="The staging branch.")
@click.option("--target", default=MAIN_BRANCH, show_default=True, help="The published branch.")
@pass_context
def report(context: CliContext, table_name: str, output: Path, staging: str, target: str) -> None:
    """Draw freshness, backlog, files, deletes and cycle phases of TABLE over time.

    One file without external resources, from the table's own snapshots.
    """
    table = context.table(table_name)
    status = read_status(table, staging=staging, target=target)
    history = read_history(table.state.metadata, target)
    now_ms = table.environment.runtime.clock.now_ms()
    page = render_report(status, history, now_ms=now_ms)
    try:
        output.write_text(page, encoding="utf-8")
    except OSError as error:
        raise InvalidInputError(
            f"the report cannot be written: {error.strerror}", file=str(output)
        ) from error
    click.echo(f"wrote {click.format_filename(output)}")
