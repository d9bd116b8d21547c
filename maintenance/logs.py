"""Structured logs: one line per run, as text for people or JSON for machines."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

from lock import LockError
from maintenance.pause import time_text
from maintenance.run_history import Outcome, Run
from tableformat.errors import TableError

LogFormat = Literal["text", "json"]
RUN = "icefold_run"  # the attribute of a log record that holds a run

logger = logging.getLogger("icefold.maintain")
_LEVELS = {
    Outcome.DONE: logging.INFO,
    Outcome.NOTHING: logging.INFO,
    Outcome.BUSY: logging.WARNING,
    Outcome.FAILED: logging.ERROR,
}


def error_text(error: TableError | LockError) -> str:
    """An error as commands and runs show it; its first word is what the run book goes by."""
    return f"{error.kind.value}: {error}" if isinstance(error, TableError) else f"lock: {error}"


def log_run(run: Run) -> None:
    """One line for one run."""
    text = f"{run.task} {run.outcome} after {run.duration_ms / 1e3:.2f} s ({run.reason})"
    logger.log(_LEVELS[run.outcome], "%s: %s", text, run.text, extra={RUN: run})


class TextFormatter(logging.Formatter):
    """`2026-11-20T12:00:00.123Z INFO resolve done after 0.42 s (...): ...`, always one line."""

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter`."""
        line = f"{_time(record)} {record.levelname} {record.getMessage()}"
        return "".join(char if char.isprintable() else " " for char in line)


class JsonFormatter(logging.Formatter):
    """One JSON object per line: `at`, `level`, `logger`, `message`, and a run's fields."""

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter`."""
        run: Run | None = getattr(record, RUN, None)
        content: dict[str, Any] = {
            "at": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **({} if run is None else run.to_dict()),
        }
        return json.dumps(content, default=str)


@contextmanager
def logging_to_stderr(log_format: LogFormat, *, level: int = logging.INFO) -> Iterator[None]:
    """Send all of `icefold.*` to standard error while the block runs."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    root, inner = logging.getLogger("icefold"), logging.getLogger("icefold.resolver")
    before = (root.handlers, root.level, root.propagate, inner.level)
    root.handlers, root.propagate = [handler], False
    root.setLevel(level)
    # A run's own line says what a cycle did; of the steps inside only trouble is worth one.
    inner.setLevel(max(level, logging.WARNING))
    try:
        yield
    finally:
        handler.flush()
        root.handlers, root.propagate = before[0], before[2]
        root.setLevel(before[1])
        inner.setLevel(before[3])


def _time(record: logging.LogRecord) -> str:
    return time_text(int(record.created * 1e3))
