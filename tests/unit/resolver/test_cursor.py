"""Where a cycle starts: markers, trims, rollbacks. Never twice, never skipped (R18, P8)."""

import re
from collections import Counter

import pytest
from pyiceberg.table.update import RemoveSnapshotsUpdate

from maintenance import expire
from resolver import cursor, resolve
from resolver.cursor import cursor_of, plan_backlog
from resolver.index_check import verify
from tableformat.commit.branch_history import branch_history
from tableformat.commit.refs import create_tag, fast_forward, replace_branch, rollback
from tableformat.errors import InvalidInputError, NotFoundError
from tests.support.another_tool import another_tool
from tests.support.staged_tables import EVERYTHING, StagedTable, keys


@pytest.fixture
def staged(tmp_path):
    staged = StagedTable(tmp_path)
    staged.table.append(staged.rows((1, "eu", "base")))
    return staged


def stage(staged, note):
    result = staged.table.stage(upserts=staged.rows((1, "eu", note)))
    return result.snapshot.snapshot_id


def head_of(staged, branch):
    return staged.table.refresh().state.head(branch).snapshot_id


def ids_of(staged):
    return {each.snapshot_id for each in staged.table.refresh().state.metadata.snapshots}


def backlog(staged, **options):
    state = staged.table.refresh().state
    found = plan_backlog(state, staging="staging", target="main", **options)
    return [snapshot.snapshot_id for snapshot in found]


def test_backlog_is_everything_after_the_marker_oldest_first(staged):
    first, second, third = (stage(staged, note) for note in "abc")
    assert backlog(staged) == [first, second, third]
    resolve(staged.table, limit=2)
    assert cursor_of(staged.table.state, "main") == second
    assert backlog(staged) == [third]


def test_foreign_commits_on_the_target_do_not_hide_the_marker(staged):
    first, second = stage(staged, "a"), stage(staged, "b")
    resolve(staged.table, limit=1)
    staged.table.append(staged.rows((2, "eu", "appended")))
    assert cursor_of(staged.table.state, "main") == first
    assert backlog(staged) == [second]


def test_trimmed_staging_starts_at_the_published_snapshot(staged):
    stage(staged, "a")
    assert resolve(staged.table).trimmed
    assert head_of(staged, "staging") == head_of(staged, "main")
    staged.table.append(staged.rows((2, "eu", "appended")))
    third = stage(staged, "c")
    assert backlog(staged) == [third]


def test_staging_rolled_back_behind_the_cursor_stops(staged):
    first = stage(staged, "a")
    stage(staged, "b")
    resolve(staged.table, limit=1)
    resolve(staged.table, limit=1)
    staging = head_of(staged, "staging")
    replace_branch(
        staged.environment, staged.table.identifier, "staging", to=first, expected_head=staging
    )
    with pytest.raises(InvalidInputError, match="cursor is not reachable"):
        resolve(staged.table)


def move_staging(staged, snapshot_id):
    head = head_of(staged, "staging")
    replace_branch(
        staged.environment, staged.table.identifier, "staging", to=snapshot_id, expected_head=head
    )


def named_start(staged):
    """The id with which the refusal says to go on."""
    with pytest.raises(InvalidInputError, match="cursor is not reachable") as told:
        resolve(staged.table)
    [named] = re.findall(r"--from-snapshot (\w+)", str(told.value))
    return named


def test_staging_rolled_back_behind_the_cursor_goes_on_from_the_id_that_is_named(staged):
    _, second, third = (stage(staged, note) for note in "abc")
    resolve(staged.table)
    for at, note in ((second, "d"), (third, "e")):
        move_staging(staged, at)
        assert resolve(staged.table, from_snapshot=int(named_start(staged))).staged_snapshots == 0
        stage(staged, note)
        assert named_start(staged) == str(at)
        assert resolve(staged.table, from_snapshot=at).staged_snapshots == 1
        assert staged.published() == Counter([(1, "eu", note)])
        assert resolve(staged.table).staged_snapshots == 0


def test_staging_on_what_an_expired_publish_covered_is_not_told_to_start_below_it(staged):
    base = head_of(staged, "main")
    first, second, _ = (stage(staged, note) for note in "abc")
    resolve(staged.table)
    move_staging(staged, first)
    fourth = stage(staged, "d")
    for kept in (base, first, second, fourth):
        create_tag(staged.environment, staged.table.identifier, f"k{kept}", snapshot_id=kept)
    resolve(staged.table, from_snapshot=first)
    expire(staged.table, EVERYTHING)
    move_staging(staged, second)
    assert {base, first, second, fourth} <= ids_of(staged)
    assert named_start(staged) == "ID"


