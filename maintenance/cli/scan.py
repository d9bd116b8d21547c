"""`icefold scan`: read rows."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator
from typing import Any

import click
import pyarrow as pa
from rich.table import Table as Grid

from maintenance.cli.context import CliContext, parse_columns, pass_context

PREVIEW_ROWS = 20


@click.command("scan")
@click.argument("table_name", metavar="TABLE")
@click.option("--filter", "row_filter", help="Rows wanted, e.g. \"amount > 10 and region = 'EU'\".")
@click.option("--columns", help="Columns wanted, comma separated.  [all]")
@click.option("--branch", help="Read a branch; 'staging' has unresolved deletes applied.")
@click.option("--tag", help="Read a tag.")
@click.option("--snapshot-id", type=int, help="Read a snapshot.")
@click.option("--limit", type=click.IntRange(min=0), help="At most so many rows.")
@click.option(
    "--format",
    "output",
    type=click.Choice(["table", "csv", "json", "count"]),
    default="table",
    show_default=True,
    help="'table' shows the first rows, 'csv' and 'json' (lines) print all of them.",
)
@pass_context
def scan(
    context: CliContext,
    table_name: str,
    row_filter: str | None,
    columns: str | None,
    branch: str | None,
    tag: str | None,
    snapshot_id: int | None,
    limit: int | None,
    output: str,
) -> None:
    """Print the rows of TABLE."""
    wanted = context.table(table_name).scan(
        row_filter,
        parse_columns(columns),
        branch=branch,
        tag=tag,
        snapshot_id=snapshot_id,
        limit=min(limit or PREVIEW_ROWS, PREVIEW_ROWS) if output == "table" else limit,
    )
    batches = wanted.to_batches()
    if output == "count":
        click.echo(sum(batch.num_rows for batch in batches))
    elif output == "csv":
        _print_csv(wanted.arrow_schema().names, batches)
    elif output == "json":
        for row in _rows(batches):
            click.echo(json.dumps(row, default=str))
    else:
        _print_preview(context, wanted.arrow_schema().names, batches)


def _rows(batches: Iterator[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    for batch in batches:
        yield from batch.to_pylist()


def _print_csv(names: list[str], batches: Iterator[pa.RecordBatch]) -> None:
    writer = csv.DictWriter(sys.stdout, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(_rows(batches))


def _print_preview(
    context: CliContext, names: list[str], batches: Iterator[pa.RecordBatch]
) -> None:
    grid = Grid(*names)
    shown = 0
    for row in _rows(batches):
        grid.add_row(*("NULL" if value is None else str(value) for value in row.values()))
        shown += 1
    context.out.print(grid)
    if shown == PREVIEW_ROWS:
        click.echo(f"(the first {PREVIEW_ROWS} rows; --format csv or json prints all)", err=True)
