"""`icefold table computed`: columns that whoever reads computes."""

from __future__ import annotations

import click

from maintenance.cli.context import (
    CliContext,
    TableName,
    json_option,
    pass_context,
    print_json,
)
from tableformat.errors import InvalidInputError


@click.command("computed")
@click.argument("name", type=TableName())
@click.option("--add", metavar="COLUMN:TYPE", help="Declare one, of int, long or double.")
@click.option("--as", "expression", metavar="EXPRESSION", help="With --add: what it is.")
@click.option("--drop", metavar="COLUMN", help="Drop the declaration of one.")
@json_option
@pass_context
def computed(
    context: CliContext,
    name: str,
    add: str | None,
    expression: str | None,
    drop: str | None,
    as_json: bool,
) -> None:
    """Show the computed columns of the table NAME; declare or drop one.

    An expression is of columns, literals, +, - and *: --add to_pay:double --as 'price * 1.5 + fee'.
    """
    if add is not None and drop is not None:
        raise InvalidInputError("--add and --drop exclude each other", table=name)
    if (add is None) != (expression is None):
        raise InvalidInputError("--add and --as belong together", table=name)
    table = context.table(name)
    if drop is not None:
        table.drop_computed_column(drop)
    elif add is not None and expression is not None:
        column, _, kind = add.partition(":")
        table.add_computed_column(column, expression, kind)
    declared = table.computed_columns
    if as_json:
        print_json(
            {
                each.name: {"type": each.type, "expression": each.expression}
                for each in declared.values()
            }
        )
        return
    if not declared:
        click.echo(f"{table.name} has no computed columns", err=True)
    for each in declared.values():
        click.echo(f"{each.name} {each.type} = {each.expression}")
