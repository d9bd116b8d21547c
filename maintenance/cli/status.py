"""`icefold status`: how far the published branch is behind, and what the table is made of."""

from __future__ import annotations

from collections.abc import Sequence

import click
from rich.markup import escape
from rich.table import Table as Grid

from maintenance.cli.context import CliContext, TableName, json_option, pass_context, print_json
from maintenance.cli.row_output import moment_text, print_grid
from maintenance.pause import time_text
from maintenance.status import IndexStatus, LockStatus, SizeBin, TableStatus, read_status
from maintenance.table_patterns import find_tables
from resolver.number_text import bytes_text, count_text, plural, span_text
from tableformat.catalog.base import Identifier
from tableformat.errors import NotFoundError
from tableformat.side_by_side import run_ahead
from tableformat.spec.names import MAIN_BRANCH, STAGING_BRANCH
from tableformat.store.locations import READERS_MAX

BAR = "█"
BAR_WIDTH = 24


@click.command("status")
@click.argument("table_name", metavar="[TABLE]", required=False, type=TableName())
@click.option("--staging", default=STAGING_BRANCH, show_default=True, help="The staging branch.")
@click.option("--target", default=MAIN_BRANCH, show_default=True, help="The published branch.")
@json_option
@pass_context
def status(
    context: CliContext, table_name: str | None, staging: str, target: str, as_json: bool
) -> None:
    """Show how TABLE does, or the tables of a pattern such as 'shop.*', or every table.

    Lag, last cycles, index, deletes, file sizes, the lock's holder, and what `icefold maintain`
    would do or waits for.
    """
    identifiers = find_tables(context.catalog.environment.catalog, [table_name or "*"])
    if table_name is not None and not identifiers:
        raise NotFoundError("no table has such a name", pattern=table_name)

    def read(name: Identifier) -> TableStatus:
        return read_status(context.table(".".join(name)), staging=staging, target=target)

    found = list(run_ahead(read, identifiers, at_once=READERS_MAX))
    if as_json:
        print_json([one.to_dict() for one in found])
        return
    if not found:
        click.echo("no tables", err=True)
    if len(found) > 1:
        print_grid(context, _overview(found))
    for one in found if len(found) == 1 else ():
        _print(context, one)


def _overview(found: list[TableStatus]) -> Grid:
    grid = Grid(box=None, header_style="bold")
    grid.add_column("table", overflow="fold")
    for name in ("waiting", "lag", "rows", "files", "size", "hidden by DVs", "due"):
        grid.add_column(name, justify="right", no_wrap=True)
    for one in found:
        waiting = "?" if one.backlog_snapshots is None else count_text(one.backlog_snapshots)
        live = one.totals["records"] - one.totals["position_deletes"]
        due = ", ".join(task.task for task in one.tasks if task.is_due)
        grid.add_row(
            escape(one.table),
            waiting,
            span_text(one.lag_ms),
            count_text(live),
            count_text(one.totals["data_files"]),
            bytes_text(one.totals["size_bytes"]),
            f"{one.dv_share:.1%}",
            "[red]problem" if one.problem or one.settings_problem or one.set_aside else due,
        )
    return grid


def _print(context: CliContext, one: TableStatus) -> None:
    grid = Grid(title=escape(one.table), title_justify="left", box=None, show_header=False)
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for label, value in _lines(one):
        if context.out.options.ascii_only:
            value = value.replace(BAR, "#")
        grid.add_row(f"[bold]{label}", escape(value))
    context.out.print(grid, soft_wrap=True)
    if one.cycles:
        print_grid(context, _cycles(one))
    if one.tasks:
        print_grid(context, _tasks(one))


def _lines(one: TableStatus) -> list[tuple[str, str]]:
    totals = one.totals
    lines = [
        ("published", _published(one)),
        ("staged, waiting", _waiting(one)),
        ("lag", _lag(one)),
        *_cut(one),
        *_pause(one),
        ("live rows", count_text(totals["records"] - totals["position_deletes"])),
        ("data files", f"{count_text(totals['data_files'])}, {bytes_text(totals['size_bytes'])}"),
        *_sizes(one.sizes),
        (
            "deleted by DVs",
            f"{plural(totals['position_deletes'], 'row')} ({one.dv_share:.1%}) "
            f"in {plural(totals['delete_files'], 'delete file')}",
        ),
        ("equality deletes", f"{count_text(totals['equality_deletes'])} on the target"),
        (
            "metadata",
            f"{plural(one.snapshots, 'snapshot')}, {plural(one.manifests, 'manifest')} "
            f"({bytes_text(one.metadata_bytes)})",
        ),
        ("index", _index(one.index)),
        ("lock", _lock(one.lock)),
    ]
    if one.dead_letters != 0:
        lines.append(("dead letters", _dead_letters(one.dead_letters)))
    problems = [
        ("set aside", one.set_aside),
        ("problem", one.problem),
        ("settings", one.settings_problem),
    ]
    return lines + [(label, text) for label, text in problems if text]


