"""Tables of one stream, published together: which batch, what happens when not all goes well."""

from __future__ import annotations

import json
import random
from types import SimpleNamespace

import pyarrow as pa
import pytest
from pyiceberg.table.update import RemoveSnapshotsUpdate

import resolver.cycle
from lock import LockManager
from lock.lease import DEFAULT_LEASE_MS
from lock.memory_store import MemoryRecordStore
from maintenance.tasks.compact import compact
from maintenance.tasks.expire import expire
from maintenance.tasks.options import CompactOptions, ExpireOptions
from resolver import resolve, resolve_group
from resolver.cut_plan import plan_cut, staged_batches
from resolver.maintenance_lock import maintenance_lock_name
from tableformat.cdc.cuts import CutName, load_all, load_cuts
from tableformat.cdc.dead_letter import load_dead_letter_table
from tableformat.commit.expiry_plan import ExpiryPolicy
from tableformat.commit.refs import create_branch, drop_ref, replace_branch
from tableformat.environment import Environment
from tableformat.errors import (
    CommitConflictError,
    CorruptDataError,
    InvalidInputError,
    NotFoundError,
    StoreUnavailableError,
    UnsupportedError,
)
from tableformat.runtime import Runtime, SystemClock
from tests.support import bank
from tests.support.another_tool import another_tool
from tests.support.bank import QUERY, Bank, balances_of, rows_of, stage_batch
from tests.support.lock_seams import ManualClock, SeededIds
from tests.support.lying_lock import GrantAllLock
from tests.support.memory_catalog import MemoryCatalog
from tests.support.memory_tables import memory_catalog
from tests.support.other_deletes import delete_by

A, B, C = NAMES = ("bank.a", "bank.b", "bank.c")


class LaterClock(SystemClock):
    """Wall-clock time, `later_ms` on."""

    later_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.later_ms


class World:
    """A bank in memory; `batch(a, b)` stages a batch of transfers between tables."""

    def __init__(self, folder: object) -> None:
        self.clock = LaterClock()
        self.catalog = memory_catalog(str(folder), Runtime(clock=self.clock))
        self.bank = Bank(NAMES)
        self.tables = self.bank.create(self.catalog)
        self.rng = random.Random(1)
        self.points = self.catalog.environment.runtime.fail_points

    def batch(self, *names: str, only: tuple[str, ...] | None = None) -> int:
        number = self.bank.transfer(self.rng, names, len(names))
        for name in names if only is None else only:
            stage_batch(self.tables[name], number, self.bank.batches[number][name], names)
        return number

    def resolve(self, **options):
        return resolve_group(list(self.tables.values()), **options)

    def head(self, name: str) -> int:
        return self.tables[name].refresh().state.head("main").snapshot_id

    def heads(self) -> dict[str, int]:
        return {name: self.head(name) for name in NAMES}

    def shows(self, number: int, names: tuple[str, ...] = NAMES) -> bool:
        """Whether main of the tables is at a batch."""
        state = self.bank.states[number + 1]
        return all(balances_of(self.tables[n].refresh()) == state[n] for n in names)

    def check_cuts(self, *numbers: int) -> None:
        """The cuts that are named, and what is in them."""
        found = self.catalog.cuts("bank")
        assert [each.name.batch for each in found] == list(numbers)
        for each in found:
            pinned = self.catalog.cut("bank", str(each.name))
            for name in pinned.tables:
                rows = pinned.scan(name.partition(".")[2]).to_arrow().to_pylist()
                held = {row["id"]: row["balance"] for row in rows}
                assert held == self.bank.states[each.name.batch + 1][name]


@pytest.fixture
def world(tmp_path):
    return World(tmp_path / "index")


@pytest.fixture
def no_groups(monkeypatch):
    """A catalog that changes one table at a time."""
    monkeypatch.setattr(MemoryCatalog, "commits_groups", property(lambda _: False))


def test_group_is_published_up_to_the_newest_whole_batch_under_one_name(world):
    world.batch(A, B)
    last = world.batch(B, C)
    report = world.resolve()
    assert (report.cut, report.waits_for) == (f"{QUERY}/{last}", "")
    assert [each.table for each in report.tables] == list(NAMES)
    assert world.shows(last)
    world.check_cuts(last)
    assert world.resolve().cut is None


