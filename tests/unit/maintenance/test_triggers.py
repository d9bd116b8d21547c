"""What is due, when, and what the rest waits for: pure, so every case is a few numbers."""

from dataclasses import replace

import pytest

from maintenance.pause import announced_ms
from maintenance.run_history import Ledger, Outcome, Run, TaskRecord
from maintenance.settings import SETTINGS, MaintainConfig, TaskName
from maintenance.table_figures import Backlog, Figures, Since, figures_of
from maintenance.tasks.compact import compact
from maintenance.triggers import AGING_MS, TRIGGERS, Due, next_publish_ms, plan_table
from tableformat.commit.retry import JITTER_MAX
from tests.support.staged_tables import BASE, StagedTable

NOW = 1_000_000_000
HOUR = 3_600_000
QUIET = Figures(
    table="t.rows",
    table_uuid="u",
    metadata_location="m",
    target_snapshot_id=1,
    target_ms=NOW,
    staging_snapshot_id=1,
    born_ms=NOW,
    backlog=Backlog(),
    totals={
        "records": 100, "data_files": 1, "delete_files": 0, "position_deletes": 0,
        "equality_deletes": 0, "size_bytes": 10,
    },
    snapshots=1,
    since={task: Since() for task in TaskName},
)  # fmt: skip


def plan(figures=QUIET, ledger=None, now_ms=NOW, **settings):
    config = MaintainConfig({name.replace("__", "."): v for name, v in settings.items()})
    return plan_table(figures, ledger or Ledger(), config, now_ms=now_ms)


def due(*args, **settings):
    return [each.task for each in plan(*args, **settings).due]


def since(task, **counts):
    return replace(QUIET, since={**QUIET.since, task: Since(**counts)})


def waiting(figures, task, *args, **settings):
    return next(w for w in plan(figures, *args, **settings).waiting if w.task == task)


def test_quiet_table_has_nothing_due_and_wakes_for_orphans_only():
    found = plan()
    assert found.due == ()
    assert found.next_ms == NOW + SETTINGS["remove-orphans.interval-ms"].default


@pytest.mark.parametrize(
    ("backlog", "is_due"),
    [
        (Backlog(commits=20, oldest_ms=NOW), True),
        (Backlog(commits=19, oldest_ms=NOW), False),
        (Backlog(commits=1, deletes=100_000, oldest_ms=NOW), True),
        (Backlog(commits=1, size_bytes=256 << 20, oldest_ms=NOW), True),
        (Backlog(commits=1, oldest_ms=NOW - 1000), True),
        (Backlog(commits=1, oldest_ms=NOW - 999), False),
        (Backlog(commits=1, oldest_ms=NOW + 30_000), False),  # a writer whose clock is ahead
        (Backlog(commits=1, oldest_ms=NOW + 24 * HOUR), True),  # a clock that went back
    ],
)
def test_resolve_is_due_at_commits_deletes_bytes_or_age(backlog, is_due):
    assert (due(replace(QUIET, backlog=backlog)) == [TaskName.RESOLVE]) is is_due


def test_waiting_backlog_wakes_when_it_is_old_enough():
    figures = replace(QUIET, backlog=Backlog(commits=1, oldest_ms=NOW - 400))
    assert plan(figures).next_ms == NOW + 600


PAUSE = MaintainConfig({"resolve.min-interval-ms": 5_000})
WAITING = replace(QUIET, backlog=Backlog(commits=50, oldest_ms=NOW - HOUR))


def test_without_the_setting_there_is_no_pause_after_a_publish():
    figures = replace(WAITING, published_ms=NOW)
    assert due(figures) == [TaskName.RESOLVE]
    assert next_publish_ms(figures, Ledger(), MaintainConfig({}), now_ms=NOW) is None


@pytest.mark.parametrize(("began_ms", "is_told"), [(NOW - 1, True), (NOW + 24 * HOUR, False)])
def test_pause_that_a_clock_ahead_has_announced_is_not_waited_for(began_ms, is_told):
    run = {"began_ms": began_ms, "facts": {"next_publish_ms": began_ms + 5_000}}
    told = announced_ms(QUIET, Ledger(runs=(run,)), MaintainConfig({}), now_ms=NOW)
    assert (told is not None) is is_told


def test_publish_of_anybody_starts_the_pause():
    """Of another scheduler, of a command: the table's own history says when it was."""
    figures = replace(WAITING, published_ms=NOW - 4_999)
    found = waiting(figures, TaskName.RESOLVE, **PAUSE.values)
    assert found.at_ms == NOW + 1
    assert next_publish_ms(figures, Ledger(), PAUSE, now_ms=NOW) == NOW + 1
    assert plan_table(
        replace(figures, published_ms=NOW - 5_000), Ledger(), PAUSE, now_ms=NOW
    ).due[0].task == TaskName.RESOLVE  # fmt: skip


