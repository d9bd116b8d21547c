"""`icefold status`: how far the published branch is behind, and what the table is made of."""

from __future__ import annotations

import click
from rich.table import Table as Grid

from maintenance.cli.context import CliContext, json_option, pass_context, print_json
from maintenance.status import TableStatus, read_status
from tableformat.spec.names import MAIN_BRANCH, STAGING_BRANCH


@click.command("status")
@click.argument("table_name", metavar="[TABLE]", required=False)
@click.option("--staging", default=STAGING_BRANCH, show_default=True, help="The staging branch.")
@click.option("--target", default=MAIN_BRANCH, show_default=True, help="The published branch.")
@json_option
@pass_context
def status(
    context: CliContext, table_name: str | None, staging: str, target: str, as_json: bool
) -> None:
    """Show staging lag, deletes and files of TABLE, or of every table."""
    names = [table_name] if table_name else context.catalog.list_tables()
    found = [read_status(context.table(name), staging=staging, target=target) for name in names]
    if as_json:
        print_json([one.to_dict() for one in found])
        return
    if not found:
        click.echo("no tables", err=True)
    for one in found:
        _print(context, one)


def _print(context: CliContext, one: TableStatus) -> None:
    grid = Grid(title=one.table, title_justify="left", box=None, show_header=False)
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for label, value in one.describe():
        grid.add_row(f"[bold]{label}", value)
    context.out.print(grid, soft_wrap=True)
