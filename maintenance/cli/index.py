"""`icefold index`: the primary-key index of a table."""

from __future__ import annotations

import sys
from dataclasses import asdict

import click

from maintenance.cli.context import (
    CliContext,
    ListedGroup,
    json_option,
    parse_columns,
    pass_context,
    print_json,
    say,
    table_argument,
)
from resolver import build_index
from resolver.index_check import verify
from resolver.number_text import plural
from tableformat.spec.names import MAIN_BRANCH


@click.group(cls=ListedGroup)
def index() -> None:
    """Declare secondary indexes; build and verify all indexes that resolve keeps."""


@index.command("add")
@table_argument
@click.argument("name")
@click.argument("columns", metavar="A,B")
@pass_context
def add(context: CliContext, table_name: str, name: str, columns: str) -> None:
    """Declare the secondary index NAME of TABLE on columns."""
    context.table(table_name).add_index(name, parse_columns(columns) or [])
    say(f"declared {name}; resolve keeps it, 'icefold index build' builds it now")


@index.command("drop")
@table_argument
@click.argument("name")
@pass_context
def drop(context: CliContext, table_name: str, name: str) -> None:
    """Drop the secondary index NAME of TABLE."""
    context.table(table_name).drop_index(name)
    say(f"dropped {name}")


@index.command("list")
@table_argument
@json_option
@pass_context
def list_indexes(context: CliContext, table_name: str, as_json: bool) -> None:
    """List the secondary indexes of TABLE."""
    declared = context.table(table_name).indexes
    if as_json:
        print_json(declared)
        return
    if not declared:
        click.echo("no secondary indexes", err=True)
    for name, columns in declared.items():
        say(f"{name}: {', '.join(columns)}")


@index.command("build")
@table_argument
@click.argument("name", required=False)
@click.option("--target", default=MAIN_BRANCH, show_default=True, help="The published branch.")
@click.option("--rebuild", is_flag=True, help="Build it afresh, whatever is there.")
@json_option
@pass_context
def build(
    context: CliContext,
    table_name: str,
    name: str | None,
    target: str,
    rebuild: bool,
    as_json: bool,
) -> None:
    """Bring the index NAME of TABLE, or the primary key's, to the head of its branch."""
    done = build_index(context.table(table_name), name, target=target, rebuild=rebuild)
    if as_json:
        print_json(asdict(done))
        return
    what = name or "the primary key's index"
    say(f"{what}: {done.how}, at snapshot {done.snapshot_id}, {done.duration_ms:,.0f} ms")


@index.command("verify")
@table_argument
@click.option("--target", default=MAIN_BRANCH, show_default=True, help="The published branch.")
@click.option("--index", "name", help="A secondary index.  [the primary key's]")
@json_option
@pass_context
def verify_command(
    context: CliContext, table_name: str, target: str, name: str | None, as_json: bool
) -> None:
    """Compare the index with a full scan; exit code 1 when they differ."""
    check = verify(context.table(table_name), target=target, name=name)
    report = check.report
    if as_json:
        print_json(asdict(check))
    elif report.is_sound:
        say(
            f"sound: {plural(report.index_rows, 'entry', 'entries')} for "
            f"{plural(report.live_rows, 'live row')} of snapshot {check.snapshot_id}, and "
            f"{report.deleted_rows:,} for deleted ones"
        )
    else:
        say(
            f"DAMAGED: {plural(report.missing, 'row')} missing, "
            f"{plural(report.extra, 'entry', 'entries')} too many, in "
            f"{plural(report.differing_files, 'file')}; run resolve --rebuild-index"
        )
    sys.exit(0 if report.is_sound else 1)
