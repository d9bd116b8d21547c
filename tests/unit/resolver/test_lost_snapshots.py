"""What was staged on a branch that somebody dropped or moved is told, and nothing else is."""

import logging

import pytest

from resolver import resolve
from resolver.lost_snapshots import lost_snapshots
from tests.support.another_tool import another_tool
from tests.support.staged_tables import StagedTable

OLD = (3, "eu", "old")


@pytest.fixture
def staged(tmp_path):
    table = StagedTable(tmp_path)
    table.table.append(table.rows(OLD))
    return table


def head_id(staged, branch):
    return staged.table.refresh().state.head_id(branch)


def lost(staged):
    state = staged.table.refresh().state
    return lost_snapshots(state, staging="staging", target="main", waiting=())


@pytest.fixture
def dropped(staged):
    """Two staged changes wait, by icefold and by another tool, and the branch is dropped."""
    staged.table.stage(upserts=staged.rows((1, "eu", "a")))
    first = head_id(staged, "staging")
    with another_tool(staged.environment):
        staged.table.stage(upserts=staged.rows((2, "eu", "b")))
    ids = [first, head_id(staged, "staging")]
    staged.table.refs.drop("staging")
    return ids


def test_changes_that_were_dropped_before_a_writer_made_the_branch_anew_are_named(
    staged, dropped, caplog
):
    staged.table.stage(upserts=staged.rows((4, "eu", "c")))
    with caplog.at_level(logging.WARNING, "icefold.resolver"):
        assert resolve(staged.table).staged_snapshots == 1
    [message] = caplog.messages
    assert "2 staged snapshots of staging are not published" in message
    assert f"{dropped[0]}, {dropped[1]}." in message
    assert f"--snapshot-id {dropped[1]}" in message
    assert set(staged.published()) == {OLD, (4, "eu", "c")}


def test_changes_of_a_branch_made_anew_at_main_are_named_once_while_nothing_waits(
    staged, dropped, caplog
):
    staged.table.refs.create_branch("staging", snapshot_id=head_id(staged, "main"))
    with caplog.at_level(logging.WARNING, "icefold.resolver"):
        for _ in range(2):
            assert resolve(staged.table).staged_snapshots == 0
    assert [str(dropped[-1]) in each for each in caplog.messages] == [True]


def test_changes_that_are_on_another_branch_or_were_cherry_picked_are_not_lost(staged, dropped):
    assert lost(staged) == dropped
    staged.table.refs.create_branch("later", snapshot_id=dropped[0])
    assert lost(staged) == dropped[1:]
    staged.table.refs.drop("later")
    staged.table.append(staged.rows((5, "eu", "c")))
    staged.table.refs.cherry_pick(snapshot_id=dropped[0])
    assert lost(staged) == dropped[1:]


def test_published_changes_and_those_that_a_rollback_made_wait_again_are_not_lost(staged, caplog):
    before = head_id(staged, "main")
    staged.table.stage(upserts=staged.rows((1, "eu", "a")))
    resolve(staged.table)
    assert lost(staged) == []
    staged.table.refs.rollback(snapshot_id=before)
    with caplog.at_level(logging.WARNING, "icefold.resolver"):
        assert resolve(staged.table).staged_snapshots == 1
    assert caplog.messages == []
