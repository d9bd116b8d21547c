"""A publish: data files, deletion vectors, and the cursor of what they cover, in one commit."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from pyiceberg.table.snapshots import Snapshot

from resolver.merge_deletes import Conversion
from resolver.repeated_batches import staged_epochs
from tableformat.catalog.base import TableState
from tableformat.commit.branch_history import summary_of
from tableformat.commit.carried_properties import writer_properties
from tableformat.commit.changeset import Changeset, CommitKind, Fence, Follower, Validation
from tableformat.spec.data_file import DataFile, ManifestEntry
from tableformat.spec.names import LEFT_OUT, MARKER_SEQUENCE_NUMBER, STAGING_MARKER


def publish_changeset(
    state: TableState,
    *,
    target: str,
    conversion: Conversion,
    dv_files: Iterable[DataFile],
    removed: Iterable[ManifestEntry] = (),
    covered: Iterable[Snapshot] = (),
    summary: Mapping[str, str],
    fence: Fence | None,
    follower: Follower | None = None,
    source: str | None = None,
) -> Changeset:
    """What a cycle commits on `target`, only if its head is still the one in `state`. Pure.

    Args:
        state: The table version the cycle was computed on.
        target: The branch.
        conversion: Files to add and deletes to replace.
        dv_files: The written deletion vectors, of `conversion.vectors` and others.
        removed: Further live entries to remove (converted equality deletes, in-place mode).
        covered: The staged snapshots that it publishes.
        summary: The cursor and the writers' own properties.
        fence: The lock's token.
        follower: The staging branch, where it is to move onto the publish.
        source: The staging branch, which must be where each attempt saw it.
    """
    head = state.head(target)
    added = tuple(file.with_(first_row_id=None) for file in conversion.published)
    published = {file.file_path for file in added}
    dv_files = tuple(dv_files)
    touched = {vector.data_file.file_path for vector in conversion.vectors}
    touched |= {file.referenced_data_file for file in dv_files if file.referenced_data_file}
    return Changeset(
        kind=CommitKind.ROW_DELTA,
        branch=target,
        added_data_files=added,
        added_delete_files=dv_files,
        removed_entries=(*conversion.removed, *conversion.replaced, *removed),
        validation=Validation(
            starting_snapshot_id=None if head is None else head.snapshot_id,
            referenced_data_files=frozenset(touched - published),
        ),
        expected_head=None if head is None else head.snapshot_id,
        strict_head=True,
        staged=frozenset(each.snapshot_id for each in covered),
        summary=summary,
        fence=fence,
        follower=follower,
        source=source,
    )


def publish_summary(covered: Sequence[Snapshot], repeated: Collection[int] = ()) -> dict[str, str]:
    """Marker and writer properties for a publish that covers staged snapshots, oldest first.

    A writer finds its own last commit by walking its branch. The trim takes the staged snapshots
    out of that walk, so what they say about their writers is repeated by the publish, and by every
    own commit after it (`tableformat.commit.carried_properties`). Those that were left out, ids
    `repeated`, say nothing that is new, and are named.
    """
    told = [each for each in covered if each.snapshot_id not in repeated]
    summary = writer_properties(map(summary_of, told)) | staged_epochs(told)
    if repeated:
        summary[LEFT_OUT] = ",".join(map(str, sorted(repeated)))
    if not covered:
        return summary
    last = covered[-1]
    number = {MARKER_SEQUENCE_NUMBER: str(last.sequence_number or 0)}
    return summary | {STAGING_MARKER: str(last.snapshot_id)} | number
