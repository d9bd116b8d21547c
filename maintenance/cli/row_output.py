"""How commands that read rows print them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import chain, islice
from typing import Any

import click
import pyarrow as pa
from rich.measure import Measurement
from rich.table import Column
from rich.table import Table as Grid
from rich.text import Text

from maintenance.cli.context import CliContext, json_text, write_csv
from tableformat.spec.arrow_arrays import python_rows

PREVIEW_ROWS = 20
GRID_WIDTH_MAX = 1000
COLUMN_WIDTH_MIN = 20  # narrower ones cut ids and paths: then rows are lists of fields


def format_option(command: Any) -> Any:
    """`--format` as `output`; `--json` is short for json."""
    formats = click.option(
        "--format",
        "output",
        type=click.Choice(["table", "csv", "json", "count"]),
        help="'table' shows the first rows, 'csv' and 'json' print all of them.  [table]",
    )
    short = click.option("--json", "output", flag_value="json", help="Short for --format json.")
    return formats(short(command))


def print_rows(
    context: CliContext,
    names: list[str],
    batches: Iterator[pa.RecordBatch],
    output: str | None,
    *,
    preview_rows: int = PREVIEW_ROWS,
    empty: str | None = "no rows",
) -> None:
    """Rows as `format_option` asks for; 'table' reads no further than it shows.

    `empty` is said on standard error where there is none.
    """
    if output == "count":
        click.echo(sum(batch.num_rows for batch in batches))
        return
    rows = _rows(batches)
    first = next(rows, None)
    if first is None and empty is not None:
        click.echo(empty, err=True)
    rows = rows if first is None else chain([first], rows)
    if output == "csv":
        write_csv(names, rows)
    elif output == "json":
        for row in rows:
            click.echo(json_text(row))
    elif first is not None:
        _print_preview(context, names, rows, preview_rows)


def print_records(
    context: CliContext, records: Sequence[Mapping[str, object]], *, empty: str
) -> None:
    """A few records for people: a grid where it fits, else one field below the other."""
    if not records:
        click.echo(empty, err=True)
        return
    _print_preview(context, list(records[0]), iter(records), len(records))


def print_grid(context: CliContext, grid: Grid) -> None:
    """A grid whose cells must not be cut: where it does not fit, one field below the other."""
    for column in grid.columns:
        if column.no_wrap:  # or a cell of two words is taken to be as wide as one of them
            texts = (Text.from_markup(str(cell)) for cell in (column.header, *column.cells))
            column.min_width = max(text.cell_len for text in texts)
    # Asked without the terminal's width, or the answer never exceeds it.
    wide = context.out.options.update(max_width=GRID_WIDTH_MAX)
    if Measurement.get(context.out, wide, grid).minimum <= context.out.width:
        context.out.print(grid)
        return
    if grid.title is not None:
        context.out.print(grid.title)
    for cells in zip(*(column.cells for column in grid.columns), strict=True):
        record = Grid(Column(no_wrap=True), Column(overflow="fold"), box=None, show_header=False)
        for column, cell in zip(grid.columns, cells, strict=True):
            record.add_row(column.header, cell)
        context.out.print(record)
        context.out.print()


def _rows(batches: Iterator[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    for batch in batches:
        yield from python_rows(batch)


def moment_text(at_ms: int) -> str:
    """A moment, to the second."""
    return datetime.fromtimestamp(at_ms / 1e3, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def printable(value: Any) -> Text:
    """A value as the terminal shows it: data may hold control sequences and markup.

    What the output's encoding lacks is escaped here: later, its column would be too narrow.
    """
    text = "NULL" if value is None else str(value)
    shown = "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)
    encoding = sys.stdout.encoding or "utf-8"
    return Text(shown.encode(encoding, "backslashreplace").decode(encoding))


def _print_preview(
    context: CliContext, names: list[str], rows: Iterator[Mapping[str, Any]], rows_max: int
) -> None:
    columns = [printable(name) for name in names]
    shown = [[printable(value) for value in row.values()] for row in islice(rows, rows_max)]
    is_cut = len(shown) == rows_max and next(rows, None) is not None
    if _is_readable_grid(columns, shown, context.out.width):
        grid = Grid(*(Column(name, overflow="fold") for name in columns))
        for cells in shown:
            grid.add_row(*cells)
        context.out.print(grid)
    else:
        for number, cells in enumerate(shown, 1):
            field, content = Column(overflow="fold"), Column(overflow="fold")
            record = Grid(field, content, box=None, show_header=False)
            for column, cell in zip(columns, cells, strict=True):
                record.add_row(column, cell)
            context.out.rule(str(number), align="left", characters="-", style="")
            context.out.print(record)
    if is_cut:
        click.echo(f"(the first {rows_max} rows; csv or json prints all)", err=True)


def _is_readable_grid(columns: list[Text], shown: list[list[Text]], width: int) -> bool:
    """Whether a grid fits the terminal, or leaves every column some characters."""
    between = 3
    natural = sum(
        between + max(column.cell_len, *(cells[at].cell_len for cells in shown), 0)
        for at, column in enumerate(columns)
    )
    return natural <= width or width // max(len(columns), 1) >= COLUMN_WIDTH_MIN