def test_pause_is_counted_from_the_end_of_the_own_cycle():
    figures = replace(WAITING, published_ms=NOW - 4_000)
    ledger = Ledger(records={TaskName.RESOLVE: TaskRecord(ended_ms=NOW - 3_000, snapshot_id=1)})
    assert next_publish_ms(figures, ledger, PAUSE, now_ms=NOW) == NOW + 2_000
    found = plan_table(figures, ledger, PAUSE, now_ms=NOW)
    assert [w.at_ms for w in found.waiting if w.task == TaskName.RESOLVE] == [NOW + 2_000]


def test_publish_of_a_machine_whose_clock_is_ahead_doubles_the_pause_at_most():
    soon = replace(WAITING, published_ms=NOW + 1_000)
    held = plan_table(soon, Ledger(), PAUSE, now_ms=NOW)
    assert [w.at_ms for w in held.waiting if w.task == TaskName.RESOLVE] == [NOW + 6_000]
    later = replace(WAITING, published_ms=NOW + HOUR)
    assert plan_table(later, Ledger(), PAUSE, now_ms=NOW).due[0].task == TaskName.RESOLVE


def test_backlog_that_cannot_be_told_waits_for_an_operator():
    figures = replace(QUIET, backlog=Backlog(commits=None, problem="cursor is lost"))
    found = waiting(figures, TaskName.RESOLVE)
    assert (found.why, found.at_ms) == ("cursor is lost", None)


@pytest.mark.parametrize("counts", [{"commits": 100}, {"files": 64}, {"size_bytes": 1 << 30}])
def test_compaction_is_due_at_commits_files_or_bytes(counts):
    assert due(since(TaskName.COMPACT, **counts)) == [TaskName.COMPACT]
    less = {name: count - 1 for name, count in counts.items()}
    assert due(since(TaskName.COMPACT, **less)) == []


def test_dv_share_starts_compaction_only_after_a_change():
    totals = {**QUIET.totals, "position_deletes": 20}
    changed = replace(since(TaskName.COMPACT, commits=1), totals=totals)
    assert due(changed) == [TaskName.COMPACT]
    assert due(replace(QUIET, totals=totals)) == []


def test_interval_starts_a_task_only_after_a_change():
    old = replace(QUIET, born_ms=NOW - HOUR)
    changed = replace(since(TaskName.COMPACT, commits=1), born_ms=NOW - HOUR)
    assert TaskName.COMPACT not in due(old)
    assert TaskName.COMPACT in due(changed)


def test_expiry_goes_on_in_a_quiet_table_until_one_snapshot_is_left():
    """At the last run after the last change, the old ones may have been too young."""
    old = replace(QUIET, born_ms=NOW - HOUR, snapshots=2)
    assert due(old) == [TaskName.EXPIRE]
    assert due(replace(old, snapshots=1)) == []
    assert due(replace(old, born_ms=NOW - HOUR + 1)) == []
    ran = Ledger(records={TaskName.EXPIRE: TaskRecord(ended_ms=NOW - 1, snapshot_id=1)})
    assert waiting(old, TaskName.EXPIRE, ran).at_ms == NOW - 1 + HOUR


def test_threshold_of_zero_turns_a_trigger_off():
    figures = since(TaskName.COMPACT, files=1000)
    assert due(figures, compact__files=0) == []


def test_disabled_task_and_disabled_table_do_nothing():
    figures = since(TaskName.COMPACT, files=1000)
    assert due(figures, compact__enabled=0) == []
    assert plan(figures, enabled=0).waiting == ()


def test_pause_after_a_run_holds_a_trigger_back():
    figures = since(TaskName.COMPACT, files=1000)
    record = TaskRecord(ended_ms=NOW - 1000, snapshot_id=1)
    ledger = Ledger(records={TaskName.COMPACT: record})
    assert due(figures, ledger) == []
    assert waiting(figures, TaskName.COMPACT, ledger).at_ms == NOW - 1000 + 20_000
    assert due(figures, ledger, NOW + 59_000) == [TaskName.COMPACT]


def test_runs_that_find_nothing_double_the_pause():
    figures = since(TaskName.COMPACT, files=1000)
    record = TaskRecord(ended_ms=NOW, snapshot_id=1, idle_runs=3)
    found = waiting(figures, TaskName.COMPACT, Ledger(records={TaskName.COMPACT: record}))
    assert found.at_ms == NOW + 8 * 20_000


def test_failed_task_waits_and_the_others_do_not():
    figures = replace(
        since(TaskName.COMPACT, files=1000), backlog=Backlog(commits=30, oldest_ms=NOW)
    )
    failed = TaskRecord(failures=2, retry_ms=NOW + 5_000, error="boom")
    ledger = Ledger(records={TaskName.RESOLVE: failed})
    assert due(figures, ledger) == [TaskName.COMPACT]
    assert "after failure 2" in waiting(figures, TaskName.RESOLVE, ledger).why
    assert due(figures, ledger, NOW + 5_000) == [TaskName.RESOLVE, TaskName.COMPACT]


