"""What is live on a branch: data files and the deletes that reach them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from pyiceberg.table.snapshots import Snapshot

from tableformat.codec.avro.manifest_store import load_manifest, load_manifest_list, open_manifest
from tableformat.environment import Environment
from tableformat.errors import CorruptDataError
from tableformat.spec.data_file import FileContent, ManifestEntry
from tableformat.spec.manifest_file import ManifestContent, ManifestFile
from tableformat.store.base import ObjectStore


class LiveFiles:
    """The live entries of one snapshot; manifests are read when their entries are asked for.

    A cycle of few rows asks for few files: `find` them, `data` decodes every manifest.
    """

    # No cached_property: its lock would be held while the store is read, for all tables.

    def __init__(self, store: ObjectStore, manifests: Iterable[ManifestFile]) -> None:
        self._store = store
        self._manifests = tuple(manifests)
        self._data: Mapping[str, ManifestEntry] | None = None
        self._deletes: tuple[ManifestEntry, ...] | None = None
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
        """
        found: dict[str, ManifestEntry] = {}
        for manifest in self._of(ManifestContent.DATA):
            missing = set(paths) - found.keys()
            if not missing:
                break
            entries = open_manifest(self._store, manifest).live_files(missing)
            found |= {entry.data_file.file_path: entry for entry in entries}
        return found

    def find_whole(self, paths: Collection[str]) -> dict[str, ManifestEntry]:
        """Those of `paths` that are live data files, with the `first_row_id` that they inherit.

        Cost: as `find`, but each manifest that lists one of them is decoded.
        """
        if self._data is not None:
            return {path: self._data[path] for path in paths if path in self._data}
        found: dict[str, ManifestEntry] = {}
        for manifest in self._of(ManifestContent.DATA):
            missing = set(paths) - found.keys()
            if not missing:
                break
            if open_manifest(self._store, manifest).live_files(missing):
                entries = live_entries(self._store, [manifest])
                found |= {
                    e.data_file.file_path: e for e in entries if e.data_file.file_path in missing
                }
        return found

    def copies(self, paths: Collection[str]) -> list[ManifestEntry]:
        """The live entries of some data files: several of one that somebody has named again.

        Cost: as `find_whole`, but all data manifests are looked at.
        """
        return [
            entry
            for manifest in self._of(ManifestContent.DATA)
            if open_manifest(self._store, manifest).live_files(paths)
            for entry in live_entries(self._store, [manifest])
            if entry.data_file.file_path in paths
        ]

    @property
    def dvs(self) -> Mapping[str, ManifestEntry]:
        """Deletion vectors by referenced data file.

        Raises:
            CorruptDataError: One data file has two deletion vectors.
        """
        if self._dvs is None:
            dvs: dict[str, ManifestEntry] = {}
            for entry in self._with(FileContent.POSITION_DELETES):
                if entry.data_file.is_dv:
                    _add_dv(dvs, entry)
            self._dvs = dvs
        return self._dvs

    @property
    def position_deletes(self) -> tuple[ManifestEntry, ...]:
        """v2 position delete files."""
        return tuple(e for e in self._with(FileContent.POSITION_DELETES) if not e.data_file.is_dv)

    @property
    def equality_deletes(self) -> tuple[ManifestEntry, ...]:
        """Equality delete files; none on a published branch."""
        return tuple(self._with(FileContent.EQUALITY_DELETES))

    def _with(self, content: FileContent) -> Iterator[ManifestEntry]:
        if self._deletes is None:
            self._deletes = tuple(live_entries(self._store, self._of(ManifestContent.DELETES)))
        return (entry for entry in self._deletes if entry.data_file.content == content)

    def _of(self, content: ManifestContent) -> Iterator[ManifestFile]:
        return (m for m in self._manifests if m.content == content and m.has_live_files)


def live_files(environment: Environment, snapshot: Snapshot | None) -> LiveFiles:
    """The live entries of `snapshot`. Reads its manifest list."""
    manifests = [] if snapshot is None else load_manifest_list(environment.store, snapshot)
    return LiveFiles(environment.store, manifests)


def live_entries(store: ObjectStore, manifests: Iterable[ManifestFile]) -> Iterator[ManifestEntry]:
    """The live entries of some manifests, in their order."""
    for manifest in manifests:
        if manifest.has_live_files:
            yield from (entry for entry in load_manifest(store, manifest) if entry.is_live)


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
