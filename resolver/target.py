"""What is live on a branch: data files and the deletes that reach them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import partial

from pyiceberg.table.snapshots import Snapshot

from tableformat.codec.avro.loaded_manifest import LoadedManifest
from tableformat.codec.avro.manifest_store import (
    each_manifest,
    load_manifest,
    load_manifest_list,
    open_manifest,
)
from tableformat.codec.avro.named_files import Wanted, wanted
from tableformat.commit.branch_history import summary_of
from tableformat.environment import Environment
from tableformat.errors import CorruptDataError
from tableformat.spec.data_file import FileContent, ManifestEntry
from tableformat.spec.manifest_file import ManifestContent, ManifestFile
from tableformat.store.base import ObjectStore


class LiveFiles:
    """The live entries of one snapshot; manifests are read when their entries are asked for.

    A cycle of few rows asks for few files: `find` them and their vectors (`find_dvs`); `data` and
    `dvs` decode every manifest.
    """

    def __init__(
        self,
        store: ObjectStore,
        manifests: Iterable[ManifestFile],
        totals: Mapping[str, str] | None = None,
    ) -> None:
        """Wrap.

        Args:
            store: Where manifests are read.
            manifests: The snapshot's.
            totals: Its summary.
        """
        self._store = store
        self._manifests = tuple(manifests)
        self._totals = totals or {}
        self._found: dict[str, ManifestEntry | None] = {}
        self._data: Mapping[str, ManifestEntry] | None = None
        self._delete_files: tuple[ManifestEntry, ...] | None = None
        self._dvs: Mapping[str, ManifestEntry] | None = None

    @property
    def data(self) -> Mapping[str, ManifestEntry]:
        """Data files by path."""
        if self._data is None:
            entries = live_entries(self._store, self._of(ManifestContent.DATA))
            self._data = {entry.data_file.file_path: entry for entry in entries}
        return self._data

    def find(self, paths: Collection[str]) -> dict[str, ManifestEntry]:
        """Those of `paths` that are live data files; `first_row_id` may be missing.

        Cost: reads data manifests, the newest first, until all are found; decodes little of them.
        What was looked for once, is not looked for again.
        """
        missing = wanted({path for path in paths if path not in self._found})
        found: dict[str, ManifestEntry] = {}
        manifests = self._of(ManifestContent.DATA) if missing else ()
        for loaded in each_manifest(self._open, manifests):
            for entry in loaded.live_files(missing):
                found.setdefault(entry.data_file.file_path, entry)
            if len(found) == len(missing):
                break
        self._found |= dict.fromkeys(missing) | found
        known = {path: self._found[path] for path in paths}
        return {path: entry for path, entry in known.items() if entry is not None}

    def find_dvs(self, paths: Collection[str]) -> dict[str, ManifestEntry]:
        """The deletion vectors of some data files, by data file.

        Raises:
            CorruptDataError: One of the files has two deletion vectors.

        Cost: reads delete manifests; decodes little of them.
        """
        if self._dvs is not None:
            return {path: self._dvs[path] for path in paths if path in self._dvs}
        names = wanted(paths)
        dvs: dict[str, ManifestEntry] = {}
        manifests = self._of(ManifestContent.DELETES) if names else ()
        for loaded in each_manifest(self._open, manifests):
            for entry in loaded.live_vectors(names):
                _add_dv(dvs, entry)
        return dvs

    def find_whole(self, paths: Collection[str]) -> dict[str, ManifestEntry]:
        """Those of `paths` that are live data files, with the `first_row_id` that they inherit.

        Cost: as `find`, but each manifest that lists one of them is decoded.
        """
        if self._data is not None:
            return {path: self._data[path] for path in paths if path in self._data}
        names = wanted(paths)
        found: dict[str, ManifestEntry] = {}
        manifests = self._of(ManifestContent.DATA) if names else ()
        for loaded in each_manifest(self._open, manifests):
            for entry in _whole(loaded, names):
                found.setdefault(entry.data_file.file_path, entry)
            if len(found) == len(names):
                break
        return found

    def copies(self, paths: Collection[str]) -> list[ManifestEntry]:
        """The live entries of some data files: several of one that somebody has named again.

        Cost: as `find_whole`, but all data manifests are looked at.
        """
        names, manifests = wanted(paths), self._of(ManifestContent.DATA)
        opened = each_manifest(self._open, manifests)
        return [entry for loaded in opened for entry in _whole(loaded, names)]

    @property
    def dvs(self) -> Mapping[str, ManifestEntry]:
        """Deletion vectors by referenced data file.

        Raises:
            CorruptDataError: One data file has two deletion vectors.
        """
        if self._dvs is None:
            dvs: dict[str, ManifestEntry] = {}
            for entry in live_entries(self._store, self._of(ManifestContent.DELETES)):
                if entry.data_file.is_dv:
                    _add_dv(dvs, entry)
            self._dvs = dvs
        return self._dvs

    @property
    def position_deletes(self) -> tuple[ManifestEntry, ...]:
        """v2 position delete files."""
        return self._delete_files_of(FileContent.POSITION_DELETES)

    @property
    def equality_deletes(self) -> tuple[ManifestEntry, ...]:
        """Equality delete files; none on a published branch.

        Cost: reads delete manifests only where summary and manifest list do not both say so.
        """
        if self._delete_files is None and self._has_positions_only:
            return ()
        return self._delete_files_of(FileContent.EQUALITY_DELETES)

    @property
    def manifests(self) -> tuple[ManifestFile, ...]:
        """The snapshot's, all of them."""
        return self._manifests

    @property
    def rows(self) -> int:
        """Rows in data files, dead ones included. Reads nothing."""
        return sum(map(_live_rows, self._of(ManifestContent.DATA)))

    @property
    def _has_positions_only(self) -> bool:
        """Whether deleted positions, as the summary counts them, are all that is deleted."""
        rows = sum(map(_live_rows, self._of(ManifestContent.DELETES)))
        equality = self._totals.get("total-equality-deletes")
        return equality == "0" and self._totals.get("total-position-deletes") == str(rows)

    def _delete_files_of(self, content: FileContent) -> tuple[ManifestEntry, ...]:
        if self._delete_files is None:
            loaded = each_manifest(self._open, self._of(ManifestContent.DELETES))
            self._delete_files = tuple(e for each in loaded for e in each.live_delete_files)
        return tuple(e for e in self._delete_files if e.data_file.content == content)

    def _open(self, manifest: ManifestFile) -> LoadedManifest:
        return open_manifest(self._store, manifest)

    def _of(self, content: ManifestContent) -> Iterator[ManifestFile]:
        return (m for m in self._manifests if m.content == content and m.has_live_files)


