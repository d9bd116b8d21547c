"""From row changes to one commit, validated from the snapshots in the scan context.

1. Primary keys that are written are held against the snapshot read (`key_check`), and so are
   IMMUTABLE columns that are enforced (`lookup.immutable_rows`).
2. Positions are merged with the deletes that are there: one vector per data file (I6).
3. A file without any row left goes as a whole. The others get a vector (merge-on-read), or are
   written again without the rows (copy-on-write).
4. One changeset: covered files, replaced files and vectors go; new files and vectors come.
5. Commit. After a definite failure the files written here are deleted, and only those (I10).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tableformat.catalog.base import TableState
from tableformat.codec.puffin.deletion_vector import Positions
from tableformat.codec.puffin.dv_file import DeletionVector, write_deletion_vectors
from tableformat.commit.changeset import Changeset, CommitKind
from tableformat.commit.engine import CommitResult, commit
from tableformat.commit.swap import check_same_table
from tableformat.environment import Environment
from tableformat.errors import TableError
from tableformat.lookup.immutable_rows import ImmutableCheck
from tableformat.paths import puffin_locations
from tableformat.rowlevel.changes import RowChanges, check_known
from tableformat.rowlevel.key_check import key_check
from tableformat.rowlevel.planning import OperationPlan, may_change_immutable
from tableformat.rowlevel.rewrite import FileRewrite
from tableformat.scan.delete_index import referenced_path
from tableformat.scan.file_source import FileSource
from tableformat.scan.plan import FileScanTask
from tableformat.scan.position_deletes import PositionDeletes
from tableformat.scan.reader import readers_of_tasks
from tableformat.side_by_side import run_ahead
from tableformat.spec.data_file import DataFile, ManifestEntry
from tableformat.spec.properties import WriteMode, dv_placement
from tableformat.sql.statement import RowLevelOperation

Rewriter = Callable[[Sequence[FileRewrite]], list[DataFile]]


@dataclass(slots=True)
class _FileChanges:
    """What happens to the existing files of the target."""

    removed: list[ManifestEntry] = field(default_factory=list)
    vectors: list[DeletionVector] = field(default_factory=list)
    rewrites: list[FileRewrite] = field(default_factory=list)


def commit_changes(
    environment: Environment, plan: OperationPlan, changes: RowChanges, rewrite: Rewriter
) -> CommitResult | None:
    """Commit what a statement found; None when there is nothing to change.

    Args:
        environment: Catalog, store, clock.
        plan: What was scanned; the commit is validated from there.
        changes: Rows that go and come.
        rewrite: Writes the surviving rows of files again, for copy-on-write.

    Raises:
        CommitConflictError: Something landed since planning that excludes it; nothing landed.
        CommitUnknownError: It may have landed; nothing was deleted.
        InvalidInputError: A primary key would be given to a second row (`rowlevel.key_check`), or
            an enforced IMMUTABLE constraint would be broken.
        TableError: Raised before the swap; nothing landed.

    Effects: 1. Puffin files or rewritten data files; 2. the commit. A crash before it leaves
    unreferenced files for orphan removal.
    """
    if changes.is_empty and not plan.covered:
        return None
    written = list(changes.files)
    try:
        check_known(changes.positions, (t.entry.data_file.file_path for t in plan.scan.tasks))
        check = _checked_rows(environment, plan, changes)
        files = _file_changes(environment, plan, changes)
        rewritten = rewrite(files.rewrites) if files.rewrites else []
        written += rewritten
        vectors = write_deletion_vectors(
            environment.store,
            files.vectors,
            location_for=puffin_locations(plan.state.metadata, environment.runtime.ids),
            placement=dv_placement(plan.state.metadata.properties),
            bounds_of=plan.state.metadata.schema().identifier_field_ids,
        )
        written += vectors
        environment.runtime.fail_point("rowlevel.before_commit")
        changeset = _changeset(plan, files, [*changes.files, *rewritten], vectors)
        state = environment.catalog.load_table(plan.state.identifier)
        check_same_table(state, plan.context.target.table_uuid)
        return commit(environment, plan.state.identifier, changeset, state=state, check=check)
    except TableError as error:
        if error.files_safe_to_delete:
            delete_written(environment, written)
        raise


def _checked_rows(
    environment: Environment, plan: OperationPlan, changes: RowChanges
) -> Callable[[TableState], None]:
    """Rows that come and go, held against the snapshot that was read; what each attempt repeats."""
    immutable = ImmutableCheck(
        environment=environment,
        state=plan.state,
        branch=plan.context.branch,
        files=changes.files,
        gone=changes.positions,
    )
    may_change = may_change_immutable(plan)
    try:
        keys = key_check(environment, plan, changes.files, changes.positions)
        if keys is not None:
            keys.check()
        if may_change:
            immutable.check()
    except TableError as error:
        error.files_safe_to_delete = True  # no commit was begun
        raise

    def check(state: TableState) -> None:
        if keys is not None:
            keys.check_head(state)
        if may_change:
            immutable.check_head(state)

    return check


def delete_written(environment: Environment, files: Sequence[DataFile]) -> None:
    """Remove files that no commit knows. Never raises; what stays is an orphan."""
    locations = sorted({file.file_path for file in files})
    try:
        if locations:
            environment.store.delete(locations)
    except TableError:
        return


def _file_changes(
    environment: Environment, plan: OperationPlan, changes: RowChanges
) -> _FileChanges:
    found = _FileChanges(removed=[task.entry for task in plan.covered])
    touched = [t for t in plan.scan.tasks if t.entry.data_file.file_path in changes.positions]
    source = FileSource(environment.store, plan.scan.specs, plan.scan.properties)
    deletes = PositionDeletes(source, touched)
    loaded = run_ahead(deletes.load, touched, at_once=readers_of_tasks(touched))
    for task, known in zip(touched, loaded, strict=True):
        dead = changes.positions[task.entry.data_file.file_path]
        if known is not None:
            dead = dead | known
        _add(found, task, dead, plan.context.mode)
    return found


def _add(found: _FileChanges, task: FileScanTask, dead: Positions, mode: WriteMode) -> None:
    file = task.entry.data_file
    if len(dead) == file.record_count:
        found.removed.append(task.entry)
    elif mode == WriteMode.COPY_ON_WRITE:
        found.removed.append(task.entry)
        found.rewrites.append(FileRewrite(task, dead))
    else:
        found.vectors.append(DeletionVector(file, dead))
        if task.dv is not None:
            found.removed.append(task.dv)
        # A vector takes over position deletes, but only those of this file alone may go.
        found.removed += [
            entry
            for entry in task.position_deletes
            if referenced_path(entry.data_file) == file.file_path
        ]


def _changeset(
    plan: OperationPlan,
    files: _FileChanges,
    added: Sequence[DataFile],
    vectors: Sequence[DataFile],
) -> Changeset:
    """The kind picks the row of the conflict matrix.

    Files that go protect their own rows. A statement that depends on other rows too (MERGE looks
    for rows that are not there, a sub-query reads the target) needs the stricter row.
    """
    context = plan.context
    looks_further = context.operation == RowLevelOperation.MERGE or context.rereads_target
    kind = CommitKind.ROW_DELTA if vectors or looks_further else CommitKind.OVERWRITE
    referenced = frozenset(vector.data_file.file_path for vector in files.vectors)
    # The first commit after an upgrade gives rows their ids; those that were read have none, so
    # that one must be this.
    read = plan.scan.snapshot
    lacks_ids = read is not None and read.first_row_id is None
    return Changeset(
        kind=kind,
        branch=context.branch,
        added_data_files=tuple(added),
        added_delete_files=tuple(vectors),
        removed_entries=tuple(files.removed),
        validation=context.validation(referenced),
        expected_head=context.target.snapshot_id if lacks_ids else None,
        strict_head=lacks_ids,
    )
