"""Processes that stand still for longer than their lease, and go on when another has taken over."""

from __future__ import annotations

import pytest
from pyiceberg.table.snapshots import Operation

from maintenance.tasks.compact import compact
from maintenance.tasks.options import CompactOptions
from resolver import resolve
from tests.crash.test_resolver_kills import NAME, History
from tests.support.crash_child import REFUSED, lock_of, open_table, stopped

# Where it stands still, and how it must end when it still had something to publish.
RESOLVE_POINTS = {
    "lock.after_acquire": None, "resolve.after_read": REFUSED, "resolve.after_match": REFUSED,
    "resolve.after_dv_write": REFUSED, "commit.before_swap": REFUSED,
    "catalog.before_swap": REFUSED, "catalog.after_swap": None, "resolve.after_apply": None,
}  # fmt: skip
COMPACT_POINTS = {
    "compact.after_plan": REFUSED, "catalog.before_swap": REFUSED, "catalog.after_swap": None,
}  # fmt: skip


def run_resolve(table):
    resolve(table, lock=lock_of(table))


def run_compact(table):
    compact(table, CompactOptions(rewrite_all=True), lock=lock_of(table))


@pytest.fixture
def history(tmp_path):
    history = History(tmp_path)
    history.stage([(1, "us", 1), (9, "eu", 1)], deletes=[2])
    return history


def take_over(history: History, folder) -> None:
    """Another machine waits for the lease, and resolves what is there by then."""
    history.table.refresh()
    history.stage([(1, "eu", 2), (3, "us", 2)], deletes=[9])
    table = open_table(history.warehouse, NAME)
    report = resolve(table, lock=lock_of(table), index_directory=folder)
    assert report.staged_snapshots >= 1


CASES = [
    *[(run_resolve, point, end) for point, end in RESOLVE_POINTS.items()],
    *[(run_compact, point, end) for point, end in COMPACT_POINTS.items()],
]


@pytest.mark.parametrize(("run", "point", "end"), CASES)
def test_task_that_stood_still_past_its_lease_changes_nothing_more(
    history, run, point, end, tmp_path
):
    with stopped(run, history.warehouse, NAME, point=point) as go_on:
        take_over(history, tmp_path / "other-index")
        left = open_table(history.warehouse, NAME).state.metadata
        ended = go_on()
    assert end is None or ended == end
    now = open_table(history.warehouse, NAME).state.metadata
    assert now.refs == left.refs
    history.table.refresh()
    history.stage([(4, "us", 3)], deletes=[1])
    run_resolve(open_table(history.warehouse, NAME))
    history.check()


def test_compaction_that_stood_still_while_it_needed_no_lease_goes_on(history, tmp_path):
    with stopped(run_compact, history.warehouse, NAME, point="compact.after_write") as go_on:
        take_over(history, tmp_path / "other-index")
        left = open_table(history.warehouse, NAME).state
        assert go_on() == 0
    now = open_table(history.warehouse, NAME).state
    assert now.head("main").parent_snapshot_id == left.head_id("main")
    assert now.head("main").summary.operation == Operation.REPLACE
    history.table.refresh()
    history.stage([(4, "us", 3)], deletes=[1])
    run_resolve(open_table(history.warehouse, NAME))
    history.check()
