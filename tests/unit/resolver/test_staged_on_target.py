"""Staged data files that others have brought to the target, or that a writer commits once more."""

from __future__ import annotations

from collections import Counter

import pytest
from pyiceberg.table.update import RemoveSnapshotsUpdate

from maintenance.tasks.expire import expire
from resolver import resolve
from tableformat.commit.expiry_plan import ExpiryPolicy, plan_expiry
from tableformat.commit.refs import fast_forward, rollback
from tableformat.errors import AlreadyExistsError, CommitConflictError, UnsupportedError
from tests.support.another_tool import another_tool
from tests.support.interruptions import interrupt
from tests.support.staged_tables import EVERYTHING, StagedTable, keys


@pytest.fixture
def staged(tmp_path):
    table = StagedTable(tmp_path)
    table.table.append(table.rows((1, "eu", "a"), (2, "eu", "b"), (3, "eu", "c")))
    return table


def rows_of(staged, key):
    return [row for row in staged.published() if row[0] == key]


@pytest.mark.parametrize("limit", [None, 1])
def test_file_named_by_two_staged_snapshots_is_published_once(staged, limit):
    data = staged.data_files((4, "eu", "d"))
    staged.commit(data=data, deletes=staged.equality_deletes(keys(4)))
    staged.commit(data=data, deletes=staged.equality_deletes(keys(4)))
    while resolve(staged.table, limit=limit).staged_snapshots:
        pass
    assert staged.published()[(4, "eu", "d")] == 1
    assert len({task.entry.data_file.file_path for task in staged.tasks()}) == len(staged.tasks())


@pytest.mark.parametrize("limits", [(), (1,), (1, 1)])
@pytest.mark.parametrize("same_deletes", [True, False])
@pytest.mark.parametrize("rewritten", [True, False])
def test_repeated_upsert_takes_effect_once_at_its_first_place(
    staged, limits, same_deletes, rewritten
):
    data, first = staged.data_files((4, "eu", "d"), (5, "eu", "e")), keys(4, 5)
    deletes = staged.equality_deletes(first)
    staged.commit(data=data, deletes=deletes)
    staged.table.stage(deletes=keys(5))
    staged.commit(data=data, deletes=deletes if same_deletes else staged.equality_deletes(first))
    for limit in limits:
        resolve(staged.table, limit=limit)
        if rewritten:
            staged.rewrite()
    resolve(staged.table)
    assert staged.published()[(4, "eu", "d")] == 1
    assert staged.published()[(5, "eu", "e")] == 0


def test_picked_snapshot_is_published_once(staged):
    staged.table.stage(upserts=staged.rows((1, "eu", "A")))
    staged.pick()
    report = resolve(staged.table)
    assert report.staged_snapshots == 1
    rows = [(1, "eu", "A"), (2, "eu", "b"), (3, "eu", "c"), (7, "eu", "main")]
    assert staged.published() == Counter(rows)
    staged.table.stage(upserts=staged.rows((1, "eu", "B")))
    resolve(staged.table)
    assert staged.published()[(1, "eu", "B")] == 1
    assert staged.published()[(1, "eu", "A")] == 0


@pytest.mark.parametrize("cycles", [1, 2])
def test_published_snapshot_cannot_be_picked(staged, cycles):
    """Nor one of an earlier cycle, which the last cursor's branch does not lead to."""
    first = staged.table.stage(deletes=keys(4)).snapshot.snapshot_id
    for key in range(10, 10 + cycles):
        resolve(staged.table)
        staged.table.stage(upserts=staged.rows((key, "eu", "n")))
    staged.table.append(staged.rows((4, "eu", "later")))
    with pytest.raises(AlreadyExistsError, match="published to the branch already"):
        staged.table.refs.cherry_pick(snapshot_id=first)
    assert staged.published()[(4, "eu", "later")] == 1


def test_picked_rows_keep_their_place_in_the_order(staged):
    """The delete of key 4 was staged before its row, that of key 5 after it."""
    staged.table.stage(deletes=keys(4))
    staged.commit(data=staged.data_files((4, "eu", "d"), (5, "eu", "e")))
    staged.pick()
    staged.table.stage(deletes=keys(5))
    resolve(staged.table)
    assert staged.published()[(4, "eu", "d")] == 1
    assert staged.published()[(5, "eu", "e")] == 0


@pytest.mark.parametrize("rewritten", [False, True])
def test_picked_rows_keep_their_place_beyond_the_limit(staged, rewritten):
    staged.table.stage(deletes=keys(4))
    staged.commit(data=staged.data_files((4, "eu", "d")))
    staged.pick()
    if rewritten:
        staged.rewrite()
    for _ in range(2):
        resolve(staged.table, limit=1)
        assert staged.published()[(4, "eu", "d")] == 1
    assert resolve(staged.table).staged_snapshots == 0


