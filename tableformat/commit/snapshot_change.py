"""One commit of one branch as a `TableChange`.

Holds what is fixed for the commit (snapshot id, manifests of added files) and redoes the rest in
each attempt: see the table in iceberg-core's SnapshotProducer, and `commit/engine.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRef
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import AddSnapshotUpdate, SetSnapshotRefUpdate, TableUpdate

from tableformat.catalog.base import TableState
from tableformat.codec.avro.loaded_manifest import LoadedManifest
from tableformat.codec.avro.manifest_list import EncodedManifestList, encode_manifest_list
from tableformat.codec.avro.manifest_store import (
    load_manifest_list,
    open_manifest,
    remember_manifest_list,
)
from tableformat.commit.branch_history import (
    History,
    ancestors,
    head_of,
    name_snapshot,
    snapshots_by_id,
)
from tableformat.commit.carried_properties import (
    carried_properties,
    carries_marker,
    check_fence,
    load_carried,
    staging_base,
)
from tableformat.commit.changeset import Changeset, Follower
from tableformat.commit.conflicts import check_conflicts, referenced_data_files
from tableformat.commit.manifests import ManifestWriter, added_entries
from tableformat.commit.merging import merge_policy
from tableformat.commit.removal import (
    Removal,
    check_not_live,
    missing_data_files,
    plan_removal,
)
from tableformat.commit.request import (
    check_files,
    check_writable,
    operation_of_change,
)
from tableformat.commit.retention import STAGING_RETENTION, Retention, retention_or
from tableformat.commit.snapshot_ages import own_time
from tableformat.commit.summary import build_summary
from tableformat.environment import Environment
from tableformat.errors import CommitConflictError, InvalidInputError, TableError
from tableformat.paths import metadata_directory
from tableformat.scan.former_schema import why_unreadable
from tableformat.spec.manifest_file import ManifestFile
from tableformat.spec.names import COMMITTED_TO, LOAD, MAIN_BRANCH, STAGING_MARKER

SNAPSHOTS_NAMED_MAX = 20


@dataclass(slots=True)
class SnapshotChange:
    """`TableChange` of one commit. Holds what attempts share."""

    environment: Environment
    changeset: Changeset
    check: Callable[[TableState], None] | None = None  # the caller's own, on every attempt
    _history: History = field(init=False)
    _writer: ManifestWriter | None = None
    _added: list[ManifestFile] = field(default_factory=list)
    _lists: dict[str, frozenset[str]] = field(default_factory=dict)
    _listed: tuple[str, tuple[ManifestFile, ...]] | None = None
    _snapshot: Snapshot | None = None
    _planned: Schema | None = None  # the files were written under

    def __post_init__(self) -> None:
        self._history = History(self.environment.store)

    def prepare(self, state: TableState) -> Sequence[TableUpdate]:
        """Validate against `state`, write manifests and list, and give the updates."""
        metadata, changeset = state.declared.metadata, self.changeset
        check_writable(metadata, table=state.name)
        self._check_schema(state)
        check_files(changeset, metadata)
        if self.check is not None:
            self.check(state)
        ref = _branch_ref(state, changeset.branch)
        parent = head_of(state, changeset.branch)
        parent_id = None if parent is None else parent.snapshot_id
        if changeset.strict_head:
            _check_head(changeset, state, parent_id)
        _check_staged(changeset, state)
        is_staged = not carries_marker(changeset)
        by_id = snapshots_by_id(metadata)
        carried = load_carried(by_id, parent_id, metadata, is_staged=is_staged)
        check_fence(changeset.fence, carried, branch=changeset.branch)
        _check_no_load(changeset, state)
        check_conflicts(metadata, changeset, head_id=parent_id, history=self._history)
        stands_on = self._staging_base(state, parent_id) if is_staged else {}
        extra = {
            **carried_properties(carried, changeset),
            **stands_on,
            **changeset.summary,
            COMMITTED_TO: changeset.branch,
        }
        snapshot = self._write_snapshot(metadata, parent, extra)
        self._snapshot = snapshot
        default = STAGING_RETENTION if _is_staged(changeset) else Retention()
        return (
            AddSnapshotUpdate(snapshot=snapshot),
            _set_branch(changeset.branch, snapshot.snapshot_id, ref, default),
            *(
                _move_follower(changeset.follower, snapshot.snapshot_id, state)
                or _stay(changeset.source, state)
            ),
        )

    def _check_schema(self, state: TableState) -> None:
        """Refuse files that nobody could read: the table was replaced since they were written."""
        schema, written = state.metadata.schema(), self._planned
        if written is None:
            self._planned = schema
            return
        why = why_unreadable(schema, written, whole=bool(self.changeset.added_data_files))
        if why is not None:
            raise CommitConflictError(
                f"the table was replaced meanwhile, or its columns changed: {why}",
                table=state.name,
                branch=self.changeset.branch,
                action="load the table again, and write for the columns that it has now",
            )

    def _staging_base(self, state: TableState, parent_id: int | None) -> dict[str, str]:
        main = state.ref(MAIN_BRANCH)
        return staging_base(
            state.metadata,
            parent_id,
            branch=self.changeset.branch,
            main_id=None if main is None else main.snapshot_id,
        )

    def _write_snapshot(
        self, metadata: TableMetadata, parent: Snapshot | None, extra: Mapping[str, str]
    ) -> Snapshot:
        """Find what has to go, write manifests and list; the snapshot is in no table yet."""
        changeset, writer = self.changeset, self._writer_for(metadata)
        before = [] if parent is None else load_manifest_list(self.environment.store, parent)
        removal = self._plan_removal(metadata, before)
        manifests = self._manifests(metadata, before, removal, writer)
        parent_id = None if parent is None else parent.snapshot_id
        encoded, list_location = self._store(metadata, manifests, parent_id, writer)
        now_ms, table_ms = self.environment.runtime.clock.now_ms(), metadata.last_updated_ms
        return Snapshot(
            snapshot_id=writer.snapshot_id,
            parent_snapshot_id=parent_id,
            sequence_number=_next_sequence_number(metadata),
            # Never back, whatever the clock does (R78).
            timestamp_ms=max(now_ms, table_ms),
            manifest_list=list_location,
            summary=build_summary(
                operation_of_change(changeset),
                added=(*changeset.added_data_files, *changeset.added_delete_files),
                removed=removal.files,
                parent=parent,
                extra={**extra, **own_time(now_ms, table_ms)},
            ),
            schema_id=metadata.current_schema_id,
            **_row_ids(metadata, encoded),
        )

    def has_landed(self, state: TableState) -> bool:
        """Whether our snapshot is in the table: same id, and a manifest list that we wrote."""
        return self._find(state) is not None

    def context(self) -> dict[str, object]:
        """Branch and snapshot id."""
        snapshot_id = None if self._writer is None else self._writer.snapshot_id
        return {"branch": self.changeset.branch, "snapshot_id": snapshot_id}

    def landed_snapshot(self, state: TableState) -> Snapshot:
        """The snapshot as the table has it; as we wrote it if a later commit has expired it."""
        found = self._find(state) or self._snapshot
        assert found is not None
        return found

    def objects_of(self, snapshot: Snapshot) -> frozenset[str]:
        """The manifest list of `snapshot` and the manifests in it."""
        listed = self._lists.get(snapshot.manifest_list, frozenset())
        return listed | {snapshot.manifest_list}

    def delete_objects(self, *, keep: frozenset[str]) -> None:
        """Remove manifests and lists that this commit wrote and nothing names. Best effort.

        Only called when the outcome is known. What is left behind is found by orphan removal.
        """
        written = [] if self._writer is None else self._writer.written
        unused = [location for location in written if location not in keep]
        if unused:
            try:
                self.environment.store.delete(unused)
            except TableError:
                return

    def remember(self, snapshot: Snapshot) -> None:
        """Keep what landed decoded: the next commit of this process reads none of it back."""
        listed = self._listed
        if self._writer is not None and listed is not None and listed[0] == snapshot.manifest_list:
            remember_manifest_list(self.environment.store, listed[0], listed[1])
            self._writer.remember(listed[1])

    def _open(self, manifest: ManifestFile) -> LoadedManifest:
        return open_manifest(self.environment.store, manifest)

    def _find(self, state: TableState) -> Snapshot | None:
        if self._writer is None:
            return None
        found = state.metadata.snapshot_by_id(self._writer.snapshot_id)
        return found if found is not None and found.manifest_list in self._lists else None

    def _writer_for(self, metadata: TableMetadata) -> ManifestWriter:
        """The writer of all attempts; a new one only if somebody else took our snapshot id."""
        writer = self._writer
        if writer is not None and metadata.snapshot_by_id(writer.snapshot_id) is None:
            return writer
        ids = self.environment.runtime.ids
        snapshot_id = ids.snapshot_id()
        while metadata.snapshot_by_id(snapshot_id) is not None:
            snapshot_id = ids.snapshot_id()
        directory, commit_id = metadata_directory(metadata), ids.uuid()
        names = iter(range(1 << 31))
        new = ManifestWriter(
            environment=self.environment,
            snapshot_id=snapshot_id,
            location_for=lambda: f"{directory}/{commit_id}-m{next(names)}.avro",
        )
        new.written.extend(() if writer is None else writer.written)
        self._writer = new
        changeset = self.changeset
        entries = added_entries(
            metadata,
            (*changeset.added_data_files, *changeset.added_delete_files),
            data_sequence_number=changeset.data_sequence_number,
        )
        self._added = new.add(metadata, entries, merge_policy(metadata.properties))
        return new

    def _plan_removal(self, metadata: TableMetadata, before: Sequence[ManifestFile]) -> Removal:
        changeset = self.changeset
        paths = referenced_data_files(changeset)
        # What was made on another branch may name files that this one never had.
        from_elsewhere = changeset.refuse_live_files
        unknown_scan = changeset.validation.starting_snapshot_id is None
        if paths and (from_elsewhere or (unknown_scan and not changeset.strict_head)):
            missing = missing_data_files(metadata, before, paths=paths, open_manifest=self._open)
            if missing:
                raise CommitConflictError(
                    "missing data files: referenced files are not live in the branch's head",
                    conflicts=sorted(missing),
                    action="plan again on the current head",
                    branch=changeset.branch,
                    location=min(missing),
                )
        if changeset.refuse_live_files:
            check_not_live(
                metadata, before, added=changeset.added_data_files, open_manifest=self._open
            )
        return plan_removal(
            metadata,
            before,
            removed=changeset.removed_entries,
            added_deletes=changeset.added_delete_files,
            open_manifest=self._open,
        )

    def _manifests(
        self,
        metadata: TableMetadata,
        before: Sequence[ManifestFile],
        removal: Removal,
        writer: ManifestWriter,
    ) -> list[ManifestFile]:
        """The next snapshot's manifests, newest first; the new ones are not stored yet."""
        policy = merge_policy(metadata.properties)
        live = [manifest for manifest in before if manifest.has_live_files]
        kept = writer.without(metadata, live, removal.by_manifest, policy)
        return writer.merge(metadata, [*self._added, *kept], policy)

    def _store(
        self,
        metadata: TableMetadata,
        manifests: Sequence[ManifestFile],
        parent_id: int | None,
        writer: ManifestWriter,
    ) -> tuple[EncodedManifestList, str]:
        encoded = encode_manifest_list(
            manifests,
            snapshot_id=writer.snapshot_id,
            parent_snapshot_id=parent_id,
            sequence_number=_next_sequence_number(metadata),
            first_row_id=_next_row_id(metadata),
            format_version=metadata.format_version,
        )
        name = f"snap-{writer.snapshot_id}-{len(self._lists) + 1}"
        unique = self.environment.runtime.ids.uuid()
        location = f"{metadata_directory(metadata)}/{name}-{unique}.avro"
        self._lists[location] = frozenset(manifest.manifest_path for manifest in manifests)
        writer.store(manifests, location, encoded.data)
        self._listed = (location, encoded.manifests)
        return encoded, location


