"""`rewrite_manifests`: data manifests of the target size, each about few partitions.

Commits merge small manifests in the order they came, so in a partitioned table every manifest
spans many partitions and a scan of one has to read them all. Here the entries are ordered by
partition and cut anew. Delete manifests are left alone: they are kept small on purpose and merged
by every commit (`tableformat.commit.merging`).

The commit changes no file: entries keep their sequence numbers and row ids. On a lost race only
manifests that others have replaced meanwhile are read and written again. A data file that is listed
several times (Iceberg's cherry-pick beside the publish of the same staged snapshot), so that every
reader has its rows as often, is listed once from then on, as it was first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation

from maintenance.tasks.base import TaskRun, check_branch, maintenance_task
from maintenance.tasks.options import RewriteManifestsOptions
from maintenance.tasks.reports import RewriteManifestsReport
from tableformat.codec.avro.manifest_store import each_manifest, load_manifest, load_manifest_list
from tableformat.commit.changeset import Changeset, CommitKind
from tableformat.commit.engine import commit_change
from tableformat.commit.manifests import ManifestWriter
from tableformat.commit.merging import UNLIMITED, MergePolicy, entry_count, merge_policy
from tableformat.commit.removal import Removal
from tableformat.commit.snapshot_change import SnapshotChange
from tableformat.spec.data_file import DataFile, EntryStatus, ManifestEntry
from tableformat.spec.manifest_file import ManifestContent, ManifestFile
from tableformat.store.base import ObjectStore

ONE_PIECE = MergePolicy(target_size_bytes=UNLIMITED)


@maintenance_task("rewrite-manifests", RewriteManifestsOptions())
def rewrite_manifests(run: TaskRun, options: RewriteManifestsOptions) -> RewriteManifestsReport:
    """Cluster the data manifests of a branch by partition.

    Raises:
        NotFoundError, InvalidInputError, UnsupportedError: See `base.check_branch`.
        CommitConflictError: The swap was lost too often (`commit.retry.num-retries`).
        CommitUnknownError: The commit may have landed.

    Effects: manifests, then one commit.
    """
    check_branch(run.table.state, options.branch, task=run.task)
    return _rewrite(run, options)


def _rewrite(run: TaskRun, options: RewriteManifestsOptions) -> RewriteManifestsReport:
    state, store = run.table.state, run.environment.store
    head = state.head(options.branch)
    before = [] if head is None else load_manifest_list(store, head)
    chosen = [each for kind in _chosen(before, state.metadata, options) for each in kind]
    added: Sequence[ManifestFile] = ()
    commits: tuple[int, ...] = ()
    repeated = 0
    if chosen and run.lease is not None:
        changeset = Changeset(
            kind=CommitKind.REWRITE,
            branch=options.branch,
            operation=Operation.REPLACE,
            fence=run.fence(),
        )
        change = _Clustering(run.environment, changeset, options=options)
        result = commit_change(run.environment, run.identifier, change, state)
        commits, added = (result.snapshot.snapshot_id,), change.clustered
        repeated = change.repeated
    return run.report(
        RewriteManifestsReport,
        changed=bool(chosen),
        removed_manifests=len(chosen),
        added_manifests=len(added),
        removed_bytes=sum(each.manifest_length for each in chosen),
        added_bytes=sum(each.manifest_length for each in added),
        entries=sum(map(entry_count, chosen)),
        repeated_files=repeated,
        commits=commits,
    )


@dataclass  # no slots: a second class object would break `super`
class _Clustering(SnapshotChange):
    """`TableChange` that replaces data manifests by others with the same live entries."""

    options: RewriteManifestsOptions = field(default_factory=RewriteManifestsOptions)
    clustered: list[ManifestFile] = field(default_factory=list)
    repeated: int = 0
    _first: frozenset[str] | None = None
    _read: dict[tuple[str, ...], list[ManifestEntry]] = field(default_factory=dict)
    _again: dict[tuple[str, ...], list[DataFile]] = field(default_factory=dict)
    _done: dict[tuple[str, ...], list[ManifestFile]] = field(default_factory=dict)

    def _plan_removal(self, metadata: TableMetadata, before: Sequence[ManifestFile]) -> Removal:
        """Nothing, but what is listed again: the totals of the summary count it."""
        again: list[DataFile] = []
        for kind in self._choose(metadata, before):
            paths = _paths(kind)
            if paths not in self._again:
                self._read[paths], self._again[paths] = self._entries(kind)
            again += self._again[paths]
        self.repeated = len(again)
        return Removal(by_manifest={}, files=tuple(again))

    def _entries(self, kind: Sequence[ManifestFile]) -> tuple[list[ManifestEntry], list[DataFile]]:
        """The live entries by partition, of each file the first; and what is listed once more."""
        once: dict[str, ManifestEntry] = {}
        entries = sorted(_live_entries(self.environment.store, kind), key=_by_partition)
        again = [
            entry.data_file
            for entry in entries
            if once.setdefault(entry.data_file.file_path, entry) is not entry
        ]
        return [*once.values()], again

    def _manifests(
        self,
        metadata: TableMetadata,
        before: Sequence[ManifestFile],
        removal: Removal,  # noqa: ARG002 - its files are left out of the clusters
        writer: ManifestWriter,
    ) -> list[ManifestFile]:
        chosen = self._choose(metadata, before)
        gone = {each.manifest_path for kind in chosen for each in kind}
        self.clustered = [new for kind in chosen for new in self._cluster(metadata, kind, writer)]
        kept = [each for each in before if each.has_live_files and each.manifest_path not in gone]
        return [*self.clustered, *kept]

    def _choose(
        self, metadata: TableMetadata, before: Sequence[ManifestFile]
    ) -> list[list[ManifestFile]]:
        """As in the first attempt, as far as they are still there: what others add can wait."""
        if self._first is None:
            chosen = _chosen(before, metadata, self.options)
            self._first = frozenset(each.manifest_path for kind in chosen for each in kind)
            return chosen
        left = [each for each in before if each.manifest_path in self._first]
        return _by_spec(left)

    def _cluster(
        self, metadata: TableMetadata, kind: Sequence[ManifestFile], writer: ManifestWriter
    ) -> list[ManifestFile]:
        paths = _paths(kind)
        key = (str(writer.snapshot_id), *paths)
        if key not in self._done:
            entries = self._read.pop(paths, None) or self._entries(kind)[0]
            per_manifest = _entries_per_manifest(kind, metadata, self.options)
            pieces = -(-len(entries) // per_manifest)
            size = -(-len(entries) // max(pieces, 1))
            self._done[key] = [
                new
                for start in range(0, len(entries), size)
                for new in writer.add(metadata, entries[start : start + size], ONE_PIECE)
            ]
        return self._done[key]


def _chosen(
    manifests: Sequence[ManifestFile], metadata: TableMetadata, options: RewriteManifestsOptions
) -> list[list[ManifestFile]]:
    """Data manifests to rewrite, by spec: those of a spec that has more than it needs."""
    chosen = []
    for kind in _by_spec(manifests):
        entries = sum(map(entry_count, kind))
        needed = -(-entries // _entries_per_manifest(kind, metadata, options))
        is_loose = len(kind) >= options.manifests_min and len(kind) > needed
        if is_loose or options.rewrite_all:
            chosen.append(kind)
    return chosen


def _paths(kind: Sequence[ManifestFile]) -> tuple[str, ...]:
    return tuple(each.manifest_path for each in kind)


def _by_spec(manifests: Sequence[ManifestFile]) -> list[list[ManifestFile]]:
    """Data manifests with live files, by partition spec."""
    specs: dict[int, list[ManifestFile]] = {}
    for manifest in manifests:
        if manifest.content == ManifestContent.DATA and manifest.has_live_files:
            specs.setdefault(manifest.partition_spec_id, []).append(manifest)
    return [kind for _, kind in sorted(specs.items())]


def _entries_per_manifest(
    kind: Sequence[ManifestFile], metadata: TableMetadata, options: RewriteManifestsOptions
) -> int:
    target = options.target_size_bytes or merge_policy(metadata.properties).target_size_bytes
    entries = sum(map(entry_count, kind))
    return max(target * entries // max(sum(each.manifest_length for each in kind), 1), 1)


def _live_entries(store: ObjectStore, manifests: Sequence[ManifestFile]) -> list[ManifestEntry]:
    return [
        replace(entry, status=EntryStatus.EXISTING)
        for entries in each_manifest(partial(load_manifest, store), manifests)
        for entry in entries
        if entry.is_live
    ]


def _by_partition(entry: ManifestEntry) -> tuple[Any, ...]:
    """Partition values, nulls first and NaN last; then age."""
    values = tuple(
        (0, 0) if value is None else (2, 0) if value != value else (1, value)
        for value in entry.data_file.partition
    )
    return (values, entry.sequence_number or 0, entry.data_file.file_path)