def test_tables_that_no_stream_feeds_need_no_key_to_be_among_them(world):
    letters = load_dead_letter_table(world.catalog.environment, ("bank", "a_dead_letter"))
    tables = [*world.tables.values(), world.catalog.load_table(letters.name)]
    last = world.batch(A, B)
    assert resolve_group(tables).cut == f"{QUERY}/{last}"
    assert world.shows(last)


def test_changes_that_no_stream_staged_are_in_no_cut_and_said(world):
    world.resolve()
    assert world.resolve().describe() == "nothing to publish"
    for name in (A, B):
        world.tables[name].stage(upserts=pa.table({"id": [9], "balance": [5]}))
    report = world.resolve()
    assert report.describe() == (
        f"nothing to publish; changes of {A} and 1 more table are of no stream into several "
        f"tables, so they are in no cut: icefold resolve {A} publishes them, and icefold maintain "
        "those of all tables"
    )
    last = world.batch(A)
    assert world.resolve().cut == f"{QUERY}/{last}"  # what was staged before it goes with it


def test_staging_of_another_name_is_that_of_the_tables_that_have_it(world):
    environment = world.catalog.environment
    letters = load_dead_letter_table(environment, ("bank", "a_dead_letter"))
    tables = [*world.tables.values(), world.catalog.load_table(letters.name)]
    last = world.batch(A, B)
    for name in (A, B):
        create_branch(environment, ("bank", name[-1]), "other", snapshot_id=staged(world, name))
        drop_ref(environment, ("bank", name[-1]), "staging")
    assert resolve_group(tables, staging="other").cut == f"{QUERY}/{last}"
    assert world.shows(last, (A, B))
    with pytest.raises(NotFoundError, match="staging branch"):
        resolve_group(list(world.tables.values()), staging="otter")


def staged(world, name):
    return world.tables[name].refresh().state.head("staging").snapshot_id


def test_batch_that_a_table_lacks_is_not_published_and_said(world):
    whole = world.batch(A, B)
    world.batch(B, C, only=(B,))
    world.batch(A, B)  # a stream that does not wait would be wrong; what it staged waits
    report = world.resolve()
    assert world.shows(whole)
    assert report.waits_for == f"batch {QUERY}/1 is not staged on {C} yet"


def test_table_without_changes_gets_no_snapshot_and_is_of_the_cut(world):
    first = world.batch(A, B, C)
    world.resolve()
    head = world.head(C)
    second = world.batch(A, B)
    report = world.resolve()
    assert [each.table for each in report.tables] == [A, B]
    assert world.head(C) == head == world.catalog.cut("bank").snapshot_id("c")
    world.check_cuts(second, first)


def test_cut_says_where_it_ends_in_the_source(world):
    world.batch(A, B)
    world.batch(A, C)
    world.resolve()
    [cut] = world.catalog.cuts("bank")
    assert cut.offsets == {A: {"0": 2}, B: {"0": 1}, C: {"0": 2}}
    assert (cut.transaction, cut.tables) == ("tx-1", NAMES)


def test_staged_changes_of_others_go_with_the_cut_in_which_they_lie(world):
    world.batch(A, B)
    world.tables[A].stage(upserts=rows_of({50: 1}))
    world.batch(A, B)
    world.tables[A].stage(upserts=rows_of({51: 1}))
    world.resolve()
    assert balances_of(world.tables[A].refresh()).keys() == {0, 1, 2, 3, 50}
    assert world.resolve().cut is None
    world.batch(A, B)
    world.resolve()
    assert balances_of(world.tables[A].refresh()).keys() == {0, 1, 2, 3, 50, 51}


