"""`icefold table`: create, list, describe and drop tables; `table_evolution` changes them."""

from __future__ import annotations

import click
from rich.table import Table as Grid

from maintenance.cli.context import (
    CliContext,
    ListedGroup,
    TableName,
    json_option,
    parse_columns,
    parse_properties,
    pass_context,
    print_json,
)
from maintenance.cli.table_properties import check_settings
from tableformat import Table
from tableformat.spec.column_types import parse_columns_ddl
from tableformat.spec.names import PRIMARY_KEY


@click.group(cls=ListedGroup)
def table() -> None:
    """Create, change, list, describe and drop tables."""


@table.command("create")
@click.argument("name")
@click.option(
    "--column",
    "columns",
    multiple=True,
    required=True,
    metavar="NAME:TYPE[!]",
    help="A column, e.g. id:long!, amount:decimal(10,2), tags:list<string>, "
    "address:struct<zip:string,city:string>, counts:map<string,int>; '!' = required.",
)
@click.option("--primary-key", required=True, metavar="A,B", help="The columns that name a row.")
@click.option(
    "--partition-by",
    multiple=True,
    metavar="SPEC",
    help="region, month(at), bucket(16,id), ...; may be repeated.",
)
@click.option("--immutable", metavar="A,B", help="Columns that never change for one key.")
@click.option(
    "--enforce-immutable", is_flag=True, help="Refuse changes that break it, and deletes of rows."
)
@click.option("--table-property", multiple=True, metavar="KEY=VALUE", callback=parse_properties)
@pass_context
def create(
    context: CliContext,
    name: str,
    columns: tuple[str, ...],
    primary_key: str,
    partition_by: tuple[str, ...],
    immutable: str | None,
    enforce_immutable: bool,
    table_property: dict[str, str],
) -> None:
    """Create the Iceberg table NAME (namespace.table): v3, unless format-version says 2."""
    schema = parse_columns_ddl(columns)
    check_settings(table_property)
    created = context.new_catalog.create_table(
        name,
        schema,
        primary_key=parse_columns(primary_key) or [],
        partition_by=partition_by,
        immutable_columns=parse_columns(immutable),
        enforce_immutable=enforce_immutable,
        properties=table_property,
    )
    click.echo(f"created {created.name} at {created.state.metadata.location}")


@table.command("list")
@click.argument("namespace", required=False)
@json_option
@pass_context
def list_tables(context: CliContext, namespace: str | None, as_json: bool) -> None:
    """List tables, of NAMESPACE or all."""
    names = context.catalog.list_tables(namespace)
    if namespace is not None and not names:
        context.check_namespace(namespace)
    if as_json:
        print_json(names)
    elif not names:
        click.echo("no tables", err=True)
    for name in () if as_json else names:
        click.echo(name)


@table.command("describe")
@click.argument("name", type=TableName())
@json_option
@pass_context
def describe(context: CliContext, name: str, as_json: bool) -> None:
    """Show schema, key, partitioning, branches and the metadata file other engines open."""
    loaded = context.table(name)
    facts = _facts(loaded)
    if as_json:
        print_json(facts)
        return
    grid = Grid(box=None, show_header=False)
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for key, value in facts.items():
        shown = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        grid.add_row(f"[bold]{key}", shown)
    context.out.print(grid, soft_wrap=True)


def _facts(loaded: Table) -> dict[str, object]:
    metadata, constraint = loaded.state.metadata, loaded.immutable_columns
    believed = metadata.properties.get(PRIMARY_KEY)  # what resolve takes, and the schema knows not
    return {
        "table": loaded.name,
        "format-version": metadata.format_version,
        "columns": [
            f"{field.name} {field.field_type}{' required' if field.required else ''}"
            for field in loaded.schema().fields
        ],
        "computed": [str(each) for each in loaded.computed_columns.values()],
        "primary-key": list(loaded.primary_key),
        **({PRIMARY_KEY: believed} if believed else {}),
        "partition-by": [
            f"{field.transform}({loaded.schema().find_column_name(field.source_id)})"
            for field in loaded.spec().fields
        ],
        "immutable": [] if constraint is None else list(constraint.columns),
        "refs": [f"{name} -> {ref.snapshot_id}" for name, ref in sorted(metadata.refs.items())],
        "snapshots": len(metadata.snapshots),
        "metadata": loaded.metadata_location,
    }


@table.command("drop")
@click.argument("name", type=TableName())
@click.option("--yes", is_flag=True, help="Do not ask.")
@pass_context
def drop(context: CliContext, name: str, yes: bool) -> None:
    """Remove NAME from the catalog; its files stay."""
    if name not in context.catalog.list_tables():  # one whose metadata are lost can be dropped, too
        context.table(name)
    if not yes:
        click.confirm(f"Remove {name} from the catalog? (its files stay)", abort=True)
    context.catalog.drop_table(name)
    click.echo(f"dropped {name}; its files stay where they are")
