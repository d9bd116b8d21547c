"""Counts since a task's run, from metadata alone."""

from dataclasses import replace

import pytest

from maintenance import CompactOptions, compact, table_figures
from maintenance.run_history import Ledger
from maintenance.settings import TaskName
from maintenance.table_figures import Since, figures_of
from resolver import resolve
from tests.support.staged_tables import StagedTable, keys


@pytest.fixture
def staged(tmp_path):
    staged = StagedTable(tmp_path)
    for number in range(4):
        staged.table.append(staged.rows((number, "eu", "base")))
    return staged


def figures(staged):
    state = staged.table.refresh().state
    return figures_of(state, Ledger(), staging="staging", target="main")


def test_counts_begin_after_the_last_compaction_or_with_the_history(staged):
    compact(staged.table, CompactOptions(input_files_min=2))
    staged.table.stage(upserts=staged.rows((0, "eu", "new")), deletes=keys(1))
    resolve(staged.table)
    since = figures(staged).since
    found = replace(since[TaskName.COMPACT], size_bytes=0)
    assert found == Since(commits=1, files=1, dvs=1, position_deletes=2)
    assert (since[TaskName.EXPIRE].commits, since[TaskName.EXPIRE].files) == (5, 5)


def test_snapshot_is_counted_once_however_often_a_table_is_looked_at(staged, monkeypatch):
    first = figures(staged)
    staged.table.append(staged.rows((9, "eu", "more")))
    asked = []
    monkeypatch.setattr(table_figures, "is_compaction", lambda each: bool(asked.append(each)))
    second = figures(staged)
    assert len(asked) <= 1  # the new one, unless the table was read from its file again
    assert second.since[TaskName.EXPIRE].commits == first.since[TaskName.EXPIRE].commits + 1