def test_cuts_of_a_stream_are_in_its_order_also_where_a_publish_has_expired(world):
    first = world.batch(B, C)
    world.resolve()
    second = world.batch(A)
    world.resolve()
    world.clock.later_ms = 3_600_000
    for name in (B, C):  # what is left of the first cut there is newer than the second one
        world.tables[name].append(rows_of({4: 0}))
        for balances in world.bank.states[1:]:
            balances[name][4] = 0
        policy = ExpiryPolicy(max_snapshot_age_ms=1_800_000, min_snapshots_to_keep=1)
        expire(world.tables[name], ExpireOptions(policy=policy))
    world.check_cuts(second, first)


def test_limit_is_of_batches(world):
    first, second = world.batch(A, B), world.batch(A, B)
    assert world.resolve(limit=1).cut == f"{QUERY}/{first}"
    assert world.resolve(limit=1).cut == f"{QUERY}/{second}"
    world.check_cuts(second, first)


def test_batch_of_a_table_that_is_no_member_is_refused_by_name(world):
    world.batch(A, B)
    before = world.heads()
    with pytest.raises(InvalidInputError, match=f"table={B}"):
        resolve_group([world.tables[A], world.tables[C]])
    assert world.heads() == before
    report = resolve_group([world.tables[A], world.tables[C]], set_aside=[B])
    assert (report.cut, report.set_aside) == (f"{QUERY}/0", (B,))
    assert B not in world.catalog.cut("bank").tables  # it has batches that were not published


@pytest.mark.parametrize("offsets", ["{none", "[1]", '{"t": 1}', '{"t": {"0": "x"}}'])
def test_batch_whose_offsets_cannot_be_read_is_told_with_its_table(world, monkeypatch, offsets):
    with monkeypatch.context() as damaged:
        damaged.setattr(
            bank,
            "json",
            SimpleNamespace(
                dumps=lambda each: offsets if isinstance(each, dict) else json.dumps(each)
            ),
        )
        stage_batch(world.tables[A], 0, {0: 1}, [A])
    with pytest.raises(CorruptDataError, match="what a snapshot says of its batch") as told:
        world.resolve()
    assert A in str(told.value)


def test_table_that_the_stream_has_set_aside_is_no_member(world):
    world.batch(A, B, C)
    world.resolve()
    at = '{"query": "bank", "batch": 1, "reason": "x", "at_ms": 0}'
    world.tables[C].set_properties({"icefold.ingest.set-aside": at})
    world.batch(A, B)
    assert world.resolve().set_aside == (C,)
    newest, older = world.catalog.cuts("bank")
    assert (set(newest.snapshots), set(older.snapshots)) == ({A, B}, set(NAMES))


@pytest.mark.parametrize("limit", [None, 1])
def test_table_that_has_caught_up_is_in_no_cut_of_the_batches_before(world, limit):
    """Of batches 1 and 2 it has old events only; with batch 3 it has what the others have."""
    first = world.batch(A, B, C)
    world.resolve()
    world.batch(A, B, C)
    world.batch(C)
    third = world.batch(A, C)
    gap = '{"query": "bank", "begin": 1, "end": 3}'
    world.tables[C].set_properties({"icefold.ingest.left-out": gap})
    reports = [world.resolve(limit=limit) for _ in range(3)]
    done = [(each.cut, [one.table for one in each.tables]) for each in reports]
    if limit == 1:
        assert done == [("bank/1", [A, B]), ("bank/3", [A, C]), (None, [])]
        assert C not in world.catalog.cut("bank", "bank/1").tables
    else:
        assert done == [("bank/3", list(NAMES)), (None, []), (None, [])]
    assert world.shows(third)
    newest, oldest = (world.catalog.cut("bank", f"bank/{n}") for n in (third, first))
    assert set(newest.tables) == set(oldest.tables) == set(NAMES)


def test_what_a_table_caught_up_with_goes_with_the_cut_that_is_there(world):
    """No batch comes any more that would take it along."""
    first = world.batch(A, B, C)
    world.resolve()
    at = '{"query": "bank", "batch": 1, "reason": "x", "at_ms": 0}'
    world.tables[C].set_properties({"icefold.ingest.set-aside": at})
    world.batch(C)
    last = world.batch(A, B)
    world.resolve()
    gap = '{"query": "bank", "begin": 1, "end": 2}'
    world.tables[C].set_properties({"icefold.ingest.left-out": gap})
    assert tables_of(world) == {first: {*NAMES}, last: {A, B}}
    world.tables[C].refresh().set_properties(remove=["icefold.ingest.set-aside"])
    assert tables_of(world) == {first: {*NAMES}, last: {A, B}}
    report = world.resolve()
    assert (report.cut, [each.table for each in report.tables]) == (f"{QUERY}/{last}", [C])
    assert tables_of(world) == {first: {*NAMES}, last: {*NAMES}}
    assert world.shows(last)
    assert world.resolve().cut is None


