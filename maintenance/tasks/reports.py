"""What each maintenance task did, or in a dry run would do. Data only."""

from __future__ import annotations

from dataclasses import dataclass, field

from maintenance.tasks.base import TaskReport
from resolver.number_text import bytes_text, plural


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactReport(TaskReport):
    """One compaction.

    Attributes:
        engine: `arrow` (this process) or `spark`.
        groups, committed_groups: Planned; rewritten and committed.
        failed_groups: Left as they were; `errors` says why.
        removed_data_files, removed_bytes, removed_dvs: What the new files replace.
        added_data_files, added_bytes: The new files.
        rows: Rows written.
        deleted_rows: Rows that were not written because deletes had killed them.
        commits: Snapshots published, oldest first.
        rebases: How often a commit was redone because others had deleted rows meanwhile.
        rebased_rows: Rows that those deletes reached in the new files.
    """

    engine: str = "arrow"
    groups: int = 0
    committed_groups: int = 0
    failed_groups: int = 0
    removed_data_files: int = 0
    removed_bytes: int = 0
    removed_dvs: int = 0
    added_data_files: int = 0
    added_bytes: int = 0
    rows: int = 0
    deleted_rows: int = 0
    commits: tuple[int, ...] = ()
    rebases: int = 0
    rebased_rows: int = 0
    errors: tuple[str, ...] = ()

    @property
    def failed(self) -> bool:
        """See `TaskReport`."""
        return self.failed_groups > 0 and not self.changed

    def outcome(self) -> str:
        """See `TaskReport`."""
        text = f"{plural(self.removed_data_files, 'file')} ({bytes_text(self.removed_bytes)})"
        if not self.dry_run:
            text += f" -> {self.added_data_files:,} ({bytes_text(self.added_bytes)})"
        text += f" in {plural(self.groups, 'group')}, "
        text += f"{plural(self.deleted_rows, 'deleted row')} dropped"
        if self.failed_groups:
            text += f", {plural(self.failed_groups, 'group')} failed: {'; '.join(self.errors[:1])}"
        return text


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteVectorsReport(TaskReport):
    """One rewrite of deletion vectors; `folded_files` are position delete files turned into DVs.

    On a v2 table there are position delete files only: those removed, and those added for them.
    """

    removed_puffin_files: int = 0
    added_puffin_files: int = 0
    vectors: int = 0
    folded_files: int = 0
    removed_position_delete_files: int = 0
    added_position_delete_files: int = 0
    removed_bytes: int = 0
    added_bytes: int = 0
    commits: tuple[int, ...] = ()

    def outcome(self) -> str:
        """See `TaskReport`."""
        if self.removed_position_delete_files:
            removed = plural(self.removed_position_delete_files, "position delete file")
            return f"{removed} -> {self.added_position_delete_files:,}"
        vectors = plural(self.vectors, "vector")
        folded = f", {plural(self.folded_files, 'position delete file')}"
        return (
            f"{vectors} of {plural(self.removed_puffin_files, 'Puffin file')}"
            f"{folded if self.folded_files else ''}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteManifestsReport(TaskReport):
    """One rewrite of manifests.

    Attributes:
        repeated_files: Times that a data file was listed once more, which it is no longer.
    """

    removed_manifests: int = 0
    added_manifests: int = 0
    removed_bytes: int = 0
    added_bytes: int = 0
    entries: int = 0
    repeated_files: int = 0
    commits: tuple[int, ...] = ()

    def outcome(self) -> str:
        """See `TaskReport`."""
        told = f"{plural(self.removed_manifests, 'manifest')} -> {self.added_manifests:,}"
        again = f", {plural(self.repeated_files, 'repeated file')} left out"
        return told + again * bool(self.repeated_files)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpireReport(TaskReport):
    """One expiry.

    Attributes:
        snapshots, refs: Forgotten.
        protected_snapshots: Old enough to go, kept for what is staged, or for a streaming writer.
        data_files, delete_files, manifests, manifest_lists, statistics_files: Deleted objects.
        failed_files: Could not be deleted; orphan removal finds them.
    """

    snapshots: tuple[int, ...] = ()
    refs: tuple[str, ...] = ()
    protected_snapshots: int = 0
    data_files: int = 0
    delete_files: int = 0
    manifests: int = 0
    manifest_lists: int = 0
    statistics_files: int = 0
    failed_files: int = 0

    def outcome(self) -> str:
        """See `TaskReport`."""
        forgotten = f"{plural(len(self.snapshots), 'snapshot')}, {plural(len(self.refs), 'ref')}"
        if self.dry_run:
            return forgotten
        return (
            f"{forgotten}, {plural(self.data_files, 'data file')}, "
            f"{plural(self.delete_files, 'delete file')}, "
            f"{plural(self.manifests + self.manifest_lists, 'metadata file')}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveOrphansReport(TaskReport):
    """One orphan removal.

    Attributes:
        listed_files: Objects found under the table's prefixes.
        referenced_files: Of them, needed by the table.
        young_files: Unreferenced, but too young to judge.
        orphan_files, orphan_bytes: Orphans found.
        removed_files: Orphans deleted.
        failed_files: Orphans that could not be deleted.
        locations: The first of them.
    """

    listed_files: int = 0
    referenced_files: int = 0
    young_files: int = 0
    orphan_files: int = 0
    orphan_bytes: int = 0
    removed_files: int = 0
    failed_files: int = 0
    locations: tuple[str, ...] = field(default=())

    def outcome(self) -> str:
        """See `TaskReport`."""
        found = f"{self.orphan_files:,}" if self.dry_run else f"deleted {self.removed_files:,}"
        failed = f", {self.failed_files:,} could not be deleted" if self.failed_files else ""
        return (
            f"{found} of {plural(self.listed_files, 'file')} "
            f"({bytes_text(self.orphan_bytes)}){failed}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DropDeadDeletesReport(TaskReport):
    """One removal of delete files that reach nothing."""

    equality_delete_files: int = 0
    position_delete_files: int = 0
    vectors: int = 0
    removed_bytes: int = 0
    commits: tuple[int, ...] = ()

    def outcome(self) -> str:
        """See `TaskReport`."""
        return (
            f"{plural(self.equality_delete_files, 'equality delete file')}, "
            f"{plural(self.position_delete_files, 'position delete file')}, "
            f"{plural(self.vectors, 'vector')}"
        )
