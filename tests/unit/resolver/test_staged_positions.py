"""Staged deletes by position whose data files others touch before the publish."""

from __future__ import annotations

from collections import Counter

import pytest
from pyiceberg.table.update import RemoveSnapshotsUpdate

from maintenance.tasks.expire import expire
from resolver import resolve
from tableformat.commit import request
from tableformat.commit.branch_history import ancestors
from tableformat.commit.refs import fast_forward
from tableformat.errors import NotFoundError, UnsupportedError
from tests.support.staged_tables import EVERYTHING, StagedTable, keys


@pytest.fixture
def staged(tmp_path):
    table = StagedTable(tmp_path)
    table.table.append(table.rows((1, "eu", "a"), (2, "eu", "b"), (3, "eu", "c")))
    return table


@pytest.mark.parametrize("keep_ids", [True, False])
def test_staged_vector_reaches_its_row_in_the_rewritten_file(staged, keep_ids):
    staged.stage_vector(staged.only_file(), 1)
    staged.rewrite((1, "eu", "a"), (2, "eu", "b"), (3, "eu", "c"), keep_ids=keep_ids)
    assert resolve(staged.table).deleted_rows == 1
    assert staged.published() == Counter([(1, "eu", "a"), (3, "eu", "c")])


@pytest.mark.parametrize("again", [None, True, False], ids=["", "compacted", "rewritten"])
@pytest.mark.parametrize("keep_ids", [True, False])
@pytest.mark.parametrize("named", ["before", "after"])
def test_staged_vector_on_a_file_that_a_rollback_took_is_never_dropped(
    staged, named, keep_ids, again
):
    """Without row ids in the file it names, which row is meant is not known, unless all are newer.

    Refused, the table stays as it is; once the key is deleted on main nothing is in doubt.
    """
    rows = [(1, "eu", "a"), (2, "eu", "b"), (3, "eu", "c")]
    before = staged.table.refresh().state.head("main").snapshot_id
    if named == "before":
        staged.stage_vector(staged.only_file(), 1)
    staged.rewrite(*rows, keep_ids=keep_ids)
    if named == "after":
        staged.stage_vector(staged.only_file(), 1)
    staged.table.refs.rollback(snapshot_id=before)
    if again is not None:
        staged.rewrite(*rows, keep_ids=again)
    if named == "after" and not keep_ids and again is not False:
        with pytest.raises(UnsupportedError, match="lost when it was rolled back") as refused:
            resolve(staged.table)
        assert "\n" not in str(refused.value)
        assert staged.published() == Counter(rows)
        staged.table.delete("id = 2")
    resolve(staged.table)
    assert staged.published() == Counter([rows[0], rows[2]])


def test_vector_that_repeats_older_deletes_kills_only_what_it_adds(staged):
    """The first row was updated, and its successor has its id: it is not deleted once more."""
    file = staged.only_file()
    staged.stage_vector(file, 0, data=staged.data_files((1, "eu", "updated")))
    [old] = [t.dv for t in staged.tasks("staging") if t.dv is not None]
    staged.stage_vector(file, 0, 2, removed=[old])
    resolve(staged.table, limit=1)
    staged.rewrite()
    resolve(staged.table)
    assert staged.published() == Counter([(1, "eu", "updated"), (2, "eu", "b")])


def test_other_row_of_the_same_key_outlives_a_staged_vector(staged):
    """A duplicate that was there before is another row."""
    file = staged.only_file()
    staged.table.append(staged.rows((2, "eu", "duplicate")))
    staged.stage_vector(file, 1)
    staged.rewrite()
    resolve(staged.table)
    rows = [(1, "eu", "a"), (2, "eu", "duplicate"), (3, "eu", "c")]
    assert staged.published() == Counter(rows)


def test_row_that_main_was_forwarded_to_keeps_its_id_where_the_log_is_cut(staged):
    """It was staged, but never published: nothing has given it another id."""
    staged.table.stage(upserts=staged.rows((4, "eu", "old"), (5, "eu", "kept")))
    [file] = staged_files(staged)
    fast_forward(staged.environment, staged.table.identifier, "main", to="staging")
    staged.stage_vector(file, 0, data=staged.data_files((4, "eu", "new")))
    staged.rewrite()
    compaction = staged.table.refresh().state.head("main").snapshot_id
    staged.table.append(staged.rows((6, "eu", "later")))
    removed = RemoveSnapshotsUpdate(snapshot_ids=[compaction])
    staged.environment.catalog.commit(staged.table.refresh().state, [removed])
    resolve(staged.table)
    rows = [(1, "eu", "a"), (2, "eu", "b"), (3, "eu", "c"), (4, "eu", "new"), (5, "eu", "kept")]
    assert staged.published() == Counter([*rows, (6, "eu", "later")])


