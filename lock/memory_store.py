"""Locks within one process: for tests, for the simulator, and for catalogs that live in memory."""

from __future__ import annotations

import threading

from lock.register import Stored, SwapOutcome


class MemoryRecordStore:
    """Records in a dict. Deterministic; no clock of its own."""

    poll_min_ms = 5.0
    poll_max_ms = 250.0

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._records: dict[str, tuple[int, bytes]] = {}

    def load(self, key: str) -> Stored:
        """See `RecordStore`."""
        with self._mutex:
            found = self._records.get(key)
        if found is None:
            return Stored(None, None, None)
        return Stored(found[1], str(found[0]), None)

    def swap(self, key: str, version: str | None, data: bytes) -> SwapOutcome:
        """See `RecordStore`."""
        with self._mutex:
            found = self._records.get(key)
            current = None if found is None else str(found[0])
            if current != version:
                return SwapOutcome.LOST
            self._records[key] = (1 if found is None else found[0] + 1, data)
            return SwapOutcome.DONE

    def describe(self, key: str | None = None) -> str:
        """See `RecordStore`."""
        return "memory:" if key is None else f"memory:{key}"

    def prepare(self) -> None:
        """See `RecordStore`."""

    def close(self) -> None:
        """See `RecordStore`."""
