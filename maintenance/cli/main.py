"""`icefold`: the command line."""

from __future__ import annotations

import click

from maintenance.cli.adopt import adopt
from maintenance.cli.changes import changes
from maintenance.cli.context import (
    CliContext,
    GuardedGroup,
    parse_properties,
    telling_lost_output,
)
from maintenance.cli.cuts import cuts
from maintenance.cli.declarations import computed, immutable, sequence
from maintenance.cli.index import index
from maintenance.cli.ingest import ingest
from maintenance.cli.inspect import inspect
from maintenance.cli.join import join
from maintenance.cli.load import load
from maintenance.cli.lock import lock
from maintenance.cli.lookup import lookup
from maintenance.cli.maintain import maintain
from maintenance.cli.process_end import ending_with_its_status, open_closed
from maintenance.cli.ref import ref
from maintenance.cli.report import report
from maintenance.cli.resolve import resolve_command
from maintenance.cli.run import run
from maintenance.cli.scan import scan
from maintenance.cli.sql import sql
from maintenance.cli.status import status
from maintenance.cli.table import table
from maintenance.cli.table_evolution import EVOLUTION_COMMANDS
from maintenance.cli.task_commands import TASK_COMMANDS

# Iceberg's procedures by the commands that do it; the words of `ref` are theirs already.
PROCEDURES = {
    "rewrite-data-files": "compact",
    "expire-snapshots": "expire",
    "remove-orphan-files": "orphans",
    "rewrite-position-delete-files": "rewrite-vectors",
    "create-changelog-view": "changes",
}
REF_PROCEDURES = ("rollback-to-snapshot", "fast-forward", "cherrypick-snapshot")


class _Commands(GuardedGroup):
    """Knows commands by the names of Iceberg's procedures, too: `rewrite_data_files`."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """See `click.Group.get_command`."""
        name = cmd_name.replace("_", "-")
        if name in REF_PROCEDURES:
            return ref.get_command(ctx, name)
        return super().get_command(ctx, PROCEDURES.get(name, name))


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--catalog",
    "catalog_name",
    default="local",
    show_default=True,
    envvar="ICEFOLD_CATALOG",
    help="'local' (SQLite and local files), or a catalog of PyIceberg's configuration.",
)
@click.option(
    "--warehouse",
    envvar="ICEFOLD_WAREHOUSE",
    help="Folder or URI of the warehouse.  [local: ./warehouse]",
)
@click.option(
    "--property",
    "-p",
    "properties",
    multiple=True,
    metavar="KEY=VALUE",
    callback=parse_properties,
    help="A catalog property; may be repeated.",
)
@click.version_option(package_name="icefold", prog_name="icefold")
@click.pass_context
def cli(
    ctx: click.Context, catalog_name: str, warehouse: str | None, properties: dict[str, str]
) -> None:
    """Keep primary-keyed Apache Iceberg tables clean under a stream of changes."""
    if warehouse is not None:
        properties["warehouse"] = warehouse
    ctx.obj = CliContext(catalog_name, properties)


for command in (
    table, adopt, ingest, load, resolve_command, maintain, run, join, scan, lookup,
    inspect, sql, changes, cuts, status, report, ref, index, lock,
    *TASK_COMMANDS,
):  # fmt: skip
    cli.add_command(command)
for table_command in (computed, immutable, sequence, *EVOLUTION_COMMANDS):
    table.add_command(table_command)


def main() -> None:
    """Entry point of the `icefold` script."""
    open_closed()
    with ending_with_its_status(), telling_lost_output():
        cli()
