"""Lock records in an object store: one object for each lock, replaced by conditional writes.

The store must create an object only if there is none (`If-None-Match: *`) and replace it only if it
is still the version that was read (`If-Match`). A store that merely accepts those headers would
give one token to two holders; `prepare` races against the store to find out (`lock.probe`).
"""

from __future__ import annotations

from lock.probe import check_conditional_writes
from lock.register import ConditionalStore, Stored, SwapOutcome
from lock.seams import IdSource


class ObjectRecordStore:
    """`RecordStore` on a `ConditionalStore`.

    Args:
        store: The object store, at the locks' prefix.
        ids: Names the probe's objects.
        probe_rounds: Races that `prepare` runs; 0 trusts the store blindly.
    """

    def __init__(self, store: ConditionalStore, *, ids: IdSource, probe_rounds: int = 3) -> None:
        self.poll_min_ms = store.poll_min_ms
        self.poll_max_ms = store.poll_max_ms
        self._store = store
        self._ids = ids
        self._probe_rounds = probe_rounds

    def __repr__(self) -> str:
        return f"ObjectRecordStore({self._store.describe()!r})"

    def load(self, key: str) -> Stored:
        """See `RecordStore`."""
        found = self._store.get(_object_key(key))
        return Stored(None, None, None) if found is None else Stored(found[0], found[1], None)

    def swap(self, key: str, version: str | None, data: bytes) -> SwapOutcome:
        """See `RecordStore`. Each record has its own `write_id`, so that no two tags are equal."""
        if version is None:
            return self._store.put_if_absent(_object_key(key), data)
        return self._store.put_if_match(_object_key(key), data, version)

    def describe(self, key: str | None = None) -> str:
        """See `RecordStore`."""
        return self._store.describe(None if key is None else _object_key(key))

    def prepare(self) -> None:
        """See `RecordStore`: `UnsafeStoreError` if the store is caught granting a false condition.

        Effects: writes and removes a few small objects named `probe-*`. A crash leaves one behind.
        """
        if self._probe_rounds:
            check_conditional_writes(self._store, ids=self._ids, rounds=self._probe_rounds)

    def close(self) -> None:
        """See `RecordStore`."""
        self._store.close()


def _object_key(key: str) -> str:
    return f"{key}.json"  # on disk: never change
