"""Scheduling with plain functions for tasks: what runs, what waits, what a failure does."""

import threading
import time
from itertools import pairwise
from types import ModuleType

import pyarrow as pa
import pytest

import maintenance
from lock import LeaseUnavailableError, LockUnavailableError
from maintenance import public, read_status
from maintenance.logs import log_run
from maintenance.metrics import SchedulerMetrics
from maintenance.pause import time_text
from maintenance.run_history import Outcome, ledger_path, load_ledger
from maintenance.runners import RUNNERS, TaskResult, run_resolve
from maintenance.scheduler import POLL_MAX_MS, POLL_MIN_MS, Scheduler
from maintenance.scheduler_options import SchedulerOptions
from maintenance.settings import TaskName
from tableformat import InvalidInputError, NotFoundError, StoreUnavailableError
from tests.support.memory_tables import memory_catalog

SCHEMA = pa.schema([("id", pa.int64()), ("note", pa.string())])
NOTHING = TaskResult(changed=False, text="nothing")


def rows(*ids):
    return pa.table({"id": list(ids), "note": ["x"] * len(ids)})


@pytest.fixture
def catalog(tmp_path):
    return memory_catalog(str(tmp_path / "index"))


def new_table(catalog, name="t.rows", **properties):
    table = catalog.create_table(
        name, SCHEMA, primary_key=["id"],
        properties={f"icefold.maintain.{k}": v for k, v in properties.items()},
    )  # fmt: skip
    table.append(rows(1, 2))
    return table


def runners(**replaced):
    found = {task: lambda _call: NOTHING for task in TaskName}
    found[TaskName.RESOLVE] = run_resolve
    return found | {TaskName(name): runner for name, runner in replaced.items()}


def once(catalog, *names, options=None, **replaced):
    scheduler = Scheduler(catalog, names, options, runners=runners(**replaced))
    return scheduler.run_once()


def running(scheduler):
    """Run in a thread; returns a function that stops it and gives its end."""
    ends = []
    thread = threading.Thread(target=lambda: ends.append(scheduler.run()))
    thread.start()

    def stop():
        scheduler.stop()
        thread.join(30)
        assert not thread.is_alive()
        return ends[0]

    return stop


def wait_for(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.02)


def test_once_publishes_whatever_waits_and_remembers_it(catalog):
    table = new_table(catalog)
    table.stage(upserts=rows(2, 3))
    options = SchedulerOptions(tasks=(TaskName.RESOLVE,))
    end = once(catalog, "t.rows", options=options)
    assert [(run.task, run.outcome) for run in end.runs] == [(TaskName.RESOLVE, Outcome.DONE)]
    assert sorted(table.scan().to_arrow()["id"].to_pylist()) == [1, 2, 3]
    ledger = load_ledger(ledger_path(table.environment, table.refresh().state, "main"))
    assert ledger.record(TaskName.RESOLVE).snapshot_id == table.state.head("main").snapshot_id
    assert once(catalog, "t.rows", options=options).runs == ()


def test_pause_after_a_publish_is_kept_and_announced(catalog, caplog):
    """Log line, fact for machines, status and metrics name the same time."""
    table = new_table(catalog)
    options = SchedulerOptions(
        tasks=(TaskName.RESOLVE,), overrides={"resolve.min-interval-ms": 3_600_000.0}
    )
    table.stage(upserts=rows(2, 3))
    scheduler = Scheduler(catalog, ["t.rows"], options, observers=[log_run])
    metrics = SchedulerMetrics(catalog.environment.runtime.clock)
    metrics.watch(scheduler)
    with caplog.at_level("INFO", logger="icefold.maintain"):
        (run,) = scheduler.run_once().runs
    at_ms = run.facts["next_publish_ms"]
    assert at_ms == run.began_ms + int(run.duration_ms) + 3_600_000
    assert f"next publish not before {time_text(at_ms)}" in caplog.text
    assert read_status(table).next_publish_ms == at_ms
    gauge = metrics.registry.get_sample_value(
        "icefold_next_publish_timestamp_seconds", {"table": "t.rows"}
    )
    assert gauge == at_ms / 1e3
    table.stage(upserts=rows(4))
    assert once(catalog, "t.rows", options=options).runs == ()
    assert len(once(catalog, "t.rows").runs) >= 1  # without the pause it is published


def test_without_a_pause_none_is_announced(catalog):
    table = new_table(catalog)
    table.stage(upserts=rows(2, 3))
    (run,) = once(catalog, "t.rows", options=SchedulerOptions(tasks=(TaskName.RESOLVE,))).runs
    assert "next_publish_ms" not in run.facts
    assert "not before" not in run.text
    assert read_status(table).next_publish_ms is None


