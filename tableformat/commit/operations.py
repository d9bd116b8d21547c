"""Changesets of whole-file operations: overwrite, delete by metadata, rewrite.

Each is planned on one snapshot, named in the changeset, so the commit can tell what came since.
Deletion vectors of removed data files need not be listed: the engine removes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import IsolationLevel, Snapshot

from tableformat.catalog.base import TableState
from tableformat.codec.avro.manifest_store import load_manifest, load_manifest_list
from tableformat.commit.changeset import Changeset, CommitKind, Validation
from tableformat.commit.matching import FileMatcher
from tableformat.environment import Environment
from tableformat.errors import InvalidInputError
from tableformat.spec.data_file import DataFile, ManifestEntry
from tableformat.spec.manifest_file import ManifestContent
from tableformat.spec.names import MAIN_BRANCH
from tableformat.store.base import ObjectStore

DEFAULT_ISOLATION = IsolationLevel.SERIALIZABLE  # write.delete.isolation-level and its siblings


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSelection:
    """Live data files of one snapshot, by what metadata alone says about a filter.

    Attributes:
        snapshot_id: The snapshot looked at; None: an empty branch.
        all_match: Every row matches, proven.
        some_match: A row may match, and a row may not.
        deleted_positions: Rows of `all_match` that deletion vectors have removed already.
        has_equality_deletes: More of them may be deleted, so their live rows cannot be counted.
    """

    snapshot_id: int | None
    all_match: tuple[ManifestEntry, ...] = ()
    some_match: tuple[ManifestEntry, ...] = ()
    deleted_positions: int = 0
    has_equality_deletes: bool = False

    @property
    def live_rows(self) -> int | None:
        """Live rows in `all_match`; None when metadata cannot tell."""
        if self.has_equality_deletes:
            return None
        return sum(e.data_file.record_count for e in self.all_match) - self.deleted_positions


def select_files(
    environment: Environment,
    state: TableState,
    row_filter: BooleanExpression,
    *,
    branch: str = MAIN_BRANCH,
) -> FileSelection:
    """Sort the head's data files by `row_filter`. Reads manifests, never data.

    Raises:
        InvalidInputError: The filter does not fit the table.
    """
    head = state.head(branch)
    if head is None:
        return FileSelection(snapshot_id=None)
    matcher = FileMatcher(state.metadata, row_filter)
    all_match: list[ManifestEntry] = []
    some_match: list[ManifestEntry] = []
    for entry in _live_data_files(environment.store, head, matcher):
        if matcher.must_match(entry.data_file):
            all_match.append(entry)
        elif matcher.may_match(entry.data_file):
            some_match.append(entry)
    vectors, has_equality_deletes = _deletes_of(environment.store, head, all_match)
    return FileSelection(
        snapshot_id=head.snapshot_id,
        all_match=tuple(all_match),
        some_match=tuple(some_match),
        deleted_positions=sum(vectors.values()),
        has_equality_deletes=has_equality_deletes,
    )


def overwrite_changeset(
    selection: FileSelection,
    added: Sequence[DataFile],
    row_filter: BooleanExpression,
    metadata: TableMetadata,
    *,
    branch: str = MAIN_BRANCH,
) -> Changeset:
    """Static overwrite: replace all rows that match `row_filter` by the rows of `added`.

    Raises:
        InvalidInputError: A file matches only in part, or an added file may hold rows that do not
            match, proven by nothing (iceberg-core: "Cannot append file with rows that do not match
            filter").
    """
    _refuse_partial(selection, row_filter)
    matcher = FileMatcher(metadata, row_filter)
    for file in added:
        if not matcher.must_match(file):
            raise InvalidInputError(
                "cannot overwrite by a filter with rows that may not match it",
                filter=row_filter,
                location=file.file_path,
            )
    return Changeset(
        kind=CommitKind.OVERWRITE,
        branch=branch,
        added_data_files=tuple(added),
        removed_entries=selection.all_match,
        validation=Validation(
            starting_snapshot_id=selection.snapshot_id,
            isolation=DEFAULT_ISOLATION,
            conflict_filter=row_filter,
        ),
    )


def replace_partitions_changeset(
    environment: Environment,
    state: TableState,
    added: Sequence[DataFile],
    *,
    branch: str = MAIN_BRANCH,
) -> Changeset:
    """Dynamic overwrite: replace every partition that `added` has a file in.

    A partition is a spec and its values, so files written under an older spec stay (as in
    iceberg-core's ReplacePartitions); an unpartitioned spec is one partition.
    """
    partitions = frozenset(file.partition_key for file in added)
    head = state.head(branch)
    removed: tuple[ManifestEntry, ...] = ()
    if head is not None:
        matcher = FileMatcher(state.metadata, AlwaysTrue())
        removed = tuple(
            entry
            for entry in _live_data_files(environment.store, head, matcher)
            if entry.data_file.partition_key in partitions
        )
    return Changeset(
        kind=CommitKind.OVERWRITE,
        branch=branch,
        added_data_files=tuple(added),
        removed_entries=removed,
        validation=Validation(
            starting_snapshot_id=None if head is None else head.snapshot_id,
            isolation=DEFAULT_ISOLATION,
            conflict_partitions=partitions,
        ),
        summary={"replace-partitions": "true"},
    )


def _live_data_files(
    store: ObjectStore, snapshot: Snapshot, matcher: FileMatcher
) -> Iterable[ManifestEntry]:
    for manifest in load_manifest_list(store, snapshot):
        if manifest.content != ManifestContent.DATA or not manifest.has_live_files:
            continue
        if matcher.manifest_may_match(manifest):
            yield from (entry for entry in load_manifest(store, manifest) if entry.is_live)


def _deletes_of(
    store: ObjectStore, snapshot: Snapshot, entries: Iterable[ManifestEntry]
) -> tuple[dict[str, int], bool]:
    """Cardinality of the vector of each data file; whether other deletes are in the snapshot."""
    paths = {entry.data_file.file_path for entry in entries}
    vectors: dict[str, int] = {}
    has_others = False
    if not paths:
        return vectors, has_others
    for manifest in load_manifest_list(store, snapshot):
        if manifest.content != ManifestContent.DELETES or not manifest.has_live_files:
            continue
        for entry in load_manifest(store, manifest):
            file = entry.data_file
            if not entry.is_live:
                continue
            if not file.is_dv:
                has_others = True
            elif file.referenced_data_file in paths:
                vectors[str(file.referenced_data_file)] = file.record_count
    return vectors, has_others


def _refuse_partial(selection: FileSelection, row_filter: BooleanExpression) -> None:
    if selection.some_match:
        raise InvalidInputError(
            "cannot drop whole files: some rows may match the filter and some not",
            action="delete row by row, or align the filter with the partitions",
            filter=row_filter,
            count=len(selection.some_match),
            location=selection.some_match[0].data_file.file_path,
        )
