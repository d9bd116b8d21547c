"""What the pages share: the frame of a document without external resources, tables, chips."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from maintenance.page.style import STYLE
from tableformat.html_text import escape


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


def html_page(title: str, body: str) -> str:
    """A whole document. `title` is text, `body` HTML."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'\">"
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body><main>"
        f"{body}</main></body></html>\n"
    )


def html_chip(kind: str, sign: str, text: str) -> Html:
    """A verdict: `kind` is `good`, `warn` or `bad`, `sign` repeats it without colour."""
    return Html(
        f'<span class="chip {kind}"><span aria-hidden="true">{sign}</span>{escape(text)}</span>'
    )


def html_problem(title: str, text: str) -> str:
    """What an operator has to look at."""
    return (
        f'<div class="card problem wide" role="alert" style="margin-bottom:14px">'
        f"<h2>{escape(title)}</h2><p>{escape(text)}</p></div>"
    )


def html_table(
    heads: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    numbers_from: int | None = None,
    stacks: bool = True,
) -> str:
    """A table that scrolls by itself.

    Args:
        heads: Titles of the columns.
        rows: Cells are text, or `Html` as it is.
        numbers_from: The first column of numbers; None: there are none.
        stacks: On a phone each row is a block of lines that begin with their column's title.
    """

    def classed(number: int) -> str:
        if numbers_from is not None and number >= numbers_from:
            return ' class="n"'
        return ' class="w"' if number < len(heads) - 1 else ""  # the last column takes the rest

    def titled(number: int) -> str:
        says = stacks and number and heads[number]
        return f' data-head="{escape(heads[number])}"' if says else ""

    head = "".join(
        f'<th scope="col"{classed(number)}>{escape(text)}</th>' for number, text in enumerate(heads)
    )
    body = "".join(
        "<tr>"
        + "".join(f"<td{classed(n)}{titled(n)}>{_cell(text)}</td>" for n, text in enumerate(row))
        + "</tr>"
        for row in rows
    )
    kind = ' class="stack"' if stacks else ""
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="Table"><table{kind}>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _cell(value: str) -> str:
    return value if isinstance(value, Html) else escape(value)
