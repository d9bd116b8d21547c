"""The end of a stream in this process that is asked to stop while nothing answers it.

A batch that is being staged is ended first, as a rule in a second. In an outage it may hang in a
request, and repeat it; then the process goes without it, after a while or at a second signal. That
leaves what a kill leaves: the next run does the batch again for the tables that lack it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from maintenance.cli.process_end import leave_at_once

GRACE_MS = 20_000
EXIT_LEFT_BEHIND = 3
Run = Callable[[Callable[[], bool]], None]
"""Runs a stream until what it is given says stop."""
logger = logging.getLogger("icefold.ingest")


class StreamStop:
    """What signals do to a stream; `first` and `again` are for their handler, in any thread.

    Args:
        grace_ms: How long a stop waits for the stream.
        leave: Ends the process.
    """

    def __init__(
        self, grace_ms: int = GRACE_MS, leave: Callable[[int], NoReturn] = leave_at_once
    ) -> None:
        self._grace_s = grace_ms / 1e3
        self._leave = leave
        self._lock = threading.Lock()
        self._is_running = False
        self._timers: list[threading.Timer] = []

    def around(self, run: Run) -> Run:
        """The stream, which may be left behind while it runs."""

        def running(stop: Callable[[], bool]) -> None:
            with self._running():
                run(stop)

        return running

    @contextmanager
    def _running(self) -> Iterator[None]:
        self._is_running = True
        try:
            yield
        finally:
            with self._lock:  # who leaves already does leave
                self._is_running = False
            for timer in self._timers:
                timer.cancel()

    def first(self) -> None:
        """The stream was asked to stop."""
        self._leave_in(self._grace_s)

    def again(self) -> None:
        """And once more."""
        self._leave_in(0.0)

    def _leave_in(self, seconds: float) -> None:
        # In a thread: the one that handles a signal may hold what logging needs.
        timer = threading.Timer(seconds, self._give_up)
        timer.daemon = True
        self._timers.append(timer)
        timer.start()

    def _give_up(self) -> None:
        with self._lock:
            if not self._is_running:
                return
            logger.warning(
                "left behind: the batch that was being staged; the next run brings it to an end"
            )
            self._leave(EXIT_LEFT_BEHIND)
