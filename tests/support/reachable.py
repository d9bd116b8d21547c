"""What a table needs, as the product's own parts say."""

from __future__ import annotations

from tableformat.catalog.base import TableState
from tableformat.commit.reachability import Reachable, live_locations, statistics_locations
from tableformat.store.base import ObjectStore


def reachable_locations(store: ObjectStore, state: TableState) -> set[str]:
    """Every location that the table needs, its metadata file and log included.

    Reads every manifest list and every manifest: for orphan removal, not for the commit path.
    """
    metadata = state.metadata
    reachable = Reachable(store)
    manifests = [m for m in reachable.add_snapshots(metadata.snapshots) if m.has_live_files]
    return {
        state.metadata_location,
        *(entry.metadata_file for entry in metadata.metadata_log),
        *statistics_locations(metadata),
        *reachable.manifest_lists,
        *reachable.manifests,
        *(location for each in manifests for location in live_locations(store, each)),
    }
