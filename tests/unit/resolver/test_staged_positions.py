"""Staged deletes by position, and staged files, that others touch before the publish."""

from __future__ import annotations

from collections import Counter

import pytest
from pyiceberg.table.update import RemoveSnapshotsUpdate

from maintenance.tasks.compact import compact
from maintenance.tasks.expire import expire
from maintenance.tasks.options import CompactOptions, ExpireOptions
from resolver import resolve
from tableformat.commit import request
from tableformat.commit.changeset import Changeset, CommitKind, Validation
from tableformat.commit.engine import commit
from tableformat.commit.expiry_plan import ExpiryPolicy
from tableformat.commit.refs import fast_forward
from tableformat.errors import CommitConflictError, NotFoundError, UnsupportedError
from tests.support.staged_tables import StagedTable, keys


@pytest.fixture
def staged(tmp_path):
    table = StagedTable(tmp_path)
    table.table.append(table.rows((1, "eu", "a"), (2, "eu", "b"), (3, "eu", "c")))
    return table


def tasks(staged, branch="main"):
    return staged.table.refresh().scan(branch=branch).plan.tasks


def only_file(staged, branch="main"):
    [task] = tasks(staged, branch)
    return task.entry.data_file


def stage_vector(staged, file, *positions, data=(), removed=()):
    vector = staged.vectors({file.file_path: positions}, [file])
    staged.commit(data=data, deletes=vector, removed=removed)


def rewrite(staged, *rows, keep_ids=True):
    """Compaction, by icefold or by a tool that does not keep row ids."""
    if keep_ids:
        assert compact(staged.table.refresh(), CompactOptions(rewrite_all=True)).commits
        return
    state = staged.table.refresh().state
    changeset = Changeset(
        kind=CommitKind.REWRITE,
        added_data_files=tuple(staged.data_files(*rows)),
        removed_entries=tuple(task.entry for task in tasks(staged)),
        validation=Validation(starting_snapshot_id=state.head("main").snapshot_id),
    )
    commit(staged.environment, staged.table.identifier, changeset)


@pytest.mark.parametrize("keep_ids", [True, False])
def test_staged_vector_reaches_its_row_in_the_rewritten_file(staged, keep_ids):
    stage_vector(staged, only_file(staged), 1)
    rewrite(staged, (1, "eu", "a"), (2, "eu", "b"), (3, "eu", "c"), keep_ids=keep_ids)
    assert resolve(staged.table).deleted_rows == 1
    assert staged.published() == Counter([(1, "eu", "a"), (3, "eu", "c")])


def test_vector_that_repeats_older_deletes_kills_only_what_it_adds(staged):
    """The first row was updated, and its successor has its id: it is not deleted once more."""
    file = only_file(staged)
    stage_vector(staged, file, 0, data=staged.data_files((1, "eu", "updated")))
    [old] = [t.dv for t in tasks(staged, "staging") if t.dv is not None]
    stage_vector(staged, file, 0, 2, removed=[old])
    resolve(staged.table, limit=1)
    rewrite(staged)
    resolve(staged.table)
    assert staged.published() == Counter([(1, "eu", "updated"), (2, "eu", "b")])


def test_other_row_of_the_same_key_outlives_a_staged_vector(staged):
    """A duplicate that was there before is another row."""
    file = only_file(staged)
    staged.table.append(staged.rows((2, "eu", "duplicate")))
    stage_vector(staged, file, 1)
    rewrite(staged)
    resolve(staged.table)
    rows = [(1, "eu", "a"), (2, "eu", "duplicate"), (3, "eu", "c")]
    assert staged.published() == Counter(rows)


def test_row_that_an_update_moved_is_found(staged):
    stage_vector(staged, only_file(staged), 1, data=staged.data_files((2, "eu", "staged")))
    staged.table.update({"note": "'on main'"}, "id = 2")
    resolve(staged.table)
    assert staged.published() == Counter([(1, "eu", "a"), (2, "eu", "staged"), (3, "eu", "c")])


