"""Commit rewritten groups: rebase onto the head, compare-and-swap, again while others are faster.

1. load the table, rebase each group onto the head of the branch; leave out those that do not fit
2. write deletion vectors (v2: position deletes) for rows that died meanwhile
3. one REWRITE commit of the rest, only if the head is still that one; on a lost race from 1 again

A crash before 3 leaves unreferenced files for orphan removal; after it the compaction is done.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from lock import LockError
from maintenance.tasks.base import TaskRun
from maintenance.tasks.compaction.rebase import Rebase, Rebased, rebase_groups
from maintenance.tasks.compaction.rewrite import RewrittenGroup
from tableformat.catalog.base import TableState
from tableformat.codec.puffin.dv_file import DeletionVector
from tableformat.commit.changeset import Changeset, CommitKind, Validation
from tableformat.commit.engine import CommitResult, commit
from tableformat.errors import CommitConflictError, TableError
from tableformat.spec.data_file import DataFile
from tableformat.write.row_deletes import deletes_written_together, write_row_deletes

ATTEMPTS_MAX = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedGroups:
    """What became of the groups; keys are their places in the call.

    Attributes:
        result: The commit; None: every group was left out, and nothing was committed.
        rebased: What was committed with the new files.
        left_out: Groups that others have changed; the next run plans them again.
        added: The new files that live.
        attempts: Commits tried; more than 1 means that others committed meanwhile.
    """

    result: CommitResult | None
    rebased: Mapping[int, Rebased]
    left_out: Mapping[int, TableError]
    added: tuple[DataFile, ...]
    attempts: int


def publish_groups(run: TaskRun, branch: str, groups: Sequence[RewrittenGroup]) -> PublishedGroups:
    """Replace the old files of `groups` by the new ones, in one commit.

    Args:
        run: Table, lease.
        branch: The branch.
        groups: At least one. Those that do not fit the head any more are left out.

    Raises:
        CommitConflictError: Others were faster `ATTEMPTS_MAX` times.
        CommitUnknownError: The commit may have landed; nothing was deleted.
        FencedError, lock.LeaseLostError: Someone else has taken over.

    Effects: delete files, then the commit. New files that a known outcome leaves out are deleted.
    """
    return _Publish(run, branch, dict(enumerate(groups))).until_landed()


def delete_new_files(run: TaskRun, locations: Iterable[str]) -> None:
    """Delete files that no commit names. Best effort: orphan removal finds what is left behind."""
    wanted = sorted(locations)
    if wanted:
        with suppress(TableError):
            run.environment.store.delete(wanted)


@dataclass(slots=True)
class _Publish:
    run: TaskRun
    branch: str
    groups: Mapping[int, RewrittenGroup]
    _rebase: Rebase = field(default_factory=lambda: Rebase(head_id=None, fitting={}, left_out={}))
    _left_out: dict[int, TableError] = field(default_factory=dict)
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
                self._hold_against(state)
                if not self._rebase.fitting:
                    delete_new_files(self.run, self._new_files())
                    return self._published(None, (), attempt - 1)
                changeset = self._changeset(state)
            except (TableError, LockError):
                # Whatever was tried before has definitely failed: no snapshot names our files.
                delete_new_files(self.run, self._new_files())
                raise
            environment.runtime.fail_point("compact.before_commit")
            try:
                result = commit(environment, self.run.identifier, changeset, state=state)
            except CommitConflictError:
                if attempt < ATTEMPTS_MAX:
                    continue
                delete_new_files(self.run, self._new_files())
                raise
            except TableError as error:
                if error.files_safe_to_delete:
                    delete_new_files(self.run, self._new_files())
                raise
            environment.runtime.fail_point("compact.after_commit")
            delete_new_files(self.run, self._new_files() - _named(changeset))
            return self._published(result, changeset.added_data_files, attempt)

    def _hold_against(self, state: TableState) -> None:
        """A group that was left out once stays out: its files may be back, with other rows."""
        wanted = {key: group for key, group in self.groups.items() if key not in self._left_out}
        self._rebase = rebase_groups(
            self.run.environment, state, self.branch, wanted, self._rebase.fitting
        )
        self._left_out.update(self._rebase.left_out)

    def _published(
        self, result: CommitResult | None, added: tuple[DataFile, ...], attempts: int
    ) -> PublishedGroups:
        return PublishedGroups(
            result=result,
            rebased=self._rebase.fitting,
            left_out=self._left_out,
            added=added,
            attempts=attempts,
        )

    def _changeset(self, state: TableState) -> Changeset:
        fitting, head_id = self._rebase.fitting, self._rebase.head_id
        dead = {path for each in fitting.values() for path in each.dead_files}
        vectors = [vector for each in fitting.values() for vector in each.vectors]
        self._write_vectors(state, vectors)
        return Changeset(
            kind=CommitKind.REWRITE,
            branch=self.branch,
            added_data_files=tuple(
                file
                for number in fitting
                for file in self.groups[number].files
                if file.file_path not in dead
            ),
            added_delete_files=tuple(self._entries),
            removed_entries=tuple(entry for each in fitting.values() for entry in each.removed),
            validation=Validation(starting_snapshot_id=head_id),
            expected_head=head_id,
            strict_head=True,
            fence=self.run.fence(),
        )

    def _write_vectors(self, state: TableState, vectors: list[DeletionVector]) -> None:
        if vectors == self._vectors:
            return
        metadata = state.metadata
        written = write_row_deletes(
            self.run.environment, metadata, deletes_written_together(metadata, vectors)
        )
        self._entries = [entry for group in written for entry in group]
        self._vectors = vectors
        self._locations.update(entry.file_path for entry in self._entries)

    def _new_files(self) -> set[str]:
        return self._locations | new_files(self.groups.values())


def new_files(groups: Iterable[RewrittenGroup]) -> set[str]:
    """Where the new files of groups are."""
    return {file.file_path for group in groups for file in group.files}


def _named(changeset: Changeset) -> set[str]:
    files = (*changeset.added_data_files, *changeset.added_delete_files)
    return {file.file_path for file in files}
