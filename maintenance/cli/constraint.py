"""`icefold table immutable`: the IMMUTABLE columns constraint of a table."""

from __future__ import annotations

from dataclasses import asdict

import click

from maintenance.cli.context import (
    CliContext,
    json_option,
    parse_columns,
    pass_context,
    print_json,
    say,
)
from tableformat.errors import InvalidInputError
from tableformat.spec.constraints import Enforcement


@click.command("immutable")
@click.argument("name")
@click.option("--columns", metavar="A,B", help="Declare that these never change for one key.")
@click.option("--constraint-name", metavar="TEXT", help="[default: IMMUTABLE_COLUMNS_a_b]")
@click.option(
    "--enforced",
    flag_value=True,
    type=click.UNPROCESSED,
    help="Refuse changes that break it, and deletes of rows.",
)
@click.option(
    "--enforced-except-delete",
    "enforced",
    flag_value="except-delete",
    type=click.UNPROCESSED,
    help="Refuse changes that break it; a key that is deleted may come back with other values.",
)
@click.option(
    "--not-enforced",
    "enforced",
    flag_value=False,
    type=click.UNPROCESSED,
    default=False,
    help="Refuse nothing.  [default]",
)
@click.option("--drop", is_flag=True, help="Drop the constraint.")
@json_option
@pass_context
def immutable(
    context: CliContext,
    name: str,
    columns: str | None,
    constraint_name: str | None,
    enforced: Enforcement,
    drop: bool,
    as_json: bool,
) -> None:
    """Show the IMMUTABLE constraint of the table NAME; declare or drop it."""
    if drop and columns is not None:
        raise InvalidInputError("--drop and --columns exclude each other", table=name)
    table = context.table(name)
    if drop:
        table.drop_immutable_columns()
    elif columns is not None:
        table.set_immutable_columns(
            parse_columns(columns) or [], name=constraint_name, enforced=enforced
        )
    constraint = table.immutable_columns
    if as_json:
        print_json(None if constraint is None else asdict(constraint))
    elif constraint is None:
        say(f"{table.name} has no IMMUTABLE constraint")
    else:
        columns = ", ".join(constraint.columns)
        say(f"{constraint.name}: {columns} ({constraint.enforcement})")
