"""`icefold inspect`: a table's metadata, view by view."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click
import pyarrow as pa

from maintenance.cli.context import CliContext, pass_context, print_json, table_argument
from maintenance.cli.row_output import print_rows
from tableformat.table_inspect import VIEWS

# In the terminal the widest columns are left out; csv and json have them all.
HIDDEN = frozenset(
    {
        "summary",
        "manifest_list",
        "column_sizes",
        "value_counts",
        "null_value_counts",
        "nan_value_counts",
        "lower_bounds",
        "upper_bounds",
        "key_metadata",
        "split_offsets",
        "partition_summaries",
    }
)
SHOWN_ROWS = 100


@click.command(
    "inspect", help=f"Show a VIEW of TABLE's metadata.\n\nVIEW is one of {', '.join(VIEWS)}."
)
@table_argument
@click.argument("view", metavar="VIEW", type=click.Choice(list(VIEWS)))
@click.option("--branch", help="Of the head of a branch.  [main]")
@click.option("--tag", help="Of a tag.")
@click.option("--snapshot-id", type=int, help="Of a snapshot.")
@click.option("--limit", type=click.IntRange(min=0), help="At most so many rows.")
@click.option(
    "--format",
    "output",
    type=click.Choice(["table", "csv", "json"]),
    help="'csv' and 'json' have all columns.  [table]",
)
@click.option("--json", "output", flag_value="json", help="Short for --format json.")
@click.option("--csv", "output", flag_value="csv", help="Short for --format csv.")
@pass_context
def inspect(
    context: CliContext,
    table_name: str,
    view: str,
    branch: str | None,
    tag: str | None,
    snapshot_id: int | None,
    limit: int | None,
    output: str | None,
) -> None:
    """Show a VIEW of TABLE's metadata."""
    found = context.table(table_name).inspect.view(
        view, branch=branch, tag=tag, snapshot_id=snapshot_id
    )
    if limit is not None:
        found = found.slice(0, min(limit, found.num_rows))
    if output == "json":
        print_json([_plain(row) for row in found.to_pylist()])
        return
    if output in (None, "table"):
        found = found.select([name for name in found.column_names if name not in HIDDEN])
    batches: Iterator[pa.RecordBatch] = iter(found.to_batches())
    print_rows(context, found.column_names, batches, output, preview_rows=SHOWN_ROWS)


def _plain(value: Any) -> Any:
    """Values as JSON has them: bytes as hexadecimal digits, maps as lists of pairs."""
    match value:
        case dict():
            return {name: _plain(each) for name, each in value.items()}
        case list() | tuple():
            return [_plain(each) for each in value]
        case bytes():
            return value.hex()
    return value
