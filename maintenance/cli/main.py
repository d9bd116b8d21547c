"""`icefold`: the command line."""

from __future__ import annotations

import click

from maintenance.cli.changes import changes
from maintenance.cli.compact import compact_command
from maintenance.cli.constraint import immutable
from maintenance.cli.context import CliContext, GuardedGroup, parse_properties
from maintenance.cli.drop_dead_deletes import drop_dead_deletes_command
from maintenance.cli.expire import expire_command
from maintenance.cli.index import index
from maintenance.cli.ingest import ingest
from maintenance.cli.inspect import inspect
from maintenance.cli.lock import lock
from maintenance.cli.lookup import lookup
from maintenance.cli.maintain import maintain
from maintenance.cli.orphans import orphans_command
from maintenance.cli.ref import ref
from maintenance.cli.report import report
from maintenance.cli.resolve import resolve_command
from maintenance.cli.rewrite_manifests import rewrite_manifests_command
from maintenance.cli.rewrite_vectors import rewrite_vectors_command
from maintenance.cli.scan import scan
from maintenance.cli.sequence import sequence
from maintenance.cli.sql import sql
from maintenance.cli.status import status
from maintenance.cli.table import table
from maintenance.cli.table_evolution import EVOLUTION_COMMANDS


@click.group(cls=GuardedGroup, context_settings={"help_option_names": ["-h", "--help"]})
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
    """Keep primary-keyed Apache Iceberg v3 tables clean under a stream of changes."""
    if warehouse is not None:
        properties["warehouse"] = warehouse
    ctx.obj = CliContext(catalog_name, properties)


for command in (
    table, ingest, resolve_command, maintain, scan,
    lookup,
    inspect, sql, changes, status, report, ref, index, lock,
):  # fmt: skip
    cli.add_command(command)
table.add_command(immutable)
table.add_command(sequence)
for evolution_command in EVOLUTION_COMMANDS:
    table.add_command(evolution_command)
for task_command in (
    compact_command,
    expire_command,
    orphans_command,
    rewrite_manifests_command,
    rewrite_vectors_command,
    drop_dead_deletes_command,
):
    cli.add_command(task_command)


def main() -> None:
    """Entry point of the `icefold` script."""
    cli()