def _branch_ref(state: TableState, branch: str) -> SnapshotRef | None:
    ref = state.ref(branch)
    if ref is not None and ref.snapshot_ref_type != "branch":
        raise InvalidInputError("cannot commit to a tag", table=state.name, ref=branch)
    return ref


def _check_no_load(changeset: Changeset, state: TableState) -> None:
    """Refuse a publish of staged changes while rows are loaded that must be older than those."""
    if STAGING_MARKER in changeset.summary and LOAD in state.metadata.properties:
        raise InvalidInputError(
            "changes are not published while a load goes on",
            action="run icefold load again until it is through, or end it with --abandon",
            table=state.name,
        )


def _check_staged(changeset: Changeset, state: TableState) -> None:
    by_id = snapshots_by_id(state.metadata)
    expired = {each for each in changeset.staged if each not in by_id}
    if expired:
        raise CommitConflictError(
            "snapshots whose files are added have expired since they were read",
            action="run it again",
            branch=changeset.branch,
            first=min(expired),
        )


def _check_head(changeset: Changeset, state: TableState, parent_id: int | None) -> None:
    expected = changeset.expected_head
    if parent_id == expected:
        return
    between: list[str] = []
    for snapshot in ancestors(state.metadata, parent_id):
        if snapshot.snapshot_id == expected:
            break
        between.append(name_snapshot(snapshot))
    else:
        between.append(f"the expected head {expected} is not in its history")
    raise CommitConflictError(
        "the branch has moved since the change was planned",
        conflicts=between[:SNAPSHOTS_NAMED_MAX],
        action="plan again on the current head",
        branch=changeset.branch,
        expected_head=expected,
        head=parent_id,
        first=between[0],
    )


