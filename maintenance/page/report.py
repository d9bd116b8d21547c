"""The report of a table as one HTML file: its state, its history in charts, what comes next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from maintenance.cycle_history import Cycle, Point
from maintenance.page.charts import TimeChart, draw_bars, draw_time_chart
from maintenance.page.cycle_charts import (
    backlog_chart,
    files_chart,
    freshness_chart,
    phases_chart,
    rows_chart,
    share_chart,
)
from maintenance.page.document import html_chip, html_page, html_problem, html_table
from maintenance.page.scales import time_text
from maintenance.page.series import percentile
from maintenance.status import SizeBin, TableStatus
from resolver.number_text import bytes_text, count_text, plural, span_text
from tableformat.html_text import escape

LAG_GOOD_MS = 60_000  # a backlog older than this is worth a look, whatever it is made of
_EMPTY = "Nothing yet: the history shows this after the first cycles of <b>icefold resolve</b>."


def render_report(status: TableStatus, history: Sequence[Point], *, now_ms: int) -> str:
    """The page.

    Args:
        status: The table as it is.
        history: Its target branch, the oldest snapshot first.
        now_ms: Wall clock.
    """
    cycles = [point.cycle for point in history if point.cycle is not None]
    body = (
        f"{_header(status, history, now_ms)}{_problems(status)}{_tiles(status, cycles)}"
        f'<section class="grid" aria-label="History">{_charts(history, cycles)}'
        f"{_sizes(status.sizes)}</section>"
        f'<section class="grid" aria-label="Maintenance" style="margin-top:14px">'
        f"{_tasks(status)}{_runs(status)}</section>"
        f"<footer>Drawn by icefold from the table's own snapshots, "
        f"{escape(time_text(now_ms))}. Expired snapshots are not in it.</footer>"
    )
    return html_page(f"{status.table} - icefold report", body)


def _header(status: TableStatus, history: Sequence[Point], now_ms: int) -> str:
    span = "nothing published yet"
    if history:
        span = (
            f"{plural(len(history), 'snapshot')} of the published branch over "
            f"{span_text(max(history[-1].at_ms - history[0].at_ms, 0))}, the last one "
            f"{span_text(max(now_ms - history[-1].at_ms, 0))} ago"
        )
    return (
        f"<header><h1>{escape(status.table)}</h1>{verdict_chip(status)}"
        f"<p>{escape(span)}</p></header>"
    )


def verdict_chip(status: TableStatus) -> str:
    """What is to be said of a table first."""
    return html_chip(*_verdict(status))


def _verdict(status: TableStatus) -> tuple[str, str, str]:
    failing = [task.task for task in status.tasks if task.failures]
    if status.problem or status.settings_problem:
        return "bad", "✕", "needs an operator"
    if failing:
        return "bad", "✕", f"failing: {', '.join(failing)}"
    if status.lag_ms > LAG_GOOD_MS:
        return "warn", "!", f"{span_text(status.lag_ms)} behind"
    if status.dead_letters:
        return "warn", "!", plural(status.dead_letters, "dead letter")
    return "good", "✓", "up to date" if not status.backlog_snapshots else "following"


def _problems(status: TableStatus) -> str:
    problems = [status.problem, status.settings_problem]
    problems += [f"{task.task}: {task.error}" for task in status.tasks if task.error]
    return "".join(html_problem("Problem", text) for text in problems if text)


def _tiles(status: TableStatus, cycles: Sequence[Cycle]) -> str:
    totals = status.totals
    fresh = [each.freshness_ms for each in cycles]
    middle, high = percentile(fresh, 0.5), percentile(fresh, 0.99)
    waiting = "?" if status.backlog_snapshots is None else count_text(status.backlog_snapshots)
    index = status.index
    tiles = [
        (
            "Freshness, 99 %",
            "-" if high is None else span_text(high),
            "no publish yet" if middle is None else f"half within {span_text(middle)}",
        ),
        ("Staged, waiting", waiting, f"commits, oldest {span_text(status.staging_lag_ms)}"),
        (
            "Live rows",
            count_text(totals["records"] - totals["position_deletes"]),
            f"{status.dv_share:.1%} more hidden by DVs",
        ),
        (
            "Data files",
            count_text(totals["data_files"]),
            f"{bytes_text(totals['size_bytes'])}, {plural(totals['delete_files'], 'DV')}",
        ),
        (
            "Metadata",
            count_text(status.snapshots),
            f"snapshot{'s' * (status.snapshots != 1)} of all branches, "
            f"{plural(status.manifests, 'manifest')}",
        ),
        (
            "Index",
            bytes_text(index.size_bytes) if index.size_bytes else "-",
            f"{plural(index.behind_commits, 'commit')} behind"
            if index.behind_commits
            else index.state,
        ),
    ]
    inner = "".join(
        f'<dl class="tile"><dt>{escape(label)}</dt><dd>{escape(value)}</dd>'
        f"<dd>{escape(note)}</dd></dl>"
        for label, value, note in tiles
    )
    return f'<section class="tiles" aria-label="Now">{inner}</section>'


def _charts(history: Sequence[Point], cycles: Sequence[Cycle]) -> str:
    charts: tuple[tuple[str, Callable[[Any], TimeChart], Sequence[Any]], ...] = (
        ("Freshness", freshness_chart, cycles),
        ("Backlog", backlog_chart, cycles),
        ("Files", files_chart, history),
        ("Rows hidden by deletion vectors", share_chart, history),
        ("Cycle phases", phases_chart, cycles),
        ("Live rows", rows_chart, history),
    )
    return "".join(
        _figure(draw(items)) if items else _empty(title) for title, draw, items in charts
    )


def _figure(chart: TimeChart) -> str:
    return (
        f'<figure class="card"><figcaption><h2>{escape(chart.title)}</h2>'
        f"<p>{escape(chart.text)}</p></figcaption>{_legend(chart)}{draw_time_chart(chart)}"
        f"{_data(chart)}</figure>"
    )


def _legend(chart: TimeChart) -> str:
    items = []
    if len(chart.lines) > 1:
        items = [
            f'<li><span class="key k{line.colour}"></span>{escape(line.name)}</li>'
            for line in chart.lines
        ]
    if chart.marks:
        items.append(f'<li><span class="kmark"></span>{escape(chart.mark_name)}</li>')
    return f'<ul class="legend">{"".join(items)}</ul>' if items else ""


def _data(chart: TimeChart) -> str:
    """The numbers behind a chart, for those who want or need them as text."""
    rows = (
        [time_text(at), *("" if line.values[n] is None else chart.value_text(line.values[n] or 0)
                          for line in chart.lines)]
        for n, at in enumerate(chart.times_ms)
    )  # fmt: skip
    heads = ["time", *(line.name for line in chart.lines)]
    table = html_table(heads, rows, numbers_from=1, stacks=False)
    return f"<details><summary>Numbers</summary>{table}</details>"


def _empty(title: str) -> str:
    return f'<figure class="card"><h2>{escape(title)}</h2><p class="empty">{_EMPTY}</p></figure>'


def _sizes(sizes: Sequence[SizeBin]) -> str:
    limits = [each.below_bytes for each in sizes]
    bars = [
        (
            f"≥ {(limits[-2] or 0) >> 20} MiB"
            if each.below_bytes is None
            else f"< {each.below_bytes >> 20} MiB",
            float(each.files),
            f"{plural(each.files, 'file')}, {bytes_text(each.size_bytes)}"
            if each.files
            else "none",
        )
        for each in sizes
    ]
    text = "Data files of the published branch by size; many small ones are slow to read."
    return (
        f'<figure class="card wide bars"><figcaption><h2>File sizes</h2><p>{text}</p></figcaption>'
        f"{draw_bars('sizes', 'File sizes', text, bars)}</figure>"
    )


def _tasks(status: TableStatus) -> str:
    rows = (
        [
            task.task,
            "due" if task.is_due else "waits",
            "never" if task.ended_ms is None else time_text(task.ended_ms),
            f"failed {plural(task.failures, 'time')}; {task.why}" if task.failures else task.why,
        ]
        for task in status.tasks
    )
    holder = status.lock.holder or status.lock.problem or "nobody"
    return (
        '<div class="card wide"><h2>What icefold maintain does next</h2>'
        f"<p>Works on the table now: {escape(holder)}.</p>"
        f"{html_table(['task', '', 'last run here', 'why'], rows)}</div>"
    )


def _runs(status: TableStatus) -> str:
    if not status.runs:
        return ""
    rows = (
        [
            time_text(int(run.get("began_ms", 0))),
            str(run.get("task", "")),
            str(run.get("outcome", "")),
            span_text(float(run.get("duration_ms", 0))),
            str(run.get("text", "")),
        ]
        for run in reversed(status.runs)
    )
    return (
        '<div class="card wide"><h2>Last runs on this machine</h2>'
        f"{html_table(['began', 'task', 'outcome', 'took', 'what'], rows)}</div>"
    )