def live_files(environment: Environment, snapshot: Snapshot | None) -> LiveFiles:
    """The live entries of `snapshot`. Reads its manifest list."""
    manifests = [] if snapshot is None else load_manifest_list(environment.store, snapshot)
    return LiveFiles(environment.store, manifests, summary_of(snapshot))


def live_entries(store: ObjectStore, manifests: Iterable[ManifestFile]) -> Iterator[ManifestEntry]:
    """The live entries of some manifests, in their order."""
    live = [each for each in manifests if each.has_live_files]
    for entries in each_manifest(partial(load_manifest, store), live):
        yield from (entry for entry in entries if entry.is_live)


def _whole(loaded: LoadedManifest, names: Wanted) -> list[ManifestEntry]:
    """Live entries of data files, all that they inherit filled in."""
    entries = loaded.entries if loaded.live_files(names) else ()
    return [e for e in entries if e.is_live and e.data_file.file_path in names]


def _live_rows(manifest: ManifestFile) -> int:
    return manifest.added_rows_count + manifest.existing_rows_count


def _add_dv(dvs: dict[str, ManifestEntry], entry: ManifestEntry) -> None:
    path = entry.data_file.referenced_data_file
    if path is None:
        raise CorruptDataError(
            "a deletion vector names no data file", location=entry.data_file.file_path
        )
    if path in dvs:
        raise CorruptDataError(
            "one data file has two deletion vectors",
            data_file=path,
            location=entry.data_file.file_path,
            other=dvs[path].data_file.file_path,
        )
    dvs[path] = entry