def test_clock_that_went_back_does_not_stop_maintenance():
    figures = since(TaskName.COMPACT, files=1000)
    record = TaskRecord(ended_ms=NOW + 24 * HOUR, snapshot_id=1)
    for task, table in ((TaskName.COMPACT, figures), (TaskName.REMOVE_ORPHANS, QUIET)):
        assert due(table, Ledger(records={task: record})) == [task]
    far = TaskRecord(failures=1, retry_ms=NOW + 1000 * HOUR)
    assert due(figures, Ledger(records={TaskName.COMPACT: far})) == [TaskName.COMPACT]
    longest_ms = int(SETTINGS["backoff-max-ms"].default * (1 + JITTER_MAX))
    longest = TaskRecord(failures=99, retry_ms=NOW + longest_ms)
    assert due(figures, Ledger(records={TaskName.COMPACT: longest})) == []


def test_cycle_goes_before_compaction_until_that_has_waited_long():
    old = Due(table="a", task=TaskName.REMOVE_ORPHANS, since_ms=NOW - 6 * AGING_MS, reason="")
    young = Due(table="b", task=TaskName.RESOLVE, since_ms=NOW, reason="")
    assert old.rank(NOW) < young.rank(NOW)
    assert young.rank(NOW) < replace(old, since_ms=NOW).rank(NOW)


def test_every_threshold_has_a_trigger():
    known = {trigger.setting.name for found in TRIGGERS.values() for trigger in found}
    others = ("enabled", "min-interval-ms", "backoff-min-ms", "backoff-max-ms", "group-bytes",
              "older-than-ms", "partial-progress", "max-commits", "resolve.cut")  # fmt: skip
    assert known == {name for name in SETTINGS if not name.endswith(others)}


def run(outcome, began_ms=NOW):
    return Run(
        table="t.rows", task=TaskName.COMPACT, outcome=outcome, began_ms=began_ms, duration_ms=10
    )


def test_ledger_counts_failures_and_forgets_them_after_success():
    ledger = Ledger().after(run(Outcome.FAILED), snapshot_id=None, retry_ms=NOW + 1)
    ledger = ledger.after(run(Outcome.FAILED), snapshot_id=None, retry_ms=NOW + 2)
    record = ledger.record(TaskName.COMPACT)
    assert (record.failures, record.retry_ms, record.ended_ms) == (2, NOW + 2, None)
    ledger = ledger.after(run(Outcome.DONE), snapshot_id=7, retry_ms=0)
    assert ledger.record(TaskName.COMPACT) == TaskRecord(ended_ms=NOW + 10, snapshot_id=7)


def test_ledger_keeps_a_bounded_number_of_runs():
    ledger = Ledger()
    for number in range(100):
        ledger = ledger.after(run(Outcome.NOTHING, number), snapshot_id=1, retry_ms=0)
    assert len(ledger.runs) == 30
    assert ledger.runs[-1]["began_ms"] == 99
    assert ledger.record(TaskName.COMPACT).idle_runs == 5


def test_position_deletes_of_files_that_have_left_start_no_compaction(tmp_path):
    """On v2 a position delete file that names several data files outlives them."""
    staged = StagedTable(tmp_path, properties={"format-version": "2"})
    table = staged.table
    files = [*staged.data_files(*BASE), *staged.data_files(*BASE)]
    staged.commit(branch="main", data=files)
    positions = {each.file_path: range(15) for each in files}
    staged.commit(branch="main", deletes=[staged.position_deletes(positions, files)])
    assert share_is_due(table, Ledger())
    assert compact(table.refresh()).commits
    table.append(staged.rows((99, "eu", "new")))
    figures = figures_of(table.refresh().state, Ledger(), staging="staging", target="main")
    assert figures.totals["position_deletes"] > figures.totals["records"]
    assert figures.dv_share == 1.0
    assert not share_is_due(table, Ledger())
    [new] = [t.entry.data_file for t in staged.tasks() if t.entry.data_file.record_count == 10]
    found = {new.file_path: range(8)}
    staged.commit(branch="main", deletes=[staged.position_deletes(found, [new])])
    assert share_is_due(table, Ledger())


def share_is_due(table, ledger: Ledger) -> bool:
    figures = figures_of(table.refresh().state, ledger, staging="staging", target="main")
    config = MaintainConfig({"compact.files": 100})
    found = plan_table(figures, ledger, config, now_ms=figures.born_ms)
    return any(e.task == TaskName.COMPACT and "share" in e.reason for e in found.due)