@pytest.mark.parametrize("publish", ["link", "rewrite"])
@pytest.mark.parametrize("replaced_on_main", [False, True])
def test_vector_on_a_row_that_was_dead_in_the_staging_view_takes_no_other_row(
    staged, publish, replaced_on_main
):
    """As a tool writes it that turns equality deletes into vectors."""
    staged.table.set_properties({"icefold.publish": publish})
    base = staged.only_file()
    staged.table.stage(staged.rows((1, "eu", "first"), (8, "eu", "other")))
    [first] = [
        task.entry.data_file
        for task in staged.tasks("staging")
        if task.entry.data_file.file_path != base.file_path
    ]
    staged.table.stage(staged.rows((1, "eu", "second")))
    staged.table.stage(staged.rows((3, "eu", "later")))
    resolve(staged.table, limit=2)
    newest = (1, "eu", "second")
    if replaced_on_main:
        newest = (1, "eu", "of another")
        staged.table.delete("id = 1")
        staged.table.append(staged.rows(newest))
    staged.stage_vector(first, 0)
    staged.stage_vector(base, 0)
    resolve(staged.table)
    rows = [newest, (2, "eu", "b"), (3, "eu", "later"), (8, "eu", "other")]
    assert staged.published() == Counter(rows)


@pytest.mark.parametrize("merges", ["true", "false"])
def test_vector_on_a_row_that_a_repeated_commit_shows_again_takes_it(staged, merges):
    """The delete that is named again kills the file's first copy in the view, not the second."""
    staged.table.set_properties(
        {"commit.manifest.min-count-to-merge": "2", "commit.manifest-merge.enabled": merges}
    )
    [new] = staged.data_files((8, "eu", "n"))
    change = {"data": [new], "deletes": staged.equality_deletes(keys(8))}
    staged.commit(**change)
    staged.commit(**change)
    staged.stage_vector(new, 0)
    resolve(staged.table, limit=1)
    staged.rewrite()
    resolve(staged.table)
    assert staged.published() == Counter([(1, "eu", "a"), (2, "eu", "b"), (3, "eu", "c")])


def test_row_that_an_update_moved_is_found(staged):
    staged.stage_vector(staged.only_file(), 1, data=staged.data_files((2, "eu", "staged")))
    staged.table.update({"note": "'on main'"}, "id = 2")
    resolve(staged.table)
    assert staged.published() == Counter([(1, "eu", "a"), (2, "eu", "staged"), (3, "eu", "c")])


def test_row_that_is_gone_stays_gone(staged):
    staged.stage_vector(staged.only_file(), 1)
    staged.table.delete("id = 2", mode="copy-on-write")
    resolve(staged.table)
    assert staged.published() == Counter([(1, "eu", "a"), (3, "eu", "c")])


def test_position_delete_file_reaches_its_row_in_the_rewritten_file(staged, monkeypatch):
    monkeypatch.setattr(
        request, "_check_form", lambda *_, **__: None
    )  # from before an upgrade to v3
    file = staged.only_file()
    staged.commit(deletes=[staged.position_deletes({file.file_path: [0]}, [file])])
    staged.rewrite()
    resolve(staged.table)
    assert staged.published() == Counter([(2, "eu", "b"), (3, "eu", "c")])


@pytest.mark.parametrize("publish", ["link", "rewrite"])
@pytest.mark.parametrize("replaces", [False, True])
def test_vector_that_repeats_a_position_delete_file_takes_no_other_row(
    staged, monkeypatch, publish, replaces
):
    """Flink deletes what a checkpoint inserted before; the vector is read instead of that file."""
    monkeypatch.setattr(request, "_check_form", lambda *_, **__: None)
    staged.table.set_properties({"icefold.publish": publish})
    [new] = staged.data_files((8, "eu", "early"), (8, "eu", "late"), (9, "eu", "m"))
    [other] = staged.data_files((7, "eu", "early"), (7, "eu", "late"))
    own = staged.position_deletes({new.file_path: [0], other.file_path: [0]}, [new, other])
    deletes = [*staged.equality_deletes(keys(7, 8, 9)), own]
    staged.commit(data=[new, other], deletes=deletes)
    vectors = staged.vectors({new.file_path: [0, 2], other.file_path: [0]}, [new, other])
    staged.commit(deletes=vectors, removed=position_files(staged) if replaces else ())
    resolve(staged.table, limit=1)
    resolve(staged.table)
    rows = [(1, "eu", "a"), (2, "eu", "b"), (3, "eu", "c"), (7, "eu", "late"), (8, "eu", "late")]
    assert staged.published() == Counter(rows)


