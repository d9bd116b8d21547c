"""Manifest lists and manifests through an object store, with bounded caches of decoded ones.

Both are immutable, so a decoded one stays right. The caches belong to the store object (they die
with it) and hold whole manifests and lists, the least recently used going first. A manifest's key
has everything that it inherits from its list: one file may be listed with different row ids by two
branches of an upgraded table. A writer hands in what it has just written, so that its next commit
reads nothing back.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from pyiceberg.table.snapshots import Snapshot

from tableformat.codec.avro.manifest_entries import EncodedManifest, inherited_entries
from tableformat.codec.avro.manifest_list import decode_manifest_list
from tableformat.codec.sized_cache import SizedCache
from tableformat.errors import CorruptDataError, UnsupportedError
from tableformat.limits import CACHED_LISTED_MANIFESTS_MAX, CACHED_MANIFEST_ENTRIES_MAX
from tableformat.spec.data_file import DeleteFileKey, EntryStatus, ManifestEntry
from tableformat.spec.manifest_file import UNKNOWN_COUNT, ManifestFile
from tableformat.store.base import ObjectStore

SEARCHED_MAX = 64  # look-ups of one file in an encoded manifest


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
    cache = _cache_of(store)
    location = snapshot.manifest_list
    cached = None if cache is None else cache.lists.get(location)
    if cached is None:
        manifests = decode_manifest_list(store.get(location), location=location)
        _check_not_emptied(snapshot, manifests)
        cached = tuple(
            _with_counts(store, each) if UNKNOWN_COUNT in _counts(each) else each
            for each in manifests
        )
        if cache is not None:
            cache.lists.put(location, cached)
    return list(cached)


def load_manifest(store: ObjectStore, manifest: ManifestFile) -> list[ManifestEntry]:
    """All entries of a manifest, also DELETED ones; what they inherit is filled in.

    The list is the caller's, its entries are shared and immutable.

    Raises:
        CorruptDataError: The manifest is damaged, or its size is not `manifest_length`.
        NotFoundError: It is gone.

    Effects: one read of the store, none when cached.
    """
    return list(open_manifest(store, manifest).entries)


def open_manifest(store: ObjectStore, manifest: ManifestFile) -> LoadedManifest:
    """As `load_manifest`, decoded at the first look; with look-ups that are made once."""
    cache = _cache_of(store)
    key = _cache_key(manifest)
    loaded = None if cache is None else cache.manifests.get(key)
    if loaded is None:
        data = store.get(manifest.manifest_path)
        if len(data) != manifest.manifest_length:
            raise CorruptDataError(
                "manifest has the wrong size",
                location=manifest.manifest_path,
                expected_bytes=manifest.manifest_length,
                found_bytes=len(data),
            )
        loaded = LoadedManifest(EncodedManifest(data, manifest))
        if cache is not None:
            cache.manifests.put(key, loaded)
    return loaded


def remember_manifest(
    store: ObjectStore, manifest: ManifestFile, entries: Sequence[ManifestEntry]
) -> None:
    """Put a manifest that was just written into the cache, as reading it would.

    Args:
        store: Where it is.
        manifest: Its record in a manifest list that is part of the table, numbers assigned.
        entries: As they were encoded.
    """
    cache = _cache_of(store)
    if cache is not None:
        loaded = LoadedManifest(tuple(inherited_entries(entries, manifest)))
        cache.manifests.put(_cache_key(manifest), loaded)


def remember_manifest_list(
    store: ObjectStore, location: str, manifests: Sequence[ManifestFile]
) -> None:
    """Put a manifest list that was just written into the cache."""
    cache = _cache_of(store)
    if cache is not None:
        cache.lists.put(location, tuple(manifests))


def clear_manifest_cache(store: ObjectStore) -> None:
    """Forget what was decoded through `store` (after its objects were changed behind its back)."""
    with _caches_lock:
        _caches.pop(id(store), None)


class LoadedManifest:
    """The entries of a manifest, and look-ups into the live ones. Shared; not to be changed."""

    def __init__(self, content: EncodedManifest | tuple[ManifestEntry, ...]) -> None:
        self._content = content
        self._searched = 0
        self.entry_count = len(content) if isinstance(content, tuple) else content.entry_count

    @property
    def entries(self) -> tuple[ManifestEntry, ...]:
        """All of them; a manifest that was read is decoded the first time."""
        content = self._content
        if not isinstance(content, tuple):
            content = self._content = tuple(content.decode())
        return content

    def live_files(self, paths: Collection[str]) -> list[ManifestEntry]:
        """The live entries of some data files; `first_row_id` may be missing.

        A few are looked for in the encoded manifest: decoding it all takes as long as many of them.
        """
        content = self._content
        self._searched += len(paths)
        if not isinstance(content, tuple) and self._searched <= SEARCHED_MAX:
            return [entry for entry in content.find(paths) if entry.is_live]
        known, named = self.live_by_identity, [(path, None, None) for path in paths]
        return [known[identity] for identity in named if identity in known]

    @cached_property
    def live_by_identity(self) -> Mapping[DeleteFileKey, ManifestEntry]:
        """Live entries by location, offset and size."""
        return {entry.data_file.identity: entry for entry in self.entries if entry.is_live}

    @cached_property
    def live_by_referenced_file(self) -> Mapping[str, tuple[ManifestEntry, ...]]:
        """Live deletion vectors and file-scoped position deletes by the data file they are for."""
        found: dict[str, list[ManifestEntry]] = {}
        for entry in self.entries:
            referenced = entry.data_file.referenced_data_file
            if entry.is_live and referenced is not None:
                found.setdefault(referenced, []).append(entry)
        return {path: tuple(entries) for path, entries in found.items()}


class _StoreCache:
    """What is remembered of one store."""

    def __init__(self) -> None:
        self.manifests: SizedCache[LoadedManifest] = SizedCache(
            CACHED_MANIFEST_ENTRIES_MAX, lambda each: each.entry_count + 1
        )
        self.lists: SizedCache[tuple[ManifestFile, ...]] = SizedCache(
            CACHED_LISTED_MANIFESTS_MAX, lambda each: len(each) + 1
        )


# By id(store): stores need not be hashable, and equal stores need not see the same objects.
_caches: dict[int, tuple[weakref.ref[ObjectStore], _StoreCache]] = {}
_caches_lock = threading.Lock()


def _cache_of(store: ObjectStore) -> _StoreCache | None:
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
        cache = _StoreCache()
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
