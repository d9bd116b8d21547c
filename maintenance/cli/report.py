"""`icefold report`: a table's state and history as one HTML file, or a folder of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from maintenance.cli.context import CliContext, TableName, pass_context
from maintenance.cycle_history import read_history
from maintenance.page.index import page_name, render_index
from maintenance.page.report import render_report
from maintenance.status import TableStatus, read_status
from maintenance.table_patterns import find_tables, is_pattern
from tableformat import Table
from tableformat.errors import InvalidInputError, NotFoundError, TableError
from tableformat.spec.names import MAIN_BRANCH, STAGING_BRANCH


@click.command("report")
@click.argument("table_name", metavar="[TABLE]", required=False, type=TableName())
@click.option(
    "--output", "-o", type=click.Path(path_type=Path),
    help="The HTML file, or for several tables the folder; replaced if it is there.  "
    "[report.html, report]",
)  # fmt: skip
@click.option("--staging", default=STAGING_BRANCH, show_default=True, help="The staging branch.")
@click.option("--target", default=MAIN_BRANCH, show_default=True, help="The published branch.")
@pass_context
def report(
    context: CliContext, table_name: str | None, output: Path | None, staging: str, target: str
) -> None:
    """Draw freshness, backlog, files, deletes and cycle phases of TABLE over time.

    One file without external resources, from the table's own snapshots. For a pattern such as
    'shop.*', or without a name for every table: a folder with a file for each and index.html.
    """
    if table_name is not None and not is_pattern(table_name):
        page, _ = _page(context.table(table_name), staging, target)
        file = output or Path("report.html")
        _write(file, page)
        click.echo(f"wrote {click.format_filename(file)}")
        return
    folder = output or Path("report")
    names = find_tables(context.catalog.environment.catalog, [table_name or "*"])
    if not names:
        raise NotFoundError("no table has such a name", pattern=table_name or "*")
    with _writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    tables: list[TableStatus | tuple[str, str]] = []
    for name in map(".".join, names):
        try:
            page, status = _page(context.table(name), staging, target)
        except TableError as error:  # the others have their pages
            tables.append((name, str(error)))
            continue
        _write(folder / page_name(name), page)
        tables.append(status)
    now_ms = context.catalog.environment.runtime.clock.now_ms()
    _write(folder / "index.html", render_index(tables, now_ms=now_ms))
    click.echo(f"wrote {click.format_filename(folder / 'index.html')}")


def _page(table: Table, staging: str, target: str) -> tuple[str, TableStatus]:
    status = read_status(table, staging=staging, target=target)
    history = read_history(table.state.metadata, target)
    now_ms = table.environment.runtime.clock.now_ms()
    return render_report(status, history, now_ms=now_ms), status


def _write(file: Path, page: str) -> None:
    with _writing(file):
        file.write_text(page, encoding="utf-8")


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InvalidInputError(
            f"the report cannot be written: {error.strerror}", file=str(path)
        ) from error
