"""What is remembered of one store: the manifest lists used last, and the manifests they name.

Lists and manifests are immutable, so what was read stays right. Manifests are kept twice: as they
are stored, with the names in them, which is little, so that a large table fits; and decoded, where
all their entries were asked for, which is much. But every commit replaces some, and
a process that follows a table never looks at the former ones again: of each table a few lists are
kept, and a manifest for as long as one of them names it. What is kept so does not grow with the
number of commits that a process has seen.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Hashable, Sequence
from pathlib import Path

from tableformat.codec.avro.loaded_manifest import LoadedManifest
from tableformat.codec.avro.manifest_entries import EncodedManifest
from tableformat.codec.avro.manifest_notes import (
    HASHES,
    ManifestNote,
    NotedManifest,
    lacks_much,
    read_notes,
    write_notes,
)
from tableformat.limits import (
    CACHED_LISTED_MANIFESTS_MAX,
    CACHED_MANIFEST_BYTES_MAX,
    CACHED_MANIFEST_ENTRIES_MAX,
    CACHED_MANIFEST_LISTS_PER_TABLE_MAX,
)
from tableformat.sized_cache import SizedCache
from tableformat.spec.manifest_file import ManifestFile


class ManifestCache:
    """Manifest lists by location and manifests by what they inherit; for several threads.

    A table is the folder of its lists. The list, table and manifest used longest ago go first.
    """

    def __init__(self) -> None:
        self._tables: OrderedDict[str, OrderedDict[str, tuple[ManifestFile, ...]]] = OrderedDict()
        self._records = 0
        self._listed: Counter[int] = Counter()  # lists by the `id` of a record in them
        self._named: Counter[Hashable] = Counter()  # such records by key
        self._manifests: SizedCache[LoadedManifest] = SizedCache(
            CACHED_MANIFEST_ENTRIES_MAX, lambda each: each.entry_count + 1
        )
        self._encoded: SizedCache[EncodedManifest] = SizedCache(
            CACHED_MANIFEST_BYTES_MAX, lambda each: each.size_bytes
        )
        self._notes: dict[str, ManifestNote] = {}
        self._notes_files: dict[Path, frozenset[str]] = {}
        self._lock = threading.Lock()

    def manifest_list(self, location: str) -> tuple[ManifestFile, ...] | None:
        """The records of a list, if it is here."""
        table = _table_of(location)
        with self._lock:
            found = self._tables.get(table, OrderedDict()).get(location)
            if found is not None:
                self._touch(table, location)
            return found

    def put_manifest_list(self, location: str, manifests: Sequence[ManifestFile]) -> None:
        """Keep a list, and drop what the lists kept of its table no longer name."""
        table = _table_of(location)
        with self._lock:
            lists = self._tables.setdefault(table, OrderedDict())
            if location not in lists:
                lists[location] = added = tuple(manifests)
                self._records += len(added) + 1
                self._count(added)
            self._touch(table, location)
            if len(lists) > CACHED_MANIFEST_LISTS_PER_TABLE_MAX:
                self._drop_oldest(table)
            while self._records > CACHED_LISTED_MANIFESTS_MAX:
                self._drop_oldest(next(iter(self._tables)))

    def manifest(self, manifest: ManifestFile) -> LoadedManifest | None:
        """The manifest as that record lists it, if it is here."""
        key = _key(manifest)
        found = self._manifests.get(key)
        if found is None:
            encoded = self._encoded.get(key)
            found = None if encoded is None else self.as_loaded(manifest, encoded)
        return found

    def put_manifest(self, manifest: ManifestFile, loaded: LoadedManifest) -> None:
        """Keep a decoded manifest that a list kept here names; any other is not kept."""
        key = _key(manifest)
        with self._lock:
            if key in self._named:
                self._manifests.put(key, loaded)

    def put_encoded(self, manifest: ManifestFile, encoded: EncodedManifest) -> LoadedManifest:
        """The same with one that was read; and once all of it has been decoded, that is kept."""
        key = _key(manifest)
        with self._lock:
            if key in self._named:
                self._encoded.put(key, encoded)
        return self.as_loaded(manifest, encoded)

    def note(self, manifest: ManifestFile) -> ManifestNote | None:
        """What another process has noted of it."""
        return self._notes.get(manifest.manifest_path)

    def recall(self, path: Path) -> None:
        """Take the notes of a file, once."""
        if path not in self._notes_files:
            noted = read_notes(path, HASHES).items()
            notes = {location: ManifestNote(*note) for location, note in noted}
            with self._lock:
                self._notes |= notes
                self._notes_files[path] = frozenset(notes)

    def remember(self, path: Path, manifests: Sequence[ManifestFile]) -> None:
        """Write what is known of the manifests of a list, if the file lacks much of it.

        Raises:
            OSError: It cannot be written.
        """
        self.recall(path)
        noted = self._notes_files[path]
        if not lacks_much(manifests, noted):
            return
        notes = {each.manifest_path: self._noted(each) for each in manifests}
        found = {location: note for location, note in notes.items() if note is not None}
        write_notes(path, {each: note.stored for each, note in found.items()})
        with self._lock:
            for location in noted:
                self._notes.pop(location, None)
            self._notes |= found
            self._notes_files[path] = frozenset(notes)  # not tried again, known or not

    def _noted(self, manifest: ManifestFile) -> ManifestNote | None:
        loaded = self.manifest(manifest)
        return self.note(manifest) if loaded is None else loaded.note()

    def as_loaded(
        self, manifest: ManifestFile, content: EncodedManifest | NotedManifest
    ) -> LoadedManifest:
        """Look-ups into one that is not decoded; once all of it has been, that is kept."""
        return LoadedManifest(content, lambda loaded: self.put_manifest(manifest, loaded))

    def _touch(self, table: str, location: str) -> None:
        self._tables.move_to_end(table)
        self._tables[table].move_to_end(location)

    def _count(self, manifests: Sequence[ManifestFile]) -> None:
        """One list more has them.

        Most records are those of the list before: a key, which costs, is made of the others only.
        """
        listed = self._listed
        for manifest in manifests:
            listed[id(manifest)] += 1
            if listed[id(manifest)] == 1:
                self._named[_key(manifest)] += 1

    def _drop_oldest(self, table: str) -> None:
        """Drop a list, and the manifests that no other names."""
        lists = self._tables[table]
        _, manifests = lists.popitem(last=False)
        if not lists:
            del self._tables[table]
        self._records -= len(manifests) + 1
        listed = self._listed
        for manifest in manifests:
            listed[id(manifest)] -= 1
            if not listed[id(manifest)]:
                del listed[id(manifest)]
                self._forget(_key(manifest))

    def _forget(self, key: Hashable) -> None:
        """One record less names a manifest."""
        self._named[key] -= 1
        if not self._named[key]:
            del self._named[key]
            self._manifests.drop(key)
            self._encoded.drop(key)


def _table_of(location: str) -> str:
    return location.rpartition("/")[0]


def _key(manifest: ManifestFile) -> Hashable:
    """All that its entries inherit: two branches of an upgraded table list other row ids."""
    return (
        manifest.manifest_path,
        manifest.manifest_length,
        manifest.partition_spec_id,
        manifest.content,
        manifest.sequence_number,
        manifest.added_snapshot_id,
        manifest.first_row_id,
        manifest.counts,
    )
