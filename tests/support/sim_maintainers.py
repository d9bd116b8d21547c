"""Who keeps the table small, or turns it back: expiry, rewrites, orphans, roll-back, upgrade."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from maintenance.tasks.compact import compact
from maintenance.tasks.drop_dead_deletes import drop_dead_deletes
from maintenance.tasks.options import (
    CompactOptions,
    RemoveOrphansOptions,
    RewriteManifestsOptions,
    RewriteVectorsOptions,
)
from maintenance.tasks.remove_orphans import remove_orphans
from maintenance.tasks.rewrite_manifests import rewrite_manifests
from maintenance.tasks.rewrite_vectors import rewrite_vectors
from tableformat import Table
from tableformat.commit.expire import apply_expiry
from tableformat.commit.expiry_plan import ExpiryPolicy
from tableformat.commit.refs import rollback
from tableformat.errors import CommitConflictError
from tableformat.store.base import ObjectInfo, ObjectStore
from tests.support.sim_operation import Operation
from tests.support.sim_schema import AMOUNT
from tests.support.sim_table import IDENTIFIER, SimTable
from tests.support.sim_world import Actor


@dataclass(eq=False)
class HeldStore:
    """A store whose own clock stands still: what it takes meanwhile it took at that time."""

    store: ObjectStore
    held_ms: int = 0

    def list_prefix(self, prefix: str) -> Iterator[ObjectInfo]:
        for info in self.store.list_prefix(prefix):
            yield replace(info, modified_ms=min(info.modified_ms, self.held_ms))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)


class Maintainers(SimTable):
    """Actors of the maintenance tasks, and the operator."""

    def expire(self, actor: Actor) -> None:
        environment = self.environment(actor)
        policy = ExpiryPolicy(max_snapshot_age_ms=4_000, min_snapshots_to_keep=2)
        while True:
            actor.sleep(actor.rng.random() * 10_000)
            with self.operation(actor, Operation(actor.name, "expire")):
                apply_expiry(environment, IDENTIFIER, policy, fence=None)

    def upgrade(self, actor: Actor) -> None:
        """To v3, when there is something to upgrade, until it is done."""
        load = self.table(self.environment(actor))
        while self.oracle.metadata["format-version"] < 3:
            actor.sleep(actor.rng.random() * 10_000)
            if actor.rng.random() < 0.5:
                with self.operation(actor, Operation(actor.name, "upgrade")):
                    load().upgrade()
        while True:
            actor.sleep(60_000)

    def roll_back(self, actor: Actor) -> None:
        environment = self.environment(actor)
        while True:
            actor.sleep(actor.rng.random() * 20_000)
            with self.operation(actor, Operation(actor.name, "rollback")):
                state = environment.catalog.load_table(IDENTIFIER)
                chain = [
                    s.snapshot_id
                    for s in state.metadata.snapshots
                    if s.snapshot_id in self.oracle.main
                ]
                if chain:
                    to = actor.rng.choice(chain[-4:])
                    rollback(environment, IDENTIFIER, snapshot_id=to)

    def rewrite(self, actor: Actor) -> None:
        """Compaction and the other rewrites: rows, row ids and last updates stay as they are."""
        load = self.table(self.environment(actor))
        # Position delete files of v2 are merged, of which a compaction leaves none.
        profile = self.world.profile
        often = "compact" if profile.v2 is None or profile.is_in_place else "vectors"
        while True:
            actor.sleep(actor.rng.random() * 5_000)
            operation = Operation(actor.name, "rewrite")
            with self.operation(actor, operation):
                match actor.rng.choice(["compact", often, often, "manifests", "vectors", "dead"]):
                    case "compact":
                        self.compact(actor, load(), operation)
                    case "manifests":
                        options = RewriteManifestsOptions(rewrite_all=True)
                        rewrite_manifests(load(), options, lock=self.lock, lock_timeout_ms=0)
                    case "vectors":
                        all_vectors = RewriteVectorsOptions(rewrite_all=True)
                        rewrite_vectors(load(), all_vectors, lock=self.lock, lock_timeout_ms=0)
                    case _:
                        drop_dead_deletes(load(), lock=self.lock, lock_timeout_ms=0)

    def compact(self, actor: Actor, table: Table, operation: Operation) -> None:
        strategy = actor.rng.choice(["bin-pack", "bin-pack", "sort"])
        amount = self.known(actor).by_id[AMOUNT]
        if strategy == "sort":
            operation.typed[amount.name] = "int"  # it looks up the name alone
        options = CompactOptions(
            rewrite_all=actor.rng.random() < 0.5,
            input_files_min=2,
            strategy=strategy,
            sort_by=(amount.name,) if strategy == "sort" else (),
            concurrent_groups_max=1,  # pools neither hand over nor fail
        )
        operation.is_lossy = self.world.profile.v2 is not None  # there are no row ids
        report = compact(table, options, lock=self.lock, lock_timeout_ms=0)
        assert len(report.commits) <= 1
        if report.errors and not report.commits:
            raise CommitConflictError("; ".join(report.errors))
        self.world.outcomes["groups left out"] += report.failed_groups
        self.world.outcomes["rows rebased"] += report.rebased_rows
        self.world.outcomes["compactions"] += len(report.commits)

    def clean_up(self, actor: Actor) -> None:
        """Orphan removal, its age limit beyond the longest write, whatever its clock says."""
        environment = self.environment(actor)
        store = HeldStore(environment.store)
        load = self.table(replace(environment, store=store))
        while True:
            actor.sleep(actor.rng.random() * 8_000)
            with self.operation(actor, Operation(actor.name, "clean")):
                # The limit is right for this moment, and the task may be held up before it asks
                # for the time.
                store.held_ms = int(self.world.now_ms)
                age_ms = self.longest_write_ms() + 1_000
                options = RemoveOrphansOptions(older_than_ms=int(age_ms), older_than_min_ms=0)
                report = remove_orphans(load(), options, lock=self.lock, lock_timeout_ms=0)
                self.world.outcomes["orphans removed"] += report.removed_files

    def longest_write_ms(self) -> float:
        """How long the oldest write has been under way that may still land."""
        if not self.world.late:
            self.unsettled = [each for each in self.unsettled if each[0].outcome in {"running"}]
        began = [start_ms for operation, start_ms in self.unsettled]
        return self.world.now_ms - min(began, default=self.world.now_ms)
