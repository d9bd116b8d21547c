"""What is live on a branch: data files and the deletes that reach them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from pyiceberg.table.snapshots import Snapshot

from tableformat.environment import Environment
from tableformat.errors import CorruptDataError
from tableformat.files.manifest_store import load_manifest, load_manifest_list
from tableformat.spec.data_file import FileContent, ManifestEntry
from tableformat.spec.manifest_file import ManifestFile
from tableformat.store.base import ObjectStore


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveFiles:
    """The live entries of one snapshot.

    Attributes:
        data: Data files by path.
        dvs: Deletion vectors by referenced data file.
        position_deletes: v2 position delete files.
        equality_deletes: Equality delete files; none on a published branch.
    """

    data: Mapping[str, ManifestEntry]
    dvs: Mapping[str, ManifestEntry]
    position_deletes: tuple[ManifestEntry, ...]
    equality_deletes: tuple[ManifestEntry, ...]


def live_files(environment: Environment, snapshot: Snapshot | None) -> LiveFiles:
    """Read the live entries of `snapshot`; decoded manifests are cached, so only new ones cost.

    Raises:
        CorruptDataError: One data file has two deletion vectors.
    """
    data: dict[str, ManifestEntry] = {}
    dvs: dict[str, ManifestEntry] = {}
    position_deletes: list[ManifestEntry] = []
    equality_deletes: list[ManifestEntry] = []
    manifests = [] if snapshot is None else load_manifest_list(environment.store, snapshot)
    for entry in live_entries(environment.store, manifests):
        file = entry.data_file
        if file.content == FileContent.DATA:
            data[file.file_path] = entry
        elif file.content == FileContent.EQUALITY_DELETES:
            equality_deletes.append(entry)
        elif not file.is_dv:
            position_deletes.append(entry)
        else:
            _add_dv(dvs, entry)
    return LiveFiles(
        data=data,
        dvs=dvs,
        position_deletes=tuple(position_deletes),
        equality_deletes=tuple(equality_deletes),
    )


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
