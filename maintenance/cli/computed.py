"""`icefold table computed`: columns that whoever reads or writes rows computes."""

from __future__ import annotations

import click

from maintenance.cli.context import (
    CliContext,
    TableName,
    json_option,
    pass_context,
    print_json,
    say,
)
from tableformat.errors import InvalidInputError
from tableformat.table import Table


@click.command("computed")
@click.argument("name", type=TableName())
@click.option("--add", metavar="COLUMN:TYPE", help="Declare one, of int, long or double.")
@click.option("--as", "expression", metavar="EXPRESSION", help="With --add: what it is.")
@click.option("--stored", is_flag=True, help="With --add: of the table, computed by who writes.")
@click.option("--backfill", is_flag=True, help="With --stored: compute it for the rows of main.")
@click.option("--drop", metavar="COLUMN", help="Drop the declaration of one.")
@click.option("--check", is_flag=True, help="Count rows of main that hold other values; exit 1.")
@json_option
@pass_context
def computed(
    context: CliContext,
    name: str,
    add: str | None,
    expression: str | None,
    stored: bool,
    backfill: bool,
    drop: str | None,
    check: bool,
    as_json: bool,
) -> None:
    """Show the computed columns of the table NAME; declare, check or drop one.

    An expression is of columns, literals, +, - and *: --add to_pay:double --as 'price * 1.5 + fee'.
    """
    if add is not None and drop is not None:
        raise InvalidInputError("--add and --drop exclude each other", table=name)
    if (add is None) != (expression is None):
        raise InvalidInputError("--add and --as belong together", table=name)
    if add is None and (stored or backfill):
        raise InvalidInputError("--stored and --backfill belong to --add", table=name)
    table = context.table(name)
    if drop is not None:
        table.drop_computed_column(drop)
    elif add is not None and expression is not None:
        column, _, kind = add.partition(":")
        table.add_computed_column(column, expression, kind, stored=stored, backfill=backfill)
    if check:
        _check(table, as_json=as_json)
        return
    declared = table.computed_columns
    if as_json:
        print_json(
            {
                each.name: {
                    "type": each.type,
                    "expression": each.expression,
                    "stored": each.is_stored,
                }
                for each in declared.values()
            }
        )
        return
    if not declared:
        click.echo(f"{table.name} has no computed columns", err=True)
    for each in declared.values():
        say(str(each))


def _check(table: Table, *, as_json: bool) -> None:
    wrong = table.check_computed_columns()
    if as_json:
        print_json(wrong)
    else:
        for column, rows in wrong.items():
            say(f"{column}: {rows} rows hold another value than the expression's")
    if any(wrong.values()):
        raise InvalidInputError(
            "rows hold other values of computed columns than their expressions'",
            table=table.name,
            columns=", ".join(column for column, rows in wrong.items() if rows),
            action="UPDATE TABLE SET COLUMN = DEFAULT computes them again",
        )
