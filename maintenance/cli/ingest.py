"""`icefold ingest`: change events from files or Kafka into the staging branch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
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
from maintenance.cli.ingest_many import (
    NAMES,
    Heard,
    many_options,
    many_request,
    run_many,
)
from maintenance.cli.ingest_stream import KAFKA_BATCH_EVENTS, StreamRequest, ingest_stream
from maintenance.cli.ingest_totals import IngestTotals
from maintenance.cli.registry_options import registry_options, take_decoder
from maintenance.ingest_watch import IngestWatch
from maintenance.logs import LogFormat, logging_to_stderr
from maintenance.metrics import serving_metrics
from resolver.number_text import plural
from tableformat.cdc.dead_letter import dead_letter_table
from tableformat.cdc.formats import BUILT_IN, find_format, format_names
from tableformat.cdc.ingest import BATCH_EVENTS, IngestResult, ingest_files
from tableformat.cdc.replay import replay_dead_letters as replay_letters
from tableformat.cdc.sink import SinkOptions, plan_sink
from tableformat.errors import InvalidInputError
from tableformat.spec.names import STAGING_BRANCH
from tableformat.spec.options import Options

EXIT_DEAD_LETTERS = 3  # as of `maintain`: something is left to do


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
    "files: running it again over the same files, unchanged and with the "
    "same --batch-events, goes on where it stopped, and nothing is written twice. Batches are told "
    "apart by their numbers alone: other or longer files need another name.",
)
@click.option(
    "--batch-events",
    type=click.IntRange(min=1),
    help=f"Events per commit, at most.  [{BATCH_EVENTS:,} from files, "
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
def ingest(
    click_context: click.Context,
    context: CliContext,
    /,
    table_name: str | None,
    files: tuple[Path, ...],
    format_name: str,
    options: dict[str, str],
    branch: str,
    query_id: str | None,
    batch_events: int | None,
    metrics_port: int | None,
    metrics_host: str,
    log_format: LogFormat,
    allow_dead_letters: bool,
    replay_dead_letters: bool,
    in_any_order: bool,
    as_json: bool,
    **streaming: Any,
) -> None:
    """Stage change events for TABLE from FILES (JSON lines or Parquet), or from Kafka.

    With --topics and --into, many topics of Kafka go into many tables, which make themselves.

    JSON lines may be compressed by gzip; '-' reads them from standard input.
    With --checkpoint the events are streamed through Spark, from --kafka or from a folder. The exit
    code is 3 if bad records were put into the dead-letter table.
    """
    reads_messages = streaming["kafka"] is not None or replay_dead_letters
    decoder = take_decoder(streaming, reads_messages=reads_messages)
    many = many_request(
        many={name: streaming.pop(name) for name in NAMES},
        table_name=table_name,
        streaming=streaming,
        given_format=format_name if is_given(click_context, "format_name") else None,
        options=options,
        branch=branch,
        query_id=query_id,
        batch_events=batch_events,
        decoder=decoder,
    )
    if many is not None:
        if replay_dead_letters or in_any_order:
            raise click.UsageError("--replay-dead-letters and --topics exclude each other")
        if metrics_port is not None and not many.follow:
            raise click.UsageError("--metrics-port needs --follow")
        with progress_bar(context) as bar:
            task = bar.add_task("staging events", total=None)
            heard = run_many(
                context,
                many,
                as_json=as_json,
                metrics_port=metrics_port,
                metrics_host=metrics_host,
                log_format=log_format,
                advance=lambda count: bar.advance(task, count),
            )
        if is_left_over(heard, allow_dead_letters=allow_dead_letters):
            sys.exit(EXIT_DEAD_LETTERS)
        return
    if table_name is None:
        raise click.UsageError("name TABLE and FILES, or --kafka with --topics and --into")
    request = None
    if replay_dead_letters:
        _check_replay(files, query_id, batch_events, streaming)
    elif in_any_order:
        raise click.UsageError("--in-any-order needs --replay-dead-letters")
    else:
        request = _stream_request(files, batch_events, query_id, **streaming)
    if metrics_port is not None and not (request and request.follow):
        raise click.UsageError("--metrics-port needs --follow")
    table = context.table(table_name)
    if decoder is not None:
        decoder.registry.check()
    totals = IngestTotals()
    watch = IngestWatch(table.name, table.environment.runtime.clock)

    def tell() -> None:
        if as_json:
            print_json(asdict(totals))
        else:
            click.echo(totals.text(branch))

    with ExitStack() as stack:
        stack.enter_context(_telling_when_interrupted(tell))
        bar = stack.enter_context(progress_bar(context))
        task = bar.add_task("staging events", total=None)
        if request is not None and request.follow:
            stack.enter_context(logging_to_stderr(log_format))
            stack.callback(watch.line)
        if metrics_port is not None:
            stack.enter_context(serving_metrics(watch.registry, metrics_port, host=metrics_host))

        def progress(result: IngestResult) -> None:
            totals.add(result)
            watch.batch(result)
            bar.advance(task, result.events)

        if request is not None:
            ingest_stream(
                table,
                request,
                format_name=format_name,
                options=options,
                branch=branch,
                progress=progress,
                on_backlog=watch.progress,
                decoder=decoder,
            )
        else:
            plan = plan_sink(
                table.environment,
                table.identifier,
                format_name=format_name,
                options=options,
                branch=branch,
                decoder=decoder,
            )
            size = batch_events or BATCH_EVENTS
            results = (
                replay_letters(plan, any_order=in_any_order)
                if replay_dead_letters
                else ingest_files(plan, files, query_id=query_id, batch_events=size)
            )
            for result in results:
                progress(result)
    tell()
    if totals.bad_records and not allow_dead_letters:
        letters = options.get("dead-letter-table") or ".".join(dead_letter_table(table.state))
        click.echo(
            f"icefold: {plural(totals.bad_records, 'bad record')} put into {letters}; see the "
            "column 'reason', then icefold ingest --replay-dead-letters",
            err=True,
        )
        sys.exit(EXIT_DEAD_LETTERS)


def is_given(context: click.Context, name: str) -> bool:
    """Whether an option was typed, and is not its default."""
    return context.get_parameter_source(name) is ParameterSource.COMMANDLINE


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


def _check_replay(
    files: tuple[Path, ...],
    query_id: str | None,
    batch_events: int | None,
    streaming: Mapping[str, object],
) -> None:
    """The records and how far they are come from the dead-letter table alone."""
    given: dict[str, object] = {"FILES": files, "--query-id": query_id}
    given["--batch-events"] = batch_events
    given |= {f"--{name.replace('_', '-')}": value for name, value in streaming.items()}
    for name, value in given.items():
        if value:
            raise click.UsageError(f"--replay-dead-letters and {name} exclude each other")


@contextmanager
def _telling_when_interrupted(tell: Callable[[], None]) -> Iterator[None]:
    """Ctrl-C ends the command as ever, but first it says what is staged."""
    try:
        yield
    except KeyboardInterrupt:
        tell()
        raise


def _stream_request(
    files: tuple[Path, ...],
    batch_events: int | None,
    query_id: str | None,
    *,
    kafka: str | None,
    topic: str | None,
    connector_jars: tuple[Path, ...],
    kafka_options: dict[str, str],
    starting_offsets: str | None,
    checkpoint: Path | None,
    follow: bool,
    interval_s: float | None,
) -> StreamRequest | None:
    """The stream that the options ask for; None: plain files. Options that miss another are errors.

    Raises:
        click.UsageError: They do not go together.
    """
    of_kafka = {
        "--topic": topic,
        "--connector-jar": connector_jars,
        "--kafka-option": kafka_options,
        "--starting-offsets": starting_offsets,
    }
    if kafka is None:
        for name, value in of_kafka.items():
            if value:
                raise click.UsageError(f"{name} needs --kafka")
        if not files:
            raise click.UsageError("name FILES, or --kafka with --topic")
    elif files:
        raise click.UsageError("FILES and --kafka exclude each other")
    elif topic is None:
        raise click.UsageError("--kafka needs --topic")
    if interval_s is not None and not follow:
        raise click.UsageError("--interval-s needs --follow")
    if checkpoint is None:
        if kafka is not None or follow:
            raise click.UsageError("--kafka and --follow need --checkpoint")
        return None
    if query_id is not None:
        raise click.UsageError("--query-id is for plain files; a stream has its --checkpoint")
    if kafka is None:
        if len(files) != 1 or not files[0].is_dir():
            raise click.UsageError("with --checkpoint FILES is one folder of JSON-lines files")
        if batch_events is not None:
            raise click.UsageError("a streamed folder is committed file by file: no --batch-events")
    return StreamRequest(
        folder=files[0] if kafka is None else None,
        kafka=kafka,
        topic=topic,
        connector_jars=connector_jars,
        kafka_settings=kafka_options,
        starting_offsets=starting_offsets or "earliest",
        batch_events=batch_events or KAFKA_BATCH_EVENTS,
        checkpoint=checkpoint,
        follow=follow,
        interval_s=1.0 if interval_s is None else interval_s,
    )
