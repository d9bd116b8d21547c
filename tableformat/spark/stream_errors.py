"""The end of a stream; errors as icefold's own, not as pages of two languages' stacks."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

from tableformat import errors
from tableformat.errors import InternalError, StoreUnavailableError, TableError, UnsupportedError

# The last line of a Python traceback, wherever Spark put it: `tableformat.errors.X: text`.
OWN_ERROR = re.compile(r"tableformat\.errors\.(\w+): ([^\n]*)")
DATA_LOSS = re.compile(
    r"fail ?on ?data ?loss|offset.{0,40}out of range|some data may have been", re.I
)
# Of offsets to begin at: Spark lists topics itself, some time after they were asked for.
HAS_COME = "you must specify all TopicPartitions"
KAFKA_ERROR = re.compile(r"org\.apache\.kafka\.[\w.]*?(\w+(?:Exception|Error)): ([^\n]*)")
# The last line of any other Python traceback.
PYTHON_ERROR = re.compile(r"^([A-Za-z_][\w.]*(?:Error|Exception)\b[^\n]*)$", re.MULTILINE)

POLL_S = 0.1
POLLS_PER_LOOK = 10


def await_query(
    query: StreamingQuery,
    stop: Callable[[], bool],
    on_progress: Callable[[Mapping[str, Any] | None], None],
) -> bool:
    """Wait for a query, or stop it when `stop` says so; whether it has come to its end.

    `on_progress` is called every second with Spark's `lastProgress`.

    Raises:
        TableError: See `stream_error`.
    """
    waits, polls = threading.Event(), 0
    try:
        while query.isActive and not stop():
            waits.wait(POLL_S)
            polls += 1
            if polls % POLLS_PER_LOOK == 0:
                on_progress(query.lastProgress)
        if query.isActive:
            query.stop()
            return False
        query.awaitTermination()
        return True
    except StreamingQueryException as error:
        raise stream_error(error) from error


@contextmanager
def telling_java_is_gone(stop: Callable[[], bool]) -> Iterator[None]:
    """Around a stream: ends it quietly if it shall stop, as a closed terminal ends Java, too.

    Raises:
        StoreUnavailableError: The Java process has ended. Batches are whole or not there.
    """
    try:
        yield
    except Py4JJavaError:
        raise
    except (ConnectionError, Py4JError) as error:
        if not stop():
            raise StoreUnavailableError(
                "Spark has ended: its Java process does not answer", action="start the stream again"
            ) from error


def stream_error(error: Exception) -> TableError:
    """The error that a stream ended with, or that Spark gave for a batch of it.

    Returns:
        icefold's own error where a task or the driver raised one (its text is whole, its context
        is part of the text); `StoreUnavailableError` for Kafka; else `InternalError` with the line
        that says most.
    """
    text = str(error)
    own = own_error(text)
    if own is not None:
        return own
    if DATA_LOSS.search(text):
        return UnsupportedError(
            "the source no longer has messages that were not read yet",
            action="start again from a new snapshot of the source with a new checkpoint",
        )
    if HAS_COME in text:
        return StoreUnavailableError(
            "a topic or a partition came as the stream began", action="start the stream again"
        )
    kafka = KAFKA_ERROR.search(text)
    if kafka is not None:
        return StoreUnavailableError(f"Kafka: {kafka[2] or kafka[1]}")
    lines = PYTHON_ERROR.findall(text) or text.strip().splitlines()[:1]
    return InternalError(f"Spark ended the stream: {lines[-1]}")


def own_error(text: str) -> TableError | None:
    """The error of icefold that a text of Spark's ends with; its context is part of the text."""
    found = OWN_ERROR.findall(text)
    if not found:
        return None
    name, line = found[-1]
    kind = getattr(errors, name, None)
    return kind(line) if isinstance(kind, type) and issubclass(kind, TableError) else None