def _move_follower(
    follower: Follower | None, snapshot_id: int, state: TableState
) -> list[SetSnapshotRefUpdate]:
    ref = None if follower is None else state.ref(follower.branch)
    if follower is None or ref is None or ref.snapshot_id != follower.expected_head:
        return []
    return [_set_branch(follower.branch, snapshot_id, ref, STAGING_RETENTION)]


def _stay(branch: str | None, state: TableState) -> list[SetSnapshotRefUpdate]:
    """A branch set to where it is: nothing changes, but a REST server compares what is set."""
    ref = None if branch is None else state.ref(branch)
    if branch is None or ref is None:
        return []
    return [_set_branch(branch, ref.snapshot_id, ref, Retention())]


def _set_branch(
    name: str, snapshot_id: int, ref: SnapshotRef | None, default: Retention
) -> SetSnapshotRefUpdate:
    """Point a branch at `snapshot_id`. What it says of its retention stays.

    A staging branch that says nothing is given what keeps staged changes from other tools' expiry.
    """
    retention = retention_or(ref, default)
    return SetSnapshotRefUpdate(
        ref_name=name,
        type="branch",
        snapshot_id=snapshot_id,
        max_ref_age_ms=retention.max_ref_age_ms,
        max_snapshot_age_ms=retention.max_snapshot_age_ms,
        min_snapshots_to_keep=retention.min_snapshots_to_keep,
    )


def _is_staged(changeset: Changeset) -> bool:
    return changeset.branch != MAIN_BRANCH and not carries_marker(changeset)


def _next_sequence_number(metadata: TableMetadata) -> int:
    return int(getattr(metadata, "last_sequence_number", 0)) + 1


def _row_ids(metadata: TableMetadata, encoded: EncodedManifestList) -> dict[str, int]:
    """What a v3 snapshot says of its rows' ids; v2 has none."""
    if metadata.format_version < 3:
        return {}
    first = _next_row_id(metadata)
    return {"first_row_id": first, "added_rows": encoded.next_row_id - first}


def _next_row_id(metadata: TableMetadata) -> int:
    return int(getattr(metadata, "next_row_id", None) or 0)
