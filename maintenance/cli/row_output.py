"""How commands that read rows print them."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator
from typing import Any

import click
import pyarrow as pa
from rich.table import Table as Grid

from maintenance.cli.context import CliContext

PREVIEW_ROWS = 20

format_option = click.option(
    "--format",
    "output",
    type=click.Choice(["table", "csv", "json", "count"]),
    default="table",
    show_default=True,
    help="'table' shows the first rows, 'csv' and 'json' (lines) print all of them.",
)


def print_rows(
    context: CliContext, names: list[str], batches: Iterator[pa.RecordBatch], output: str
) -> None:
    """Rows as `format_option` asks for; 'table' reads no further than it shows."""
    if output == "count":
        click.echo(sum(batch.num_rows for batch in batches))
    elif output == "csv":
        _print_csv(names, batches)
    elif output == "json":
        for row in _rows(batches):
            click.echo(json.dumps(row, default=str))
    else:
        _print_preview(context, names, batches)


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
        if shown == PREVIEW_ROWS:
            break
    context.out.print(grid)
    if shown == PREVIEW_ROWS:
        click.echo(f"(the first {PREVIEW_ROWS} rows; --format csv or json prints all)", err=True)
