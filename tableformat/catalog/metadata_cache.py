"""Metadata files that were read or written lately. They are immutable: an entry is never wrong."""

from __future__ import annotations

import threading
from collections import OrderedDict

from pyiceberg.table.metadata import TableMetadata


class MetadataCache:
    """Decoded metadata by location, least recently used out first."""

    _ENTRIES_MAX = 8

    def __init__(self) -> None:
        self._entries: OrderedDict[str, TableMetadata] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, location: str) -> TableMetadata | None:
        """The metadata of a file, if it is here."""
        with self._lock:
            found = self._entries.get(location)
            if found is not None:
                self._entries.move_to_end(location)
            return found

    def put(self, location: str, metadata: TableMetadata) -> None:
        """Keep the metadata of a file."""
        with self._lock:
            self._entries[location] = metadata
            self._entries.move_to_end(location)
            while len(self._entries) > self._ENTRIES_MAX:
                self._entries.popitem(last=False)