def test_failing_table_does_not_stop_the_others(catalog):
    for name in ("t.bad", "t.good"):
        new_table(catalog, name).stage(upserts=rows(9))

    def resolve(call):
        if call.table.name == "t.bad":
            raise ZeroDivisionError("boom\nsecond line")
        return run_resolve(call)

    end = once(catalog, "t.*", resolve=resolve)
    found = {run.table: (run.outcome, run.text) for run in end.runs}
    assert found["t.bad"] == (Outcome.FAILED, "ZeroDivisionError: boom second line")
    assert found["t.good"][0] == Outcome.DONE


@pytest.mark.parametrize(
    ("error", "kind"), [(StoreUnavailableError, "unavailable"), (LockUnavailableError, "lock")]
)
def test_failed_run_begins_with_the_kind_of_its_error(catalog, error, kind):
    """It is what the run book goes by."""

    def resolve(_call):
        raise error("no answer")

    new_table(catalog).stage(upserts=rows(9))
    end = once(catalog, "t.rows", resolve=resolve)
    found = [(run.outcome, run.text) for run in end.runs]
    assert found == [(Outcome.FAILED, f"{kind}: no answer")]


def test_compaction_that_can_rewrite_nothing_is_a_failure_and_says_why(catalog):
    table = new_table(catalog, **{"compact.files": "2"})
    for key in range(3, 8):  # small files wait until there are five
        table.append(rows(key))
    file = table.scan().plan.tasks[0].entry.data_file
    catalog.environment.store.delete([file.file_path])
    options = SchedulerOptions(tasks=(TaskName.COMPACT,))
    (run,) = once(catalog, "t.rows", options=options, compact=RUNNERS[TaskName.COMPACT]).runs
    assert run.outcome == Outcome.FAILED
    assert "1 group failed: 6 files from" in run.text
    assert file.file_path in run.text


def test_wrong_property_fails_its_table_only(catalog):
    new_table(catalog, "t.bad", **{"compact.filez": "3"}).stage(upserts=rows(9))
    new_table(catalog, "t.good").stage(upserts=rows(9))
    end = once(catalog, "t.*")
    assert [run.table for run in end.runs] == ["t.good"]
    assert "icefold.maintain.compact.filez" in end.failed["t.bad"]


def test_table_that_is_named_must_exist(catalog):
    with pytest.raises(NotFoundError):
        once(catalog, "t.nothing")
    assert once(catalog, "t.nothing*").runs == ()


def test_unknown_number_of_threads_is_refused():
    with pytest.raises(InvalidInputError):
        SchedulerOptions(parallel_max=0)


def test_failures_wait_twice_as_long_each_time(catalog):
    table = new_table(catalog, **{"backoff-min-ms": "60"})
    begun = []

    def resolve(_call):
        begun.append(time.monotonic())
        raise ValueError("no")

    table.stage(upserts=rows(9))
    options = SchedulerOptions(every_ms=50)
    stop = running(Scheduler(catalog, ["t.rows"], options, runners=runners(resolve=resolve)))
    wait_for(lambda: len(begun) >= 5)
    stop()
    waits = [b - a for a, b in pairwise(begun)]
    for number, wait in enumerate(waits[:4]):
        assert wait >= 0.06 * 2**number
    ledger = load_ledger(ledger_path(table.environment, table.refresh().state, "main"))
    assert ledger.record(TaskName.RESOLVE).error == "ValueError: no"


def test_busy_lock_is_no_failure(catalog):
    def resolve(call):
        raise LeaseUnavailableError("held", holder="someone")

    new_table(catalog).stage(upserts=rows(9))
    end = once(catalog, "t.rows", resolve=resolve)
    assert [run.outcome for run in end.runs] == [Outcome.BUSY]


def test_new_commits_and_new_tables_are_noticed(catalog):
    table = new_table(catalog)
    options = SchedulerOptions(rediscover_ms=100)
    stop = running(Scheduler(catalog, ["t.*"], options, runners=runners()))
    try:
        table.stage(upserts=rows(5))
        wait_for(lambda: table.scan().to_arrow().num_rows == 3)
        other = new_table(catalog, "t.other")
        other.stage(upserts=rows(7))
        wait_for(lambda: other.scan().to_arrow().num_rows == 3)
        catalog.drop_table("t.other")
        table.stage(upserts=rows(6))
        wait_for(lambda: table.scan().to_arrow().num_rows == 4)
    finally:
        stop()


