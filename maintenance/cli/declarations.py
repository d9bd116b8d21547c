"""`icefold table computed`, `immutable` and `sequence`: what a table declares about its columns."""

from __future__ import annotations

from dataclasses import asdict

import click

from maintenance.cli.context import (
    CliContext,
    TableName,
    json_option,
    parse_columns,
    pass_context,
    print_json,
    say,
)
from tableformat.errors import InvalidInputError
from tableformat.spec.constraints import Enforcement, sequence_field_id
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


@click.command("sequence")
@click.argument("name")
@click.option("--column", metavar="A", help="Declare that a greater value is a newer version.")
@click.option("--drop", is_flag=True, help="Drop the declaration; the column stays.")
@json_option
@pass_context
def sequence(context: CliContext, name: str, column: str | None, drop: bool, as_json: bool) -> None:
    """Show the sequence column of the table NAME; declare or drop it."""
    if drop and column is not None:
        raise InvalidInputError("--drop and --column exclude each other", table=name)
    table = context.table(name)
    if drop:
        table.drop_sequence_column()
    elif column is not None:
        table.set_sequence_column(column)
    field_id = sequence_field_id(table.state.metadata)
    declared = None if field_id is None else table.schema().find_column_name(field_id)
    if as_json:
        print_json({"sequence-column": declared})
    else:
        say(declared or f"{table.name} has no sequence column")
