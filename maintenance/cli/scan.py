"""`icefold scan`: read rows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import click

from maintenance.cli.context import CliContext, parse_columns, pass_context, table_argument
from maintenance.cli.row_output import PREVIEW_ROWS, format_option, print_rows
from tableformat.errors import InvalidInputError

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@click.command("scan")
@table_argument
@click.option("--filter", help="Rows wanted, e.g. \"amount > 10 and region = 'EU'\".")
@click.option("--columns", help="Columns wanted, comma separated.  [all]")
@click.option("--branch", help="Read a branch; 'staging' has unresolved deletes applied.")
@click.option("--tag", help="Read a tag.")
@click.option("--snapshot-id", type=int, help="Read a snapshot.")
@click.option(
    "--as-of",
    metavar="TIME",
    help="Read what the branch held then: 2026-01-31T12:00:00 (UTC, or with an offset).",
)
@click.option("--limit", type=click.IntRange(min=0), help="At most so many rows.")
@format_option
@pass_context
def scan(
    context: CliContext,
    /,
    table_name: str,
    columns: str | None,
    as_of: str | None,
    limit: int | None,
    output: str | None,
    **version: Any,
) -> None:
    """Print the rows of TABLE."""
    wanted = context.table(table_name).scan(
        columns=parse_columns(columns),
        as_of_ms=None if as_of is None else _milliseconds(as_of),
        limit=_preview_limit(limit) if output in (None, "table") else limit,
        **version,
    )
    print_rows(context, wanted.arrow_schema().names, wanted.to_batches(), output)


def _preview_limit(limit: int | None) -> int:
    more = PREVIEW_ROWS + 1  # tells whether there are more
    return more if limit is None else min(limit, more)


def _milliseconds(text: str) -> int:
    """ISO 8601 text as milliseconds since the epoch."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInputError(
            "not a time", action="write it as 2026-01-31T12:00:00", as_of=repr(text)
        ) from None
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return (moment - EPOCH) // timedelta(milliseconds=1)