def test_staging_replaced_by_an_older_target_snapshot_stops_until_told_where_to_start(staged):
    base = head_of(staged, "main")
    stage(staged, "a")
    resolve(staged.table)
    published = head_of(staged, "main")
    replace_branch(
        staged.environment, staged.table.identifier, "staging", to=base, expected_head=published
    )
    new = stage(staged, "b")
    with pytest.raises(InvalidInputError, match="--from-snapshot"):
        resolve(staged.table)
    assert backlog(staged, from_snapshot=base) == [new]
    resolve(staged.table, from_snapshot=base)
    assert staged.published() == Counter([(1, "eu", "b")])
    assert resolve(staged.table).staged_snapshots == 0


@pytest.mark.parametrize("to", ["history", "left"])
def test_staging_moved_to_an_older_snapshot_of_the_target_is_idle_and_moves_on(staged, to):
    """Whatever was published since: nothing is staged there."""
    older = base = head_of(staged, "main")
    if to == "left":
        older = staged.table.append(staged.rows((2, "eu", "left"))).snapshot.snapshot_id
        rollback(staged.environment, staged.table.identifier, snapshot_id=base)
    stage(staged, "a")
    resolve(staged.table)
    published = head_of(staged, "main")
    replace_branch(
        staged.environment, staged.table.identifier, "staging", to=older, expected_head=published
    )
    assert backlog(staged) == []
    assert resolve(staged.table).trimmed
    assert head_of(staged, "staging") == published
    waiting = stage(staged, "b")
    assert backlog(staged) == [waiting]
    resolve(staged.table)
    assert staged.published() == Counter([(1, "eu", "b")])


def test_rolled_back_target_is_published_to_again_from_its_own_marker(staged):
    first, second = stage(staged, "a"), stage(staged, "b")
    resolve(staged.table, limit=1)
    after_first = head_of(staged, "main")
    resolve(staged.table)
    rollback(staged.environment, staged.table.identifier, snapshot_id=after_first)
    assert cursor_of(staged.table.refresh().state, "main") == first
    resolve(staged.table)
    assert staged.published() == Counter([(1, "eu", "b")])
    assert second is not None


def test_staged_snapshots_that_expired_unpublished_stop_the_cycle(staged):
    """D6 of the Flink converter: never skipped silently."""
    base = head_of(staged, "main")
    first = stage(staged, "a")
    stage(staged, "b")
    state = staged.table.refresh().state
    staged.environment.catalog.commit(state, [RemoveSnapshotsUpdate(snapshot_ids=[first])])
    with pytest.raises(InvalidInputError, match="expired"):
        resolve(staged.table)
    assert head_of(staged, "main") == base


def test_from_snapshot_outside_of_staging_is_refused(staged):
    stage(staged, "a")
    with pytest.raises(InvalidInputError, match="not in the staging branch"):
        resolve(staged.table, from_snapshot=12345)


def test_target_rolled_back_behind_a_trim_gets_its_staged_changes_again_and_no_others(staged):
    """The appended row was rolled back on purpose; the staged change was not."""
    base = head_of(staged, "main")
    staged.table.append(staged.rows((2, "eu", "appended")))
    first = stage(staged, "a")
    assert resolve(staged.table).trimmed
    second = stage(staged, "b")
    rollback(staged.environment, staged.table.identifier, snapshot_id=base)
    assert backlog(staged) == [first, second]
    resolve(staged.table)
    assert staged.published() == Counter([(1, "eu", "b")])
    assert verify(staged.table).report.is_sound


def test_append_that_was_rolled_back_stays_away_when_the_log_of_the_target_is_cut(staged):
    """Simulator, seed 5000054: expiry of a later snapshot cuts the log below it."""
    base = head_of(staged, "main")
    appended = staged.table.append(staged.rows((2, "eu", "appended"))).snapshot.snapshot_id
    first = stage(staged, "a")
    resolve(staged.table, limit=1)
    published = head_of(staged, "main")
    second = stage(staged, "b")
    rollback(staged.environment, staged.table.identifier, snapshot_id=base)
    staging = head_of(staged, "staging")
    replace_branch(
        staged.environment, staged.table.identifier, "staging", to=first, expected_head=staging
    )
    state = staged.table.refresh().state
    staged.environment.catalog.commit(
        state, [RemoveSnapshotsUpdate(snapshot_ids=[published, second])]
    )
    log = staged.table.refresh().state.metadata.snapshot_log
    assert appended not in {entry.snapshot_id for entry in log}
    assert backlog(staged) == [first]
    resolve(staged.table)
    assert staged.published() == Counter([(1, "eu", "a")])


def cut_log(staged, base):
    """Main goes back to `base`, and its log says no more than that."""
    staged.table.append(staged.rows((5, "eu", "rolled back")))
    removed = RemoveSnapshotsUpdate(snapshot_ids=[head_of(staged, "main")])
    rollback(staged.environment, staged.table.identifier, snapshot_id=base)
    staged.environment.catalog.commit(staged.table.refresh().state, [removed])
    log = staged.table.refresh().state.metadata.snapshot_log
    assert [entry.snapshot_id for entry in log] == [base]