def test_table_that_cannot_be_resolved_stops_the_group_and_is_named(world, monkeypatch):
    world.batch(A, B)
    before = world.heads()
    real = resolver.cycle.load_staged

    def refuse(environment, state, *given):
        if state.name == B:
            raise UnsupportedError("rewritten")
        return real(environment, state, *given)

    monkeypatch.setattr(resolver.cycle, "load_staged", refuse)
    with pytest.raises(UnsupportedError, match=f"table={B}, cut={QUERY}/0"):
        world.resolve()
    assert world.heads() == before


def test_cut_that_would_have_to_end_between_a_row_and_a_delete_that_looks_for_it_is_refused(world):
    """The row's column has no value before it is published; the delete is on that column."""
    world.batch(A, B)
    world.tables[A].stage(pa.table({"id": [3]}), columns="partial")
    delete_by(world.tables[A], balance=[-1])
    world.batch(A, B)
    before = world.heads()
    with pytest.raises(UnsupportedError, match=rf"leave columns out.*table={A}.*by itself"):
        world.resolve()
    assert world.heads() == before
    while resolve(world.tables[A].refresh()).staged_snapshots:
        pass
    world.resolve()
    assert world.shows(1)


def test_conflict_on_one_table_matches_that_one_again_only(world, monkeypatch):
    last = world.batch(A, B, C)
    rebased: list[str] = []
    real = resolver.cycle.Cycle.rebase
    monkeypatch.setattr(
        resolver.cycle.Cycle,
        "rebase",
        lambda self, computed: rebased.append(computed.match.state.name) or real(self, computed),
    )

    def append(_: str) -> None:
        del world.points.armed["group.after_compute"]
        world.tables[B].append(rows_of({70: 0}))

    world.points.armed["group.after_compute"] = append
    report = world.resolve()
    assert rebased == [B]
    assert [each.attempts for each in report.tables] == [2, 2, 2]
    assert balances_of(world.tables[B].refresh()).pop(70) == 0
    assert world.shows(last, (A, C))


def test_group_that_others_published_meanwhile_is_not_published_again(world, tmp_path):
    last = world.batch(A, B)

    def overtake(_: str) -> None:
        world.points.armed.clear()
        resolve(world.tables[A], lock=GrantAllLock("same"), index_directory=tmp_path / "other")

    world.points.armed["group.after_compute"] = overtake
    with pytest.raises(CommitConflictError, match=f"table={A}"):
        world.resolve(lock=GrantAllLock("same"))
    world.resolve()
    assert world.shows(last)
    world.check_cuts(last)


def test_lost_answer_of_a_group_deletes_nothing_and_is_found(world):
    last = world.batch(A, B)

    def lose(_: str) -> None:
        del world.points.armed["commit.after_swap"]
        raise RuntimeError("reset")

    world.points.armed["commit.after_swap"] = lose
    world.resolve()
    assert world.shows(last)
    world.check_cuts(last)


def test_trouble_after_the_publish_keeps_what_was_published(world):
    last = world.batch(A, B)

    def strike(_: str) -> None:
        del world.points.armed["resolve.after_apply"]
        error = StoreUnavailableError("down")
        error.files_safe_to_delete = True
        raise error

    world.points.armed["resolve.after_apply"] = strike
    with pytest.raises(StoreUnavailableError):
        world.resolve()
    assert world.shows(last)


