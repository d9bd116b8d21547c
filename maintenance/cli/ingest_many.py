"""`icefold ingest --topics`: many topics of Kafka into many tables."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import click

from maintenance.cli.context import CliContext, print_json, with_options
from maintenance.cli.ingest_stream import interrupt_event, stream_session
from maintenance.cli.ingest_totals import IngestTotals
from maintenance.cli.ingest_words import KAFKA_BATCH_EVENTS, IngestWords
from maintenance.cli.stream_stop import Run, StreamStop
from maintenance.ingest_watch import Backlog, IngestWatch, kafka_backlog
from maintenance.logs import logging_to_stderr
from maintenance.metrics import serving_metrics
from resolver.number_text import plural
from tableformat.cdc.ingest import IngestResult
from tableformat.cdc.many.engine_choice import Engine, choose_engine
from tableformat.cdc.many.kafka_consumer import KafkaConsumer
from tableformat.cdc.many.local_engine import BATCH_EVENTS, Cut, LocalEngine, Pace
from tableformat.cdc.many.outages import follow_through_outages
from tableformat.cdc.many.routing import Routing, TopicPattern
from tableformat.cdc.many.stream_file import StreamFile, read_stream_file
from tableformat.cdc.many.stream_tables import StreamListener, StreamSettings
from tableformat.cdc.many.table_making import NewTable
from tableformat.cdc.many.table_options import FORMAT, StreamOptions, TableOptions
from tableformat.cdc.registry.decoder import RegistryDecoder
from tableformat.environment import Environment
from tableformat.errors import TableError, UnsupportedError

QUERY_PREFIX = "kafka:"
logger = logging.getLogger("icefold.ingest")


many_options = with_options(
    click.option(
        "--topics",
        metavar="PATTERN,...",
        help="Many Kafka topics into many tables: globs such as 'pg.public.*', or regular "
        "expressions that begin with ^. Needs --into.",
    ),
    click.option("--into", metavar="NAMESPACE", help="With --topics: where the tables are."),
    click.option(
        "--exclude-topics", metavar="PATTERN,...", help="With --topics: topics that are not read."
    ),
    click.option(
        "--tables",
        "tables_file",
        metavar="FILE.yaml",
        type=click.Path(path_type=Path, dir_okay=False),
        help="With --topics: routes, and options of single tables.",
    ),
    click.option(
        "--engine",
        type=click.Choice([each.value for each in Engine]),
        help="With --topics: local, in this process; spark; auto decides and says why.  [auto]",
    ),
    click.option(
        "--cut",
        type=click.Choice([each.value for each in Cut]),
        help="With --topics: where a commit of all tables may end: anywhere (batch), or where a "
        "transaction of the source ends.  [batch]",
    ),
    click.option(
        "--dry-run",
        is_flag=True,
        help="With --topics: print the tables that would be made, and stop.",
    ),
    click.option(
        "--resume",
        "resume_tables",
        metavar="TABLE",
        multiple=True,
        help="With --topics: take up a table that was set aside, where it stood; may be repeated.",
    ),
)
NAMES = (
    "topics", "into", "exclude_topics", "tables_file", "engine", "cut", "dry_run", "resume_tables",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ManyRequest:
    """What was asked for, checked as far as it can be without a catalog and Kafka."""

    words: IngestWords
    servers: str
    settings: StreamSettings
    decoder: RegistryDecoder | None
    engine: Engine
    cut: Cut
    pace: Pace


def many_request(words: IngestWords, decoder: RegistryDecoder | None) -> ManyRequest | None:
    """The request that the words make; None: they are of another form of the command.

    Raises:
        click.UsageError: Words do not go together.
        TableError: A pattern, the file or an option in it is wrong.
    """
    if words.topics is None:
        words.refuse(NAMES, "{} needs --topics")
        return None
    servers, namespace = _checked(words)
    cut = Cut(words.cut or Cut.BATCH.value)
    engine = Engine(words.engine or Engine.AUTO.value)
    if cut is Cut.TRANSACTION and engine is Engine.SPARK:
        raise click.UsageError("--cut transaction needs --engine local")
    given = dict(words.options)
    if words.given_format is not None:
        given[FORMAT] = words.given_format
    TableOptions.of(given)
    path = words.tables_file
    file = StreamFile() if path is None else read_stream_file(path, given)
    routing = Routing(
        namespace=namespace,
        include=TopicPattern.listed(words.topics),
        exclude=(*TopicPattern.listed(words.exclude_topics or ""), *file.exclude),
        routes=file.routes,
    )
    defaults = given | dict(file.defaults)
    settings = StreamSettings(
        query_id=words.query_id or QUERY_PREFIX + namespace,
        routing=routing,
        options=StreamOptions(namespace=namespace, defaults=defaults, tables=file.tables),
        branch=words.branch,
        decoder=decoder,
    )
    pace = Pace(batch_events=words.batch_events or BATCH_EVENTS, interval_ms=words.interval_ms)
    return ManyRequest(
        words=words,
        servers=servers,
        settings=settings,
        decoder=decoder,
        engine=engine,
        cut=cut,
        pace=pace,
    )


def _checked(words: IngestWords) -> tuple[str, str]:
    """The servers and the namespace."""
    if words.kafka is None:
        raise click.UsageError("--topics needs --kafka")
    if words.into is None:
        raise click.UsageError("--topics needs --into")
    for name, value in {"TABLE": words.table_name, "--topic": words.topic}.items():
        if value is not None:
            raise click.UsageError(f"{name} and --topics exclude each other")
    if words.checkpoint is not None:
        raise click.UsageError("with --topics the tables know how far they are: no --checkpoint")
    if words.starting_offsets == "latest":
        raise click.UsageError("with --topics a table begins where its topic does")
    if words.interval_s is not None and not words.follow:
        raise click.UsageError("--interval-s needs --follow")
    if words.dry_run and (words.follow or words.resume_tables):
        raise click.UsageError("--dry-run reads and stops: no --follow, no --resume")
    return words.kafka, words.into


@dataclass(slots=True)
class Heard(StreamListener):
    """Counts, logs and metrics of what the stream does; `on_staged` is told the tables.

    `publishes`: whether what was staged is being published.
    """

    watch: IngestWatch
    advance: Callable[[int], None] = lambda _: None
    on_staged: Callable[[Collection[str]], None] = lambda _: None
    publishes: Callable[[], bool] = lambda: False
    totals: IngestTotals = field(default_factory=IngestTotals)
    tables: dict[str, IngestTotals] = field(default_factory=dict)
    aside: dict[str, str] = field(default_factory=dict)

    def staged(self, number: int, results: Mapping[str, IngestResult]) -> None:
        """See `StreamListener`."""
        del number
        for table, result in results.items():
            self.totals.add(result)
            self.tables.setdefault(table, IngestTotals()).add(result)
            self.advance(result.events)
        self.watch.staged(results)
        self.on_staged(results.keys())

    def set_aside(self, table: str, reason: str) -> None:
        """See `StreamListener`."""
        self.aside[table] = reason
        self.watch.set_aside(table, stands=True)

    def resumed(self, table: str) -> None:
        """See `StreamListener`."""
        self.aside.pop(table, None)
        self.watch.set_aside(table, stands=False)

    def backlog(self, waiting: Mapping[str, Backlog]) -> None:
        """See `StreamListener`."""
        self.watch.waiting(waiting)

    def is_publishing(self) -> bool:
        """See `StreamListener`."""
        return self.publishes()

    def tell(self, request: ManyRequest) -> None:
        """What was done, on standard output."""
        if request.words.as_json:
            tables = {name: asdict(each) for name, each in sorted(self.tables.items())}
            print_json(asdict(self.totals) | {"tables": tables, "set_aside": self.aside})
        else:
            text = self.totals.text(request.settings.branch)
            click.echo(f"{plural(len(self.tables), 'table')}: {text}")


def run_many(context: CliContext, request: ManyRequest, *, advance: Callable[[int], None]) -> Heard:
    """Run the stream, or print what it would make.

    Raises:
        TableError: See `LocalEngine.run` and `KafkaConsumer`.
        KeyboardInterrupt: Ctrl-C; what is staged has been told.
    """
    words, environment = request.words, context.new_catalog.environment
    watch = IngestWatch(request.settings.routing.namespace, environment.runtime.clock, is_many=True)
    listener = Heard(watch, advance)
    with ExitStack() as stack:
        stack.enter_context(logging_to_stderr(words.log_format))
        if words.follow:
            stack.callback(watch.line)
        if words.metrics_port is not None:
            serving = serving_metrics(watch.registry, words.metrics_port, host=words.metrics_host)
            stack.enter_context(serving)
        ending = StreamStop()
        run = stream_runner(stack, request, environment, listener, ending)
        if isinstance(run, dict):
            _tell_plans(run, as_json=words.as_json)
            return listener
        with interrupt_event(ending.first, ending.again) as interrupted:
            run(interrupted.is_set)
            listener.tell(request)
            interrupted.check()
    return listener


def stream_runner(
    stack: ExitStack,
    request: ManyRequest,
    environment: Environment,
    listener: Heard,
    ending: StreamStop,
) -> Run | dict[str, NewTable | str]:
    """What runs the stream; with `--dry-run` the tables that it would make.

    `ending` can leave a stream behind that runs in this process; Spark stops its own.
    """
    words = request.words
    if request.decoder is not None:
        request.decoder.registry.check()
    if request.engine is Engine.SPARK and not words.dry_run:
        return _spark_run(request, environment, listener)
    source = KafkaConsumer(request.servers, words.kafka_options)
    stack.callback(source.close)
    engine = LocalEngine(
        environment=environment,
        source=source,
        settings=request.settings,
        cut=request.cut,
        pace=request.pace,
        listener=listener,
        resume_tables=words.resume_tables,
    )
    engine.open(follow=words.follow)
    if words.dry_run:
        return engine.plan_tables()
    if request.engine is Engine.AUTO:
        chosen, why = choose_engine(
            lag=engine.lag(),
            has_session=_has_session(),
            ends_with_transactions=request.cut is Cut.TRANSACTION,
            no_spark=_no_spark(words),
        )
        name = request.settings.routing.namespace
        logger.info("%s: engine %s: %s", name, chosen.value, why)
        if chosen is Engine.SPARK:
            return _spark_run(request, environment, listener)
    if words.follow:
        return ending.around(lambda stop: follow_through_outages(engine, stop))
    return ending.around(lambda stop: engine.run(follow=False, stop=stop))


def _spark_run(request: ManyRequest, environment: Environment, listener: Heard) -> Run:
    """Starts Spark."""
    try:
        from tableformat.spark.kafka_source import KafkaSource
        from tableformat.spark.many_tables import SparkEngine
    except ImportError as error:
        raise UnsupportedError(
            "--engine spark needs Spark", action="pip install 'icefold[spark]'"
        ) from error
    words, settings = request.words, request.settings
    session = stream_session(settings.query_id, connector_jars=words.connector_jars)
    routing = settings.routing
    if request.decoder is not None:
        settings = replace(settings, decoder=request.decoder.waiting(follow=words.follow))

    def on_progress(progress: Mapping[str, Any] | None) -> None:
        backlog = kafka_backlog(progress)
        table_of = routing.route({topic for topic, _ in backlog}).table_of
        waiting: dict[str, dict[tuple[str, int], int]] = {}
        for place, count in backlog.items():
            waiting.setdefault(table_of.get(place[0], place[0]), {})[place] = count
        listener.backlog(waiting)

    engine = SparkEngine(
        environment=environment,
        spark=session,
        source=KafkaSource(
            servers=request.servers,
            topic="",
            batch_events=words.batch_events or KAFKA_BATCH_EVENTS,
            settings=words.kafka_options,
        ),
        settings=settings,
        interval_ms=request.pace.interval_ms,
        listener=listener,
        resume_tables=words.resume_tables,
        on_progress=on_progress,
    )
    return lambda stop: engine.run(follow=words.follow, stop=stop)


def _tell_plans(plans: Mapping[str, NewTable | str], *, as_json: bool) -> None:
    shown = {n: each if isinstance(each, str) else each.ddl() for n, each in plans.items()}
    if as_json:
        print_json(shown)
        return
    for name, each in plans.items():
        click.echo(f"-- {name}: {each}\n" if isinstance(each, str) else f"{shown[name]}\n")
    if not plans:
        click.echo("every table is there", err=True)


def _has_session() -> bool:
    """Whether Spark runs in this process already."""
    pyspark = sys.modules.get("pyspark.sql")
    return pyspark is not None and pyspark.SparkSession.getActiveSession() is not None


def _no_spark(words: IngestWords) -> str | None:
    """Why Spark cannot read Kafka here; None: it can."""
    try:
        from tableformat.spark.kafka_source import connector_class_path

        connector_class_path(words.connector_jars)
    except ImportError:
        return "pip install 'icefold[spark]'"
    except TableError as error:
        return error.message
    return None
