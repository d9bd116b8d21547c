"""`icefold adopt`: look at a table that others made, and with consent tell it its key."""

from __future__ import annotations

import click

from maintenance.adoption import look_at
from maintenance.cli.context import (
    CliContext,
    json_option,
    parse_columns,
    pass_context,
    print_json,
    say,
    table_argument,
)
from resolver.key_choice import key_columns
from tableformat.errors import InvalidInputError
from tableformat.spec.believed_key import believed_key_ids
from tableformat.spec.names import PRIMARY_KEY, PRIMARY_KEY_FIELD_IDS


@click.command("adopt")
@table_argument
@click.option("--key", metavar="A,B", help="The columns that name a row.  [as the table says]")
@click.option(
    "--apply",
    "applied",
    type=click.Choice(["key"]),
    help=f"Change the table: 'key' sets its property {PRIMARY_KEY}. Without it nothing is changed.",
)
@json_option
@pass_context
def adopt(
    context: CliContext, table_name: str, key: str | None, applied: str | None, as_json: bool
) -> None:
    """Report what TABLE, made by other tools, holds and what it would take to resolve it."""
    table = context.table(table_name)
    columns = parse_columns(key)
    if applied == "key":
        if not columns:
            raise InvalidInputError("there is no key to set", action="name its columns with --key")
        ids = believed_key_ids(table.state.metadata, columns)
        now = key_columns(table.state, columns)
        table.set_properties(
            {PRIMARY_KEY: ",".join(now), PRIMARY_KEY_FIELD_IDS: ",".join(map(str, ids))}
        )
        columns = None  # the table says it now
    report = look_at(table, columns)
    if as_json:
        print_json(report.to_dict())
        return
    say(report.table)
    for name, text in report.lines():
        say(f"  {name}: {text}")