def test_table_published_by_itself_waits_for_the_batch_that_reaches_it(world):
    first = world.batch(A, B)
    world.resolve()
    world.batch(A, C, only=(A,))
    resolve(world.tables[A])
    assert world.resolve().cut is None
    world.check_cuts(first)
    stage_batch(world.tables[C], 1, world.bank.batches[1][C], (A, C))
    assert world.resolve().cut == f"{QUERY}/1"
    world.check_cuts(1, first)


def test_others_follow_a_table_that_was_published_by_itself_beyond_what_waits(world):
    world.batch(A, B)
    last = world.batch(A)
    resolve(world.tables[A])
    assert world.resolve().cut == f"{QUERY}/{last}"
    assert world.shows(last)
    world.check_cuts(last)


def tables_of(world) -> dict[int, set[str]]:
    return {each.name.batch: {*each.snapshots} for each in world.catalog.cuts("bank")}


def begin_again(world, name: str, snapshot_id: int) -> None:
    """Another tool moves both branches of a table back."""
    for branch in ("main", "staging"):
        head = world.tables[name].refresh().state.head_id(branch)
        world.tables[name].refs.replace(branch, to=snapshot_id, expected_head=head)


def forget(world, name: str) -> None:
    """Another tool expires all but the heads."""
    state = world.tables[name].refresh().state
    heads = {ref.snapshot_id for ref in state.metadata.refs.values()}
    gone = [s.snapshot_id for s in state.metadata.snapshots if s.snapshot_id not in heads]
    world.catalog.environment.catalog.commit(state, [RemoveSnapshotsUpdate(snapshot_ids=gone)])


def test_table_whose_batch_went_with_its_staging_branch_is_in_no_cut_from_there_on(world):
    """That batch was of this table alone."""
    first = world.batch(A, B, C)
    world.resolve()
    world.batch(C)
    world.tables[C].refresh().refs.drop("staging")
    world.tables[C].refresh().refs.create_branch("staging")
    last = world.batch(A, B)
    assert world.resolve().cut == f"{QUERY}/{last}"
    assert tables_of(world) == {first: {*NAMES}, last: {A, B}}
    world.check_cuts(last, first)


@pytest.mark.parametrize("forgets", [False, True])
def test_table_that_lost_what_was_published_is_in_no_cut_from_there_on(world, forgets):
    """Where it has forgotten that, the cut that the others show says that it was in it."""
    first = world.batch(A, B, C)
    world.resolve()
    head = world.head(C)
    world.batch(C)
    second = world.batch(A, B)
    world.resolve()
    last = world.batch(A)
    world.resolve()
    begin_again(world, C, head)
    if forgets:
        forget(world, C)
    assert tables_of(world) == {first: {*NAMES}, last: {A, B}}  # `second` was of this one, too
    world.check_cuts(last, first)
    assert second < last


def test_version_of_which_nothing_tells_the_batch_is_in_no_cut(world):
    """Another tool's commit, below which all has expired, shows a batch beyond that cut."""
    of_others = world.batch(A, B)
    world.resolve()
    world.batch(A, C)
    world.resolve()
    with another_tool(world.catalog.environment):
        world.tables[C].refresh().append(pa.table({"id": [99], "balance": [0]}))
    world.tables[C].refresh().refs.drop("staging")
    forget(world, C)
    last = world.batch(A, C)
    world.resolve()
    assert tables_of(world) == {of_others: {A, B}, last: {*NAMES}}


@pytest.mark.usefixtures("no_groups")
def test_cut_that_was_begun_is_finished_first_under_its_name(world):
    first = world.batch(A, B, C)
    world.resolve()
    second = world.batch(A, B, C)

    def die(_: str) -> None:
        world.points.armed.clear()
        raise KeyboardInterrupt

    world.points.armed["group.between_tables"] = die
    with pytest.raises(KeyboardInterrupt):
        world.resolve()
    assert world.shows(second, (A,))
    assert world.shows(first, (B, C))
    world.check_cuts(first)
    third = world.batch(A, B)
    assert world.resolve().cut == f"{QUERY}/{second}"
    world.check_cuts(second, first)
    assert world.resolve().cut == f"{QUERY}/{third}"
    world.check_cuts(third, second, first)


