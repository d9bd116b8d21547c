"""`icefold table`: the commands that change a table's definition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
from pyiceberg.table.update.schema import UpdateSchema

from maintenance.cli.context import (
    CliContext,
    TableName,
    parse_columns,
    parse_properties,
    pass_context,
    say,
)
from maintenance.cli.table_properties import check_settings
from tableformat import Table
from tableformat.errors import InvalidInputError
from tableformat.spec.column_types import parse_column, parse_type

name_argument = click.argument("name", type=TableName())


@click.command("upgrade")
@name_argument
@pass_context
def upgrade(context: CliContext, name: str) -> None:
    """Upgrade the v1 or v2 table NAME to v3. There is no way back."""
    table = context.table(name)
    before = table.state.metadata.format_version
    if before == table.upgrade().state.metadata.format_version:
        say(f"{table.name} is v{before} already")
    else:
        say(f"upgraded {table.name} from v{before} to v3; its rows are unchanged")


@click.command("set-key")
@name_argument
@click.argument("columns", metavar="A,B")
@click.option("--no-check", is_flag=True, help="Do not read whether the keys are unique.")
@pass_context
def set_key(context: CliContext, name: str, columns: str, no_check: bool) -> None:
    """Declare the primary key of the table NAME.

    Its columns become required. The rows of main are read first: NULLs and keys that several rows
    have are refused.
    """
    table = context.table(name)
    table.set_primary_key(parse_columns(columns) or [], check=not no_check)
    say(f"the primary key of {table.name} is {', '.join(table.primary_key)}")


@click.command("add-column")
@name_argument
@click.argument("column", metavar="COLUMN:TYPE")
@click.option("--after", metavar="COLUMN", help="Put it behind this one.  [the end]")
@click.option("--first", is_flag=True, help="Put it before all others.")
@click.option("--doc", metavar="TEXT", help="What it holds.")
@pass_context
def add_column(
    context: CliContext, name: str, column: str, after: str | None, first: bool, doc: str | None
) -> None:
    """Add an optional column to the table NAME: NULL in the rows that are there.

    A dotted name adds a field to a struct: 'address.zip:string'.
    """
    if first and after is not None:
        raise InvalidInputError("--first and --after exclude each other", table=name)
    table = context.table(name)
    path, required, kind = parse_column(column)
    if required:
        raise InvalidInputError(
            "a new column cannot be required: the rows that are there have no value",
            column=path,
        )

    def edit(update: UpdateSchema) -> None:
        update.add_column(_path(path), kind, doc=doc)
        if first:
            update.move_first(path)
        if after is not None:
            update.move_after(path, after)

    _evolve(table, edit, f"added {path}")


@click.command("rename-column")
@name_argument
@click.argument("column")
@click.argument("new_name")
@pass_context
def rename_column(context: CliContext, name: str, column: str, new_name: str) -> None:
    """Rename COLUMN of the table NAME; no file is written again."""
    table = context.table(name)
    _evolve(table, lambda s: s.rename_column(_path(column), new_name), f"renamed {column}")


@click.command("drop-column")
@name_argument
@click.argument("column")
@click.confirmation_option(prompt="Drop the column? (its values cannot be read any more)")
@pass_context
def drop_column(context: CliContext, name: str, column: str) -> None:
    """Drop COLUMN of the table NAME; older snapshots keep it."""
    table = context.table(name)
    _evolve(table, lambda s: s.delete_column(_path(column)), f"dropped {column}")


@click.command("widen-column")
@name_argument
@click.argument("column", metavar="COLUMN:TYPE")
@pass_context
def widen_column(context: CliContext, name: str, column: str) -> None:
    """Give a column of the table NAME a wider type.

    int to long, float to double, and a decimal more digits before its point.
    """
    table = context.table(name)
    path, _, type_text = column.partition(":")
    kind = parse_type(type_text)
    _evolve(table, lambda s: s.update_column(_path(path), kind), f"widened {path}")


@click.command("set-properties")
@name_argument
@click.argument("properties", nargs=-1, metavar="[KEY=VALUE]...", callback=parse_properties)
@click.option("--remove", multiple=True, metavar="KEY", help="Remove one; may be repeated.")
@pass_context
def set_properties(
    context: CliContext, name: str, properties: dict[str, str], remove: tuple[str, ...]
) -> None:
    """Set and remove properties of the table NAME; without any, show them."""
    table = context.table(name)
    check_settings(properties)
    if properties or remove:
        table.set_properties(properties, remove=remove)
    known = table.state.metadata.properties
    if not known:
        click.echo(f"{table.name} has no properties", err=True)
    for key, value in sorted(known.items()):
        say(f"{key}={value}")


def _path(column: str) -> tuple[str, ...]:
    return tuple(column.split("."))


def _evolve(table: Table, edit: Callable[[UpdateSchema], Any], done: str) -> None:
    table.update_schema(edit)
    say(f"{done}; {table.name} has {', '.join(field.name for field in table.schema().fields)}")


EVOLUTION_COMMANDS = (
    upgrade,
    set_key,
    add_column,
    rename_column,
    drop_column,
    widen_column,
    set_properties,
)
