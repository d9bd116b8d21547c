"""`icefold sql`: row-level DELETE, UPDATE and MERGE."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from maintenance.cli.context import CliContext, json_option, pass_context, print_json
from resolver.number_text import plural
from tableformat.errors import TableError, UnsupportedError

if TYPE_CHECKING:  # Spark is an optional dependency
    from pyspark.sql import SparkSession

    from tableformat.rowlevel.execute import RowLevelResult


@click.command("sql")
@click.argument("statement")
@click.option("--branch", help="The branch to change.  [main]")
@click.option(
    "--mode",
    type=click.Choice(["merge-on-read", "copy-on-write"]),
    help="Deletion vectors, or files written again.  [the table's write.<operation>.mode]",
)
@click.option(
    "--retries",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Plan and run again so often when another commit got in between.",
)
@click.option(
    "--spark/--no-spark",
    "use_spark",
    default=None,
    help="Evaluate on a local Spark, or never start one.  [only when the statement needs it]",
)
@json_option
@pass_context
def sql(
    context: CliContext, /, statement: str, use_spark: bool | None, as_json: bool, **how: Any
) -> None:
    """Run STATEMENT: DELETE FROM, UPDATE or MERGE INTO, in Spark's SQL.

    Plain comparisons need no Java; everything else runs on a local Spark.
    """
    try:
        session = _session(context) if use_spark else None
        result = context.catalog.sql(statement, spark=session, **how)
    except UnsupportedError as error:
        if use_spark is not None or not _asks_for_spark(error):
            raise
        result = context.catalog.sql(statement, spark=_session(context), **how)
    if as_json:
        print_json(result.to_dict())
    else:
        click.echo(describe(result))


def describe(result: RowLevelResult) -> str:
    """One line for people."""
    counts = {
        "deleted": result.deleted_rows,
        "updated": result.updated_rows,
        "inserted": result.inserted_rows,
    }
    parts = [
        f"{'an unknown number of rows' if count is None else plural(count, 'row')} {what}"
        for what, count in counts.items()
        if count != 0
    ]
    if result.snapshot is None:
        return "nothing to change"
    text = ", ".join(parts) or "0 rows changed"
    if result.dropped_files:
        text += f" ({plural(result.dropped_files, 'file')} dropped unread)"
    return f"{text}; snapshot {result.snapshot.snapshot_id}"


def _asks_for_spark(error: TableError) -> bool:
    return error.context.get("needs") == "spark"


def _session(context: CliContext) -> SparkSession:
    try:
        from tableformat.spark.session import local_session
    except ImportError as error:
        raise UnsupportedError(
            "this statement needs Spark, which is not installed",
            action="pip install 'icefold[spark]'",
        ) from error
    context.err.print("starting Spark …", style="dim")
    return local_session("icefold sql")