def test_quiet_tables_are_polled_by_pointer_and_never_loaded(catalog, monkeypatch):
    for number in range(30):
        new_table(catalog, f"t.rows{number}")
    scheduler = Scheduler(catalog, ["t.*"], runners=runners())
    backend, loads = catalog.environment.catalog, []
    load = backend.load_table
    monkeypatch.setattr(backend, "load_table", lambda i: loads.append(i) or load(i))
    stop = running(scheduler)
    wait_for(lambda: all(each.figures for each in scheduler.tables()))
    time.sleep(0.3)
    known = len(loads)
    time.sleep(1.5)
    stop()
    assert len(loads) == known


@pytest.mark.parametrize(("cores", "long_max"), [(8, 2), (2, 1), (1, 1)])
def test_long_tasks_leave_room_for_cycles_and_one_table_runs_one_of_each(catalog, cores, long_max):
    for number in range(4):
        new_table(catalog, f"t.rows{number}", **{"compact.commits": "1"}).stage(upserts=rows(9))
    gate, compacting, most = threading.Event(), [], []

    def compact(call):
        compacting.append(call.table.name)
        most.append(len(compacting))
        assert gate.wait(120)
        compacting.remove(call.table.name)
        return NOTHING

    options = SchedulerOptions(parallel_max=3, cores=cores)
    scheduler = Scheduler(catalog, ["t.*"], options, runners=runners(compact=compact))
    stop = running(scheduler)
    try:
        tables = [catalog.load_table(f"t.rows{number}") for number in range(4)]
        wait_for(lambda: all(table.scan().to_arrow().num_rows == 3 for table in tables))
        assert max(most) == long_max
    finally:
        gate.set()
        stop()


def test_one_cycle_of_a_table_runs_at_a_time(catalog):
    running_now, most = [], []

    def resolve(call):
        running_now.append(1)
        most.append(len(running_now))
        time.sleep(0.4)
        running_now.pop()
        return run_resolve(call)

    table = new_table(catalog)
    table.stage(upserts=rows(5))
    stop = running(Scheduler(catalog, ["t.rows"], runners=runners(resolve=resolve)))
    try:
        wait_for(lambda: len(most) > 0)
        table.stage(upserts=rows(6))
        wait_for(lambda: table.scan().to_arrow().num_rows == 4)
    finally:
        stop()
    assert max(most) == 1


def test_stop_waits_for_what_runs_and_a_second_one_does_not(catalog):
    gate, begun = threading.Event(), threading.Event()

    def resolve(_call):
        begun.set()
        gate.wait(120)
        return NOTHING

    new_table(catalog).stage(upserts=rows(9))
    for is_patient in (True, False):
        gate.clear()
        begun.clear()
        scheduler = Scheduler(catalog, ["t.rows"], runners=runners(resolve=resolve))
        stop = running(scheduler)
        assert begun.wait(60)
        if is_patient:
            threading.Timer(0.3, gate.set).start()
        else:
            scheduler.stop()
        end = stop()
        gate.set()
        assert end.was_stopped
        assert end.abandoned == (() if is_patient else ("resolve t.rows",))


def test_scheduler_says_that_it_publishes_from_when_it_is_told_until_the_cycle_ends(catalog):
    begun, may_end = threading.Event(), threading.Event()

    def resolve_slowly(_):
        begun.set()
        may_end.wait(30)
        return NOTHING

    new_table(catalog).stage(rows(1))
    options = SchedulerOptions(tasks=(TaskName.RESOLVE,), overrides={"resolve.commits": 1.0})
    scheduler = Scheduler(catalog, ["t.rows"], options, runners=runners(resolve=resolve_slowly))
    assert not scheduler.is_publishing()
    scheduler.wake(["t.rows"])
    assert scheduler.is_publishing()
    stop = running(scheduler)
    try:
        while not begun.wait(0.001):
            assert scheduler.is_publishing()
        assert scheduler.is_publishing()
    finally:
        may_end.set()
        stop()


@pytest.mark.parametrize("is_told", [True, False])
def test_long_task_beside_a_stream_rests_as_long_as_it_took(catalog, is_told):
    begun, ended = {}, {}

    def compact(call):
        begun[call.table.name] = time.monotonic()
        time.sleep(0.3)
        ended[call.table.name] = time.monotonic()
        return NOTHING

    names = ["t.one", "t.two"]
    for name in names:
        new_table(catalog, name, **{"compact.commits": "1"})
    options = SchedulerOptions(cores=2, tasks=(TaskName.COMPACT,))
    scheduler = Scheduler(catalog, names, options, runners=runners(compact=compact))
    if is_told:
        scheduler.wake(names)
    stop = running(scheduler)
    try:
        wait_for(lambda: len(ended) == 2)
        first, second = sorted(names, key=begun.__getitem__)
        assert begun[second] - ended[first] >= (0.3 if is_told else 0)
        now_ms = time.monotonic() * 1e3
        for each in scheduler.tables():
            each.moved_ms = now_ms
            pause_ms = scheduler._poll_interval_ms(each, now_ms, is_load=False)
            assert pause_ms == (POLL_MAX_MS if is_told else POLL_MIN_MS)
    finally:
        stop()


