"""What a writer is told."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Job:
    """A stream of events into tables of a REST catalog.

    Attributes:
        uri: Of the catalog.
        tables: `namespace.table`; with several, the key says which.
        branch: Where to.
        events: How many; the writer ends with 0 once the last one is committed.
        keys: Of how many keys; 0: each event has its own.
        per_second: Events.
        checkpoint_s: Seconds between two commits.
        folder: For what the writer keeps.
    """

    uri: str
    tables: tuple[str, ...]
    branch: str
    events: int
    keys: int
    per_second: float
    checkpoint_s: float
    folder: Path

    @property
    def batch(self) -> int:
        """Events in one commit."""
        return max(1, int(self.per_second * self.checkpoint_s))
