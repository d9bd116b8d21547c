"""What each maintenance task did, or in a dry run would do. Data only."""

from __future__ import annotations

from dataclasses import dataclass, field

from maintenance.tasks.base import TaskReport


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
        yields: How often a waiting task was let through.
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
    yields: int = 0
    errors: tuple[str, ...] = ()

    def outcome(self) -> str:
        """See `TaskReport`."""
        written = "" if self.dry_run else f" -> {self.added_data_files} ({_mb(self.added_bytes)})"
        failed = f", {self.failed_groups} groups failed" if self.failed_groups else ""
        return (
            f"{self.removed_data_files} files ({_mb(self.removed_bytes)}){written} in "
            f"{self.groups} groups, {self.deleted_rows:,} deleted rows dropped{failed}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteVectorsReport(TaskReport):
    """One rewrite of deletion vectors; `folded_files` are position delete files turned into DVs."""

    removed_puffin_files: int = 0
    added_puffin_files: int = 0
    vectors: int = 0
    folded_files: int = 0
    removed_bytes: int = 0
    added_bytes: int = 0
    commits: tuple[int, ...] = ()

    def outcome(self) -> str:
        """See `TaskReport`."""
        return f"{self.vectors} vectors of {self.removed_puffin_files} Puffin files"


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteManifestsReport(TaskReport):
    """One rewrite of manifests."""

    removed_manifests: int = 0
    added_manifests: int = 0
    removed_bytes: int = 0
    added_bytes: int = 0
    entries: int = 0
    commits: tuple[int, ...] = ()

    def outcome(self) -> str:
        """See `TaskReport`."""
        return f"{self.removed_manifests} manifests -> {self.added_manifests}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpireReport(TaskReport):
    """One expiry.

    Attributes:
        snapshots, refs: Forgotten.
        protected_snapshots: Old enough to go, kept because they are staged and not published.
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
        return (
            f"{len(self.snapshots)} snapshots, {len(self.refs)} refs, {self.data_files} data, "
            f"{self.delete_files} delete and {self.manifests + self.manifest_lists} metadata files"
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
        return f"remove {self.orphan_files} of {self.listed_files} files ({_mb(self.orphan_bytes)})"


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
            f"drop {self.equality_delete_files} equality delete files, "
            f"{self.position_delete_files} position delete files, {self.vectors} vectors"
        )


def _mb(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:,.1f} MB"
