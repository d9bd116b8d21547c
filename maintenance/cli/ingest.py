"""`icefold ingest`: change events from files into the staging branch."""

from __future__ import annotations

from pathlib import Path

import click

from maintenance.cli.context import (
    CliContext,
    json_option,
    parse_properties,
    pass_context,
    print_json,
    progress_bar,
)
from tableformat.cdc.formats import FACTORIES
from tableformat.cdc.ingest import BATCH_EVENTS, IngestResult, ingest_files
from tableformat.cdc.sink import SINK_OPTIONS, plan_sink
from tableformat.spec.names import STAGING_BRANCH


def _option_help(_ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    """`--list-options`: every format and its options, from the table that validates them."""
    if not value:
        return
    for factory in FACTORIES.values():
        click.echo(f"{factory.identifier}: {factory.help}")
        for name, text in factory.options.help_lines():
            click.echo(f"  {name}\n      {text}")
    click.echo("every format (sink):")
    for name, text in SINK_OPTIONS.help_lines():
        click.echo(f"  {name}\n      {text}")
    raise click.exceptions.Exit


@click.command("ingest")
@click.argument("table_name", metavar="TABLE")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--format",
    "format_name",
    type=click.Choice(sorted(FACTORIES)),
    default="debezium-json",
    show_default=True,
    help="How the events are written.",
)
@click.option(
    "--option",
    "-o",
    "options",
    multiple=True,
    metavar="KEY=VALUE",
    callback=parse_properties,
    help="An option of the format or the sink; may be repeated. See --list-options.",
)
@click.option("--branch", default=STAGING_BRANCH, show_default=True, help="Where changes go.")
@click.option(
    "--query-id",
    help="A name for this ingestion: running it again over the same files goes on where it "
    "stopped, and nothing is written twice.",
)
@click.option(
    "--batch-events",
    type=click.IntRange(min=1),
    default=BATCH_EVENTS,
    show_default=True,
    help="Events per commit, at most.",
)
@click.option(
    "--list-options",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_option_help,
    help="Show the options of every format, and stop.",
)
@json_option
@pass_context
def ingest(
    context: CliContext,
    table_name: str,
    files: tuple[Path, ...],
    format_name: str,
    options: dict[str, str],
    branch: str,
    query_id: str | None,
    batch_events: int,
    as_json: bool,
) -> None:
    """Stage change events from FILES (JSON lines or Parquet) for TABLE."""
    table = context.table(table_name)
    plan = plan_sink(
        table.environment,
        table.identifier,
        format_name=format_name,
        options=options,
        branch=branch,
    )
    with progress_bar(context) as bar:
        task = bar.add_task("staging events", total=None)
        results = ingest_files(
            plan,
            files,
            query_id=query_id,
            batch_events=batch_events,
            progress=lambda result: bar.advance(task, result.events),
        )
    totals = _totals(results)
    if as_json:
        print_json(totals)
    else:
        click.echo(
            "{events:,} events, {changes:,} changes in {commits} commits on {branch}; "
            "{bad_records} bad records, {repeated} batches were there already".format(
                branch=branch, **totals
            )
        )


def _totals(results: list[IngestResult]) -> dict[str, int]:
    return {
        "events": sum(result.events for result in results),
        "changes": sum(result.changes for result in results),
        "commits": sum(result.commit is not None for result in results),
        "bad_records": sum(result.bad_records for result in results),
        "repeated": sum(result.repeated for result in results),
    }