@pytest.mark.parametrize("replaces", [False, True])
@pytest.mark.parametrize("by_vector", [False, True])
@pytest.mark.parametrize("of_target", [False, True])
def test_deletes_that_repeat_a_position_delete_file_kill_only_what_they_add(
    staged, monkeypatch, of_target, by_vector, replaces
):
    """From before an upgrade to v3, on the target or staged. Key 1 has come back since."""
    monkeypatch.setattr(request, "_check_form", lambda *_, **__: None)
    file = staged.only_file()
    old = staged.position_deletes({file.file_path: [0]}, [file])
    staged.commit(branch="main" if of_target else "staging", deletes=[old])
    removed = position_files(staged, "main" if of_target else "staging") if replaces else ()
    if by_vector:
        staged.stage_vector(file, 0, 1, removed=removed)
    else:
        again = staged.position_deletes({file.file_path: [0, 1]}, [file])
        staged.commit(deletes=[again], removed=removed)
    if not of_target:
        resolve(staged.table, limit=1)
    staged.table.append(staged.rows((1, "eu", "new")))
    staged.rewrite()
    resolve(staged.table)
    assert staged.published() == Counter([(1, "eu", "new"), (3, "eu", "c")])


def test_replaced_position_delete_file_that_is_gone_stops_the_cycle(staged, monkeypatch):
    monkeypatch.setattr(request, "_check_form", lambda *_, **__: None)
    file = staged.only_file()
    old = staged.position_deletes({file.file_path: [0]}, [file])
    staged.commit(deletes=[old])
    staged.stage_vector(file, 0, 1, removed=position_files(staged))
    resolve(staged.table, limit=1)
    staged.rewrite()
    staged.environment.store.delete([old.file_path])
    with pytest.raises(UnsupportedError, match="what it deletes anew is not known"):
        resolve(staged.table)


def test_file_that_cannot_be_read_any_more_stops_the_cycle(staged):
    file = staged.only_file()
    staged.stage_vector(file, 1)
    staged.rewrite()
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
    staged.rewrite()
    resolve(staged.table)
    assert staged.published()[(8, "eu", "n")] == 0
    assert sum(staged.published().values()) == 4


def test_published_file_whose_history_has_expired_stops_the_cycle(staged):
    stage_rows_and_delete_one(staged)
    resolve(staged.table, limit=1)
    staged.rewrite()
    staged.table.append(staged.rows((10, "eu", "later")))
    remove_main_below(staged, 1)
    with pytest.raises(UnsupportedError, match="history has expired"):
        resolve(staged.table)


def test_row_of_a_file_that_its_publish_left_out_needs_no_older_history(staged):
    """Its only row had died before the publish; a TRUNCATE names rows of such files, too."""
    staged.table.stage(upserts=staged.rows((8, "eu", "n")))
    [new] = staged_files(staged)
    staged.table.stage(deletes=keys(8))
    staged.stage_vector(new, 0)
    staged.table.append(staged.rows((10, "eu", "later")))
    resolve(staged.table, limit=2)
    remove_main_below(staged, 2)
    assert resolve(staged.table).staged_snapshots == 1
    rows = [(1, "eu", "a"), (2, "eu", "b"), (3, "eu", "c"), (10, "eu", "later")]
    assert staged.published() == Counter(rows)


def test_row_of_a_file_that_others_brought_and_rewrote_needs_that_history(staged):
    """Its publish did not add it either, but its row lives elsewhere."""
    staged.table.stage(upserts=staged.rows((8, "eu", "n")))
    [new] = staged_files(staged)
    staged.pick()
    staged.rewrite()
    staged.stage_vector(new, 0)
    staged.table.append(staged.rows((10, "eu", "later")))
    resolve(staged.table, limit=1)
    remove_main_below(staged, 2)
    with pytest.raises(UnsupportedError, match="history has expired"):
        resolve(staged.table)


def test_expiry_keeps_the_history_that_a_staged_position_needs(staged):
    stage_rows_and_delete_one(staged)
    resolve(staged.table, limit=1)
    staged.rewrite()
    staged.table.append(staged.rows((10, "eu", "later")))
    expire(staged.table, EVERYTHING)
    resolve(staged.table)
    assert staged.published()[(8, "eu", "n")] == 0


def stage_rows_and_delete_one(staged):
    staged.table.stage(upserts=staged.rows((8, "eu", "n"), (9, "eu", "m")))
    [new] = staged_files(staged)
    staged.stage_vector(new, 0)


def staged_files(staged):
    """What staging has and main has not."""
    here = {task.entry.data_file.file_path for task in staged.tasks()}
    files = [task.entry.data_file for task in staged.tasks("staging")]
    return [file for file in files if file.file_path not in here]


def position_files(staged, branch="staging"):
    found = [delete for task in staged.tasks(branch) for delete in task.position_deletes]
    return list({each.data_file.file_path: each for each in found}.values())


def remove_main_below(staged, kept):
    """Another tool's expiry: `kept` snapshots of main stay, those of staging alone too."""
    state = staged.table.refresh().state
    main = [s.snapshot_id for s in ancestors(state.metadata, state.head("main").snapshot_id)]
    gone = RemoveSnapshotsUpdate(snapshot_ids=main[kept:])
    staged.environment.catalog.commit(state, [gone])
