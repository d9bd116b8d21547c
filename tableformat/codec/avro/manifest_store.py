"""Manifest lists and manifests through an object store, with a bounded cache.

The cache belongs to the store object and dies with it. A writer hands in what it has just written,
so that its next commit reads nothing back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from pyiceberg.table.snapshots import Snapshot

from tableformat.codec.avro.loaded_manifest import LoadedManifest
from tableformat.codec.avro.manifest_cache import ManifestCache
from tableformat.codec.avro.manifest_entries import (
    EncodedManifest,
    entry_counts,
    inherited_entries,
)
from tableformat.codec.avro.manifest_list import decode_manifest_list
from tableformat.codec.avro.manifest_notes import NotedManifest, count_entries
from tableformat.errors import CorruptDataError, UnsupportedError
from tableformat.object_memory import MadeOnce
from tableformat.side_by_side import run_ahead
from tableformat.spec.data_file import ManifestEntry
from tableformat.spec.manifest_file import UNKNOWN_COUNT, ManifestContent, ManifestFile
from tableformat.store.base import ObjectStore
from tableformat.store.locations import requests_of

T = TypeVar("T")


def each_manifest(
    step: Callable[[ManifestFile], T], manifests: Iterable[ManifestFile]
) -> Iterator[T]:
    """`step` of every manifest in turn; in a bucket the next ones are being read meanwhile.

    Memory: what `step` gives of `READERS_MAX` manifests.
    """
    chosen = list(manifests)
    return run_ahead(step, chosen, at_once=_at_once([m.manifest_path for m in chosen]))


def each_snapshot(step: Callable[[Snapshot], T], snapshots: Iterable[Snapshot]) -> Iterator[T]:
    """As `each_manifest`, for a step that reads the manifest list of a snapshot."""
    chosen = list(snapshots)
    return run_ahead(step, chosen, at_once=_at_once([s.manifest_list for s in chosen]))


def _at_once(locations: Sequence[str]) -> int:
    return requests_of(locations[0]) if len(locations) > 1 else 1


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
    cache = _caches.of(store)
    location = snapshot.manifest_list
    cached = None if cache is None else cache.manifest_list(location)
    if cached is None:
        manifests = decode_manifest_list(store.get(location), location=location)
        _check_not_emptied(snapshot, manifests)
        cached = tuple(
            _with_counts(store, each) if UNKNOWN_COUNT in each.counts else each
            for each in (_numbering_data(store, each) for each in manifests)
        )
        if cache is not None:
            cache.put_manifest_list(location, cached)
    return list(cached)


def _numbering_data(store: ObjectStore, manifest: ManifestFile) -> ManifestFile:
    """Without the row id that DuckDB gives to manifests of deletes, too.

    Taken for deletes, a manifest of data would be skipped, and its rows with it (R82): its own
    header tells what it is.
    """
    if manifest.first_row_id is None or manifest.content == ManifestContent.DATA:
        return manifest
    numbered = replace(manifest, first_row_id=None)
    open_manifest(store, numbered)
    return numbered


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
    cache = _caches.of(store)
    if cache is None:
        return LoadedManifest(_read(store, manifest))
    loaded = cache.manifest(manifest)
    if loaded is not None:
        return loaded
    note = cache.note(manifest)
    if note is None:
        return cache.put_encoded(manifest, _read(store, manifest))

    def read() -> EncodedManifest:
        encoded = _read(store, manifest)
        cache.put_encoded(manifest, encoded)
        return encoded

    return cache.as_loaded(manifest, NotedManifest(note, count_entries(manifest), read))


def _read(store: ObjectStore, manifest: ManifestFile) -> EncodedManifest:
    data = store.get(manifest.manifest_path)
    if len(data) != manifest.manifest_length:
        raise CorruptDataError(
            "manifest has the wrong size",
            location=manifest.manifest_path,
            expected_bytes=manifest.manifest_length,
            found_bytes=len(data),
        )
    return EncodedManifest(data, manifest)


def recall_manifests(store: ObjectStore, path: Path) -> None:
    """Take over what an earlier process has noted of manifests, so that few of them are read.

    Effects: reads `path`, once per store; a file that is not there or damaged is none.
    """
    cache = _caches.of(store)
    if cache is not None:
        cache.recall(path)


def note_manifests(store: ObjectStore, path: Path, manifests: Sequence[ManifestFile]) -> None:
    """Note what is known of the manifests of a snapshot, for a later process.

    Raises:
        OSError: It cannot be written.

    Effects: replaces `path`, where it lacks a good part of them; not for a small table.
    """
    cache = _caches.of(store)
    if cache is not None:
        cache.remember(path, manifests)


def remember_manifest(
    store: ObjectStore, manifest: ManifestFile, entries: Sequence[ManifestEntry]
) -> None:
    """Put a manifest that was just written into the cache, as reading it would.

    Args:
        store: Where it is.
        manifest: Its record in a manifest list that is part of the table, numbers assigned.
        entries: As they were encoded.
    """
    cache = _caches.of(store)
    if cache is not None:
        loaded = LoadedManifest(tuple(inherited_entries(entries, manifest)))
        cache.put_manifest(manifest, loaded)


def remember_manifest_list(
    store: ObjectStore, location: str, manifests: Sequence[ManifestFile]
) -> None:
    """Put a manifest list that was just written into the cache."""
    cache = _caches.of(store)
    if cache is not None:
        cache.put_manifest_list(location, manifests)


def clear_manifest_cache(store: ObjectStore) -> None:
    """Forget what was decoded through `store` (after its objects were changed behind its back)."""
    _caches.forget(store)


_caches: MadeOnce[ObjectStore, ManifestCache] = MadeOnce(ManifestCache)


def _check_not_emptied(snapshot: Snapshot, manifests: Sequence[ManifestFile]) -> None:
    """A list that was cut behind its header is a valid, empty one; its size is recorded nowhere."""
    total = None if snapshot.summary is None else snapshot.summary["total-data-files"]
    if not manifests and str(total or "0").strip("0"):
        raise CorruptDataError(
            "manifest list is empty, but its snapshot has data files",
            location=snapshot.manifest_list,
            data_files=total,
        )


def _with_counts(store: ObjectStore, manifest: ManifestFile) -> ManifestFile:
    """Count what a v1 manifest list leaves out, by reading the manifest."""
    return replace(manifest, **entry_counts(load_manifest(store, manifest)))