def test_newer_upsert_survives_a_staged_commit_that_is_repeated_later(staged):
    data, deletes = staged.data_files((4, "eu", "d")), staged.equality_deletes(keys(4))
    staged.commit(data=data, deletes=deletes)
    staged.table.stage(upserts=staged.rows((4, "eu", "newer")))
    resolve(staged.table, limit=1)
    resolve(staged.table)
    staged.commit(data=data, deletes=deletes)
    resolve(staged.table)
    assert staged.published()[(4, "eu", "newer")] == 1
    assert staged.published()[(4, "eu", "d")] == 0


@pytest.mark.parametrize("publish", ["link", "rewrite"])
@pytest.mark.parametrize("brings", ["rows", "the same deletes", "other deletes"])
@pytest.mark.parametrize("deleted", [False, True])
def test_published_commit_comes_again_after_the_target_was_rewritten(
    staged, publish, brings, deleted
):
    """Its log is gone from staging: the publish says what it covered."""
    staged.table.set_properties({"icefold.publish": publish})
    data = staged.data_files((4, "eu", "d"), (5, "eu", "e"))
    deletes = () if brings == "rows" else staged.equality_deletes(keys(4, 5))
    with another_tool(staged.environment):
        staged.commit(data=data, deletes=deletes)
    resolve(staged.table)
    staged.table.stage(upserts=staged.rows((5, "eu", "newer")))
    resolve(staged.table)
    if deleted:
        staged.table.delete("id = 4")
    staged.rewrite()
    staged.table.stage(upserts=staged.rows((6, "eu", "f")))
    resolve(staged.table)
    with another_tool(staged.environment):
        others = brings == "other deletes"
        staged.commit(data=data, deletes=staged.equality_deletes(keys(4, 5)) if others else deletes)
    if others and publish == "rewrite":
        with pytest.raises(UnsupportedError, match="cannot be told"):
            resolve(staged.table)
        return
    resolve(staged.table)
    assert staged.published()[(4, "eu", "d")] == (not deleted)
    assert staged.published()[(5, "eu", "e")] == 0
    assert staged.published()[(5, "eu", "newer")] == (not others)


@pytest.mark.parametrize("rewritten", [False, True])
@pytest.mark.parametrize("is_upsert", [False, True])
def test_commit_that_main_was_moved_to_comes_again(staged, is_upsert, rewritten):
    data = staged.data_files((4, "eu", "d"))
    deletes = staged.equality_deletes(keys(4)) if is_upsert else ()
    with another_tool(staged.environment):
        staged.commit(data=data, deletes=deletes)
    fast_forward(staged.environment, staged.table.identifier, "main", to="staging")
    if rewritten:
        staged.rewrite()
    with another_tool(staged.environment):
        staged.commit(data=data, deletes=deletes)
    resolve(staged.table)
    assert staged.published()[(4, "eu", "d")] == 1


def test_published_deletes_that_come_again_reach_no_newer_rows(staged, caplog):
    deletes = staged.equality_deletes(keys(1))
    with another_tool(staged.environment):
        staged.commit(deletes=deletes)
    resolve(staged.table)
    staged.table.stage(upserts=staged.rows((1, "eu", "newer")))
    resolve(staged.table)
    with another_tool(staged.environment):
        staged.commit(deletes=deletes)
    resolve(staged.table)
    assert rows_of(staged, 1) == [(1, "eu", "newer")]
    assert f"bring nothing again, such as {deletes[0].file_path}" in caplog.text


def test_delete_beside_a_repeated_commit_reaches_rows_of_published_files(staged):
    first = staged.data_files((4, "eu", "d"))
    staged.commit(data=first)
    staged.table.stage(upserts=staged.rows((5, "eu", "e")))
    resolve(staged.table)
    staged.table.stage(upserts=staged.rows((5, "eu", "newer")))
    older = staged.data_files((6, "eu", "f"))
    with another_tool(staged.environment):
        staged.commit(data=older)
    resolve(staged.table, limit=1)
    with another_tool(staged.environment):
        staged.commit(data=older)
    staged.table.stage(deletes=keys(5, 6))
    resolve(staged.table)
    assert not rows_of(staged, 5)
    assert not rows_of(staged, 6)
    assert rows_of(staged, 4)


