"""One line for an outage of the catalog or the store, however many tables it concerns."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from resolver.number_text import plural, span_text
from tableformat.catalog.base import Identifier
from tableformat.runtime import Clock

logger = logging.getLogger("icefold.maintain")


@dataclass(slots=True)
class ToldOutages:
    """What does not answer, and the tables that wait for it. For one thread."""

    clock: Clock
    _waiting: dict[str, set[Identifier]] = field(default_factory=dict)
    _concerned: set[Identifier] = field(default_factory=set)
    _since_ms: float = 0.0

    def begins(self, identifier: Identifier, outage: str, problem: str) -> None:
        """A table could not be looked at; told if nothing else has run into the same."""
        if not self._waiting:
            self._since_ms = self.clock.monotonic_ms()
            self._concerned.clear()
        if outage not in self._waiting:
            logger.error("%s: cannot be maintained: %s", ".".join(identifier), problem)
        self._waiting.setdefault(outage, set()).add(identifier)
        self._concerned.add(identifier)

    def ends(self, identifier: Identifier) -> None:
        """It could, is gone, or has another problem; told once no table waits any more."""
        if not self._waiting:
            return
        for tables in self._waiting.values():
            tables.discard(identifier)
        if not any(self._waiting.values()):
            self._waiting.clear()
            span = span_text(self.clock.monotonic_ms() - self._since_ms)
            count = plural(len(self._concerned), "table")
            logger.info("%s can be looked at again, after %s", count, span)
