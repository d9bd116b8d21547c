"""One commit on the target: data files, deletion vectors, and the cursor of what they cover."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pyiceberg.table.snapshots import Snapshot

from resolver.convert import Conversion
from tableformat.catalog.base import TableState
from tableformat.commit.changeset import Changeset, CommitKind, Fence, Validation
from tableformat.commit.engine import CommitResult, commit
from tableformat.environment import Environment
from tableformat.spec.data_file import DataFile, ManifestEntry
from tableformat.spec.names import (
    BATCH_ID,
    OTHER_QUERY_BATCH,
    QUERY_ID,
    STAGING_MARKER,
    WRITER_PREFIXES,
)

FLINK_WRITER = ("flink.job-id", "flink.operator-id")


def publish(
    environment: Environment,
    state: TableState,
    *,
    target: str,
    conversion: Conversion,
    dv_files: Iterable[DataFile],
    removed: Iterable[ManifestEntry] = (),
    summary: Mapping[str, str],
    fence: Fence | None,
) -> CommitResult:
    """Commit a cycle on `target`, only if its head is still the one in `state`.

    Args:
        environment: Store, catalog, clock.
        state: The table version the cycle was computed on.
        target: The branch.
        conversion: Files to add and deletes to replace.
        dv_files: The written deletion vectors of `conversion.vectors`.
        removed: Further live entries to remove (converted equality deletes, in-place mode).
        summary: The cursor and the writers' own properties.
        fence: The lock's token.

    Raises:
        CommitConflictError: The head moved; match again what the others touched.
        CommitUnknownError: The answer was lost and could not be settled. Nothing was deleted.
        FencedError: A newer holder has published.

    Effects: manifests, a manifest list and a metadata file, then the swap. A crash before the swap
    leaves unreferenced files; after it the cycle is published and only the index is behind.
    """
    head = state.head(target)
    added = tuple(file.with_(first_row_id=None) for file in conversion.published)
    published = {file.file_path for file in added}
    touched = {vector.data_file.file_path for vector in conversion.vectors}
    changeset = Changeset(
        kind=CommitKind.ROW_DELTA,
        branch=target,
        added_data_files=added,
        added_delete_files=tuple(dv_files),
        removed_entries=(*conversion.replaced, *removed),
        validation=Validation(
            starting_snapshot_id=None if head is None else head.snapshot_id,
            referenced_data_files=frozenset(touched - published),
        ),
        expected_head=None if head is None else head.snapshot_id,
        strict_head=True,
        summary=summary,
        fence=fence,
    )
    return commit(environment, state.identifier, changeset, state=state)


def publish_summary(head: Snapshot | None, covered: Iterable[Snapshot]) -> dict[str, str]:
    """Marker and writer properties for a publish that covers staged snapshots, oldest first.

    A writer finds its own last commit by walking its branch. The trim takes the staged snapshots
    out of that walk, so what they say about their writers is repeated by the publish, and by every
    publish after it.
    """
    covered = list(covered)
    summary: dict[str, str] = {}
    for snapshot in [head, *covered]:
        if snapshot is None or snapshot.summary is None:
            continue
        properties = snapshot.summary.additional_properties
        _keep_replaced_query(summary, properties)
        summary.update(
            {
                key: value
                for key, value in properties.items()
                if key.startswith((*WRITER_PREFIXES, OTHER_QUERY_BATCH))
            }
        )
    if covered:
        summary[STAGING_MARKER] = str(covered[-1].snapshot_id)
    return summary


def _keep_replaced_query(summary: dict[str, str], properties: Mapping[str, str]) -> None:
    """A summary holds one query id; the batch of a query that loses the place moves aside."""
    old, new = summary.get(QUERY_ID), properties.get(QUERY_ID)
    if new is not None:
        summary.pop(OTHER_QUERY_BATCH + new, None)
    if old is not None and new is not None and old != new and BATCH_ID in summary:
        summary[OTHER_QUERY_BATCH + old] = summary[BATCH_ID]


def hides_a_writer(covered: Iterable[Snapshot]) -> bool:
    """Whether a trim over `covered` would hide a foreign writer's own marker.

    Flink's sink looks for the newest snapshot of its job and operator; a summary can repeat only
    one of them, so with several Flink writers on one staging branch there is no trim.
    """
    writers = {
        tuple(snapshot.summary.additional_properties.get(key) for key in FLINK_WRITER)
        for snapshot in covered
        if snapshot.summary is not None
    }
    return len(writers - {(None, None)}) > 1