@pytest.mark.parametrize("is_published", [False, True])
def test_what_another_tool_did_on_main_stays_rolled_back_where_the_log_is_gone(
    staged, is_published
):
    """As after Java's CREATE OR REPLACE BRANCH of main, which leaves one entry, of its own time."""
    if is_published:
        stage(staged, "published")
        resolve(staged.table)
    base = head_of(staged, "main")
    with another_tool(staged.environment):
        for key in (2, 3):
            staged.commit(branch="main", data=staged.data_files((key, "eu", "rolled back")))
    if is_published:
        staged.table.refs.drop("staging")
    waiting = [stage(staged, "a")]
    with another_tool(staged.environment):
        staged.commit(data=staged.data_files((4, "eu", "staged")))
    waiting.append(head_of(staged, "staging"))
    cut_log(staged, base)
    assert backlog(staged) == waiting
    resolve(staged.table)
    assert staged.published() == Counter([(1, "eu", "a"), (4, "eu", "staged")])


def test_staged_position_in_a_file_that_main_has_lost_with_its_log_reaches_its_row(tmp_path):
    """The file was written by a compaction of main's that was rolled back, and is not staged."""
    staged = StagedTable(tmp_path, properties={"format-version": "2"})
    rows = [(1, "eu", "a"), (2, "eu", "b")]
    staged.table.append(staged.rows(*rows))
    base = head_of(staged, "main")
    with another_tool(staged.environment):
        staged.rewrite(*rows, keep_ids=False)
    stage(staged, "new")
    file = next(t.entry.data_file for t in staged.tasks() if t.entry.data_file.record_count == 2)
    with another_tool(staged.environment):
        staged.commit(deletes=[staged.position_deletes({file.file_path: [1]}, [file])])
    cut_log(staged, base)
    assert resolve(staged.table).staged_snapshots == 2
    assert staged.published() == Counter([(1, "eu", "new")])


def test_rows_appended_to_a_staging_branch_of_another_name_are_staged(staged):
    """Such an append repeats the marker of the target, but is not the target's."""
    staged.table.stage(upserts=staged.rows((1, "eu", "a")), branch="changes")
    assert resolve(staged.table, staging="changes").trimmed
    staged.table.append(staged.rows((2, "eu", "appended")), branch="changes")
    report = resolve(staged.table, staging="changes")
    assert report.staged_snapshots == 1
    assert staged.published() == Counter([(1, "eu", "a"), (2, "eu", "appended")])


def test_rows_appended_to_a_staging_branch_are_staged_where_the_target_has_expired_below(staged):
    """All that is left of the target repeats the marker; so does the append, and it is waiting."""
    staged.table.stage(upserts=staged.rows((1, "eu", "a")), branch="changes")
    assert resolve(staged.table, staging="changes").trimmed
    staged.table.append(staged.rows((2, "eu", "appended")), branch="changes")
    for key in (3, 4):
        staged.table.append(staged.rows((key, "eu", "main")))
    expire(staged.table, EVERYTHING)
    assert staged.table.refresh().state.head("main").parent_snapshot_id not in ids_of(staged)
    assert resolve(staged.table, staging="changes").staged_snapshots == 1
    assert staged.published()[(2, "eu", "appended")] == 1


def test_staged_changes_below_a_conversion_in_place_come_again_after_a_rollback(staged):
    """It repeats the marker of the target that was forwarded to them; it has covered none."""
    stage(staged, "a")
    resolve(staged.table)
    before = head_of(staged, "main")
    waiting = [stage(staged, "b"), stage(staged, "c")]
    fast_forward(staged.environment, staged.table.identifier, "main", to="staging")
    resolve(staged.table, staging="main")
    assert resolve(staged.table).trimmed
    rollback(staged.environment, staged.table.identifier, snapshot_id=before)
    assert backlog(staged) == waiting
    resolve(staged.table)
    assert staged.published() == Counter([(1, "eu", "c")])


@pytest.mark.parametrize("by_another_tool", ["none", "last", "all"])
def test_what_main_was_forwarded_to_stays_published_where_its_log_is_cut(staged, by_another_tool):
    if by_another_tool == "all":
        stage(staged, "published")
        assert resolve(staged.table).trimmed
    base = head_of(staged, "main")
    if by_another_tool != "all":
        staged.table.stage(deletes=keys(7))
    if by_another_tool != "none":
        with another_tool(staged.environment):
            staged.commit(deletes=staged.equality_deletes(keys(8)))
    fast_forward(staged.environment, staged.table.identifier, "main", to="staging")
    waiting = stage(staged, "waits")
    staged.table.append(staged.rows((7, "eu", "later")))
    cut = head_of(staged, "main")
    staged.table.append(staged.rows((8, "eu", "later")))
    removed = RemoveSnapshotsUpdate(snapshot_ids=[base, cut])
    staged.environment.catalog.commit(staged.table.refresh().state, [removed])
    assert backlog(staged) == [waiting]
    resolve(staged.table)
    expected = [(1, "eu", "waits"), (7, "eu", "later"), (8, "eu", "later")]
    assert staged.published() == Counter(expected)


