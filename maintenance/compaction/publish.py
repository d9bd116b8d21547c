"""Commit rewritten groups: rebase onto the head, compare-and-swap, again while others are faster.

1. load the table, rebase the groups onto the head of the branch
2. write deletion vectors for rows that died meanwhile
3. one REWRITE commit, only if the head is still that one; on a lost race from 1 again

A crash before 3 leaves unreferenced files for orphan removal; after it the compaction is done.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from lock import LockError
from maintenance.compaction.rebase import Rebased, rebase_group
from maintenance.compaction.rewrite import RewrittenGroup
from maintenance.tasks.base import TaskRun
from tableformat.catalog.base import TableState
from tableformat.commit.changeset import Changeset, CommitKind, Validation
from tableformat.commit.engine import CommitResult, commit
from tableformat.errors import CommitConflictError, TableError
from tableformat.files.dv_file import DeletionVector, write_deletion_vectors
from tableformat.paths import puffin_locations
from tableformat.spec.data_file import DataFile
from tableformat.spec.properties import dv_placement

ATTEMPTS_MAX = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedGroups:
    """A commit that is in the table.

    Attributes:
        result: The commit.
        rebased: What was committed with the new files.
        added: The new files that live.
        attempts: Commits tried; more than 1 means that others committed meanwhile.
    """

    result: CommitResult
    rebased: tuple[Rebased, ...]
    added: tuple[DataFile, ...]
    attempts: int


def publish_groups(run: TaskRun, branch: str, groups: Sequence[RewrittenGroup]) -> PublishedGroups:
    """Replace the old files of `groups` by the new ones, in one commit.

    Args:
        run: Table, lease.
        branch: The branch.
        groups: At least one.

    Raises:
        CommitConflictError: The groups must be planned again; see `rebase_group`.
        CommitUnknownError: The commit may have landed; nothing was deleted.
        FencedError, lock.LeaseLostError: Someone else has taken over.

    Effects: Puffin files, then the commit. New files that a known outcome leaves out are deleted.
    """
    return _Publish(run, branch, groups).until_landed()


@dataclass(slots=True)
class _Publish:
    run: TaskRun
    branch: str
    groups: Sequence[RewrittenGroup]
    _vectors: list[DeletionVector] = field(default_factory=list)
    _entries: list[DataFile] = field(default_factory=list)
    _locations: set[str] = field(default_factory=set)

    def until_landed(self) -> PublishedGroups:
        environment = self.run.environment
        attempt = 0
        while True:
            attempt += 1
            try:
                state = self.run.refresh()
                rebased = [
                    rebase_group(environment, state, self.branch, group) for group in self.groups
                ]
                changeset = self._changeset(state, rebased)
            except (TableError, LockError):
                # Whatever was tried before has definitely failed: no snapshot names our files.
                self._delete(self._new_files())
                raise
            environment.runtime.fail_point("compact.before_commit")
            try:
                result = commit(environment, self.run.identifier, changeset, state=state)
            except CommitConflictError:
                if attempt < ATTEMPTS_MAX:
                    continue
                self._delete(self._new_files())
                raise
            except TableError as error:
                if error.files_safe_to_delete:
                    self._delete(self._new_files())
                raise
            environment.runtime.fail_point("compact.after_commit")
            self._delete(self._new_files() - _named(changeset))
            return PublishedGroups(
                result=result,
                rebased=tuple(rebased),
                added=changeset.added_data_files,
                attempts=attempt,
            )

    def _changeset(self, state: TableState, rebased: Sequence[Rebased]) -> Changeset:
        dead = {path for each in rebased for path in each.dead_files}
        head = state.head(self.branch)
        assert head is not None
        self._write_vectors(state, [vector for each in rebased for vector in each.vectors])
        return Changeset(
            kind=CommitKind.REWRITE,
            branch=self.branch,
            added_data_files=tuple(
                file for group in self.groups for file in group.files if file.file_path not in dead
            ),
            added_delete_files=tuple(self._entries),
            removed_entries=tuple(entry for each in rebased for entry in each.removed),
            validation=Validation(starting_snapshot_id=head.snapshot_id),
            expected_head=head.snapshot_id,
            strict_head=True,
            fence=self.run.fence(),
        )

    def _write_vectors(self, state: TableState, vectors: list[DeletionVector]) -> None:
        if vectors == self._vectors:
            return
        environment, metadata = self.run.environment, state.metadata
        self._entries = write_deletion_vectors(
            environment.store,
            vectors,
            location_for=puffin_locations(metadata, environment.runtime.ids),
            placement=dv_placement(metadata.properties),
            bounds_of=metadata.schema().identifier_field_ids,
        )
        self._vectors = vectors
        self._locations.update(entry.file_path for entry in self._entries)

    def _new_files(self) -> set[str]:
        return self._locations | {file.file_path for group in self.groups for file in group.files}

    def _delete(self, locations: set[str]) -> None:
        """Best effort; what is left behind is found by orphan removal."""
        if locations:
            with suppress(TableError):
                self.run.environment.store.delete(sorted(locations))


def _named(changeset: Changeset) -> set[str]:
    files = (*changeset.added_data_files, *changeset.added_delete_files)
    return {file.file_path for file in files}
