"""What happened on a branch since a snapshot: the walk back, and what each snapshot changed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot

from tableformat.cached import cached_property
from tableformat.catalog.base import TableState
from tableformat.codec.avro.manifest_store import load_manifest, load_manifest_list
from tableformat.errors import CommitConflictError, UnsupportedError
from tableformat.object_memory import ObjectMemory
from tableformat.spec.data_file import EntryStatus, FileContent, ManifestEntry
from tableformat.spec.decimal_text import parse_decimal
from tableformat.spec.metadata_models import properties_of, snapshot_index
from tableformat.spec.names import (
    COMMITTED_TO,
    FORWARDED_TO,
    MAIN_BRANCH,
    MISSING_COLUMNS,
    STAGED_COMMITS,
    STAGING_MARKER,
    WAP_ID,
)
from tableformat.store.base import ObjectStore

_COUNTED = (
    ("total-data-files", "added-data-files", "deleted-data-files"),
    ("total-delete-files", "added-delete-files", "removed-delete-files"),
)


def snapshots_by_id(metadata: TableMetadata) -> Mapping[int, Snapshot]:
    """All snapshots by id; nothing is built for it where that was done before."""
    return snapshot_index(metadata)


def walk_back(by_id: Mapping[int, Snapshot], head_id: int | None) -> Iterator[Snapshot]:
    """`head_id` and its ancestors, newest first; ends at an expired parent, or at a cycle."""
    visited: set[int] = set()
    current = head_id
    while current is not None and current not in visited:
        visited.add(current)
        snapshot = by_id.get(current)
        if snapshot is None:
            return
        yield snapshot
        current = snapshot.parent_snapshot_id


def is_first(snapshot: Snapshot) -> bool:
    """Whether its branch began with it: it has no parent, and its totals are what it added.

    A parent that has expired is named, and missing; but PyIceberg's expiry takes its id away. The
    totals do not show it where the branch had become empty; what a commit of icefold repeats does.
    Other writers need not give totals: then the table's first commit is known by its number, and
    another one, which may have lost its parent, counts as not the first.
    """
    summary = summary_of(snapshot)
    has_totals = all(total in summary for total, _, _ in _COUNTED)
    return (
        snapshot.parent_snapshot_id is None
        and not _repeats(summary)
        and (has_totals or (snapshot.sequence_number or 0) <= 1)
        and all(
            _count(summary, total) + _count(summary, removed) <= _count(summary, added)
            for total, added, removed in _COUNTED
        )
    )


def _repeats(summary: Mapping[str, str]) -> bool:
    """Whether a commit of icefold says what an earlier one on its branch was the first to say."""
    has_cursor = COMMITTED_TO in summary and STAGING_MARKER in summary
    return FORWARDED_TO in summary or (has_cursor and not _count(summary, STAGED_COMMITS))


def _count(summary: Mapping[str, str], name: str) -> int:
    return parse_decimal(summary.get(name, "")) or 0


def check_rows_are_whole(state: TableState, snapshots: Iterable[Snapshot], *, action: str) -> None:
    """Refuse snapshots that bring rows whose columns are missing (`spec.missing_columns`).

    Raises:
        UnsupportedError: Names the first; with `action`.
    """
    for snapshot in snapshots:
        if MISSING_COLUMNS in summary_of(snapshot):
            raise UnsupportedError(
                "staged rows leave out columns, which only a publish fills",
                table=state.name,
                snapshot_id=snapshot.snapshot_id,
                action=action,
            )


def ancestors(metadata: TableMetadata, head_id: int | None) -> Iterator[Snapshot]:
    """As `walk_back`, through a table version."""
    return walk_back(snapshots_by_id(metadata), head_id)


def branch_history(state: TableState, branch: str) -> Iterator[Snapshot]:
    """The head of a branch and its ancestors, as `walk_back`; empty without a head."""
    return ancestors(state.metadata, state.head_id(branch))


def newest_saying(state: TableState, branch: str, name: str) -> Snapshot | None:
    """The newest snapshot of a branch's history whose summary has a property.

    Cost: of a history without one, what is new in it since it was asked last.
    """
    by_id = snapshots_by_id(state.metadata)
    silent = _silent.setdefault(name, ObjectMemory())
    head, current, visited = state.head(branch), state.head_id(branch), set[int]()
    while current is not None and current not in visited:
        visited.add(current)
        snapshot = by_id.get(current)
        if snapshot is None:
            break
        known = silent.get(snapshot)
        if known is not None:
            silent.forget(snapshot)  # the newest head is enough
            current = known.end_id
        elif name in summary_of(snapshot):
            return snapshot
        else:
            current = snapshot.parent_snapshot_id
    if head is not None:
        silent.put(head, _Silent(current))
    return None


@dataclass(frozen=True, slots=True)
class _Silent:
    """A history that does not have a property, down to where it ended: at none, or an expired one.

    That one could come back, with a version of the table that somebody restores.
    """

    end_id: int | None


_silent: dict[str, ObjectMemory[Snapshot, _Silent]] = {}  # by property, at a head


def branch_ids(state: TableState, branch: str) -> frozenset[int]:
    """The ids of `branch_history`."""
    return frozenset(snapshot.snapshot_id for snapshot in branch_history(state, branch))


def committed_by_log(metadata: TableMetadata, branch: str = MAIN_BRANCH) -> frozenset[int]:
    """Snapshots that were committed to a branch, by the table's log (main only). Pure.

    A rolled-back branch leaves them in the history of a trimmed staging branch. Only an entry with
    the snapshot's own time is its commit; one with a later time moved the branch there. Those of
    one transaction come at once, and one that was written on no branch, and audited, gets there
    when it is published.
    """
    log = metadata.snapshot_log if branch == MAIN_BRANCH else ()
    by_id, found, before = snapshots_by_id(metadata), set[int](), None
    for entry in log:
        own = by_id.get(entry.snapshot_id)
        is_next = own is not None and own.parent_snapshot_id == before
        if own is not None and (
            own.timestamp_ms == entry.timestamp_ms or (is_next and WAP_ID in summary_of(own))
        ):
            found.add(entry.snapshot_id)
            if not is_next:
                down = [each.snapshot_id for each in walk_back(by_id, own.parent_snapshot_id)]
                found.update(down[: down.index(before)] if before in down else ())
        before = entry.snapshot_id
    return frozenset(found)


def head_of(state: TableState, branch: str) -> Snapshot | None:
    """What a commit on the branch would be based on: its head, or `main`'s while it is missing."""
    return state.head(branch if state.ref(branch) is not None else MAIN_BRANCH)


