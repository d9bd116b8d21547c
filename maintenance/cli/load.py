"""`icefold load`: the first rows of a table, from files."""

from __future__ import annotations

from dataclasses import asdict

import click

from maintenance.cli.context import (
    CliContext,
    json_option,
    parse_columns,
    pass_context,
    print_json,
    progress_bar,
    table_argument,
)
from resolver.number_text import plural
from tableformat.cdc.load import abandon_load, load_files
from tableformat.cdc.load_source import open_source
from tableformat.errors import NotFoundError
from tableformat.table_catalog import TableCatalog


@click.command("load")
@table_argument
@click.option(
    "--from",
    "source_text",
    metavar="PATH_OR_URL",
    help="Parquet or CSV: a file, a folder, or a glob in quotes; local, s3:// or gs://.",
)
@click.option(
    "--key",
    metavar="A,B",
    help="If TABLE does not exist, make it with the columns of the files and this primary key.",
)
@click.option(
    "--assume-new-keys",
    is_flag=True,
    help="TABLE may have rows: none of them, and no published delete, has a key of the files.",
)
@click.option(
    "--abandon",
    is_flag=True,
    help="End a load that is not through: what was loaded stays, changes are published again.",
)
@json_option
@pass_context
def load(
    context: CliContext,
    table_name: str,
    source_text: str | None,
    key: str | None,
    assume_new_keys: bool,
    abandon: bool,
    as_json: bool,
) -> None:
    """Append the rows of files to TABLE, while its changes are being staged.

    Every change that is staged wins over a loaded row, whenever it comes: nothing is published
    until the load is through. Killed, the same command goes on where it stood.
    """
    if abandon == (source_text is not None):
        raise click.UsageError("name the files with --from, or end a load with --abandon")
    if abandon:
        table = context.table(table_name)
        is_ended = abandon_load(table.environment, table.identifier)
        click.echo("abandoned" if is_ended else "there is no load to abandon")
        return
    assert source_text is not None
    source = open_source(source_text)
    columns = parse_columns(key)
    catalog = context.new_catalog
    if columns and not _exists(catalog, table_name):
        catalog.create_table(table_name, source.schema(), primary_key=columns)
    table = context.table(table_name)
    with progress_bar(context) as bar:
        task = bar.add_task("loading rows", total=None)
        result = load_files(
            table.environment,
            table.identifier,
            source,
            assume_new_keys=assume_new_keys,
            progress=lambda so_far: bar.update(task, completed=so_far.rows),
        )
    if as_json:
        print_json(asdict(result))
        return
    files = plural(result.data_files, "data file")
    before = f", {result.skipped_pieces} of them before" if result.skipped_pieces else ""
    total = plural(result.pieces + result.skipped_pieces, "piece")
    click.echo(f"{table.name}: {plural(result.rows, 'row')} loaded, {files}; {total}{before}")


def _exists(catalog: TableCatalog, name: str) -> bool:
    try:
        catalog.load_table(name)
    except NotFoundError:
        return False
    return True
