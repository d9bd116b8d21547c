"""The streaming half of `icefold ingest`: a Kafka topic or a folder, through Spark."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from maintenance.ingest_watch import Backlog, kafka_backlog
from tableformat import InvalidInputError, Table, UnsupportedError
from tableformat.cdc.formats import choose_format
from tableformat.cdc.ingest import IngestResult
from tableformat.cdc.registry.decoder import RegistryDecoder
from tableformat.cdc.sink import SinkOptions, plan_sink
from tableformat.spark.checkpoint import CheckpointedStream, check_checkpoint

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KAFKA_BATCH_EVENTS = 500_000


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRequest:
    """What to stream, and how long.

    Attributes:
        folder: A folder of JSON-lines files; None: Kafka.
        kafka: Bootstrap servers; None: the folder.
        topic: The topic.
        connector_jars: Jars, and folders of jars, of Spark's Kafka connector.
        kafka_settings: Kafka's own consumer settings.
        starting_offsets: Where a new checkpoint begins: `earliest` or `latest`.
        batch_events: Messages per commit, at most.
        checkpoint: Spark's checkpoint.
        follow: Go on until interrupted; else stop after what is there.
        interval_s: With `follow`, seconds from the start of one batch to that of the next.
    """

    folder: Path | None = None
    kafka: str | None = None
    topic: str | None = None
    connector_jars: Sequence[Path] = ()
    kafka_settings: Mapping[str, str] = field(default_factory=dict)
    starting_offsets: str = "earliest"
    batch_events: int = KAFKA_BATCH_EVENTS
    checkpoint: Path
    follow: bool = False
    interval_s: float = 1.0


def ingest_stream(
    table: Table,
    request: StreamRequest,
    *,
    format_name: str,
    options: Mapping[str, str],
    branch: str,
    progress: Callable[[IngestResult], None],
    on_backlog: Callable[[Backlog], None] = lambda _: None,
    decoder: RegistryDecoder | None = None,
) -> None:
    """Run a stream to the end of what is there, or until the process is interrupted.

    `progress` is called after every batch, `on_backlog` every second with what waits in Kafka.

    Raises:
        TableError: See `plan_sink`, `check_checkpoint`, `connector_class_path`, `check_kafka` and
            `stream_error`.
        KeyboardInterrupt: Ctrl-C; the stream has been stopped. SIGTERM stops it as well, and is
            the way to end a stream that is followed.

    Effects: starts Spark; see `stream_writer.write_stream`. Interrupted or killed at any instant
    and started again with the same checkpoint, every event is in the table once.
    """
    choice = choose_format(format_name, options, SinkOptions)
    if choice.factory.is_typed:
        raise InvalidInputError(
            f"format '{format_name}' reads typed columns, a stream of messages has none",
            action="use a JSON format, or write_stream with your own DataFrame",
        )
    # Whatever can be told without Spark is told before it starts.
    plan_sink(
        table.environment, table.identifier, format_name=format_name, options=options, branch=branch
    )
    try:
        from tableformat.spark.stream_errors import await_query
        from tableformat.spark.stream_writer import write_stream
    except ImportError as error:
        raise UnsupportedError(
            "streaming needs Spark", action="pip install 'icefold[spark]'"
        ) from error
    check_checkpoint(request.checkpoint, stream_of(table, request, branch))
    jars = None if request.kafka is None else request.connector_jars
    session = stream_session(table.name, connector_jars=jars)
    every = {"processingTime": f"{round(request.interval_s * 1000)} milliseconds"}
    events = _events(session, request)
    query = write_stream(
        table.environment,
        table.identifier,
        events,
        checkpoint=str(request.checkpoint.absolute()),
        format_name=format_name,
        options=options,
        branch=branch,
        trigger=every if request.follow else {"availableNow": True},
        on_batch=lambda _, result: progress(result),
        decoder=None if decoder is None else decoder.waiting(follow=request.follow),
    )
    with interrupt_event() as interrupted:
        await_query(query, interrupted.is_set, lambda told: on_backlog(kafka_backlog(told)))
        interrupted.check()


def stream_of(table: Table, request: StreamRequest, branch: str) -> CheckpointedStream:
    """What the checkpoint of a request is for."""
    folder = request.folder
    return CheckpointedStream(
        table=table.name,
        table_uuid=str(table.state.metadata.table_uuid),
        branch=branch,
        topic=request.topic,
        folder=None if folder is None else str(folder.absolute()),
    )


def stream_session(name: str, *, connector_jars: Sequence[Path] | None) -> SparkSession:
    """A session for a stream; jars of Kafka's connector, None for a stream of files.

    Raises:
        UnsupportedError, NotFoundError, InvalidInputError: See `connector_class_path`.
    """
    from tableformat.spark.kafka_source import connector_class_path
    from tableformat.spark.session import local_session

    # A batch is one fixed plan: nothing to adapt, and asking costs a tenth of a second each time.
    settings = {"spark.sql.adaptive.enabled": "false"}
    path = None if connector_jars is None else connector_class_path(connector_jars)
    if path:
        settings["spark.driver.extraClassPath"] = path
    session = local_session(f"icefold ingest {name}", conf=settings)
    session.sparkContext.setLogLevel("FATAL")  # what goes wrong is told by `await_query`, once
    return session


def _events(session: SparkSession, request: StreamRequest) -> DataFrame:
    from tableformat.spark.kafka_source import KafkaSource, check_kafka, kafka_events
    from tableformat.spark.stream_writer import file_events

    if request.folder is not None:
        return file_events(session, str(request.folder.absolute()))
    assert request.kafka is not None
    assert request.topic is not None
    source = KafkaSource(
        servers=request.kafka,
        topic=request.topic,
        starting_offsets=request.starting_offsets,
        batch_events=request.batch_events,
        settings=request.kafka_settings,
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
def interrupt_event(again: Callable[[], None] = lambda: None) -> Iterator[Interrupt]:
    """Is set by Ctrl-C and SIGTERM; an exception instead would break a call to Java.

    `again` is called when one comes that is not the first.
    """
    interrupted = Interrupt()

    def interrupt(number: int, _frame: FrameType | None) -> None:
        if interrupted.is_set():
            again()
        interrupted.number = number
        interrupted.set()

    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, interrupt) for number in numbers]
    try:
        yield interrupted
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
