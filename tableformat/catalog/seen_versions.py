"""Versions of tables that a server has shown: what it shows next is not to be older.

A server of several replicas, or one with a cache, may answer with a version that is behind one that
it has shown. Whatever is concluded from a later look would be wrong then: that a commit has not
landed, that snapshots are gone, that no snapshot needs a file. Between two processes nothing can be
told, and nothing has to be: a plan on an old version is refused by the requirements of its commit.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from tableformat.catalog.base import Identifier, TableState
from tableformat.errors import StoreUnavailableError
from tableformat.runtime import Clock

LAG_MS = 60_000  # longer than replicas lag; an older version after that is a restored backup
_WAITS_MS = (50, 100, 200, 400, 800, 1600)


@dataclass(frozen=True, slots=True)
class _Seen:
    table_uuid: str
    metadata_location: str
    older: frozenset[str]  # metadata files before that one, as far as it knows them
    last_sequence_number: int
    at_ms: float

    @classmethod
    def of(cls, state: TableState, at_ms: float) -> _Seen:
        metadata = state.metadata
        return cls(
            str(metadata.table_uuid),
            state.metadata_location,
            frozenset(each.metadata_file for each in metadata.metadata_log),
            getattr(metadata, "last_sequence_number", 0),  # v1 has none
            at_ms,
        )

    def is_after(self, other: _Seen) -> bool:
        return self.table_uuid == other.table_uuid and (
            other.metadata_location in self.older
            or other.last_sequence_number < self.last_sequence_number
        )


class SeenVersions:
    """The newest version of each table that was seen, for as long as a replica may lag behind it.

    Thread-safe.
    """

    def __init__(self) -> None:
        self._seen: dict[Identifier, _Seen] = {}
        self._lock = threading.Lock()

    def note(self, state: TableState, clock: Clock) -> bool:
        """Take a version that was shown; False if a newer one was."""
        shown = _Seen.of(state, clock.monotonic_ms())
        with self._lock:
            known = self._seen.get(state.identifier)
            if known and shown.at_ms - known.at_ms < LAG_MS and known.is_after(shown):
                return False
            self._seen[state.identifier] = shown
            return True

    def forget(self, identifier: Identifier) -> None:
        """The table was dropped: what comes under its name may be any version of it."""
        with self._lock:
            self._seen.pop(identifier, None)

    def newest(self, load: Callable[[], TableState], clock: Clock) -> TableState:
        """What `load` gives, asked again while that is older than what was seen, for 3 s.

        Raises:
            StoreUnavailableError: It stays older.
        """
        for wait_ms in _WAITS_MS:
            state = load()
            if self.note(state, clock):
                return state
            clock.sleep_ms(wait_ms)
        state = load()
        if self.note(state, clock):
            return state
        raise StoreUnavailableError(
            "the catalog shows an older version of the table than it has shown before",
            metadata_location=state.metadata_location,
            action="one of its replicas or a cache lags behind: try again; after a restore of the "
            "catalog, in a minute",
        )
