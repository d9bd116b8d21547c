"""Expire snapshots: forget them in one commit, then delete what nothing needs any more.

```
1. commit the removal of snapshots and refs (planned again in every attempt)
2. read the expired manifest lists; candidates = their manifests, files, lists, statistics
3. per batch: load the table again, check the fence, take out what any snapshot reaches, delete
```

Durable after a crash: after 1 the snapshots are gone and their files are orphans; during 3 some of
them are deleted. Files go before the manifests that name them, so the rest can be told apart by
orphan removal at any time. An unknown outcome of 1 deletes nothing (I10).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import RemoveSnapshotRefUpdate, RemoveSnapshotsUpdate, TableUpdate

from tableformat.catalog.base import Identifier, TableState
from tableformat.catalog.table_locations import check_own_folder
from tableformat.codec.avro.manifest_store import (
    each_manifest,
    each_snapshot,
    load_manifest_list,
    open_manifest,
)
from tableformat.codec.avro.named_files import wanted
from tableformat.commit.branch_history import snapshots_by_id
from tableformat.commit.carried_properties import check_fence, load_carried
from tableformat.commit.changeset import Fence
from tableformat.commit.expiry_plan import ExpiryPlan, ExpiryPolicy, plan_expiry
from tableformat.commit.reachability import Reachable, live_locations, statistics_locations
from tableformat.commit.swap import load_same_table, swap_until_settled
from tableformat.environment import Environment
from tableformat.errors import InvalidInputError, NotFoundError, TableError
from tableformat.spec.manifest_file import ManifestContent, ManifestFile
from tableformat.spec.names import MAIN_BRANCH
from tableformat.spec.properties import property_bool
from tableformat.store.base import ObjectStore
from tableformat.store.locations import READERS_MAX

DELETE_BATCH_SIZE = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiryReport:
    """What was done. `failed` are locations that could not be deleted; they are orphans now."""

    plan: ExpiryPlan
    state: TableState
    data_files: int = 0
    delete_files: int = 0
    manifests: int = 0
    manifest_lists: int = 0
    statistics_files: int = 0
    failed: tuple[str, ...] = ()


def apply_expiry(
    environment: Environment,
    identifier: Identifier,
    policy: ExpiryPolicy,
    *,
    fence: Fence | None,
    branch: str = MAIN_BRANCH,
    delete_files: bool = True,
    latest_ms: int | None = None,
    state: TableState | None = None,
) -> ExpiryReport:
    """Expire what `policy` lets go.

    Args:
        environment: Catalog, store, clock.
        identifier: The table.
        policy: What may go.
        fence: The holder's token, compared with those seen on `branch` before every batch. None
            only where nobody else can maintain the table: `maintenance.expire` holds its lease.
        branch: Where fence tokens are looked for.
        delete_files: Whether to delete objects too; without, they are left to orphan removal.
        latest_ms: Ages are counted to then, if this machine's clock says that it is later.
        state: A recent version of the table; None: it is loaded.

    Raises:
        CommitConflictError: The removal lost its swap too often, or another table has the name;
            nothing was deleted.
        CommitUnknownError: The removal may have landed; nothing was deleted.
        FencedError: A newer holder has committed; deleting stopped.
        TableError: Of a store or catalog that fails after the removal; its message says that the
            snapshots are gone.
        InvalidInputError: The table has `gc.enabled` = false, or a malformed property.
    """
    before = state or environment.catalog.load_table(identifier)
    check_owns_files(before, "expire snapshots")
    change = _Removal(environment, policy, fence, branch, latest_ms)
    outcome = swap_until_settled(environment, identifier, change, state=before)
    report = ExpiryReport(plan=change.plan, state=outcome.state)
    if not delete_files or not change.expired:
        return report
    try:
        return _delete_unreachable(environment, report, change, fence, branch)
    except TableError as error:
        error.message = (
            f"snapshots have expired ({len(change.expired)}), but files that nothing needs any "
            f"more are left to orphan removal: {error.message}"
        )
        raise


@dataclass(slots=True)
class _Removal:
    """`TableChange` that removes snapshots and refs."""

    environment: Environment
    policy: ExpiryPolicy
    fence: Fence | None
    branch: str
    latest_ms: int | None = None
    plan: ExpiryPlan = field(default_factory=lambda: ExpiryPlan(snapshot_ids=(), refs=()))
    expired: list[Snapshot] = field(default_factory=list)
    statistics: set[str] = field(default_factory=set)

    def prepare(self, state: TableState) -> Sequence[TableUpdate]:
        """Plan on `state`."""
        _check_holder(state, self.fence, self.branch)
        metadata = state.metadata
        now_ms = self.environment.runtime.clock.now_ms()
        now_ms = now_ms if self.latest_ms is None else min(now_ms, self.latest_ms)
        self.plan = plan_expiry(metadata, self.policy, now_ms=now_ms)
        by_id = snapshots_by_id(metadata)
        self.expired = [by_id[snapshot_id] for snapshot_id in self.plan.snapshot_ids]
        self.statistics = statistics_locations(metadata)
        updates: list[TableUpdate] = [
            RemoveSnapshotRefUpdate(ref_name=name) for name in self.plan.refs
        ]
        if self.expired:
            updates.append(RemoveSnapshotsUpdate(snapshot_ids=list(self.plan.snapshot_ids)))
        return updates

    def has_landed(self, state: TableState) -> bool:
        """Whether all of the plan is gone from the table, by whoever."""
        left = {each.snapshot_id for each in state.metadata.snapshots}
        planned = self.plan.snapshot_ids or self.plan.refs
        return (
            bool(planned)
            and left.isdisjoint(self.plan.snapshot_ids)
            and not any(name in state.metadata.refs for name in self.plan.refs)
        )

    def context(self) -> dict[str, object]:
        """How many snapshots."""
        return {"expiring_snapshots": len(self.plan.snapshot_ids)}


@dataclass(slots=True)
class _Candidates:
    """Locations that only expired snapshots may have needed.

    A file may be live under other numbers in a remaining snapshot, because one branch's files are
    added again on another; so nothing but its location, in every remaining manifest, tells.
    """

    store: ObjectStore
    reachable: Reachable
    unread: list[ManifestFile] = field(default_factory=list)
    data_files: set[str] = field(default_factory=set)
    delete_files: set[str] = field(default_factory=set)
    manifests: set[str] = field(default_factory=set)
    manifest_lists: set[str] = field(default_factory=set)
    statistics_files: set[str] = field(default_factory=set)

    def add(self, expired: Iterable[Snapshot], state: TableState) -> None:
        """Add all that expired snapshots needed and `state` does not."""
        found: dict[str, ManifestFile] = {}
        expired = list(expired)
        self.manifest_lists |= {each.manifest_list for each in expired}
        for listed in each_snapshot(self._listed, expired):
            found.update({each.manifest_path: each for each in listed})
        self.manifests.update(found)
        self.take_out(state)
        own = [found[path] for path in sorted(self.manifests) if found[path].has_live_files]
        for manifest, live in zip(own, each_manifest(self._live, own), strict=True):
            is_data = manifest.content == ManifestContent.DATA
            (self.data_files if is_data else self.delete_files).update(live)

    def take_out(self, state: TableState) -> None:
        """Drop what `state` needs. Reads only lists and manifests not read before."""
        self.unread += self.reachable.add_snapshots(state.metadata.snapshots)
        self.manifests -= self.reachable.manifests.keys()
        self.manifest_lists -= self.reachable.manifest_lists
        self.statistics_files -= statistics_locations(state.metadata)

    def take_out_content(self) -> None:
        """Drop files that a remaining manifest has live; stops reading when none are left.

        Cost: decodes those manifests that name one of them.
        """
        names = wanted(self.data_files | self.delete_files)

        def named(manifest: ManifestFile) -> set[str]:
            # What is not told by its own name may be spelled in another way there (R75).
            if names.others or open_manifest(self.store, manifest).may_name(names):
                return live_locations(self.store, manifest)
            return set()

        while self.unread and (self.data_files or self.delete_files):
            part = self.unread[-READERS_MAX:]
            for live in each_manifest(named, part):
                self.data_files -= live
                self.delete_files -= live
            del self.unread[-len(part) :]

    def _listed(self, snapshot: Snapshot) -> list[ManifestFile]:
        # A list that is gone was deleted by an earlier run, after all that it names.
        with suppress(NotFoundError):
            return load_manifest_list(self.store, snapshot)
        return []

    def _live(self, manifest: ManifestFile) -> set[str]:
        with suppress(NotFoundError):
            return live_locations(self.store, manifest)
        return set()


def _delete_unreachable(
    environment: Environment,
    report: ExpiryReport,
    change: _Removal,
    fence: Fence | None,
    branch: str,
) -> ExpiryReport:
    candidates = _Candidates(environment.store, Reachable(environment.store))
    candidates.statistics_files |= change.statistics
    candidates.add(change.expired, report.state)
    candidates.take_out_content()
    failed: list[str] = []
    counts: dict[str, int] = {}
    for name in ("data_files", "delete_files", "manifests", "manifest_lists", "statistics_files"):
        locations = sorted(getattr(candidates, name))
        for start in range(0, len(locations), DELETE_BATCH_SIZE):
            state = load_same_table(environment, report.state)
            _check_holder(state, fence, branch)
            candidates.take_out(state)
            candidates.take_out_content()
            still: set[str] = getattr(candidates, name)
            batch = [each for each in locations[start : start + DELETE_BATCH_SIZE] if each in still]
            counts[name] = counts.get(name, 0) + _delete(environment.store, batch, failed)
    return ExpiryReport(plan=report.plan, state=report.state, failed=tuple(failed), **counts)


def _delete(store: ObjectStore, batch: Sequence[str], failed: list[str]) -> int:
    if not batch:
        return 0
    try:
        store.delete(batch)
    except TableError:
        failed.extend(batch)
        return 0
    return len(batch)


def check_owns_files(state: TableState, what: str) -> None:
    """Refuse to do `what` with a table whose files are not its own, by its word or its place."""
    check_own_folder(state, what)
    if not property_bool(state.metadata.properties, "gc.enabled", default=True):
        raise InvalidInputError(
            f"cannot {what}: the table's files may belong to other tables too",
            action="set gc.enabled only if they do not",
            table=state.name,
        )


def _check_holder(state: TableState, fence: Fence | None, branch: str) -> None:
    ref = state.ref(branch)
    head_id = None if ref is None else ref.snapshot_id
    carried = load_carried(snapshots_by_id(state.metadata), head_id)
    check_fence(fence, carried, branch=branch)
