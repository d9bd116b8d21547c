"""`resolve_group`: several tables of one stream, published together up to one batch.

```
look twice ─> plan (cut_plan) ─> leases, by name ─> plan again
  ─> each: convert what was left, compute, write ─> one commit of all ─> each: apply
```

1. Plan: which batch, and up to which staged snapshot of each table. Only tables that have something
   to publish are touched.
2. Leases are taken in the order of the tables' names, so groups do not wait for each other in a
   circle. Each table has its own fence. A killed group's are waited for together. Where the lock is
   in a bucket, all are asked for at a time first, without waiting for any.
3. Compute and write are those of `cycle`, of a small cut for several tables at once. A table that
   cannot be resolved stops the group; the error names it, and nothing is published.
4. Publish: one atomic commit where the catalog has it. Where others got ahead on a table, it is
   matched again, the rest stays. A crash before leaves files that nothing names; after, the cut is
   there, and indexes are behind: the next cycle of each table brings them along.
   Without group commits the tables are published one after the other; what a crash in between has
   left out, the next run publishes first, under the same name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import (
    AbstractContextManager,
    ExitStack,
    closing,
    contextmanager,
    nullcontext,
    suppress,
)
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from lock import HeldLease, LockError, LockManager
from resolver.cut_plan import CutPlan, plan_cut, staged_batches
from resolver.cycle import Computed, Cycle, Written
from resolver.cycle_options import CycleOptions
from resolver.engine import Engine, EngineName, check_engine
from resolver.group_report import GroupReport
from resolver.job import LOCK_TIMEOUT_MS, convert_left_deletes
from resolver.maintenance_lock import fence_of, hold_maintenance, maintenance_lock
from resolver.moved_staging import StagingMovedError
from resolver.open_indexes import OpenIndexes
from resolver.report import ResolveReport
from resolver.resolvable import check_resolvable, is_held_by_load, was_never_staged
from resolver.secondary import maintain_indexes
from resolver.workers import Keeper, Workers
from tableformat import InvalidInputError, Table
from tableformat.after_commit import after_commit, reload_after
from tableformat.catalog.base import TableState
from tableformat.cdc.cuts import load_all
from tableformat.commit.engine import CommitResult, TableChangeset, commit_group
from tableformat.environment import Environment
from tableformat.errors import CommitConflictError, TableError, error_context
from tableformat.side_by_side import AT_ONCE, IN_BUCKETS
from tableformat.spec.names import (
    CUT,
    CUT_TABLES,
    MAIN_BRANCH,
    SET_ASIDE,
    STAGING_BRANCH,
)
from tableformat.store.locations import tables_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SIDE_BY_SIDE_MAX = 500_000  # changes of all tables; a few hundred bytes of memory each
PLANS_MAX = 3  # others publish in between, or stage what makes the cut larger


def resolve_group(
    tables: Sequence[Table],
    *,
    set_aside: Collection[str] = (),
    limit: int | None = None,
    staging: str = STAGING_BRANCH,
    target: str = MAIN_BRANCH,
    index_location: str | None = None,
    engine: EngineName = "auto",
    spark: SparkSession | None = None,
    lock: LockManager | None = None,
    lock_timeout_ms: int = LOCK_TIMEOUT_MS,
    indexes: OpenIndexes | None = None,
    on_commit: Callable[[], None] | None = None,
) -> GroupReport:
    """Publish the tables of a stream together, up to the newest batch that all of them have.

    Args:
        tables: All tables that the stream feeds, of one catalog. Refreshed.
        set_aside: Names of tables that are not published and not waited for. So are tables that the
            stream itself has set aside.
        limit: At most so many batches, the oldest.
        staging: Branch with staged changes, of each table.
        target: Branch readers read, of each table.
        index_location: As `resolve`, for each table.
        engine: Likewise.
        spark: Likewise.
        lock: Lock manager; None: the catalog's own.
        lock_timeout_ms: How long to wait for other maintenance of each table.
        indexes: As `resolve`.
        on_commit: Called when readers see the whole cut and its indexes do not follow it yet; not
            where the catalog has no group commits.

    Returns:
        The cut, and what was done to each table that had a part in it.

    Raises:
        InvalidInputError: A batch touches a table that is neither among the tables nor set aside.
        TableError: As `resolve`; the context names the table, and nothing of the cut was published,
            or, where the catalog has no group commits, the next run finishes it.
        lock.LeaseUnavailableError, lock.LeaseLostError: The lock of a table is someone else's.

    Effects: see the module; killed at any step and run again, the result is the same.
    """
    engine = check_engine(engine)
    members = _members(tables, set_aside)
    if not members or any(is_held_by_load(each.refresh().state, target) for each in members):
        return GroupReport()
    environment = members[0].environment
    names = {each.name for each in members}
    aside = {*set_aside, *(each.name for each in tables if each.name not in names)}

    def open_member(table: Table) -> tuple[Keeper, Engine]:
        workers = Workers.of(table, engine, spark)
        keeper = workers.open_keeper(table, target, location=index_location, indexes=indexes)
        return keeper, workers.engine

    manager = nullcontext(lock) if lock is not None else closing(maintenance_lock(environment))
    with manager as held:
        options = GroupOptions(
            set_aside=frozenset(aside), limit=limit, staging=staging, target=target
        )
        location = members[0].state.metadata.location
        at_once = tables_of(location) if spark is None and engine != "spark" else 1
        group = Group(
            environment,
            members,
            options,
            open_member,
            held,
            lock_timeout_ms,
            at_once=at_once,
            on_commit=on_commit,
        )
        return group.run()


def _members(tables: Sequence[Table], set_aside: Collection[str]) -> list[Table]:
    """The tables of the group, by name.

    Raises:
        InvalidInputError: They are of several catalogs, or one is named twice.
    """
    found = sorted(
        (
            each
            for each in tables
            if each.name not in set_aside and SET_ASIDE not in each.properties
        ),
        key=lambda each: each.name,
    )
    if len({each.name for each in found}) < len(found):
        raise InvalidInputError("a table is named twice")
    if len({id(each.environment) for each in found}) > 1:
        raise InvalidInputError(
            "tables that are published together are of one catalog", tables=len(found)
        )
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOptions:
    """What a group publishes: see `resolve_group`. `attempts_max`: publish attempts."""

    set_aside: frozenset[str] = frozenset()
    limit: int | None = None
    staging: str = STAGING_BRANCH
    target: str = MAIN_BRANCH
    attempts_max: int = 100


@dataclass(slots=True)
class _Member:
    """A table that has a part in the cut: its cycle, and how far that has got."""

    table: Table
    cycle: Cycle
    computed: Computed
    written: Written | None = None

    def write(self) -> Written:
        """Its files, those of an earlier attempt where nothing was matched again."""
        if self.written is None:
            self.written = self.cycle.write(self.computed)
        return self.written

    def follow(self, state: TableState, target: str) -> None:
        """Match again if others have moved the target."""
        planned = self.computed.match.state
        if state.head(target) != planned.head(target):
            self.computed, self.written = self.cycle.rebase(self.computed), None


@dataclass(frozen=True, slots=True)
class Group:
    """Tables, by name, and what their cycles run with; `at_once`: so many of a small cut."""

    environment: Environment
    tables: Sequence[Table]
    options: GroupOptions
    open_member: Callable[[Table], tuple[Keeper, Engine]]
    lock: LockManager
    lock_timeout_ms: int = LOCK_TIMEOUT_MS
    at_once: int = AT_ONCE
    on_commit: Callable[[], None] | None = None

    def run(self) -> GroupReport:
        """See `resolve_group`."""
        states = self._look([each.state for each in self.tables])
        seen = staged_batches(states, staging=self.options.staging)
        states = self._look(states)
        plan = self._plan(states, seen)
        for _ in range(PLANS_MAX):
            if plan.cut is None:
                return self._report(plan, [])
            with self._leases(plan, states) as leases:
                states = self._look(states)
                again = self._plan(states, seen)
                if again.covered.keys() <= leases.keys():
                    with suppress(StagingMovedError):
                        return self._report(again, self._publish(again, leases))
                    seen = staged_batches(states, staging=self.options.staging)
                    states = self._look(states)
                    again = self._plan(states, seen)
            plan = again
        raise CommitConflictError(
            "others publish tables of the group, or move their staging branches, all the time",
            action="run it again",
        )

    def _look(self, known: Iterable[TableState]) -> list[TableState]:
        identifiers = [each.identifier for each in self.tables]
        states = load_all(self.environment.catalog, identifiers, known)
        staging, target = self.options.staging, self.options.target
        is_known = any(state.ref(staging) is not None for state in states)
        for state in states:
            # A pattern means tables of no stream as well: that of dead letters has no key.
            if not was_never_staged(state, staging, target, is_known=is_known):
                check_resolvable(state, staging, target)
        return states

    def _plan(self, states: Iterable[TableState], seen: Mapping[str, int]) -> CutPlan:
        options = self.options
        return plan_cut(
            states,
            seen=seen,
            set_aside=options.set_aside,
            limit=options.limit,
            staging=options.staging,
            target=options.target,
        )

    @contextmanager
    def _leases(
        self, plan: CutPlan, states: Iterable[TableState]
    ) -> Iterator[Mapping[str, HeldLease]]:
        found = (each for each in states if each.name in plan.covered)
        covered = sorted(found, key=lambda state: state.name)
        with ExitStack() as stack:
            leases = self._leases_at_once(covered, stack) if self.lock.is_far else None
            yield leases or {
                state.name: stack.enter_context(
                    self._lease(state, self.lock_timeout_ms, then=covered[number:])
                )
                for number, state in enumerate(covered, start=1)
            }

    def _leases_at_once(
        self, covered: Sequence[TableState], stack: ExitStack
    ) -> Mapping[str, HeldLease] | None:
        """All of them; None, and none, if another holds or awaits one of them."""
        each = partial(self.environment.runtime.each, at_once=IN_BUCKETS)
        entered: list[AbstractContextManager[HeldLease]] = []

        def enter(state: TableState) -> HeldLease:
            context = self._lease(state, 0)
            lease = context.__enter__()
            entered.append(context)
            return lease

        with ExitStack() as leaving:
            leaving.callback(
                lambda: each(lambda context: context.__exit__(None, None, None), entered)
            )
            try:
                leases = each(enter, covered)
            except LockError:  # whoever waits is told what it waits for
                return None
            stack.push(leaving.pop_all())
            return {state.name: lease for state, lease in zip(covered, leases, strict=True)}

    def _lease(
        self, state: TableState, timeout_ms: int, then: Sequence[TableState] = ()
    ) -> AbstractContextManager[HeldLease]:
        return hold_maintenance(
            state,
            self.lock,
            task=f"resolve {state.name}",
            branch=self.options.target,
            timeout_ms=timeout_ms,
            then=then,
        )

    def _publish(self, plan: CutPlan, leases: Mapping[str, HeldLease]) -> list[ResolveReport]:
        if plan.cut is None:
            return []
        with ExitStack() as stack:
            at_once = self.at_once if plan.change_count <= SIDE_BY_SIDE_MAX else 1
            members = self._compute_all(plan, leases, stack, at_once)
            if self.environment.catalog.commits_groups:
                reports = self._publish_at_once(members, at_once)
            else:
                reports = self._publish_one_by_one(members)
            for each, report in zip(members, reports, strict=True):
                if reload_after(each.table, report.done):
                    maintain_indexes(self.environment, each.table.state, self.options.target)
            return reports

    def _compute_all(
        self, plan: CutPlan, leases: Mapping[str, HeldLease], stack: ExitStack, at_once: int
    ) -> list[_Member]:
        tables = {each.name: each for each in self.tables}

        def compute(name: str) -> _Member:
            with error_context(table=name, cut=plan.cut):
                return self._compute(tables[name], plan, leases[name], stack)

        runtime = self.environment.runtime
        members = runtime.each(compute, list(plan.covered), at_once=at_once)
        runtime.fail_point("group.after_compute")
        return members

    def _compute(self, table: Table, plan: CutPlan, lease: HeldLease, stack: ExitStack) -> _Member:
        keeper, engine = self.open_member(table)
        stack.callback(keeper.close)
        options = CycleOptions(
            staging=self.options.staging,
            target=self.options.target,
            until=plan.covered[table.name],
            summary={
                CUT: str(plan.cut),
                CUT_TABLES: json.dumps(sorted(plan.covered), separators=(",", ":")),
            },
            fence=partial(fence_of, lease),
            attempts_max=self.options.attempts_max,
        )
        convert_left_deletes(table, options, keeper, engine)
        cycle = Cycle(self.environment, table.identifier, options, keeper, engine)
        computed = cycle.compute(table.state)
        if computed is None:
            raise CommitConflictError(
                "others have published what was planned", action="run resolve again"
            )
        return _Member(table, cycle, computed)

    def _publish_at_once(self, members: Sequence[_Member], at_once: int) -> list[ResolveReport]:
        try:
            results, attempts = self._commit_until_landed(members, at_once)
        except TableError as error:
            if error.files_safe_to_delete:
                _discard(members)
            raise
        runtime = self.environment.runtime
        runtime.fail_point("group.after_publish")
        if self.on_commit is not None:
            self.on_commit()

        def finish(published: tuple[_Member, CommitResult]) -> ResolveReport:
            member, result = published
            with after_commit(
                f"the cut is published, {member.table.name} as {result.snapshot.snapshot_id}"
            ):
                return member.cycle.finish(member.write(), result, attempts)

        return runtime.each(finish, list(zip(members, results, strict=True)), at_once=at_once)

    def _commit_until_landed(
        self, members: Sequence[_Member], at_once: int
    ) -> tuple[list[CommitResult], int]:
        def planned(member: tuple[_Member, TableState]) -> TableChangeset:
            each, state = member
            return replace(each.cycle.changeset(each.write()), state=state)

        catalog, attempts = self.environment.catalog, 0
        states = [each.computed.match.state for each in members]
        while True:
            attempts += 1
            changes = self.environment.runtime.each(
                planned, list(zip(members, states, strict=True)), at_once=at_once
            )
            try:
                return commit_group(self.environment, changes), attempts
            except StagingMovedError:
                raise
            except CommitConflictError:
                if attempts >= self.options.attempts_max:
                    raise
            states = load_all(catalog, [each.table.identifier for each in members], states)
            for each, state in zip(members, states, strict=True):
                with error_context(table=each.table.name):
                    each.follow(state, self.options.target)

    def _publish_one_by_one(self, members: Iterable[_Member]) -> list[ResolveReport]:
        reports: list[ResolveReport] = []
        for each in members:
            done = [f"{report.table} {report.done}" for report in reports]
            with after_commit(f"of the cut {', '.join(done)}") if done else nullcontext():
                reports.append(self._publish_alone(each))
        return reports

    def _publish_alone(self, member: _Member) -> ResolveReport:
        with error_context(table=member.table.name):
            report = member.cycle.publish(member.computed)
        self.environment.runtime.fail_point("group.between_tables")
        return report

    def _report(self, plan: CutPlan, reports: Sequence[ResolveReport]) -> GroupReport:
        return GroupReport(
            cut=None if not reports else str(plan.cut),
            tables=tuple(reports),
            waits_for=plan.waits_for,
            set_aside=tuple(sorted(self.options.set_aside)),
        )


def _discard(members: Iterable[_Member]) -> None:
    """Best effort: what stays is for orphan removal."""
    for each in members:
        with suppress(TableError):
            each.cycle.discard()
