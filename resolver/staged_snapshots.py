"""What each staged snapshot brought: its files by what they are, from its own manifests."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from pyiceberg.table.snapshots import Snapshot

from resolver.target import live_entries
from tableformat.catalog.base import TableState
from tableformat.codec.avro.manifest_store import load_manifest_list, open_manifest
from tableformat.commit.branch_history import (
    SnapshotChanges,
    load_changes,
)
from tableformat.environment import Environment
from tableformat.errors import UnsupportedError
from tableformat.scan.delete_index import DeleteIndex, referenced_path
from tableformat.scan.former_schema import cannot_read, unreadable
from tableformat.spec.data_file import FileContent, ManifestEntry
from tableformat.spec.manifest_file import ManifestContent, ManifestFile
from tableformat.spec.missing_columns import has_missing_columns
from tableformat.store.locations import is_in_bucket, requests_of


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedSnapshot:
    """What one staged snapshot added.

    Attributes:
        order: Rises from the oldest to the newest of a cycle, from 1 on.
        spec_ids: Partition specs of all files that were live in it.
        removed: Data files that it removed, each as the snapshot that added it did: their rows die,
            and those that live are among the files that it adds.
        replaced: Deletion vectors and position delete files that it removed, by the data file that
            each is about, under None where there may be several: what they delete was deleted
            before. None: not known.
        is_repeated: It brings a batch again, so it counts as empty.
    """

    order: int
    spec_ids: frozenset[int]
    snapshot: Snapshot
    data_files: tuple[ManifestEntry, ...]
    equality_deletes: tuple[ManifestEntry, ...]
    position_deletes: tuple[ManifestEntry, ...]
    dvs: tuple[ManifestEntry, ...]
    removed: tuple[ManifestEntry, ...] = ()
    replaced: Mapping[str | None, Sequence[ManifestEntry]] | None = field(default_factory=dict)
    is_repeated: bool = False

    @staticmethod
    def of(
        order: int,
        snapshot: Snapshot,
        entries: Sequence[ManifestEntry],
        spec_ids: frozenset[int],
        replaced: Mapping[str | None, Sequence[ManifestEntry]] | None,
    ) -> StagedSnapshot:
        """The entries by what they are."""

        def pick(content: FileContent, *, dv: bool = False) -> tuple[ManifestEntry, ...]:
            files = ((entry, entry.data_file) for entry in entries)
            return tuple(e for e, file in files if file.content == content and file.is_dv == dv)

        return StagedSnapshot(
            order=order,
            spec_ids=spec_ids,
            snapshot=snapshot,
            data_files=pick(FileContent.DATA),
            equality_deletes=pick(FileContent.EQUALITY_DELETES),
            position_deletes=pick(FileContent.POSITION_DELETES),
            dvs=pick(FileContent.POSITION_DELETES, dv=True),
            replaced=replaced,
        )


def names_of(staged: Iterable[StagedSnapshot]) -> frozenset[str]:
    """Paths of all files that staged snapshots add."""
    return frozenset(
        entry.data_file.file_path
        for each in staged
        for entries in (each.data_files, each.equality_deletes, each.position_deletes, each.dvs)
        for entry in entries
    )


def sequence_numbers_of(staged: StagedSnapshot) -> set[int]:
    """Of its files: its own, also where it is read from the state of the staging head."""
    entries = (*staged.data_files, *staged.equality_deletes, *staged.position_deletes, *staged.dvs)
    return {entry.sequence_number or 0 for entry in entries}


def load_staged(
    environment: Environment,
    state: TableState,
    snapshots: Sequence[Snapshot],
    repeated: Collection[int] = (),
) -> list[StagedSnapshot]:
    """Read what each staged snapshot added, from its own manifests only; of `repeated`, nothing.

    Raises:
        UnsupportedError: A staged snapshot removes equality deletes, or data files in a way that
            does not say which rows live on: see `_check_removed`.
    """

    def load(item: tuple[int, Snapshot]) -> StagedSnapshot:
        order, snapshot = item
        if snapshot.snapshot_id in repeated:
            return _repeated(order, snapshot)
        return _load_one(environment, state, order, snapshot)

    # Three requests for each; on a disk they take less than threads to take turns.
    at_once = requests_of(state.metadata.location)
    items = list(enumerate(snapshots, start=1))
    return environment.runtime.each(load, items, at_once=at_once)


def check_staged_schemas(
    state: TableState, staged: Sequence[StagedSnapshot], branch: str, *, from_state: bool = False
) -> None:
    """Refuse what was staged before the table was replaced.

    The target could not be read any more with such rows, and keys of another type name none of its.

    Args:
        state: The table version.
        staged: What waits, oldest first.
        branch: Where.
        from_state: It was read from the state of the branch's head, which has no log.

    Raises:
        UnsupportedError: Names the first such snapshot, and how to go on without them.
    """
    metadata, schema = state.metadata, state.metadata.schema()
    rows = [e.snapshot_id for each in staged for e in each.data_files]
    deletes = [e.snapshot_id for each in staged for e in each.equality_deletes]
    found = [
        *unreadable(metadata, schema, rows),
        *unreadable(metadata, schema, deletes, whole=False),
    ]
    if not found:
        return
    last = max((each for each, _ in found), key=lambda each: each.sequence_number or 0)
    action = f"drop the staging branch (icefold ref drop {state.name} {branch}), and stage again"
    if last.snapshot_id != state.head_id(branch):
        without = f"--from-snapshot {last.snapshot_id}"
        without = f"--staged-after {last.sequence_number}" if from_state else without
        action = f"go on without what was staged then, with {without}; or {action}"
    raise cannot_read(state, schema, *found[0], action=action)


def before_unseen_deletes(
    staged: list[StagedSnapshot], key_ids: Iterable[int]
) -> list[StagedSnapshot]:
    """As many of the oldest as one cycle can take. Pure.

    A column that a staged row leaves out has its value once the cycle has filled it. Deletes by
    other columns than the key that were staged after the row look for it: they are for the next.
    """
    key, lacks = set(key_ids), False
    for count, each in enumerate(staged):
        if lacks and any(set(e.data_file.equality_ids or ()) != key for e in each.equality_deletes):
            return staged[:count]
        lacks |= any(has_missing_columns(e.data_file) for e in each.data_files)
    return staged


def _repeated(order: int, snapshot: Snapshot) -> StagedSnapshot:
    empty = StagedSnapshot.of(order, snapshot, (), frozenset(), {})
    return replace(empty, is_repeated=True)


def _load_one(
    environment: Environment, state: TableState, order: int, snapshot: Snapshot
) -> StagedSnapshot:
    store = environment.store
    manifests = load_manifest_list(store, snapshot)
    if is_in_bucket(state.metadata.location):  # that of the rows and that of the deletes at once
        own = [each for each in manifests if each.added_snapshot_id == snapshot.snapshot_id]
        environment.runtime.each(partial(open_manifest, store), own)
    changes = load_changes(store, snapshot)
    _check_removed(environment, state, changes, manifests)
    replaced: defaultdict[str | None, list[ManifestEntry]] = defaultdict(list)
    for entry in changes.removed:
        if entry.data_file.content == FileContent.POSITION_DELETES:
            replaced[referenced_path(entry.data_file)].append(entry)
    staged = StagedSnapshot.of(
        order,
        snapshot,
        changes.added,
        frozenset(each.partition_spec_id for each in manifests if each.has_live_files),
        replaced,
    )
    if not changes.removed_data:
        return staged
    # What removes a file writes its own id into the entry.
    by_number = {each.sequence_number: each.snapshot_id for each in state.metadata.snapshots}
    return replace(
        staged,
        removed=tuple(
            replace(entry, snapshot_id=by_number.get(entry.file_sequence_number))
            for entry in changes.removed_data
        ),
    )


def _check_removed(
    environment: Environment,
    state: TableState,
    changes: SnapshotChanges,
    manifests: Iterable[ManifestFile],
) -> None:
    """Refuse what is no copy-on-write: the rest of the cycle could not tell which rows are meant.

    Raises:
        UnsupportedError: Equality deletes were removed that reach files which live on; a file under
            an older sequence number is reached by deletes that were staged before it; of rows that
            leave columns out only icefold knows that they do.
    """
    removed = changes.removed_data
    number = changes.snapshot.sequence_number
    refused = {
        "removes equality deletes that reach rows": _reaching(
            environment, state, changes.removed, manifests
        ),
        "rewrites data files under the sequence number of older ones": [
            e for e in changes.added_data if removed and e.sequence_number != number
        ],
        "rewrites data files of rows that leave columns out": [
            e for e in removed if has_missing_columns(e.data_file)
        ],
    }
    for what, entries in refused.items():
        if entries:
            raise UnsupportedError(
                f"a staged snapshot {what}: which rows are meant cannot be told",
                table=state.name,
                snapshot_id=changes.snapshot.snapshot_id,
                file=entries[0].data_file.file_path,
                files=len(entries),
                action="run compaction on the target branch instead, and restage these changes",
            )


def _reaching(
    environment: Environment,
    state: TableState,
    removed: Iterable[ManifestEntry],
    manifests: Iterable[ManifestFile],
) -> list[ManifestEntry]:
    """Removed equality deletes that would reach a file which lives on.

    Java takes along those that are older than all files: they mean nothing to the branch, and what
    they meant to the target was staged before.
    """
    deletes = [e for e in removed if e.data_file.content == FileContent.EQUALITY_DELETES]
    newest = max((e.sequence_number or 0 for e in deletes), default=0)
    index = DeleteIndex(deletes, specs=state.metadata.specs(), key_fields={})
    older = (
        each
        for each in manifests
        if each.content == ManifestContent.DATA and (each.min_sequence_number or 0) < newest
    )
    return [
        delete
        for entry in live_entries(environment.store, older)
        for delete in index.for_data_file(entry).equality_deletes
    ]
