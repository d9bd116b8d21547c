"""Counts since a task's run, from metadata alone."""

from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.table.refs import SnapshotRef

from maintenance import CompactOptions, compact, table_figures
from maintenance.run_history import Ledger, TaskRecord
from maintenance.settings import TaskName
from maintenance.table_figures import Since, figures_of
from resolver import resolve
from tableformat.commit.branch_history import branch_history
from tableformat.errors import CorruptDataError
from tests.support.branch_graphs import graph_of
from tests.support.staged_tables import StagedTable, keys

HEADS = st.integers(1, 20)


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


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    looks=st.lists(st.tuples(HEADS, st.lists(HEADS, max_size=len(TaskName))), min_size=1),
)
def test_counts_are_those_of_a_walk_for_each_task_by_itself(seed, looks):
    graph = graph_of(2, seed, 20)
    for each in graph.snapshots.values():
        for name in ("added-files-size", "added-dvs", "deleted-data-files"):
            each["summary"][name] = str(graph.rng.randint(0, 2))
    try:
        state = graph.state
    except CorruptDataError:  # numbers that went back
        return
    for head_id, runs in looks:  # what one look has counted serves the next
        ref = SnapshotRef(snapshot_id=head_id, snapshot_ref_type="branch")
        main = {"main": ref} if head_id in graph.snapshots else {}
        metadata = state.metadata.model_copy(update={"refs": main})
        moved = replace(state, metadata=metadata)
        records = {
            task: TaskRecord(snapshot_id=each) for task, each in zip(TaskName, runs, strict=False)
        }
        ledger = Ledger(records=records)
        found = figures_of(moved, ledger, staging="staging", target="main").since
        assert found == {
            task: since_of(moved, task, records.get(task, TaskRecord()).snapshot_id)
            for task in TaskName
        }


def since_of(state, task, end):
    counted = Since()
    for each in branch_history(state, "main"):
        count = partial(table_figures.counter, each)
        is_rewrite = each.summary.operation.value == "replace"
        is_compaction = is_rewrite and count("deleted-data-files") > 0
        if each.snapshot_id == end or (task == TaskName.COMPACT and is_compaction):
            return counted
        if not is_rewrite:
            counted = Since(
                commits=counted.commits + 1,
                files=counted.files + count("added-data-files"),
                size_bytes=counted.size_bytes + count("added-files-size"),
                dvs=counted.dvs + count("added-dvs"),
            )
    return counted