@pytest.mark.usefixtures("no_groups")
def test_cut_whose_last_batch_the_first_table_has_no_part_in_is_finished_too(world):
    world.batch(A, B)
    last = world.batch(B, C)

    def die(_: str) -> None:
        world.points.armed.clear()
        raise KeyboardInterrupt

    world.points.armed["group.between_tables"] = die
    with pytest.raises(KeyboardInterrupt):
        world.resolve()
    world.batch(A, B, C)
    assert world.resolve().cut == f"{QUERY}/{last}"
    world.check_cuts(last)


@pytest.mark.usefixtures("no_groups")
def test_expiry_keeps_what_readers_see_while_a_cut_is_begun(world):
    first = world.batch(A, B, C)
    world.resolve()
    world.clock.later_ms = 3_600_000
    world.batch(A, B, C)

    def die(_: str) -> None:
        raise KeyboardInterrupt

    world.points.armed["group.between_tables"] = die
    with pytest.raises(KeyboardInterrupt):
        world.resolve()
    world.points.armed.clear()
    for table in world.tables.values():
        policy = ExpiryPolicy(max_snapshot_age_ms=1_800_000, min_snapshots_to_keep=1)
        expire(table, ExpireOptions(policy=policy))
    left = world.tables[A].refresh().state.metadata.snapshots
    assert [each.sequence_number for each in left] == [3, 4, 5]  # publish, staged, publish
    world.check_cuts(first)


def test_expiry_and_compaction_keep_the_newest_cut(world):
    last = world.batch(A, B, C)
    world.resolve()
    compact(world.tables[A], CompactOptions(rewrite_all=True))
    world.clock.later_ms = 3_600_000
    for table in world.tables.values():
        policy = ExpiryPolicy(max_snapshot_age_ms=0, min_snapshots_to_keep=1)
        expire(table, ExpireOptions(policy=policy))
    world.check_cuts(last)
    assert world.catalog.cut("bank").snapshot_id("a") == world.head(A)


class Meanwhile:
    """Makes something happen after the first load of a table."""

    def __init__(self, world, identifier, act):
        self.catalog = world.catalog.environment.catalog
        self.real, self.identifier, self.act = self.catalog.load_table, identifier, act
        self.looks = 0

    def __enter__(self):
        self.catalog.load_table = self.load
        self.catalog.metadata_locations = lambda _: None
        return self.catalog

    def __exit__(self, *_):
        del self.catalog.load_table, self.catalog.metadata_locations

    def load(self, identifier):
        state = self.real(identifier)
        if identifier == self.identifier and self.act is not None:
            self.looks += 1
            act, self.act = self.act, None  # what it loads itself is no look
            if not act(self.looks):
                self.act = act
        return state


def test_cuts_are_one_state_also_where_two_are_published_between_the_loads(world):
    """Seen late: the second cut, on a table that the first has nothing to do with."""
    world.batch(A, B, C)
    world.resolve()
    identifiers = [tuple(name.split(".")) for name in NAMES]

    def publish_two(look):
        if look < 2:
            return False
        for name in (A, C):
            world.batch(name)
            world.resolve()
        return True

    meanwhile = Meanwhile(world, identifiers[0], publish_two)
    with meanwhile as catalog:
        found = load_cuts(catalog, identifiers)
    assert len(world.bank.batches) == 3
    assert found
    for cut in found:
        for name, snapshot_id in cut.snapshots.items():
            held = balances_of(world.tables[name].refresh(), snapshot_id)
            assert held == world.bank.states[cut.name.batch + 1][name]


def test_batches_that_came_while_tables_were_loaded_wait_for_the_next_cut(world):
    """Of the second look, A is loaded before its batch 1, and C after batch 2."""
    first = world.batch(A, B, C)

    def stage_two(look):
        if look < 2:
            return False
        world.batch(A)
        world.batch(C)
        return True

    with Meanwhile(world, tuple(A.split(".")), stage_two):
        states = [world.catalog.environment.catalog.load_table(tuple(A.split(".")))]
        seen = staged_batches(states)
        states = load_all(
            world.catalog.environment.catalog, [tuple(name.split(".")) for name in NAMES]
        )
    batches = [state.head("staging").summary["icefold.batch-id"] for state in states]
    assert batches == ["0", "0", "2"]
    assert plan_cut(states, seen=seen).cut == CutName(QUERY, first)


