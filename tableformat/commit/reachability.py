"""Which objects a table needs: everything that any of its snapshots can lead a reader to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from tableformat.codec.avro.manifest_store import (
    each_snapshot,
    load_manifest,
    load_manifest_list,
    open_manifest,
)
from tableformat.codec.avro.named_files import Hashes, hashes_of
from tableformat.errors import InvalidInputError
from tableformat.spec.manifest_file import ManifestFile
from tableformat.store.base import ObjectStore
from tableformat.store.locations import canonical_location


@dataclass(slots=True)
class Reachable:
    """Grows as versions of a table are shown to it; it never forgets a location.

    Live entries count, DELETED ones do not: a removed file is needed only by snapshots in which it
    was live, and those are shown too while they are in the metadata. A Puffin file is needed while
    one of its vectors is.
    """

    store: ObjectStore
    snapshot_ids: set[int] = field(default_factory=set)
    manifests: dict[str, ManifestFile] = field(default_factory=dict)
    manifest_lists: set[str] = field(default_factory=set)

    def add_snapshots(self, snapshots: Iterable[Snapshot]) -> list[ManifestFile]:
        """Load manifest lists of snapshots not seen before; gives the manifests new in them."""
        new: list[ManifestFile] = []
        unseen = [each for each in snapshots if each.snapshot_id not in self.snapshot_ids]
        lists = each_snapshot(partial(load_manifest_list, self.store), unseen)
        for snapshot, listed in zip(unseen, lists, strict=True):
            for manifest in listed:
                if manifest.manifest_path not in self.manifests:
                    self.manifests[manifest.manifest_path] = manifest
                    new.append(manifest)
            self.snapshot_ids.add(snapshot.snapshot_id)
            self.manifest_lists.add(snapshot.manifest_list)
        return new

    def live_names(self, manifest: ManifestFile) -> Hashes:
        """Hashes of the names of the live files of a manifest, and perhaps of some that are not.

        Files that are not Parquet or Puffin have none. Cost: decodes a manifest that lists removed
        files, as most do not.
        """
        if manifest.deleted_files_count:
            return hashes_of(live_locations(self.store, manifest))
        return open_manifest(self.store, manifest).note().hashes


def live_locations(store: ObjectStore, manifest: ManifestFile) -> set[str]:
    """Locations of the live data and delete files of a manifest, in their canonical spelling.

    Writers spell the same file in several ways (`s3a://`, `file:/`). One that is no location at all
    stays as it is: stores refuse it, too.
    """
    return {
        _canonical(entry.data_file.file_path)
        for entry in load_manifest(store, manifest)
        if entry.is_live
    }


def statistics_locations(metadata: TableMetadata) -> set[str]:
    """Locations of table and partition statistics files."""
    files = [*metadata.statistics, *metadata.partition_statistics]
    return {each.statistics_path for each in files}


def _canonical(location: str) -> str:
    try:
        return canonical_location(location)
    except InvalidInputError:
        return location