def test_expiry_keeps_the_target_down_to_where_staging_meets_it(staged):
    """What other tools commit does not say that nothing was published since; the chain does."""
    stage(staged, "a")
    resolve(staged.table)
    staged.table.refs.drop("staging")
    with another_tool(staged.environment):
        staged.table.append(staged.rows((5, "eu", "theirs")))
    waiting = stage(staged, "b")
    with another_tool(staged.environment):
        staged.rewrite()
    staged.table.append(staged.rows((6, "eu", "own")))
    expire(staged.table, EVERYTHING)
    assert backlog(staged) == [waiting]


def test_staging_that_never_stood_on_the_target_is_published_whole(tmp_path):
    """Both branches have a root of their own: nothing was replaced."""
    staged = StagedTable(tmp_path)
    first = stage(staged, "staged first")
    staged.table.append(staged.rows((2, "eu", "two")))
    assert backlog(staged) == [first]
    resolve(staged.table)
    assert staged.published() == Counter([(1, "eu", "staged first"), (2, "eu", "two")])


def test_branch_of_others_that_never_stood_on_the_target_is_published_whole(tmp_path):
    """As the one above; what tells that nothing was replaced are older versions of the metadata."""
    staged = StagedTable(tmp_path)
    with another_tool(staged.environment):
        stage(staged, "staged first")
        staged.table.append(staged.rows((2, "eu", "two")))
    resolve(staged.table)
    assert staged.published() == Counter([(1, "eu", "staged first"), (2, "eu", "two")])


def test_second_staging_branch_of_a_target_is_refused_by_its_name(staged):
    staged.table.stage(upserts=staged.rows((1, "eu", "b")), branch="changes")
    stage(staged, "a")
    resolve(staged.table)
    with pytest.raises(InvalidInputError, match="of the branch 'staging'"):
        resolve(staged.table, staging="changes")
    assert staged.published() == Counter([(1, "eu", "a")])


def test_index_follows_a_rollback_that_brings_rows_back(staged):
    """The row died in a publish that was rolled back: the index must know it again."""
    staged.table.append(staged.rows((2, "eu", "two")))
    before = head_of(staged, "main")
    staged.table.stage(deletes=staged.rows((2, None, "")).select(["id"]))
    resolve(staged.table)
    staging = head_of(staged, "staging")
    rollback(staged.environment, staged.table.identifier, snapshot_id=before)
    replace_branch(
        staged.environment, staged.table.identifier, "staging", to=before, expected_head=staging
    )
    staged.table.refresh()
    staged.table.stage(upserts=staged.rows((2, "us", "again")))
    resolve(staged.table)
    assert staged.published() == Counter([(1, "eu", "base"), (2, "us", "again")])


def test_empty_staging_branch_name_or_tag_is_refused(staged):
    stage(staged, "a")
    with pytest.raises(InvalidInputError, match="not a branch"):
        resolve(staged.table, staging="")
    with pytest.raises(NotFoundError, match="no staging branch"):
        resolve(staged.table, staging="other")


def test_target_that_does_not_exist_is_refused_and_not_created(staged):
    """Published to a misspelt branch, the change would leave staging and never reach `main`."""
    staging = stage(staged, "a")
    with pytest.raises(NotFoundError, match=r"no such branch.*branch=mian"):
        resolve(staged.table, target="mian")
    assert set(staged.table.refresh().state.metadata.refs) == {"main", "staging"}
    assert head_of(staged, "staging") == staging


def test_target_is_read_only_down_to_what_waits(staged, monkeypatch):
    """A stream's table has a thousand snapshots, and is planned several times a second."""
    for number in range(12):
        stage(staged, str(number))
        resolve(staged.table)
    last = stage(staged, "waits")
    state, read = staged.table.refresh().state, []

    def history(*given):
        for snapshot in branch_history(*given):
            read.append(snapshot)
            yield snapshot

    monkeypatch.setattr(cursor, "branch_history", history)
    found = plan_backlog(state, staging="staging", target="main")
    assert [each.snapshot_id for each in found] == [last]
    assert len(read) <= 4


def test_limit_of_zero_is_refused(staged):
    stage(staged, "a")
    with pytest.raises(InvalidInputError, match="positive"):
        resolve(staged.table, limit=0)
