"""`icefold ingest`: change events from files or Kafka into the staging branch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from maintenance.cli.context import (
    CliContext,
    TableName,
    json_flag,
    parse_properties,
    pass_context,
    print_json,
    progress_bar,
)
from maintenance.cli.ingest_many import Heard, ManyRequest, many_options, many_request, run_many
from maintenance.cli.ingest_stream import checked_stream, ingest_stream
from maintenance.cli.ingest_totals import IngestTotals
from maintenance.cli.ingest_words import KAFKA_BATCH_EVENTS, IngestWords
from maintenance.cli.registry_options import registry_decoder, registry_options
from maintenance.ingest_watch import IngestWatch
from maintenance.logs import logging_to_stderr
from maintenance.metrics import serving_metrics
from resolver.number_text import plural
from tableformat import Table
from tableformat.cdc.dead_letter import dead_letter_table
from tableformat.cdc.event_files import BATCH_EVENTS, ingest_files
from tableformat.cdc.formats import BUILT_IN, find_format, format_names
from tableformat.cdc.ingest import IngestResult
from tableformat.cdc.registry.decoder import RegistryDecoder
from tableformat.cdc.replay import replay_dead_letters as replay_letters
from tableformat.cdc.sink import SinkOptions, plan_sink
from tableformat.errors import InvalidInputError
from tableformat.spec.names import STAGING_BRANCH
from tableformat.spec.options import Options

EXIT_DEAD_LETTERS = 3  # as of `maintain`: something is left to do
# The records and how far they are come from the dead-letter table alone.
NOT_OF_REPLAY = (
    "files", "query_id", "batch_events", "kafka", "topic", "connector_jars", "kafka_options",
    "starting_offsets", "checkpoint", "follow", "interval_s",
)  # fmt: skip


def _option_help(_ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    """`--list-options`: every format and its options, from the table that validates them."""
    if not value:
        return
    for name in format_names():
        try:
            factory = find_format(name)
        except InvalidInputError as error:
            click.echo(f"{name}: {error}")
            continue
        click.echo(f"{name}: {factory.help}")
        _echo_options(factory.options)
    click.echo("every format (sink):")
    _echo_options(SinkOptions)
    raise click.exceptions.Exit


def _echo_options(options: type[Options]) -> None:
    for name, values, default, text in options.described():
        click.echo(f"  {name}={values}\n      {text}{f' [{default}]' if default else ''}")


def _known_format(_ctx: click.Context, _param: click.Parameter, value: str) -> str:
    return find_format(value).identifier


@click.command("ingest")
@click.argument("table_name", metavar="[TABLE]", required=False, type=TableName())
@click.argument("files", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "--format",
    "format_name",
    metavar="NAME",
    callback=_known_format,
    default="debezium-json",
    show_default=True,
    help=f"How the events are written: {', '.join(BUILT_IN)}, or a format of another package; see "
    "--list-options.",
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
@many_options
@click.option(
    "--query-id",
    help="A name for this ingestion: with --topics the stream's, by default kafka:NAMESPACE. Of "
    "files: running it again over the same files, which may have got longer, and then new ones, "
    "goes on where it stopped, and nothing is written twice. Files that do not begin with what was "
    "read need another name.",
)
@click.option(
    "--batch-events",
    type=click.IntRange(min=1),
    help=f"Events per commit, at most; of files, 64 MiB of them.  [{BATCH_EVENTS:,} from files, "
    f"{KAFKA_BATCH_EVENTS:,} from Kafka]",
)
@click.option(
    "--kafka",
    metavar="HOST:PORT,...",
    help="Read from Kafka instead of FILES: its bootstrap servers.",
)
@click.option("--topic", help="The Kafka topic; all changes of a key in one partition of it.")
@click.option(
    "--connector-jar",
    "connector_jars",
    multiple=True,
    type=click.Path(path_type=Path),
    help="A jar, or a folder of jars, of Spark's Kafka connector; may be repeated.",
)
@click.option(
    "--kafka-option",
    "kafka_options",
    multiple=True,
    metavar="KEY=VALUE",
    callback=parse_properties,
    help="A setting of Kafka's consumer, such as security.protocol=SSL; may be repeated.",
)
@registry_options
@click.option(
    "--starting-offsets",
    type=click.Choice(["earliest", "latest"]),
    help="Where to begin in a topic that the checkpoint does not know.  [earliest]",
)
@click.option(
    "--checkpoint",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder where a stream (Kafka, or one folder as FILES) notes how far it is: started "
    "again with it, it goes on exactly there. One per stream, never shared.",
)
@click.option(
    "--follow", is_flag=True, help="Go on with what arrives, until interrupted (Ctrl-C, SIGTERM)."
)
@click.option(
    "--interval-s",
    type=click.FloatRange(min=0.0),
    help="With --follow: seconds from the start of one commit to the next.  [1]",
)
@click.option("--metrics-port", type=click.IntRange(1, 65535), help="Serve Prometheus metrics.")
@click.option("--metrics-host", default="127.0.0.1", show_default=True)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="With --follow: how lines on standard error look.",
)
@click.option(
    "--allow-dead-letters",
    is_flag=True,
    help=f"Exit with 0 although bad records were put aside, not with {EXIT_DEAD_LETTERS}.",
)
@click.option(
    "--replay-dead-letters",
    is_flag=True,
    help="Instead of FILES: stage the bad records of TABLE again, and take them out of theirs.",
)
@click.option(
    "--in-any-order",
    is_flag=True,
    help="With --replay-dead-letters: an old change may replace a newer one.",
)
@click.option(
    "--list-options",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_option_help,
    help="Show the options of every format, and stop.",
)
@json_flag
@pass_context
@click.pass_context
def ingest(click_context: click.Context, context: CliContext, /, **given: Any) -> None:
    """Stage change events for TABLE from FILES (JSON lines or Parquet), or from Kafka.

    With --topics and --into, many topics of Kafka go into many tables, which make themselves.

    JSON lines may be compressed by gzip; '-' reads them from standard input.
    With --checkpoint the events are streamed through Spark, from --kafka or from a folder. The exit
    code is 3 if bad records were put into the dead-letter table.
    """
    words = IngestWords(**given, given_format=given_format(click_context))
    decoder = registry_decoder(words)
    many = many_request(words, decoder)
    if many is not None:
        _ingest_many(context, many)
    elif words.table_name is None:
        raise click.UsageError("name TABLE and FILES, or --kafka with --topics and --into")
    else:
        _ingest_one(context, words.table_name, words, decoder)


def _ingest_many(context: CliContext, request: ManyRequest) -> None:
    words = request.words
    if words.replay_dead_letters or words.in_any_order:
        raise click.UsageError("--replay-dead-letters and --topics exclude each other")
    _check_metrics(words, is_followed=words.follow)
    with progress_bar(context) as bar:
        task = bar.add_task("staging events", total=None)
        heard = run_many(context, request, advance=lambda count: bar.advance(task, count))
    if is_left_over(heard, allow_dead_letters=words.allow_dead_letters):
        sys.exit(EXIT_DEAD_LETTERS)


def _ingest_one(
    context: CliContext, name: str, words: IngestWords, decoder: RegistryDecoder | None
) -> None:
    is_stream = False
    if words.replay_dead_letters:
        words.refuse(NOT_OF_REPLAY, "--replay-dead-letters and {} exclude each other")
    elif words.in_any_order:
        raise click.UsageError("--in-any-order needs --replay-dead-letters")
    else:
        is_stream = checked_stream(words)
    is_followed = is_stream and words.follow
    _check_metrics(words, is_followed=is_followed)
    table = context.table(name)
    if decoder is not None:
        decoder.registry.check()
    totals = IngestTotals()
    watch = IngestWatch(table.name, table.environment.runtime.clock)
    with ExitStack() as stack:
        stack.enter_context(_telling_when_interrupted(lambda: _tell(words, totals)))
        bar = stack.enter_context(progress_bar(context))
        task = bar.add_task("staging events", total=None)
        if is_followed:
            stack.enter_context(logging_to_stderr(words.log_format))
            stack.callback(watch.line)
        if words.metrics_port is not None:
            serving = serving_metrics(watch.registry, words.metrics_port, host=words.metrics_host)
            stack.enter_context(serving)

        def progress(result: IngestResult) -> None:
            totals.add(result)
            watch.batch(result)
            bar.advance(task, result.events)

        if is_stream:
            ingest_stream(table, words, decoder, progress=progress, on_backlog=watch.progress)
        else:
            for result in _staged(table, words, decoder):
                progress(result)
    _tell(words, totals)
    if totals.bad_records and not words.allow_dead_letters:
        letters = words.options.get("dead-letter-table") or ".".join(dead_letter_table(table.state))
        click.echo(
            f"icefold: {plural(totals.bad_records, 'bad record')} put into {letters}; see the "
            "column 'reason', then icefold ingest --replay-dead-letters",
            err=True,
        )
        sys.exit(EXIT_DEAD_LETTERS)


def _staged(
    table: Table, words: IngestWords, decoder: RegistryDecoder | None
) -> Iterator[IngestResult]:
    """What becomes of each batch of files, or of dead letters."""
    plan = plan_sink(
        table.environment,
        table.identifier,
        format_name=words.format_name,
        options=words.options,
        branch=words.branch,
        decoder=decoder,
    )
    if words.replay_dead_letters:
        return replay_letters(plan, any_order=words.in_any_order)
    size = words.batch_events or BATCH_EVENTS
    return ingest_files(plan, words.files, query_id=words.query_id, batch_events=size)


def _tell(words: IngestWords, totals: IngestTotals) -> None:
    if words.as_json:
        print_json(asdict(totals))
    else:
        click.echo(totals.text(words.branch))


def given_format(context: click.Context) -> str | None:
    """The format that was typed; None: it is the default."""
    is_typed = context.get_parameter_source("format_name") is ParameterSource.COMMANDLINE
    return str(context.params["format_name"]) if is_typed else None


def is_left_over(heard: Heard, *, allow_dead_letters: bool) -> bool:
    """Say on standard error what a stream has left to do; whether that is worth an exit code."""
    if heard.aside:
        names = ", ".join(sorted(heard.aside))
        click.echo(
            f"icefold: {plural(len(heard.aside), 'table')} set aside: {names}; when the cause is "
            "mended, --resume TABLE takes it up where it stood",
            err=True,
        )
    bad = heard.totals.bad_records
    if bad and not allow_dead_letters:
        click.echo(f"icefold: {plural(bad, 'bad record')} put into dead-letter tables", err=True)
    return bool(heard.aside or (bad and not allow_dead_letters))


def _check_metrics(words: IngestWords, *, is_followed: bool) -> None:
    if words.metrics_port is not None and not is_followed:
        raise click.UsageError("--metrics-port needs --follow")


@contextmanager
def _telling_when_interrupted(tell: Callable[[], None]) -> Iterator[None]:
    """Ctrl-C ends the command as ever, but first it says what is staged."""
    try:
        yield
    except KeyboardInterrupt:
        tell()
        raise