def test_long_task_ends_between_two_steps_when_it_is_stopped(catalog):
    begun = threading.Event()
    runs = []

    def compact(call):
        with call.lock.hold("t/maintenance", task="compact", timeout_ms=1000) as lease:
            for _ in range(1000):
                begun.set()
                time.sleep(0.02)
                lease.pause()
        return NOTHING

    new_table(catalog, **{"compact.commits": "1"})
    scheduler = Scheduler(
        catalog, ["t.rows"], runners=runners(compact=compact), observers=[runs.append]
    )
    stop = running(scheduler)
    assert begun.wait(60)
    assert stop().abandoned == ()
    assert [(run.task, run.outcome) for run in runs] == [(TaskName.COMPACT, Outcome.BUSY)]
    assert "as asked" in runs[0].text


def test_catalog_without_cheap_pointers_is_followed_by_loading(catalog, monkeypatch):
    table = new_table(catalog)
    monkeypatch.setattr(catalog.environment.catalog, "metadata_locations", lambda _wanted: None)
    monkeypatch.setattr("maintenance.scheduler.POLL_MAX_LOADING_MS", 200)
    stop = running(Scheduler(catalog, ["t.*"], runners=runners()))
    try:
        table.stage(upserts=rows(5))
        wait_for(lambda: table.scan().to_arrow().num_rows == 3)
    finally:
        stop()


def test_catalog_that_does_not_answer_is_asked_again(catalog, monkeypatch):
    table = new_table(catalog)
    backend, asked = catalog.environment.catalog, []
    locations = backend.metadata_locations

    def flaky(wanted):
        asked.append(1)
        if len(asked) == 2:
            raise StoreUnavailableError("catalog is down")
        return locations(wanted)

    monkeypatch.setattr(backend, "metadata_locations", flaky)
    monkeypatch.setattr("maintenance.scheduler.POLL_MAX_LOADING_MS", 200)
    stop = running(Scheduler(catalog, ["t.*"], runners=runners()))
    try:
        wait_for(lambda: len(asked) > 2)
        table.stage(upserts=rows(5))
        wait_for(lambda: table.scan().to_arrow().num_rows == 3)
    finally:
        stop()


def test_table_that_cannot_be_looked_at_is_tried_ever_more_seldom_until_it_changes(
    catalog, monkeypatch
):
    table = new_table(catalog, **{"compact.filez": "1"})
    looks = []
    monkeypatch.setattr("maintenance.scheduler.LOOK_BACKOFF_MIN_MS", 50)
    monkeypatch.setattr("maintenance.scheduler.POLL_MIN_MS", 20)
    monkeypatch.setattr("maintenance.scheduler.POLL_MAX_MS", 20)
    backend = catalog.environment.catalog
    load = backend.load_table
    monkeypatch.setattr(backend, "load_table", lambda i: looks.append(time.monotonic()) or load(i))
    stop = running(Scheduler(catalog, ["t.*"], runners=runners()))
    try:
        wait_for(lambda: len(looks) >= 5)
        waits = [b - a for a, b in pairwise(looks)]
        assert waits[-1] > 0.3
        table.set_properties(remove=["icefold.maintain.compact.filez"])
        table.stage(upserts=rows(5))
        wait_for(lambda: table.scan().to_arrow().num_rows == 3, seconds=10)
    finally:
        stop()


def test_observer_that_fails_stops_nothing(catalog):
    def observe(_run):
        raise KeyError("observer")

    table = new_table(catalog)
    table.stage(upserts=rows(5))
    scheduler = Scheduler(catalog, ["t.*"], runners=runners(), observers=[observe])
    assert scheduler.run_once().runs
    assert table.scan().to_arrow().num_rows == 3


def test_public_names_are_sorted_and_exported():
    names = {name for name, value in vars(public).items() if not isinstance(value, ModuleType)}
    wanted = sorted(name for name in names - {"annotations"} if not name.startswith("_"))
    assert public.__all__ == maintenance.__all__ == wanted