def _published(one: TableStatus) -> str:
    if one.target_snapshot_id is None or one.target_age_ms is None:
        return "nothing yet"
    return f"snapshot {one.target_snapshot_id}, {span_text(one.target_age_ms)} ago"


def _lag(one: TableStatus) -> str:
    if one.source_ms is None:
        return span_text(one.lag_ms)
    newest = f"the newest published change was made at {moment_text(one.source_ms)}"
    return f"{span_text(one.lag_ms)} behind the source: {newest}"


def _dead_letters(count: int | None) -> str:
    if count is None:
        return "unknown: their table cannot be read"
    return f"{plural(count, 'bad record')} kept aside; icefold ingest --replay-dead-letters"


def _waiting(one: TableStatus) -> str:
    if one.backlog_snapshots is None:
        return "unknown"
    return (
        f"{plural(one.backlog_snapshots, 'snapshot')}, {plural(one.backlog_rows, 'row')}, "
        f"{plural(one.backlog_deletes, 'equality delete')}, {bytes_text(one.backlog_bytes)}"
    )


def _pause(one: TableStatus) -> list[tuple[str, str]]:
    at_ms = one.next_publish_ms
    return [] if at_ms is None else [("next publish", f"not before {time_text(at_ms)}")]


def _cut(one: TableStatus) -> list[tuple[str, str]]:
    if not one.streams:
        return []
    cut = "not published with a cut yet" if one.cut is None else f"cut {one.cut}"
    return [("stream", f"{', '.join(one.streams)}; {cut}")]


def _sizes(sizes: Sequence[SizeBin]) -> list[tuple[str, str]]:
    bins = [each for each in sizes if each.files]
    most = max((each.files for each in bins), default=1)
    lines = []
    for each in bins:
        limit = "largest" if each.below_bytes is None else f"< {each.below_bytes >> 20} MiB"
        bar = BAR * max(round(BAR_WIDTH * each.files / most), 1)
        lines.append((f"  {limit}", f"{bar} {count_text(each.files)}"))
    return lines


def _index(index: IndexStatus) -> str:
    if index.state == "missing":
        return "none here yet; the next resolve builds it"
    if index.state == "unreadable":
        return f"cannot be read ({index.problem}); the next resolve builds it again"
    behind = f", {plural(index.behind_commits, 'commit')}" if index.behind_commits else ""
    return f"{index.state}{behind}, {bytes_text(index.size_bytes)}"


def _lock(lock: LockStatus) -> str:
    if lock.problem:
        return lock.problem
    if lock.holder is None:
        return "free"
    queue = f", {lock.waiters} waiting" if lock.waiters else ""
    return f"{lock.holder} for {span_text(lock.held_ms)}{queue}"


def _cycles(one: TableStatus) -> Grid:
    grid = Grid(title="last cycles", title_justify="left", box=None, header_style="bold")
    for name in ("at", "commits", "rows", "deletes", "killed", "freshness", "took"):
        grid.add_column(name, justify="left" if name == "at" else "right", no_wrap=True)
    for each in one.cycles:
        grid.add_row(
            moment_text(each.at_ms)[5:],
            count_text(each.staged_commits),
            count_text(each.rows),
            count_text(each.equality_deletes),
            count_text(each.deleted_rows),
            "?" if each.freshness_ms is None else span_text(each.freshness_ms),
            span_text(sum(each.phases_ms.values())),
        )
    return grid


def _tasks(one: TableStatus) -> Grid:
    grid = Grid(
        title="next (icefold maintain)", title_justify="left", box=None, header_style="bold"
    )
    for name in ("task", "", "last run"):
        grid.add_column(name, no_wrap=True)
    grid.add_column("why", overflow="fold")
    for each in one.tasks:
        failed = f"[red]failed {each.failures}x[/red]: {escape(each.error or '')}; "
        grid.add_row(
            each.task,
            "[green]due[/green]" if each.is_due else "waits",
            "never" if each.ended_ms is None else moment_text(each.ended_ms),
            (failed if each.failures else "") + escape(each.why),
        )
    return grid
