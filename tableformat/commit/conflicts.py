r"""What may have landed between the scan and the commit: the conflict matrix.

| ours \ landed | append | row_delta | overwrite | rewrite | delete |
|---------------|--------|-----------|-----------|---------|--------|
| append        | ok     | ok        | ok        | ok      | ok     |
| row_delta     | P      | F E D P   | F D P     | F       | F D    |
| overwrite     | P      | F E P     | F P       | F       | F      |
| rewrite       | ok     | F E       | F         | F       | F      |
| delete        | P      | R P       | R P       | R       | R      |

ok: rebase without a check.
R: conflict if it removed a file that we remove.
F: R, or it removed a data file that we reference, or it gave a deletion vector (or position
   deletes) to a data file that we remove or give a vector to.
E: conflict if it added equality deletes that may apply to a data file that we remove or, under an
   isolation level, to rows that match our filter. A rewrite that keeps the data sequence number
   stays older than such deletes, so they do no harm there.
D: conflict under serializable isolation if it deleted rows that may match our filter.
P: conflict under serializable isolation if rows it added may match our filter.

F, R and the first half of E hold at every isolation level, also without one: they protect the
table, not the statement. `allow_new_deletes` (a DELETE does not mind what others delete) switches
D and the second half of E off. Everything is validated from the snapshot that the scan read (I13),
on every attempt (I12). A change without such a snapshot is held against the head instead of F and
R: what it removes or references must be live there.

The checks look at the files a landed snapshot added and removed, whatever operation its summary
claims; only E, D and P pass over `replace`, which by the spec changes no rows. They are those of
the reference implementation (iceberg-core: validateAddedDataFiles, validateNoNewDeleteFiles,
validateNoNewDeletesForDataFiles, validateDataFilesExist, validateAddedDVs), with three differences:
vectors are matched by the referenced data file and never pruned by the filter (iceberg #15966), a
data file that vanished in a `delete` is a conflict for a vector on it (it would dangle), and D.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from pyiceberg.expressions import AlwaysFalse
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import IsolationLevel, Operation

from tableformat.commit.branch_history import (
    History,
    SnapshotChanges,
    name_snapshot,
    snapshots_between,
)
from tableformat.commit.changeset import Changeset, CommitKind
from tableformat.commit.matching import FileMatcher
from tableformat.errors import CommitConflictError
from tableformat.spec.data_file import DataFile, DeleteFileKey, FileContent, PartitionKey
from tableformat.spec.names import DELETE_FILE_PATH_FIELD_ID
from tableformat.spec.unpartitioned import is_unpartitioned

NAMED_FILES_MAX = 20  # per snapshot, in `CommitConflictError.conflicts`


class Check(StrEnum):
    """Letters of the matrix."""

    REMOVED = "R"
    FILES = "F"
    EQUALITY_DELETES = "E"
    DELETED_ROWS = "D"
    PHANTOMS = "P"


CHECKS: Mapping[CommitKind, frozenset[Check]] = {
    CommitKind.APPEND: frozenset(),
    CommitKind.ROW_DELTA: frozenset(
        {Check.FILES, Check.EQUALITY_DELETES, Check.DELETED_ROWS, Check.PHANTOMS}
    ),
    CommitKind.OVERWRITE: frozenset({Check.FILES, Check.EQUALITY_DELETES, Check.PHANTOMS}),
    CommitKind.REWRITE: frozenset({Check.FILES, Check.EQUALITY_DELETES}),
    CommitKind.DELETE: frozenset({Check.REMOVED, Check.PHANTOMS}),
}


@dataclass(frozen=True, slots=True)
class Clash:
    """One reason why a landed snapshot and our change exclude each other."""

    check: Check
    what: str
    location: str


def check_conflicts(
    metadata: TableMetadata, changeset: Changeset, *, head_id: int | None, history: History
) -> None:
    """Compare `changeset` with every snapshot of the branch since its scan.

    Args:
        metadata: The table as it is now.
        changeset: What we want to do.
        head_id: The branch's head that the commit will build on.
        history: Loads what snapshots changed.

    Raises:
        CommitConflictError: Something landed that excludes it, or what landed cannot be told;
            `conflicts` names snapshots, operations and files.

    Effects: reads the manifest list and the own manifests of each snapshot in between.
    """
    checks = _checks_that_apply(changeset)
    if not checks or (changeset.strict_head and _start(changeset) is None):
        return
    touched, specs = _Touched.of(changeset), metadata.specs()
    matcher = _matcher(metadata, changeset, checks)
    known_vectors: set[str] = set()
    conflicts: list[str] = []
    letters: set[Check] = set()
    window = snapshots_between(
        metadata, starting_id=_start(changeset), head_id=head_id, branch=changeset.branch
    )
    for snapshot in window:  # newest first
        changes = history.changes(snapshot)
        clashes = list(_clashes(changes, checks, touched, matcher, known_vectors, specs))
        letters.update(clash.check for clash in clashes)
        conflicts.extend(
            f"{name_snapshot(snapshot)} {clash.what}: {clash.location}"
            for clash in clashes[:NAMED_FILES_MAX]
        )
    if conflicts:
        raise CommitConflictError(
            f"{changeset.kind.value} conflicts with what landed since its scan",
            conflicts=conflicts,
            action="plan again on the current head",
            branch=changeset.branch,
            starting_snapshot_id=_start(changeset),
            checks="".join(sorted(letters)),
            count=len(conflicts),
            first=conflicts[0],
        )


def referenced_data_files(changeset: Changeset) -> frozenset[str]:
    """Existing data files whose positions the change uses, those of its vectors always included."""
    vectors = {str(f.referenced_data_file) for f in changeset.added_delete_files if f.is_dv}
    own = {file.file_path for file in changeset.added_data_files}
    return frozenset((changeset.validation.referenced_data_files | vectors) - own)


def _start(changeset: Changeset) -> int | None:
    return changeset.validation.starting_snapshot_id


def _checks_that_apply(changeset: Changeset) -> frozenset[Check]:
    validation = changeset.validation
    checks = set(CHECKS[changeset.kind])
    if validation.isolation != IsolationLevel.SERIALIZABLE:
        checks -= {Check.PHANTOMS, Check.DELETED_ROWS}
    if validation.allow_new_deletes:
        checks.discard(Check.DELETED_ROWS)
    if changeset.kind == CommitKind.REWRITE and changeset.data_sequence_number is not None:
        checks.discard(Check.EQUALITY_DELETES)
    if _Touched.of(changeset).is_empty or validation.starting_snapshot_id is None:
        # Without a scan's snapshot no history says what the caller knew; the head does, and the
        # engine looks there anyway (removal.py).
        checks -= {Check.FILES, Check.REMOVED}
        if validation.isolation is None:
            checks.discard(Check.EQUALITY_DELETES)
    return frozenset(checks)


def _matcher(
    metadata: TableMetadata, changeset: Changeset, checks: frozenset[Check]
) -> FileMatcher:
    """The filter of the statement; one that matches nothing when rows are not to be looked at."""
    by_rows = checks & {Check.PHANTOMS, Check.DELETED_ROWS, Check.EQUALITY_DELETES}
    if not by_rows or changeset.validation.isolation is None:
        return FileMatcher(metadata, AlwaysFalse())
    validation = changeset.validation
    return FileMatcher(
        metadata, validation.conflict_filter, partitions=validation.conflict_partitions
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Touched:
    """The existing files our change depends on."""

    removed: frozenset[DeleteFileKey]
    removed_data: Mapping[str, DataFile]
    referenced: frozenset[str]
    given_vectors: frozenset[str]
    rows_by_filter: bool

    @classmethod
    def of(cls, changeset: Changeset) -> _Touched:
        validation = changeset.validation
        removed = [entry.data_file for entry in changeset.removed_entries]
        own = {file.file_path for file in changeset.added_data_files}
        vectors = {str(f.referenced_data_file) for f in changeset.added_delete_files if f.is_dv}
        return cls(
            removed=frozenset(file.identity for file in removed),
            removed_data={f.file_path: f for f in removed if f.content == FileContent.DATA},
            referenced=referenced_data_files(changeset),
            given_vectors=frozenset(vectors - own),
            rows_by_filter=changeset.kind == CommitKind.ROW_DELTA
            and not validation.allow_new_deletes,
        )

    @property
    def is_empty(self) -> bool:
        return not (self.removed or self.referenced)

    @property
    def removed_partitions(self) -> frozenset[PartitionKey]:
        return frozenset(file.partition_key for file in self.removed_data.values())


def _clashes(
    changes: SnapshotChanges,
    checks: frozenset[Check],
    touched: _Touched,
    matcher: FileMatcher,
    known_vectors: set[str],
    specs: Mapping[int, PartitionSpec],
) -> Iterator[Clash]:
    if Check.REMOVED in checks or Check.FILES in checks:
        yield from _removed_files(changes, checks, touched)
    if Check.FILES in checks:
        yield from _new_vectors(changes, touched, known_vectors)
    if changes.operation == Operation.REPLACE:
        return  # the same rows in other files
    if Check.EQUALITY_DELETES in checks:
        yield from _new_equality_deletes(changes, touched, matcher, specs)
    if Check.DELETED_ROWS in checks:
        yield from _deleted_rows(changes, matcher)
    if Check.PHANTOMS in checks:
        for entry in changes.added_data:
            if matcher.may_match(entry.data_file):
                what = "added rows that may match"
                yield Clash(Check.PHANTOMS, what, entry.data_file.file_path)


def _removed_files(
    changes: SnapshotChanges, checks: frozenset[Check], touched: _Touched
) -> Iterator[Clash]:
    letter = Check.FILES if Check.FILES in checks else Check.REMOVED
    for entry in changes.removed:
        file = entry.data_file
        if file.identity in touched.removed:
            yield Clash(letter, "removed a file to remove", file.file_path)
        elif (
            letter == Check.FILES
            and file.content == FileContent.DATA
            and file.file_path in touched.referenced
        ):
            yield Clash(letter, "removed a referenced data file", file.file_path)


def _new_vectors(
    changes: SnapshotChanges, touched: _Touched, known_vectors: set[str]
) -> Iterator[Clash]:
    """Vectors and position deletes on files that we remove or give a vector to.

    Going back in time, only the newest vector of a data file counts: one that we replace was seen
    by the scan, and so was everything before it (iceberg #17764).
    """
    targets = touched.given_vectors | touched.removed_data.keys()
    for entry in changes.added_deletes:
        file = entry.data_file
        if file.content != FileContent.POSITION_DELETES:
            continue
        referenced = file.referenced_data_file
        if file.identity in touched.removed:
            if referenced is not None:
                known_vectors.add(referenced)
        elif referenced is None:
            for path in _listed_files(file, touched):
                yield Clash(Check.FILES, "added position deletes for", path)
        elif referenced in targets and referenced not in known_vectors:
            yield Clash(Check.FILES, "added a deletion vector for", referenced)


def _listed_files(file: DataFile, touched: _Touched) -> Iterator[str]:
    """Files that a v2 position delete file may list: same partition, path within its bounds."""
    low = (file.lower_bounds or {}).get(DELETE_FILE_PATH_FIELD_ID)
    high = (file.upper_bounds or {}).get(DELETE_FILE_PATH_FIELD_ID)
    for path, data_file in touched.removed_data.items():
        encoded = path.encode()
        if data_file.partition_key != file.partition_key:
            continue
        if (low is None or low <= encoded) and (high is None or encoded[: len(high)] <= high):
            yield path


def _new_equality_deletes(
    changes: SnapshotChanges,
    touched: _Touched,
    matcher: FileMatcher,
    specs: Mapping[int, PartitionSpec],
) -> Iterator[Clash]:
    removed_partitions = touched.removed_partitions
    for entry in changes.added_deletes:
        file = entry.data_file
        if file.content != FileContent.EQUALITY_DELETES:
            continue
        is_global = is_unpartitioned(specs[file.spec_id])
        on_removed = removed_partitions and (is_global or file.partition_key in removed_partitions)
        on_filter = touched.rows_by_filter and matcher.partition_may_match(file)
        if on_removed or on_filter:
            what = "added equality deletes that may apply"
            yield Clash(Check.EQUALITY_DELETES, what, file.file_path)


def _deleted_rows(changes: SnapshotChanges, matcher: FileMatcher) -> Iterator[Clash]:
    for entry in changes.added_deletes:
        file = entry.data_file
        if file.content == FileContent.POSITION_DELETES and matcher.partition_may_match(file):
            what = "deleted rows that may match"
            yield Clash(Check.DELETED_ROWS, what, file.referenced_data_file or file.file_path)
    for entry in changes.removed:
        file = entry.data_file
        if file.content == FileContent.DATA and matcher.may_match(file):
            yield Clash(Check.DELETED_ROWS, "removed rows that may match", file.file_path)
