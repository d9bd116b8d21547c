"""What ended a stream, as one of icefold's own errors instead of pages of two languages' stacks."""

from __future__ import annotations

import re

from pyspark.errors import StreamingQueryException

from tableformat import errors
from tableformat.errors import InternalError, StoreUnavailableError, TableError, UnsupportedError

# The last line of a Python traceback, wherever Spark put it: `tableformat.errors.X: text`.
OWN_ERROR = re.compile(r"tableformat\.errors\.(\w+): ([^\n]*)")
DATA_LOSS = re.compile(
    r"fail ?on ?data ?loss|offset.{0,40}out of range|some data may have been", re.I
)
KAFKA_ERROR = re.compile(r"org\.apache\.kafka\.[\w.]*?(\w+(?:Exception|Error)): ([^\n]*)")
# The last line of any other Python traceback.
PYTHON_ERROR = re.compile(r"^([A-Za-z_][\w.]*(?:Error|Exception)\b[^\n]*)$", re.MULTILINE)


def stream_error(error: StreamingQueryException) -> TableError:
    """The error that a stream ended with.

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
