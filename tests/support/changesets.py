"""Commits of other tools, as icefold's own requests."""

from __future__ import annotations

from collections.abc import Sequence

from pyiceberg.expressions import BooleanExpression
from pyiceberg.table.snapshots import Snapshot

from tableformat.commit.changeset import Changeset, CommitKind, Validation
from tableformat.commit.operations import DEFAULT_ISOLATION, FileSelection
from tableformat.spec.data_file import DataFile, ManifestEntry


def delete_changeset(selection: FileSelection, row_filter: BooleanExpression) -> Changeset:
    """Delete by metadata: the files in which every row matches are dropped."""
    return Changeset(
        kind=CommitKind.DELETE,
        removed_entries=selection.all_match,
        validation=Validation(
            starting_snapshot_id=selection.snapshot_id,
            isolation=DEFAULT_ISOLATION,
            conflict_filter=row_filter,
        ),
    )


def rewrite_changeset(
    *, removed: Sequence[ManifestEntry], added: Sequence[DataFile], starting_snapshot: Snapshot
) -> Changeset:
    """The same rows in other files."""
    return Changeset(
        kind=CommitKind.REWRITE,
        added_data_files=tuple(added),
        removed_entries=tuple(removed),
        validation=Validation(starting_snapshot_id=starting_snapshot.snapshot_id),
    )
