"""The streaming half of `icefold ingest`: a Kafka topic or a folder, through Spark."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click

from maintenance.cli.context import handling_stops
from maintenance.cli.ingest_words import KAFKA_BATCH_EVENTS, IngestWords
from maintenance.ingest_watch import Backlog, kafka_backlog
from tableformat import InvalidInputError, Table, UnsupportedError
from tableformat.cdc.formats import choose_format
from tableformat.cdc.ingest import IngestResult
from tableformat.cdc.registry.decoder import RegistryDecoder
from tableformat.cdc.sink import SinkOptions, plan_sink
from tableformat.spark.checkpoint import CheckpointedStream, check_checkpoint
from tableformat.spec.unicode import check_unicode

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

OF_KAFKA = ("topic", "connector_jars", "kafka_options", "starting_offsets")


def checked_stream(words: IngestWords) -> bool:
    """Whether the words ask for a stream; else for plain files.

    Raises:
        click.UsageError: They do not go together.
    """
    files = words.files
    if words.kafka is None:
        words.refuse(OF_KAFKA, "{} needs --kafka")
        if not files:
            raise click.UsageError("name FILES, or --kafka with --topic")
    elif files:
        raise click.UsageError("FILES and --kafka exclude each other")
    elif words.topic is None:
        raise click.UsageError("--kafka needs --topic")
    if words.interval_s is not None and not words.follow:
        raise click.UsageError("--interval-s needs --follow")
    if words.checkpoint is None:
        if words.kafka is not None or words.follow:
            raise click.UsageError("--kafka and --follow need --checkpoint")
        return False
    if words.query_id is not None:
        raise click.UsageError("--query-id is for plain files; a stream has its --checkpoint")
    if words.kafka is None:
        if len(files) != 1 or not files[0].is_dir():
            raise click.UsageError("with --checkpoint FILES is one folder of JSON-lines files")
        if words.batch_events is not None:
            raise click.UsageError("a streamed folder is committed file by file: no --batch-events")
    return True


def ingest_stream(
    table: Table,
    words: IngestWords,
    decoder: RegistryDecoder | None,
    *,
    progress: Callable[[IngestResult], None],
    on_backlog: Callable[[Backlog], None],
) -> None:
    """Run a stream to the end of what is there, or until the process is interrupted.

    `words` passed `checked_stream`. `progress` is called after every batch, `on_backlog` every
    second with what waits in Kafka.

    Raises:
        TableError: See `plan_sink`, `check_checkpoint`, `connector_class_path`, `check_kafka` and
            `stream_error`.
        KeyboardInterrupt: Ctrl-C; the stream has been stopped. SIGTERM stops it as well, and is
            the way to end a stream that is followed.

    Effects: starts Spark; see `stream_writer.write_stream`. Interrupted or killed at any instant
    and started again with the same checkpoint, every event is in the table once.
    """
    name, options, branch = words.format_name, words.options, words.branch
    choice = choose_format(name, options, SinkOptions)
    if choice.factory.is_typed:
        raise InvalidInputError(
            f"format '{name}' reads typed columns, a stream of messages has none",
            action="use a JSON format, or write_stream with your own DataFrame",
        )
    # Whatever can be told without Spark is told before it starts.
    environment, identifier = table.environment, table.identifier
    plan_sink(environment, identifier, format_name=name, options=options, branch=branch)
    try:
        from tableformat.spark.stream_errors import await_query, telling_java_is_gone
        from tableformat.spark.stream_writer import file_events, write_stream
    except ImportError as error:
        raise UnsupportedError(
            "streaming needs Spark", action="pip install 'icefold[spark]'"
        ) from error
    assert words.checkpoint is not None
    for path in (words.checkpoint, *words.files, *words.connector_jars):
        check_unicode(str(path.absolute()), what="path")  # Java has no other ones
    folder = None if words.kafka is not None else str(words.files[0].absolute())
    stream = CheckpointedStream(
        table=table.name,
        table_uuid=str(table.state.metadata.table_uuid),
        branch=branch,
        topic=words.topic,
        folder=folder,
    )
    check_checkpoint(words.checkpoint, stream)
    jars = None if words.kafka is None else words.connector_jars
    session = stream_session(table.name, connector_jars=jars)
    every = {"processingTime": f"{round(words.interval_ms)} milliseconds"}
    query = write_stream(
        environment,
        identifier,
        _messages(session, words) if folder is None else file_events(session, folder),
        checkpoint=str(words.checkpoint.absolute()),
        format_name=name,
        options=options,
        branch=branch,
        trigger=every if words.follow else {"availableNow": True},
        on_batch=lambda _, result: progress(result),
        decoder=None if decoder is None else decoder.waiting(follow=words.follow),
    )
    with interrupt_event() as interrupted:
        with telling_java_is_gone(interrupted.is_set):
            await_query(query, interrupted.is_set, lambda told: on_backlog(kafka_backlog(told)))
        interrupted.check()


def stream_session(name: str, *, connector_jars: Sequence[Path] | None) -> SparkSession:
    """A session for a stream; jars of Kafka's connector, None for a stream of files.

    Raises:
        UnsupportedError, NotFoundError, InvalidInputError: See `connector_class_path`.
        StoreUnavailableError: Its Java process has ended.
    """
    from tableformat.spark.kafka_source import connector_class_path
    from tableformat.spark.session import local_session
    from tableformat.spark.stream_errors import telling_java_is_gone

    # A batch is one fixed plan: nothing to adapt, and asking costs a tenth of a second each time.
    settings = {"spark.sql.adaptive.enabled": "false"}
    path = None if connector_jars is None else connector_class_path(connector_jars)
    if path:
        settings["spark.driver.extraClassPath"] = path
    # What goes wrong is told here and by `await_query`, once.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    with telling_java_is_gone(lambda: False):
        session = local_session(f"icefold ingest {name}", conf=settings)
        session.sparkContext.setLogLevel("FATAL")
    return session


def _messages(session: SparkSession, words: IngestWords) -> DataFrame:
    from tableformat.spark.kafka_source import KafkaSource, check_kafka, kafka_events

    assert words.kafka is not None
    assert words.topic is not None
    source = KafkaSource(
        servers=words.kafka,
        topic=words.topic,
        starting_offsets=words.starting_offsets or "earliest",
        batch_events=words.batch_events or KAFKA_BATCH_EVENTS,
        settings=words.kafka_options,
    )
    check_kafka(session, source)
    return kafka_events(session, source)


class Interrupt(threading.Event):
    """Set by a signal, whose number it keeps."""

    number: int | None = None

    def check(self) -> None:
        """End as Ctrl-C does, if it was that."""
        if self.number == signal.SIGINT:
            raise KeyboardInterrupt


@contextmanager
def interrupt_event(
    first: Callable[[], None] = lambda: None, again: Callable[[], None] = lambda: None
) -> Iterator[Interrupt]:
    """Is set by Ctrl-C, SIGTERM and SIGHUP; an exception instead would break a call to Java.

    `first` is called when the first comes, `again` with each later one.
    """
    interrupted = Interrupt()

    def interrupt(number: int, _frame: FrameType | None) -> None:
        (again if interrupted.is_set() else first)()
        interrupted.number = number
        interrupted.set()

    with handling_stops(interrupt):
        yield interrupted
