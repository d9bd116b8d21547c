"""Manifest lists and manifests through an object store, with a bounded cache of decoded manifests.

Manifests are immutable, so a decoded one stays right. The cache belongs to the store object (it
dies with it) and holds whole manifests, the least recently used going first. The key has everything
that a manifest inherits from its list: one file may be listed with different row ids by two
branches of an upgraded table.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import replace

from pyiceberg.table.snapshots import Snapshot

from tableformat.errors import CorruptDataError, UnsupportedError
from tableformat.files.manifest_entries import decode_manifest
from tableformat.files.manifest_list import decode_manifest_list
from tableformat.limits import CACHED_MANIFEST_ENTRIES_MAX
from tableformat.spec.data_file import EntryStatus, ManifestEntry
from tableformat.spec.manifest_file import UNKNOWN_COUNT, ManifestFile
from tableformat.store.base import ObjectStore


def load_manifest_list(store: ObjectStore, snapshot: Snapshot) -> list[ManifestFile]:
    """The manifests of a snapshot, in the order of its manifest list.

    Raises:
        CorruptDataError: The list or, where a v1 list has no counts, a manifest is damaged.
        NotFoundError: The list is gone.
        UnsupportedError: A v1 snapshot that lists its manifests itself.
    """
    if not snapshot.manifest_list:
        raise UnsupportedError(
            "cannot read a snapshot without a manifest list", snapshot_id=snapshot.snapshot_id
        )
    data = store.get(snapshot.manifest_list)
    manifests = decode_manifest_list(data, location=snapshot.manifest_list)
    _check_not_emptied(snapshot, manifests)
    return [
        _with_counts(store, each) if UNKNOWN_COUNT in _counts(each) else each for each in manifests
    ]


def load_manifest(store: ObjectStore, manifest: ManifestFile) -> list[ManifestEntry]:
    """All entries of a manifest, also DELETED ones; what they inherit is filled in.

    The list is the caller's, its entries are shared and immutable.

    Raises:
        CorruptDataError: The manifest is damaged, or its size is not `manifest_length`.
        NotFoundError: It is gone.

    Effects: one read of the store, none when cached.
    """
    cache = _cache_of(store)
    key = _cache_key(manifest)
    entries = None if cache is None else cache.get(key)
    if entries is None:
        data = store.get(manifest.manifest_path)
        if len(data) != manifest.manifest_length:
            raise CorruptDataError(
                "manifest has the wrong size",
                location=manifest.manifest_path,
                expected_bytes=manifest.manifest_length,
                found_bytes=len(data),
            )
        entries = tuple(decode_manifest(data, manifest))
        if cache is not None:
            cache.put(key, entries)
    return list(entries)


def clear_manifest_cache(store: ObjectStore) -> None:
    """Forget what was decoded through `store` (after its objects were changed behind its back)."""
    with _caches_lock:
        _caches.pop(id(store), None)


class _ManifestCache:
    """Decoded manifests, bounded by their entries. Thread-safe."""

    def __init__(self, entries_max: int) -> None:
        self._entries_max = entries_max
        self._entries_held = 0
        self._lock = threading.Lock()
        self._manifests: OrderedDict[Hashable, tuple[ManifestEntry, ...]] = OrderedDict()

    def get(self, key: Hashable) -> tuple[ManifestEntry, ...] | None:
        with self._lock:
            entries = self._manifests.get(key)
            if entries is not None:
                self._manifests.move_to_end(key)
            return entries

    def put(self, key: Hashable, entries: tuple[ManifestEntry, ...]) -> None:
        cost = len(entries) + 1  # an empty manifest is not free either
        if cost > self._entries_max:
            return
        with self._lock:
            replaced = self._manifests.pop(key, None)
            if replaced is not None:
                self._entries_held -= len(replaced) + 1
            self._manifests[key] = entries
            self._entries_held += cost
            while self._entries_held > self._entries_max:
                _, evicted = self._manifests.popitem(last=False)
                self._entries_held -= len(evicted) + 1


# By id(store): stores need not be hashable, and equal stores need not see the same objects.
_caches: dict[int, tuple[weakref.ref[ObjectStore], _ManifestCache]] = {}
_caches_lock = threading.Lock()


def _cache_of(store: ObjectStore) -> _ManifestCache | None:
    """The store's cache; None for a store that cannot be referred to weakly."""
    store_id = id(store)
    with _caches_lock:
        found = _caches.get(store_id)
        if found is not None and found[0]() is store:
            return found[1]
        try:
            reference = weakref.ref(store, lambda dead: _forget(store_id, dead))
        except TypeError:
            return None
        cache = _ManifestCache(CACHED_MANIFEST_ENTRIES_MAX)
        _caches[store_id] = (reference, cache)
        return cache


def _forget(store_id: int, reference: weakref.ref[ObjectStore]) -> None:
    # No lock: this runs inside any allocation, also while this thread holds the lock. One `pop` is
    # atomic; a cache that a new store under the same id just got is only lost, not wrong.
    found = _caches.get(store_id)
    if found is not None and found[0] is reference:
        _caches.pop(store_id, None)


def _check_not_emptied(snapshot: Snapshot, manifests: Sequence[ManifestFile]) -> None:
    """A list that was cut behind its header is a valid, empty one; its size is recorded nowhere."""
    total = None if snapshot.summary is None else snapshot.summary["total-data-files"]
    if not manifests and str(total or "0").strip("0"):
        raise CorruptDataError(
            "manifest list is empty, but its snapshot has data files",
            location=snapshot.manifest_list,
            data_files=total,
        )


def _cache_key(manifest: ManifestFile) -> Hashable:
    return (
        manifest.manifest_path,
        manifest.manifest_length,
        manifest.partition_spec_id,
        manifest.content,
        manifest.sequence_number,
        manifest.added_snapshot_id,
        manifest.first_row_id,
        _counts(manifest),
    )


def _counts(manifest: ManifestFile) -> tuple[int, ...]:
    return (
        manifest.added_files_count,
        manifest.existing_files_count,
        manifest.deleted_files_count,
        manifest.added_rows_count,
        manifest.existing_rows_count,
        manifest.deleted_rows_count,
    )


def _with_counts(store: ObjectStore, manifest: ManifestFile) -> ManifestFile:
    """Count what a v1 manifest list leaves out, by reading the manifest."""
    files = dict.fromkeys(EntryStatus, 0)
    rows = dict.fromkeys(EntryStatus, 0)
    for entry in load_manifest(store, manifest):
        files[entry.status] += 1
        rows[entry.status] += entry.data_file.record_count
    return replace(
        manifest,
        added_files_count=files[EntryStatus.ADDED],
        existing_files_count=files[EntryStatus.EXISTING],
        deleted_files_count=files[EntryStatus.DELETED],
        added_rows_count=rows[EntryStatus.ADDED],
        existing_rows_count=rows[EntryStatus.EXISTING],
        deleted_rows_count=rows[EntryStatus.DELETED],
    )
