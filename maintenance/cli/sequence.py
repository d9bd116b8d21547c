"""`icefold table sequence`: the column that orders the versions of a row."""

from __future__ import annotations

import click

from maintenance.cli.context import CliContext, json_option, pass_context, print_json, say
from tableformat.errors import InvalidInputError
from tableformat.spec.constraints import sequence_field_id


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
