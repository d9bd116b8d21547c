"""A stream that is followed outlives outages of the catalog, the store and the brokers.

Where one of them does not answer, nobody knows on which tables the batch in hand is. So the stream
forgets what it has read, waits, and begins anew as a process that starts after a kill: the tables
say how far they are, the newest batch is done again for those that lack it, and what was read and
not staged is read again.

One line tells that the stream waits and why, another that it goes on: once a batch is staged, or
nothing has waited for a while.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from tableformat.cdc.many.local_engine import LocalEngine
from tableformat.cdc.many.source import POLL_S
from tableformat.commit.retry import backoff_ms
from tableformat.errors import (
    AccessRefusedError,
    CommitConflictError,
    CommitUnknownError,
    FencedError,
    StoreUnavailableError,
    TableError,
)
from tableformat.runtime import Runtime

# Access may be refused for a while, too: keys are changed, a token's server is down.
WAITED_FOR = (
    StoreUnavailableError, CommitUnknownError, CommitConflictError, AccessRefusedError,
)  # fmt: skip
WAIT_MIN_MS, WAIT_MAX_MS = 1_000, 10_000
SETTLED_MS = 10_000  # without a failure while nothing waits: the outage is over
TOLD_AGAIN_MS = 600_000
logger = logging.getLogger("icefold.ingest")


def follow_through_outages(engine: LocalEngine, stop: Callable[[], bool]) -> None:
    """Follow a stream until `stop` says so, over any outage after its tables were opened.

    Args:
        engine: May be open. Its first opening is not repeated: a wrong address is told at once.
        stop: Asked often.

    Raises:
        TableError: See `LocalEngine.run`, but for what can be waited for.

    Effects: those of `LocalEngine.run`.
    """
    outage = _Outage(engine.environment.runtime)
    if not engine.is_open:
        engine.open(follow=True)
    while True:
        try:
            engine.run(follow=True, stop=outage.watching(engine, stop))
            return
        except WAITED_FOR as error:
            outage.tell(error)
        except FencedError as error:
            # A commit of before the outage may land after the look that did not see it.
            if not outage.lasts:
                raise
            outage.tell(error)
        engine.leave()
        if not outage.wait(stop):
            return
        engine = engine.again()


@dataclass(slots=True)
class _Outage:
    """What is told of one, and how long it lasts. Times are monotonic milliseconds."""

    runtime: Runtime
    since_ms: float | None = None
    told_ms: float = 0.0
    failures: int = 0

    @property
    def lasts(self) -> bool:
        return self.since_ms is not None

    def tell(self, error: TableError) -> None:
        """Note a failure; the first of an outage is told, and one now and then."""
        now_ms = self.runtime.clock.monotonic_ms()
        self.failures += 1
        if self.since_ms is None:
            self.since_ms = now_ms
        elif now_ms - self.told_ms < TOLD_AGAIN_MS:
            return
        self.told_ms = now_ms
        logger.warning("the stream waits, and tries again: %s: %s", error.kind.value, error)

    def wait(self, stop: Callable[[], bool]) -> bool:
        """Wait for the next attempt; False: `stop` came first."""
        clock = self.runtime.clock
        left_ms = backoff_ms(
            self.failures, min_ms=WAIT_MIN_MS, max_ms=WAIT_MAX_MS, runtime=self.runtime
        )
        until_ms = clock.monotonic_ms() + left_ms
        while clock.monotonic_ms() < until_ms:
            if stop():
                return False
            clock.sleep_ms(POLL_S * 1e3)
        return not stop()

    def watching(self, engine: LocalEngine, stop: Callable[[], bool]) -> Callable[[], bool]:
        """`stop`, which also notices that an outage is over."""
        begun_ms: float | None = None

        def watched() -> bool:
            nonlocal begun_ms
            if self.since_ms is not None:
                now_ms = self.runtime.clock.monotonic_ms()
                begun_ms = now_ms if begun_ms is None else begun_ms
                is_quiet = now_ms - begun_ms >= SETTLED_MS and engine.is_idle
                if engine.batches_staged or is_quiet:
                    self._end(now_ms)
            return stop()

        return watched

    def _end(self, now_ms: float) -> None:
        assert self.since_ms is not None
        seconds = (now_ms - self.since_ms) / 1e3
        logger.info("the stream goes on, after %.1f s and %d attempts", seconds, self.failures)
        self.since_ms, self.failures = None, 0
