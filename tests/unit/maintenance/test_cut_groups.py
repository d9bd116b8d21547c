"""Schedulers and tables that one stream feeds: published together, at every instant."""

from __future__ import annotations

import random
import threading
import time
from contextlib import contextmanager

import pytest

from maintenance import read_status
from maintenance.cut_groups import cut_groups
from maintenance.metrics import SchedulerMetrics
from maintenance.run_history import Outcome, ledger_path, load_ledger
from maintenance.runners import RUNNERS
from maintenance.scheduler import Scheduler
from maintenance.scheduler_options import SchedulerOptions
from maintenance.settings import TaskName
from maintenance.watched import Look
from resolver.cycle import Cycle
from tableformat.runtime import Runtime
from tests.support.bank import QUERY, Bank, balances_of, rows_of, stage_batch
from tests.support.memory_tables import memory_catalog
from tests.support.skewed_clock import SkewedClock

A, B, C = NAMES = ("bank.a", "bank.b", "bank.c")
ONLY_RESOLVE = (TaskName.RESOLVE,)


class World:
    """A bank in memory; `batch(a, b)` stages a batch of transfers between tables."""

    def __init__(self, folder):
        self.clock = SkewedClock()
        runtime = Runtime(clock=self.clock, side_by_side=False)
        self.catalog = memory_catalog(str(folder), runtime)
        self.bank = Bank(NAMES)
        self.tables = self.bank.create(self.catalog)
        self.rng = random.Random(1)

    def batch(self, *names, only=None):
        number = self.bank.transfer(self.rng, names, len(names))
        for name in names if only is None else only:
            self.stage(number, name, names)
        return number

    def stage(self, number, name, names):
        stage_batch(self.tables[name], number, self.bank.batches[number][name], names)

    def scheduler(self, *names, **options):
        options = {"tasks": ONLY_RESOLVE, **options}
        return Scheduler(self.catalog, names or ["bank.*"], SchedulerOptions(**options))

    def once(self, *names, **options):
        return {run.table: run for run in self.scheduler(*names, **options).run_once().runs}

    def shows(self, number, names=NAMES):
        state = self.bank.states[number + 1]
        return all(balances_of(self.tables[n].refresh()) == state[n] for n in names)

    def check_cuts(self):
        """What the cuts say that there are; each table holds there what it should."""
        found = self.catalog.cuts("bank")
        for each in found:
            for name, snapshot_id in each.snapshots.items():
                held = balances_of(self.tables[name].refresh(), snapshot_id)
                assert held == self.bank.states[each.name.batch + 1][name]
        return [each.name.batch for each in found]


@pytest.fixture
def world(tmp_path):
    return World(tmp_path / "index")


@contextmanager
def running(*schedulers):
    threads = [threading.Thread(target=each.run) for each in schedulers]
    for each in threads:
        each.start()
    try:
        yield
    finally:
        for each in schedulers:
            each.stop()
        for each in threads:
            each.join(60)
    assert not any(each.is_alive() for each in threads)


def test_tables_of_a_stream_are_published_with_one_cut_and_told_so(world):
    world.batch(A, B)
    last = world.batch(B, C)
    scheduler = world.scheduler()
    metrics = SchedulerMetrics(world.catalog.environment.runtime.clock)
    metrics.watch(scheduler)
    runs = {run.table: run for run in scheduler.run_once().runs}
    cut = f"{QUERY}/{last}"
    assert {run.outcome for run in runs.values()} == {Outcome.DONE}
    assert {run.facts["cut"] for run in runs.values()} == {cut}
    assert all(run.text.startswith(f"cut {cut} of 3 tables: {run.table}") for run in runs.values())
    assert world.shows(last)
    assert world.check_cuts() == [last]
    for name, table in world.tables.items():
        status = read_status(table)
        assert (status.streams, status.cut) == ([QUERY], cut)
        gauge = metrics.registry.get_sample_value("icefold_cut_batch", {"table": name})
        assert gauge == last
        ledger = load_ledger(ledger_path(table.environment, table.state, "main"))
        assert ledger.record(TaskName.RESOLVE).snapshot_id == table.state.head_id("main")
    assert world.once() == {}


def test_scheduler_publishes_until_the_cut_is_committed_not_until_indexes_follow(
    world, monkeypatch
):
    last = world.batch(A, B)
    scheduler = world.scheduler()
    writes, write = [], Cycle.write
    seen, finish = [], Cycle.finish

    def look_before(cycle, *given):
        writes.append(scheduler.is_publishing())
        return write(cycle, *given)

    def look_around(cycle, *given):
        deadline = time.monotonic() + 30
        while scheduler.is_publishing() and time.monotonic() < deadline:
            time.sleep(0.001)
        seen.append((scheduler.is_publishing(), world.shows(last)))
        return finish(cycle, *given)

    monkeypatch.setattr(Cycle, "finish", look_around)
    monkeypatch.setattr(Cycle, "write", look_before)
    scheduler.wake(NAMES)
    with running(scheduler):
        deadline = time.monotonic() + 60
        while len(seen) < 2 and time.monotonic() < deadline:
            time.sleep(0.001)
    assert writes == [True, True]
    assert seen == [(False, True)] * 2