def committed_to(snapshot: Snapshot) -> str | None:
    """The branch, where icefold made the commit."""
    return summary_of(snapshot).get(COMMITTED_TO)


def summary_of(snapshot: Snapshot | None) -> Mapping[str, str]:
    """The properties of its summary; empty without a snapshot or a summary."""
    if snapshot is None or snapshot.summary is None:
        return {}
    return properties_of(snapshot.summary)


def is_ancestor(metadata: TableMetadata, ancestor_id: int, *, of: int) -> bool:
    """Whether `ancestor_id` is `of` or in its history."""
    return any(snapshot.snapshot_id == ancestor_id for snapshot in ancestors(metadata, of))


def snapshots_between(
    metadata: TableMetadata, *, starting_id: int | None, head_id: int | None, branch: str
) -> list[Snapshot]:
    """Snapshots after `starting_id` up to `head_id`, newest first; None: the whole history.

    Raises:
        CommitConflictError: `starting_id` is not in the history of the head: the branch was rolled
            back or replaced, or the snapshot has expired.
    """
    between: list[Snapshot] = []
    for snapshot in ancestors(metadata, head_id):
        if snapshot.snapshot_id == starting_id:
            return between
        between.append(snapshot)
    if starting_id is None:
        return between
    raise CommitConflictError(
        "cannot tell what happened since the scan: its snapshot is not in the branch's history",
        conflicts=[] if head_id is None else [f"snapshot {head_id}"],
        action="plan again on the current head",
        branch=branch,
        starting_snapshot_id=starting_id,
        head=head_id,
    )


def operation_of(snapshot: Snapshot) -> Operation:
    """The summary's operation; without a summary the one that every check looks at."""
    return Operation.OVERWRITE if snapshot.summary is None else snapshot.summary.operation


def name_snapshot(snapshot: Snapshot) -> str:
    """How conflicts name a snapshot."""
    return f"snapshot {snapshot.snapshot_id} ({operation_of(snapshot).value})"


@dataclass(frozen=True)
class SnapshotChanges:
    """The files one snapshot added and removed, straight from the manifests it wrote."""

    snapshot: Snapshot
    added: tuple[ManifestEntry, ...] = ()
    removed: tuple[ManifestEntry, ...] = ()

    @cached_property
    def operation(self) -> Operation:
        """The summary's operation."""
        return operation_of(self.snapshot)

    @cached_property
    def added_data(self) -> tuple[ManifestEntry, ...]:
        """Added data files."""
        return tuple(e for e in self.added if e.data_file.content == FileContent.DATA)

    @cached_property
    def removed_data(self) -> tuple[ManifestEntry, ...]:
        """Removed data files."""
        return tuple(e for e in self.removed if e.data_file.content == FileContent.DATA)

    @cached_property
    def added_deletes(self) -> tuple[ManifestEntry, ...]:
        """Added deletion vectors, position and equality delete files."""
        return tuple(e for e in self.added if e.data_file.content != FileContent.DATA)


@dataclass(slots=True)
class History:
    """Loads what snapshots changed, each once; snapshots do not change, so attempts share it."""

    store: ObjectStore
    loaded: dict[int, SnapshotChanges] = field(default_factory=dict)

    def changes(self, snapshot: Snapshot) -> SnapshotChanges:
        """The files `snapshot` added and removed. Reads its manifest list and its own manifests."""
        known = self.loaded.get(snapshot.snapshot_id)
        if known is None:
            known = load_changes(self.store, snapshot)
            self.loaded[snapshot.snapshot_id] = known
        return known


def load_changes(store: ObjectStore, snapshot: Snapshot) -> SnapshotChanges:
    """The files `snapshot` added and removed.

    Only manifests written by it can hold entries of it; carried-over ones are not read.
    """
    added: list[ManifestEntry] = []
    removed: list[ManifestEntry] = []
    for manifest in load_manifest_list(store, snapshot):
        if manifest.added_snapshot_id != snapshot.snapshot_id:
            continue
        if manifest.added_files_count + manifest.deleted_files_count == 0:
            continue
        for entry in load_manifest(store, manifest):
            if entry.snapshot_id != snapshot.snapshot_id:
                continue
            if entry.status == EntryStatus.ADDED:
                added.append(entry)
            elif entry.status == EntryStatus.DELETED:
                removed.append(entry)
    return SnapshotChanges(snapshot=snapshot, added=tuple(added), removed=tuple(removed))
