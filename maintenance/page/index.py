"""The page over many tables: one line each, with its verdict and a link to its own page."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from urllib.parse import quote

from maintenance.page.document import Html, html_chip, html_page, html_problem, html_table
from maintenance.page.report import verdict_chip
from maintenance.page.scales import time_text
from maintenance.status import TableStatus
from resolver.number_text import bytes_text, count_text, plural, span_text
from tableformat.html_text import escape

FILE_NAME_MAX = 200
_HEADS = ("table", "state", "waiting", "behind", "live rows", "hidden", "files", "size",
          "snapshots")  # fmt: skip


def page_name(table: str) -> str:
    """The file of a table's page: its name where a file can be called so."""
    name = quote(table, safe="")
    if len(name) > FILE_NAME_MAX:
        name = f"{name[:FILE_NAME_MAX]}-{hashlib.sha256(table.encode()).hexdigest()[:16]}"
    return f"{name}.html"


def render_index(tables: Sequence[TableStatus | tuple[str, str]], *, now_ms: int) -> str:
    """The page.

    Args:
        tables: Each as it is, or its name and why it cannot be read.
        now_ms: Wall clock.
    """
    unread = [each for each in tables if isinstance(each, tuple)]
    rows = [_unread(each[0]) if isinstance(each, tuple) else _row(each) for each in tables]
    body = (
        f"<header><h1>{plural(len(rows), 'table')}</h1></header>"
        f"{''.join(html_problem(name, text) for name, text in unread)}"
        f'<div class="card">{html_table(_HEADS, rows, numbers_from=2)}</div>'
        f"<footer>Drawn by icefold, {escape(time_text(now_ms))}. Snapshots are those of all "
        "branches.</footer>"
    )
    return html_page("icefold report", body)


def _row(status: TableStatus) -> list[str]:
    totals = status.totals
    href = escape(quote(page_name(status.table)))
    waiting = status.backlog_snapshots
    return [
        Html(f'<a href="{href}">{escape(status.table)}</a>'),
        verdict_chip(status),
        "?" if waiting is None else plural(waiting, "commit"),
        span_text(status.lag_ms),
        count_text(totals["records"] - totals["position_deletes"]),
        f"{status.dv_share:.1%}",
        count_text(totals["data_files"]),
        bytes_text(totals["size_bytes"]),
        count_text(status.snapshots),
    ]


def _unread(table: str) -> list[str]:
    return [table, html_chip("bad", "✕", "cannot be read"), *[""] * (len(_HEADS) - 2)]