def test_who_watches_one_table_publishes_all_that_its_batches_touch(world):
    last = world.batch(A, B)
    assert set(world.once(A)) == {A}
    assert world.shows(last)
    assert world.check_cuts() == [last]


def test_batch_that_a_table_lacks_waits_and_says_for_what(world):
    last = world.batch(A, B, only=(A,))
    (run,) = world.once().values()
    assert (run.table, run.outcome) == (A, Outcome.BUSY)
    assert f"batch {QUERY}/{last} is not staged on {B} yet" in run.text
    assert world.check_cuts() == []
    world.stage(last, B, (A, B))
    assert set(world.once()) == {A, B}
    assert world.check_cuts() == [last]


@pytest.mark.slow
def test_cut_that_waits_is_looked_at_again_only_when_a_table_moves(world, monkeypatch):
    looked = []
    real = maintenance_publish()
    monkeypatch.setattr(
        "maintenance.task_threads.publish_group",
        lambda *args, **given: looked.append(1) or real(*args, **given),
    )
    last = world.batch(A, B, only=(A,))
    with running(world.scheduler(overrides={"resolve.age-ms": 1.0})):
        wait_for(lambda: looked)
        threading.Event().wait(1.5)
        assert len(looked) <= 2
        world.stage(last, B, (A, B))
        wait_for(lambda: world.check_cuts() == [last])


def test_what_others_stage_behind_the_last_batch_is_published_by_itself(world):
    last = world.batch(A, B)
    world.once()
    world.tables[A].stage(upserts=rows_of({50: 1}))
    (run,) = world.once().values()
    assert (run.table, run.outcome) == (A, Outcome.DONE)
    assert balances_of(world.tables[A].refresh()).pop(50) == 1
    head_id = world.tables[A].refresh().state.head_id("main")
    assert world.catalog.cut("bank").snapshot_id("a") == head_id
    assert world.shows(last, (B, C))


def test_batch_that_came_after_the_look_is_not_published_by_itself(world):
    """The table is published alone, up to what was seen; the batch behind that with its group."""
    world.batch(A, B)
    world.once()
    world.tables[A].stage(upserts=rows_of({50: 1}))

    def resolve(call):
        world.batch(A, B)
        return RUNNERS[TaskName.RESOLVE](call)

    runners = {**RUNNERS, TaskName.RESOLVE: resolve}
    options = SchedulerOptions(tasks=ONLY_RESOLVE)
    Scheduler(world.catalog, ["bank.*"], options, runners=runners).run_once()
    held = balances_of(world.tables[A].refresh())
    assert held.pop(50) == 1
    assert held == world.bank.states[1][A]


def test_table_that_goes_alone_is_neither_waited_for_nor_published_with_the_others(world):
    world.tables[C].set_properties({"icefold.maintain.resolve.cut": "false"})
    last = world.batch(A, B, C)
    runs = world.once()
    assert "cut" not in runs[C].facts
    assert {runs[name].facts["cut"] for name in (A, B)} == {f"{QUERY}/{last}"}
    assert world.shows(last)


@pytest.mark.parametrize("names", [("bank.*",), (A,), (C,)])
def test_what_waits_on_a_table_that_is_set_aside_is_published_by_itself(world, names):
    first = world.batch(A, B, C)
    at = '{"query": "bank", "batch": 1, "reason": "x", "at_ms": 0}'
    world.tables[C].set_properties({"icefold.ingest.set-aside": at})
    last = world.batch(A, B)
    runs = world.once(*names)
    if A in runs:
        assert runs[A].facts["cut"] == f"{QUERY}/{last}"
        assert world.shows(last, (A, B))
    if C in runs:
        assert "cut" not in runs[C].facts
        assert world.shows(first, (C,))
    assert runs.keys() == ({*NAMES} if names == ("bank.*",) else {*names})
    world.check_cuts()


def test_table_that_is_not_published_at_all_does_not_hold_the_others(world):
    world.tables[C].set_properties({"icefold.maintain.enabled": "false"})
    last = world.batch(A, B, C)
    assert set(world.once()) == {A, B}
    assert world.shows(last, (A, B))
    assert world.shows(-1, (C,))


