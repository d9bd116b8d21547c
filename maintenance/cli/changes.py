"""`icefold changes`: what changed between two versions."""

from __future__ import annotations

from typing import Any

import click

from maintenance.cli.context import CliContext, parse_columns, pass_context, table_argument
from maintenance.cli.row_output import format_option, print_rows
from tableformat.spec.decimal_text import parse_decimal


@click.command("changes")
@table_argument
@click.option("--from", "from_snapshot", metavar="VERSION", help="Start here.  [the empty table]")
@click.option("--to", "to_snapshot", metavar="VERSION", help="End here.  [the head of --branch]")
@click.option("--branch", help="End at the head of a branch.  [main]")
@click.option("--net", is_flag=True, help="One set of changes, not one per snapshot.")
@click.option("--filter", help="The changes of the rows that pass it.")
@click.option("--columns", help="Columns wanted, comma separated.  [all]")
@format_option
@pass_context
def changes(
    context: CliContext,
    /,
    table_name: str,
    from_snapshot: str | None,
    to_snapshot: str | None,
    columns: str | None,
    output: str | None,
    **options: Any,
) -> None:
    """Print what changed in TABLE: rows with +I, -U, +U or -D.

    A VERSION is a snapshot id, a branch or a tag.
    """
    wanted = context.table(table_name).changes(
        _version(from_snapshot),
        _version(to_snapshot),
        columns=parse_columns(columns),
        **options,
    )
    names = wanted.arrow_schema().names
    print_rows(context, names, wanted.to_batches(), output, empty="no changes")


def _version(text: str | None) -> int | str | None:
    """Digits are a snapshot id; refs with such names are out of reach here."""
    number = None if text is None else parse_decimal(text)
    return text if number is None else number
