"""`icefold ref`: branches and tags. The words are those of Iceberg's procedures."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import click

from maintenance.cli.context import (
    CliContext,
    ListedGroup,
    json_option,
    pass_context,
    print_json,
    say,
    table_argument,
)
from maintenance.cli.row_output import print_records
from tableformat import Table
from tableformat.spec.decimal_text import parse_decimal
from tableformat.spec.names import MAIN_BRANCH

NAME = click.argument("name")
CREATED = (NAME, click.option("--snapshot-id", type=int, help="Where to.  [the head of main]"))
MOVED = (
    click.argument("snapshot_id", type=int),
    click.option("--branch", default=MAIN_BRANCH, show_default=True, help="The branch to move."),
)


@click.group(cls=ListedGroup)
def ref() -> None:
    """Branches and tags: list, create, drop, move, roll back, cherry-pick."""


def _command(name: str, *parameters: Callable[..., Any]) -> Callable[..., click.Command]:
    """A command on a TABLE; its `parameters` in the order that the help has them."""
    decorators = (ref.command(name), table_argument, *parameters, pass_context)
    return lambda function: reduce(lambda made, each: each(made), reversed(decorators), function)


@_command("list", json_option)
def list_refs(context: CliContext, table_name: str, as_json: bool) -> None:
    """List the branches and tags of TABLE."""
    refs = context.table(table_name).state.metadata.refs
    records: list[dict[str, object]] = [
        {"name": name, "type": str(each.snapshot_ref_type.value), "snapshot_id": each.snapshot_id}
        for name, each in sorted(refs.items())
    ]
    if as_json:
        print_json(records)
    else:
        print_records(context, records, empty=f"{table_name} has no branch yet: it is empty")


@_command("create-branch", *CREATED)
def create_branch(context: CliContext, table_name: str, name: str, snapshot_id: int | None) -> None:
    """Create the branch NAME of TABLE."""
    table = context.table(table_name)
    table.refs.create_branch(name, snapshot_id=snapshot_id)
    _tell(table, name, "created branch")


@_command("create-tag", *CREATED)
def create_tag(context: CliContext, table_name: str, name: str, snapshot_id: int | None) -> None:
    """Create the tag NAME of TABLE: a snapshot that does not expire."""
    table = context.table(table_name)
    table.refs.create_tag(name, snapshot_id=snapshot_id)
    _tell(table, name, "created tag")


@_command("drop", NAME)
def drop(context: CliContext, table_name: str, name: str) -> None:
    """Drop the branch or tag NAME of TABLE; its snapshots stay until they expire."""
    context.table(table_name).refs.drop(name)
    say(f"dropped {name}")


@_command("rollback-to-snapshot", *MOVED)
def rollback(context: CliContext, table_name: str, snapshot_id: int, branch: str) -> None:
    """Point a branch of TABLE back at SNAPSHOT_ID, one of its own ancestors.

    What was committed since stays in the table until it expires.
    """
    table = context.table(table_name)
    table.refs.rollback(snapshot_id=snapshot_id, branch=branch)
    _tell(table, branch, "rolled back")


@_command("fast-forward", click.argument("branch"), click.argument("to"))
def fast_forward(context: CliContext, table_name: str, branch: str, to: str) -> None:
    """Move BRANCH of TABLE forward to TO: a branch, a tag or a snapshot id after its head."""
    table = context.table(table_name)
    number = parse_decimal(to)
    table.refs.fast_forward(branch, to=to if number is None else number)
    _tell(table, branch, "moved")


@_command("cherrypick-snapshot", *MOVED)
def cherry_pick(context: CliContext, table_name: str, snapshot_id: int, branch: str) -> None:
    """Apply the change of SNAPSHOT_ID, of another branch, to a branch of TABLE."""
    table = context.table(table_name)
    table.refs.cherry_pick(snapshot_id=snapshot_id, branch=branch)
    _tell(table, branch, "cherry-picked onto")


def _tell(table: Table, name: str, what: str) -> None:
    say(f"{what} {name}: snapshot {table.state.metadata.refs[name].snapshot_id}")