def test_publish_planned_before_the_target_was_forwarded_gives_way(staged):
    staged.table.stage(upserts=staged.rows((4, "eu", "d")))
    staged.table.stage(upserts=staged.rows((5, "eu", "e")))
    armed = staged.environment.runtime.fail_points.armed

    def forward(name):
        del armed[name]
        other = staged.environment.catalog.load_table(staged.table.identifier)
        fast_forward(staged.environment, other.identifier, "main", to="staging")

    armed["resolve.after_match"] = forward
    with pytest.raises(CommitConflictError, match="run resolve again"):
        resolve(staged.table, limit=1)
    resolve(staged.table)
    rows = [(1, "eu", "a"), (2, "eu", "b"), (3, "eu", "c"), (4, "eu", "d"), (5, "eu", "e")]
    assert staged.published() == Counter(rows)


def test_publish_planned_on_an_empty_target_gives_way_to_a_history_that_has_expired(tmp_path):
    staged = StagedTable(tmp_path)
    staged.table.stage(upserts=staged.rows((4, "eu", "old")))
    staged.table.stage(upserts=staged.rows((4, "eu", "new")))

    def others():
        fast_forward(staged.environment, staged.table.identifier, "main", to="staging")
        state = staged.table.refresh().state
        [first] = [each for each in state.metadata.snapshots if each.parent_snapshot_id is None]
        gone = RemoveSnapshotsUpdate(snapshot_ids=[first.snapshot_id])
        staged.environment.catalog.commit(state, [gone])

    interrupt(staged.table, "resolve.after_match", others)
    with pytest.raises(CommitConflictError, match="run resolve again"):
        resolve(staged.table, limit=1)
    resolve(staged.table)
    assert staged.published() == Counter([(4, "eu", "new")])


def test_picked_rows_that_the_target_deleted_stay_deleted(staged):
    staged.commit(data=staged.data_files((4, "eu", "d"), (5, "eu", "e")))
    staged.pick()
    staged.table.delete("id = 4")
    resolve(staged.table)
    assert staged.published()[(4, "eu", "d")] == 0
    assert staged.published()[(5, "eu", "e")] == 1


def test_picked_rows_are_found_in_the_rewritten_file(staged):
    staged.table.stage(deletes=keys(4))
    staged.commit(data=staged.data_files((4, "eu", "d"), (5, "eu", "e"), (6, "eu", "f")))
    staged.pick()
    staged.rewrite()
    staged.table.stage(deletes=keys(5))
    resolve(staged.table)
    assert staged.published()[(4, "eu", "d")] == 1
    assert staged.published()[(5, "eu", "e")] == 0
    assert staged.published()[(6, "eu", "f")] == 1


def test_staged_vector_on_a_picked_file_that_was_rewritten_reaches_its_row(staged):
    data = staged.data_files((4, "eu", "d"), (5, "eu", "e"))
    staged.commit(data=data)
    staged.pick()
    staged.stage_vector(data[0], 1)
    staged.rewrite()
    resolve(staged.table)
    assert staged.published()[(4, "eu", "d")] == 1
    assert staged.published()[(5, "eu", "e")] == 0


def test_picked_rows_whose_ids_a_rewrite_lost_stop_the_cycle_where_it_matters(staged):
    staged.table.stage(deletes=keys(4))
    staged.commit(data=staged.data_files((4, "eu", "d")))
    staged.pick()
    old = [(1, "eu", "a"), (2, "eu", "b"), (3, "eu", "c"), (7, "eu", "main")]
    staged.rewrite(*old, (4, "eu", "d"), keep_ids=False)
    with pytest.raises(UnsupportedError, match="which rows they are cannot be told"):
        resolve(staged.table)
    assert staged.published()[(4, "eu", "d")] == 1


def test_vector_of_a_file_that_main_never_had_is_not_picked(staged):
    """It would dangle on main."""
    staged.table.stage(upserts=staged.rows((8, "eu", "n"), (9, "eu", "m")))
    [new] = [t.entry.data_file for t in staged.tasks("staging") if t.entry.sequence_number == 2]
    staged.stage_vector(new, 0)
    with pytest.raises(CommitConflictError, match="not live"):
        staged.pick()
    resolve(staged.table)
    assert staged.published()[(9, "eu", "m")] == 1
    assert staged.published()[(8, "eu", "n")] == 0


def test_repeated_deletes_on_other_columns_do_not_reach_newer_rows(staged):
    data = staged.data_files((4, "eu", "d"))
    deletes = staged.equality_deletes(staged.rows((0, "", "x")).select(["note"]), ["note"])
    staged.commit(data=data, deletes=deletes)
    resolve(staged.table)
    staged.table.append(staged.rows((8, "eu", "x")))
    staged.commit(data=data, deletes=deletes)
    resolve(staged.table)
    assert staged.published()[(8, "eu", "x")] == 1
    assert staged.published()[(4, "eu", "d")] == 1