def test_row_that_is_gone_stays_gone(staged):
    stage_vector(staged, only_file(staged), 1)
    staged.table.delete("id = 2", mode="copy-on-write")
    resolve(staged.table)
    assert staged.published() == Counter([(1, "eu", "a"), (3, "eu", "c")])


def test_position_delete_file_reaches_its_row_in_the_rewritten_file(staged, monkeypatch):
    monkeypatch.setattr(request, "_check_vector", lambda _: None)  # from before an upgrade to v3
    file = only_file(staged)
    staged.commit(deletes=[staged.position_deletes({file.file_path: [0]}, [file])])
    rewrite(staged)
    resolve(staged.table)
    assert staged.published() == Counter([(2, "eu", "b"), (3, "eu", "c")])


def test_file_that_cannot_be_read_any_more_stops_the_cycle(staged):
    file = only_file(staged)
    stage_vector(staged, file, 1)
    rewrite(staged)
    head = staged.table.refresh().state.head("main").snapshot_id
    staged.environment.store.delete([file.file_path])
    with pytest.raises(NotFoundError, match="which rows it means is not known") as refused:
        resolve(staged.table)
    assert file.file_path in str(refused.value)
    assert staged.table.refresh().state.head("main").snapshot_id == head


def test_row_ids_of_a_published_file_are_those_of_the_target(staged):
    """A staged file gets other row ids at the publish than it had on staging."""
    stage_rows_and_delete_one(staged)
    resolve(staged.table, limit=1)
    rewrite(staged)
    resolve(staged.table)
    assert staged.published()[(8, "eu", "n")] == 0
    assert sum(staged.published().values()) == 4


def test_published_file_whose_history_has_expired_stops_the_cycle(staged):
    stage_rows_and_delete_one(staged)
    resolve(staged.table, limit=1)
    rewrite(staged)
    staged.table.append(staged.rows((10, "eu", "later")))
    state = staged.table.refresh().state
    [compaction] = [s for s in state.metadata.snapshots if s.summary.operation.value == "replace"]
    gone = RemoveSnapshotsUpdate(snapshot_ids=[compaction.snapshot_id])
    staged.environment.catalog.commit(state, [gone])
    with pytest.raises(UnsupportedError, match="history has expired"):
        resolve(staged.table)


def test_expiry_keeps_the_history_that_a_staged_position_needs(staged):
    stage_rows_and_delete_one(staged)
    resolve(staged.table, limit=1)
    rewrite(staged)
    staged.table.append(staged.rows((10, "eu", "later")))
    expire(staged.table, ExpireOptions(policy=ExpiryPolicy(max_snapshot_age_ms=0)))
    resolve(staged.table)
    assert staged.published()[(8, "eu", "n")] == 0


def stage_rows_and_delete_one(staged):
    staged.table.stage(upserts=staged.rows((8, "eu", "n"), (9, "eu", "m")))
    [new] = [
        t.entry.data_file for t in tasks(staged, "staging") if t.entry.data_file.record_count == 2
    ]
    stage_vector(staged, new, 0)


@pytest.mark.parametrize("limit", [None, 1])
def test_file_named_by_two_staged_snapshots_is_published_once(staged, limit):
    data = staged.data_files((4, "eu", "d"))
    staged.commit(data=data, deletes=staged.equality_deletes(keys(4)))
    staged.commit(data=data, deletes=staged.equality_deletes(keys(4)))
    while resolve(staged.table, limit=limit).staged_snapshots:
        pass
    assert staged.published()[(4, "eu", "d")] == 1
    assert len({task.entry.data_file.file_path for task in tasks(staged)}) == len(tasks(staged))


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
            rewrite(staged)
    resolve(staged.table)
    assert staged.published()[(4, "eu", "d")] == 1
    assert staged.published()[(5, "eu", "e")] == 0


def pick(staged):
    """A staged snapshot is cherry-picked to main, which has gone on."""
    staged.table.append(staged.rows((7, "eu", "main")))
    head = staged.table.refresh().state.head("staging")
    staged.table.refs.cherry_pick(snapshot_id=head.snapshot_id)


