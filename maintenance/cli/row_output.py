"""How commands that read rows print them."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator
from itertools import islice
from typing import Any

import click
import pyarrow as pa
from rich.table import Column
from rich.table import Table as Grid
from rich.text import Text

from maintenance.cli.context import CliContext

PREVIEW_ROWS = 20
COLUMN_WIDTH_MIN = 20  # narrower ones cut ids and paths: then rows are lists of fields

format_option = click.option(
    "--format",
    "output",
    type=click.Choice(["table", "csv", "json", "count"]),
    default="table",
    show_default=True,
    help="'table' shows the first rows, 'csv' and 'json' (lines) print all of them.",
)


def print_rows(
    context: CliContext,
    names: list[str],
    batches: Iterator[pa.RecordBatch],
    output: str,
    *,
    preview_rows: int = PREVIEW_ROWS,
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
        _print_preview(context, names, batches, preview_rows)


def _rows(batches: Iterator[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    for batch in batches:
        yield from batch.to_pylist()


def _print_csv(names: list[str], batches: Iterator[pa.RecordBatch]) -> None:
    writer = csv.DictWriter(sys.stdout, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(_rows(batches))


def printable(value: Any) -> Text:
    """A value as the terminal shows it: data may hold control sequences and markup."""
    text = "NULL" if value is None else str(value)
    return Text("".join(each if each.isprintable() else ascii(each)[1:-1] for each in text))


def _print_preview(
    context: CliContext, names: list[str], batches: Iterator[pa.RecordBatch], rows_max: int
) -> None:
    columns = [printable(name) for name in names]
    shown = [
        [printable(value) for value in row.values()] for row in islice(_rows(batches), rows_max)
    ]
    if _is_readable_grid(columns, shown, context.out.width):
        grid = Grid(*map(Column, columns))
        for cells in shown:
            grid.add_row(*cells)
        context.out.print(grid)
    else:
        for number, cells in enumerate(shown, 1):
            record = Grid(Column(), Column(overflow="fold"), box=None, show_header=False)
            for column, cell in zip(columns, cells, strict=True):
                record.add_row(column, cell)
            context.out.rule(str(number), align="left", characters="-", style="")
            context.out.print(record)
    if len(shown) == rows_max:
        click.echo(f"(the first {rows_max} rows; csv or json prints all)", err=True)


def _is_readable_grid(columns: list[Text], shown: list[list[Text]], width: int) -> bool:
    """Whether a grid fits the terminal, or leaves every column some characters."""
    between = 3
    natural = sum(
        between + max(len(column), *(len(cells[at]) for cells in shown), 0)
        for at, column in enumerate(columns)
    )
    return natural <= width or width // max(len(columns), 1) >= COLUMN_WIDTH_MIN