@pytest.mark.parametrize("point", ["after_plan", "after_match", "after_dv_write"])
def test_rows_that_are_staged_and_picked_during_the_cycle_outlive_its_deletes(staged, point):
    staged.table.stage(deletes=keys(4))
    data = staged.data_files((4, "eu", "d"))

    def others():
        staged.commit(data=data)
        staged.pick()

    interrupt(staged.table, f"resolve.{point}", others)
    assert resolve(staged.table).staged_snapshots == 2
    assert rows_of(staged, 4) == [(4, "eu", "d")]
    assert resolve(staged.table).staged_snapshots == 0
    assert rows_of(staged, 4) == [(4, "eu", "d")]


@pytest.mark.parametrize("mode", ["merge-on-read", "copy-on-write"])
def test_picked_row_that_an_update_has_moved_keeps_its_place(staged, mode):
    """The file that it left is still on the target: the other row is in it."""
    staged.table.stage(upserts=staged.rows((4, "eu", "d"), (5, "eu", "e")))
    staged.pick()
    staged.table.update({"note": "'moved'"}, "id = 4", mode=mode)
    resolve(staged.table)
    assert rows_of(staged, 4) == [(4, "eu", "moved")]


def test_row_that_came_after_a_picked_one_was_deleted_is_not_taken_for_it(staged):
    staged.table.stage(upserts=staged.rows((4, "eu", "picked")))
    staged.pick()
    staged.table.delete("id = 4")
    with another_tool(staged.environment):
        staged.table.append(staged.rows((4, "eu", "between")))
    assert rows_of(staged, 4) == [(4, "eu", "between")]
    resolve(staged.table)
    assert not rows_of(staged, 4)


@pytest.mark.parametrize("also_by_position", [False, True])
def test_upsert_of_a_picked_row_that_a_rewrite_left_out_is_not_taken_for_it(
    staged, also_by_position
):
    """As Flink writes it: a key twice in a commit, the first one dead by its position."""
    staged.table.stage(upserts=staged.rows((4, "eu", "picked")))
    staged.pick()
    staged.table.delete("id = 4")
    staged.rewrite()
    with another_tool(staged.environment):
        data = staged.data_files((4, "eu", "first"), (4, "eu", "between"))
        vectors = staged.vectors({data[0].file_path: [0]}, data) if also_by_position else []
        deletes = [*staged.equality_deletes(keys(4)), *vectors]
        staged.commit(branch="main", data=data, deletes=deletes)
    resolve(staged.table)
    assert not rows_of(staged, 4)


def test_update_by_position_of_a_picked_row_that_lost_its_id_stops_the_cycle(staged):
    staged.table.stage(deletes=keys(4))
    staged.commit(data=staged.data_files((4, "eu", "d")))
    staged.pick()
    [picked] = [task.entry.data_file for task in staged.tasks() if task.entry.sequence_number == 5]
    with another_tool(staged.environment):
        vectors = staged.vectors({picked.file_path: [0]}, [picked])
        staged.commit(branch="main", data=staged.data_files((4, "eu", "D")), deletes=vectors)
    staged.rewrite()
    with pytest.raises(UnsupportedError, match="which rows they are cannot be told"):
        resolve(staged.table)


def test_expiry_keeps_what_tells_that_a_staged_file_was_on_the_target(staged):
    staged.table.stage(upserts=staged.rows((1, "eu", "A")))
    resolve(staged.table)
    staged.commit(data=staged.data_files((4, "eu", "d")))
    staged.pick()
    staged.rewrite()
    expire(staged.table, EVERYTHING)
    resolve(staged.table)
    assert staged.published()[(4, "eu", "d")] == 1


def test_vector_staged_on_a_lost_publish_by_link_reaches_the_row_that_the_next_one_wrote_anew(
    staged,
):
    """Seed 9800039: the row has the id that it was staged with, not that of the lost publish."""
    base = staged.table.refresh().state.head("main")
    data = staged.data_files((4, "eu", "d"), (5, "eu", "e"))
    with another_tool(staged.environment):
        staged.commit(data=data)
    resolve(staged.table)
    staged.stage_vector(data[0], 0)
    rollback(staged.environment, staged.table.identifier, snapshot_id=base.snapshot_id)
    staged.table.set_properties({"icefold.publish": "rewrite"})
    resolve(staged.table, limit=1)
    assert staged.published()[(4, "eu", "d")] == 1
    resolve(staged.table)
    assert staged.published()[(4, "eu", "d")] == 0
    assert staged.published()[(5, "eu", "e")] == 1