def test_picked_snapshot_is_published_once(staged):
    staged.table.stage(upserts=staged.rows((1, "eu", "A")))
    pick(staged)
    report = resolve(staged.table)
    assert report.staged_snapshots == 1
    rows = [(1, "eu", "A"), (2, "eu", "b"), (3, "eu", "c"), (7, "eu", "main")]
    assert staged.published() == Counter(rows)
    staged.table.stage(upserts=staged.rows((1, "eu", "B")))
    resolve(staged.table)
    assert staged.published()[(1, "eu", "B")] == 1
    assert staged.published()[(1, "eu", "A")] == 0


def test_picked_rows_keep_their_place_in_the_order(staged):
    """The delete of key 4 was staged before its row, that of key 5 after it."""
    staged.table.stage(deletes=keys(4))
    staged.commit(data=staged.data_files((4, "eu", "d"), (5, "eu", "e")))
    pick(staged)
    staged.table.stage(deletes=keys(5))
    resolve(staged.table)
    assert staged.published()[(4, "eu", "d")] == 1
    assert staged.published()[(5, "eu", "e")] == 0


@pytest.mark.parametrize("rewritten", [False, True])
def test_picked_rows_keep_their_place_beyond_the_limit(staged, rewritten):
    staged.table.stage(deletes=keys(4))
    staged.commit(data=staged.data_files((4, "eu", "d")))
    pick(staged)
    if rewritten:
        rewrite(staged)
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


def test_picked_rows_that_the_target_deleted_stay_deleted(staged):
    staged.commit(data=staged.data_files((4, "eu", "d"), (5, "eu", "e")))
    pick(staged)
    staged.table.delete("id = 4")
    resolve(staged.table)
    assert staged.published()[(4, "eu", "d")] == 0
    assert staged.published()[(5, "eu", "e")] == 1


def test_picked_rows_are_found_in_the_rewritten_file(staged):
    staged.table.stage(deletes=keys(4))
    staged.commit(data=staged.data_files((4, "eu", "d"), (5, "eu", "e"), (6, "eu", "f")))
    pick(staged)
    rewrite(staged)
    staged.table.stage(deletes=keys(5))
    resolve(staged.table)
    assert staged.published()[(4, "eu", "d")] == 1
    assert staged.published()[(5, "eu", "e")] == 0
    assert staged.published()[(6, "eu", "f")] == 1


def test_staged_vector_on_a_picked_file_that_was_rewritten_reaches_its_row(staged):
    data = staged.data_files((4, "eu", "d"), (5, "eu", "e"))
    staged.commit(data=data)
    pick(staged)
    stage_vector(staged, data[0], 1)
    rewrite(staged)
    resolve(staged.table)
    assert staged.published()[(4, "eu", "d")] == 1
    assert staged.published()[(5, "eu", "e")] == 0


def test_picked_rows_whose_ids_a_rewrite_lost_stop_the_cycle_where_it_matters(staged):
    staged.table.stage(deletes=keys(4))
    staged.commit(data=staged.data_files((4, "eu", "d")))
    pick(staged)
    old = [(1, "eu", "a"), (2, "eu", "b"), (3, "eu", "c"), (7, "eu", "main")]
    rewrite(staged, *old, (4, "eu", "d"), keep_ids=False)
    with pytest.raises(UnsupportedError, match="which rows they are cannot be told"):
        resolve(staged.table)
    assert staged.published()[(4, "eu", "d")] == 1


def test_vector_of_a_file_that_main_never_had_is_not_picked(staged):
    """It would dangle on main."""
    staged.table.stage(upserts=staged.rows((8, "eu", "n"), (9, "eu", "m")))
    [new] = [t.entry.data_file for t in tasks(staged, "staging") if t.entry.sequence_number == 2]
    stage_vector(staged, new, 0)
    with pytest.raises(CommitConflictError, match="not live"):
        pick(staged)
    resolve(staged.table)
    assert staged.published()[(9, "eu", "m")] == 1
    assert staged.published()[(8, "eu", "n")] == 0