def test_cut_that_is_not_there_is_not_found(world):
    with pytest.raises(NotFoundError, match="there is no cut"):
        world.catalog.cut("bank")
    world.batch(A, B)
    world.resolve()
    with pytest.raises(NotFoundError, match="no such cut"):
        world.catalog.cut("bank", "bank/7")
    with pytest.raises(NotFoundError, match="no such table"):
        world.catalog.cut("bank").snapshot_id("c")


def test_locks_that_a_killed_group_left_behind_are_waited_for_together(world):
    world.batch(A, B, C)
    store, clock = MemoryRecordStore(), ManualClock()
    dead, heir = (LockManager(store, clock=clock, ids=SeededIds(seed)) for seed in (1, 2))
    for table in world.tables.values():
        dead.acquire(maintenance_lock_name(table.state), task="t")
    before_ms = clock.elapsed_ms
    assert len(world.resolve(lock=heir).tables) == len(NAMES)
    assert clock.elapsed_ms - before_ms < 1.1 * DEFAULT_LEASE_MS


def test_leases_are_taken_in_the_order_of_names(world, monkeypatch):
    world.batch(A, B, C)
    taken: list[str] = []

    class Lock(GrantAllLock):
        def acquire(self, name, **options):
            taken.append(options["task"])
            return super().acquire(name, **options)

    resolve_group([world.tables[n] for n in (C, A, B)], lock=Lock())
    assert taken == [f"resolve {name}" for name in NAMES]


@pytest.mark.parametrize("point", ["group.after_compute", "commit.before_swap"])
@pytest.mark.parametrize("commits_groups", [True, False], ids=["group", "one-by-one"])
def test_staging_of_a_table_that_is_moved_meanwhile_is_planned_again_for_the_whole_cut(
    world, monkeypatch, point, commits_groups
):
    """What one table gives up is in no cut, nor is then the batch on the others."""
    if not commits_groups:
        monkeypatch.setattr(MemoryCatalog, "commits_groups", property(lambda _: False))
    first = world.batch(A, B)
    world.resolve()
    second = world.batch(A, B)
    given_up = world.batch(A, B)

    def move(_: str) -> None:
        world.points.armed.clear()
        table = world.tables[A].refresh()
        head = table.state.head("staging")
        environment = table.environment
        replace_branch(
            Environment(environment.catalog, environment.store, Runtime()),
            table.identifier,
            "staging",
            to=head.parent_snapshot_id,
            expected_head=head.snapshot_id,
        )

    world.points.armed[point] = move
    report = world.resolve()
    assert (report.cut, first) == (f"bank/{second}", second - 1)
    assert world.shows(second)
    assert f"bank/{given_up}" in world.resolve().waits_for


def test_cut_whose_tables_cannot_be_loaded_again_is_reported(world, monkeypatch, caplog):
    last = world.batch(A, B)
    catalog = world.catalog.environment.catalog
    real = catalog.load_table

    def refuse(_: object) -> None:
        raise StoreUnavailableError("no answer")

    def deafen(_: str) -> None:
        world.points.armed.clear()
        monkeypatch.setattr(catalog, "load_table", refuse)

    world.points.armed["commit.after_swap"] = deafen
    report = world.resolve()
    monkeypatch.setattr(catalog, "load_table", real)
    assert (report.cut, len(report.tables)) == (f"bank/{last}", 2)
    assert caplog.text.count("but the table could not be loaded again: no answer") == 2
    assert world.shows(last)


def test_cut_that_stops_after_a_table_says_which_are_published(world, no_groups):
    world.batch(A, B)

    def fail(_: str) -> None:
        world.points.armed["resolve.after_dv_write"] = stop

    def stop(_: str) -> None:
        world.points.armed.clear()
        raise StoreUnavailableError("no answer")

    world.points.armed["group.between_tables"] = fail
    with pytest.raises(StoreUnavailableError, match=rf"of the cut {A} published as \d+, but then"):
        world.resolve()