@pytest.mark.parametrize("lists_many", [False, True])
def test_vector_on_a_file_that_was_staged_again_reaches_the_rows_that_the_first_publish_wrote(
    staged, monkeypatch, lists_many
):
    """Seed 17700099: the second publish brought nothing, so it tells no ids."""
    if lists_many:  # so that publishes do not say which files they covered
        monkeypatch.setattr("resolver.cycle_figures.HASHED_REWRITTEN_FILES_MAX", 0)
    staged.table.set_properties({"icefold.publish": "rewrite"})
    data = staged.data_files((1, "eu", "A"), (4, "eu", "d"), (5, "eu", "e"))
    deletes = staged.equality_deletes(keys(1, 4, 5))
    for _ in range(2):
        resolve(staged.table)
        with another_tool(staged.environment):
            staged.commit(data=data, deletes=deletes)
    staged.stage_vector(data[0], 0, 1)
    resolve(staged.table, limit=1)
    assert staged.published()[(4, "eu", "d")] == 1
    resolve(staged.table)
    assert staged.published() == Counter([(2, "eu", "b"), (3, "eu", "c"), (5, "eu", "e")])


@pytest.mark.parametrize("waits", [False, True])
def test_expiry_keeps_a_publish_that_was_kept_when_another_tool_staged_what_waits(staged, waits):
    """The waiting commit may repeat what it published."""
    data = staged.data_files((4, "eu", "d"))
    with another_tool(staged.environment):
        staged.commit(data=data)
    resolve(staged.table)
    publish = staged.table.refresh().state.head("main")
    staged.table.stage(upserts=staged.rows((5, "eu", "e")))
    resolve(staged.table)
    if waits:
        with another_tool(staged.environment):
            staged.commit(data=data)
    metadata = staged.table.refresh().state.metadata
    policy = ExpiryPolicy(max_snapshot_age_ms=3_600_000, min_snapshots_to_keep=1)

    def gone(*, after_h: int) -> bool:
        now_ms = metadata.last_updated_ms + after_h * 3_600_000
        return publish.snapshot_id in plan_expiry(metadata, policy, now_ms=now_ms).snapshot_ids

    assert not gone(after_h=0)
    assert gone(after_h=2) != waits


def test_limit_gives_way_where_others_brought_a_later_staged_snapshot(staged):
    staged.table.stage(deletes=keys(4))
    staged.commit(data=staged.data_files((4, "eu", "d")))
    staged.pick()
    staged.table.stage(deletes=keys(1))
    assert resolve(staged.table, limit=1).staged_snapshots == 2
    assert rows_of(staged, 4) == [(4, "eu", "d")]
    assert rows_of(staged, 1) == [(1, "eu", "a")]


def test_picked_rows_beyond_the_limit_whose_ids_a_rewrite_lost_stop_the_cycle(staged):
    """The delete was staged before the row; without a limit the cycle stops."""
    staged.table.stage(deletes=keys(4))
    staged.commit(data=staged.data_files((4, "eu", "d")))
    staged.pick()
    old = [(1, "eu", "a"), (2, "eu", "b"), (3, "eu", "c"), (7, "eu", "main")]
    staged.rewrite(*old, (4, "eu", "d"), keep_ids=False)
    with pytest.raises(UnsupportedError, match="which rows they are cannot be told"):
        resolve(staged.table, limit=1)


def test_file_that_comes_again_behind_a_commit_without_files_stays_dead(staged):
    """Flink's sink makes such commits; the first file had died before the publish."""
    data = staged.data_files((8, "eu", "again"))
    with another_tool(staged.environment):
        staged.commit(data=data)
        staged.commit(deletes=staged.equality_deletes(keys(8)))
        staged.commit()
    resolve(staged.table, limit=2)
    with another_tool(staged.environment):
        staged.commit(data=data)
    resolve(staged.table)
    assert rows_of(staged, 8) == []


def test_picked_file_that_is_staged_again_and_rewritten_is_not_added_a_second_time(staged):
    data = staged.data_files((4, "eu", "d"))
    staged.commit(data=data)
    staged.pick()
    staged.commit(data=data)
    resolve(staged.table, limit=1)
    staged.rewrite()
    resolve(staged.table)
    assert rows_of(staged, 4) == [(4, "eu", "d")]
    assert staged.published()[(4, "eu", "d")] == 1
