"""What notebooks show of an object: small tables of escaped text."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence


def escape(text: str) -> str:
    """Text for HTML and SVG; what cannot be printed (controls, bidi overrides) is shown as �."""
    return html.escape("".join(c if c.isprintable() else "\ufffd" for c in text), quote=True)


def fields_html(title: str, fields: Iterable[tuple[str, object]]) -> str:
    """A caption, and a line for each field."""
    return rows_html(title, (), fields)


def rows_html(title: str, heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A caption, a head if there is one, and rows; the first cell of a row is its head."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in heads)
    body = "".join(
        f'<tr><th scope="row">{escape(str(row[0]))}</th>'
        f"{''.join(f'<td>{escape(str(cell))}</td>' for cell in row[1:])}</tr>"
        for row in rows
    )
    return (
        f"<table><caption>{escape(title)}</caption>"
        f"{f'<thead><tr>{head}</tr></thead>' if head else ''}<tbody>{body}</tbody></table>"
    )