def test_table_that_was_dropped_does_not_hold_the_others(world):
    last = world.batch(A, B, C)
    world.catalog.drop_table(C)
    assert set(world.once()) == {A, B}
    assert world.shows(last, (A, B))


def test_pause_of_one_table_is_kept_by_its_group(world):
    world.tables[B].set_properties({"icefold.maintain.resolve.min-interval-ms": "3600000"})
    first = world.batch(A, B)
    world.once()
    world.batch(A, B)
    assert world.once() == {}
    assert world.check_cuts() == [first]
    assert set(world.once(overrides={"resolve.min-interval-ms": 0.0})) == {A, B}


@pytest.mark.slow
def test_clock_that_goes_back_holds_no_group(world):
    """Neither by a pause after a publish nor by a plan for a time of the clock before."""
    for name in NAMES:
        world.tables[name].set_properties({
            "icefold.maintain.resolve.min-interval-ms": "1000",
            "icefold.maintain.resolve.age-ms": "5000",
        })  # fmt: skip
    world.batch(A, B)
    scheduler = world.scheduler()
    with running(scheduler):
        wait_for(lambda: world.shows(0))
        first = world.batch(A, B)
        waits = [each for each in scheduler.tables() if each.name in {A, B}]
        wait_for(lambda: all(each.figures.backlog.commits == 1 for each in waits))
        world.clock.skew_ms = -3_600_000
        wait_for(lambda: world.shows(first))
        world.clock.skew_ms = 0
        second = world.batch(A, C)
        wait_for(lambda: world.shows(second))


def test_table_that_cannot_be_published_stops_its_group_and_is_named(world, monkeypatch):
    import resolver.cycle

    world.batch(A, B)
    real = resolver.cycle.load_staged

    def refuse(environment, state, *given):
        if state.name == B:
            raise ZeroDivisionError(B)
        return real(environment, state, *given)

    monkeypatch.setattr(resolver.cycle, "load_staged", refuse)
    other = world.catalog.create_table("bank.other", rows_of({}).schema, primary_key=["id"])
    other.stage(upserts=rows_of({1: 1}))
    runs = world.once()
    assert {name: run.outcome for name, run in runs.items()} == {
        A: Outcome.FAILED, B: Outcome.FAILED, "bank.other": Outcome.DONE,
    }  # fmt: skip
    assert runs[A].text == f"ZeroDivisionError: {B}"
    assert world.shows(-1)


def test_tables_are_of_one_group_through_any_stream_that_feeds_them(world):
    world.batch(A, B)
    number = world.bank.transfer(world.rng, (B, C), 2)
    for name in (B, C):
        stage_batch(world.tables[name], 0, world.bank.batches[number][name], (B, C), "other")
    scheduler = world.scheduler(tasks=(TaskName.EXPIRE,))  # looks, and publishes nothing
    scheduler.run_once()
    found = cut_groups(scheduler.tables())
    names = tuple(tuple(name.split(".")) for name in NAMES)
    assert {each: group.key for each, group in found.items()} == dict.fromkeys(names, names)


def test_tables_that_cannot_be_looked_at_are_loaded_with_what_their_batches_name(
    world, monkeypatch
):
    import maintenance.scheduler

    world.batch(B, C)  # first, and only B and C say so
    last = world.batch(A, B)
    real = maintenance.scheduler.look_at

    def look(environment, identifier, ledger, **options):
        if ".".join(identifier) in {B, C}:
            return Look(identifier=identifier, problem="it does not answer")
        return real(environment, identifier, ledger, **options)

    monkeypatch.setattr(maintenance.scheduler, "look_at", look)
    runs = world.once()
    assert {name: run.outcome for name, run in runs.items()} == dict.fromkeys((A, B), Outcome.DONE)
    assert world.shows(last)


@pytest.mark.slow
def test_two_schedulers_beside_a_stream_show_one_state_in_every_cut(world):
    names = [(A, B), (B, C), (A, C), (A, B, C)]
    options = {"overrides": {"resolve.age-ms": 1.0}, "tasks": tuple(TaskName)}
    with running(world.scheduler(**options), world.scheduler(**options)):
        for number in range(25):
            last = world.batch(*world.rng.choice(names))
            world.check_cuts()
            if number == 12:  # the stream may be faster than both
                wait_for(lambda: world.check_cuts())
        wait_for(lambda: world.shows(last))
    found = world.check_cuts()
    assert found[0] == last
    assert len(found) > 1


def maintenance_publish():
    from maintenance.task_threads import publish_group

    return publish_group


def wait_for(condition, seconds=60):
    clock = threading.Event()
    for _ in range(seconds * 20):
        if condition():
            return
        clock.wait(0.05)
    raise AssertionError("it never happened")
