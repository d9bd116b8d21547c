"""The log of staging has expired before it was published; the files of its head are all there."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext

import pyarrow as pa
import pytest
from pyiceberg.table.snapshots import Summary
from pyiceberg.table.update import RemoveSnapshotsUpdate

from maintenance.tasks.compact import compact
from maintenance.tasks.options import CompactOptions
from resolver import resolve
from resolver.cursor import LostCursorError
from tableformat.commit.branch_history import branch_history
from tableformat.errors import CorruptDataError, InvalidInputError, UnsupportedError
from tableformat.spec.names import COMMITTED_TO, STAGING_BASE
from tests.support.another_tool import another_tool
from tests.support.former_metadata import delete_former_metadata
from tests.support.staged_tables import StagedTable, keys


@pytest.fixture
def staged(tmp_path):
    table = StagedTable(tmp_path)
    table.table.append(table.rows((1, "eu", "old"), (2, "eu", "old"), (3, "eu", "old")))
    return table


def head_id(staged, branch):
    return staged.table.refresh().state.head(branch).snapshot_id


def forget(staged, *kept):
    """Expire all snapshots but the heads and `kept`, as another tool's `retain_last => 1` does."""
    state = staged.table.refresh().state
    heads = {ref.snapshot_id for ref in state.metadata.refs.values()} | set(kept)
    gone = [s.snapshot_id for s in state.metadata.snapshots if s.snapshot_id not in heads]
    staged.environment.catalog.commit(state, [RemoveSnapshotsUpdate(snapshot_ids=gone)])


def forget_for_good(staged, *kept):
    """As `forget`; and older metadata files are gone, too."""
    forget(staged, *kept)
    delete_former_metadata(staged.environment, staged.table.refresh().state)


def log_of(staged, branch):
    return [each.snapshot_id for each in branch_history(staged.table.refresh().state, branch)]


def stage_three(staged):
    staged.table.stage(upserts=staged.rows((1, "eu", "a"), (4, "eu", "a")))
    staged.table.stage(upserts=staged.rows((1, "eu", "b")), deletes=keys(2))
    staged.table.stage(upserts=staged.rows((2, "eu", "c")), deletes=keys(4))


STAGED_THREE = Counter([(1, "eu", "b"), (2, "eu", "c"), (3, "eu", "old")])


def test_expired_staged_snapshots_stop_the_cycle_and_the_way_on_loses_nothing(staged):
    stage_three(staged)
    forget(staged)
    before = staged.published()
    with pytest.raises(InvalidInputError, match="--from-staging-state"):
        resolve(staged.table)
    assert staged.published() == before
    resolve(staged.table, from_staging_state=True)
    assert staged.published() == STAGED_THREE
    assert resolve(staged.table).staged_snapshots == 0


def test_later_cycles_go_on_from_the_branchs_log(staged):
    stage_three(staged)
    forget(staged)
    resolve(staged.table, from_staging_state=True)
    staged.table.stage(deletes=keys(3))
    resolve(staged.table)
    assert staged.published() == STAGED_THREE - Counter([(3, "eu", "old")])


def test_nothing_staged_by_the_branchs_state_is_remembered(staged):
    staged.table.stage(deletes=keys(3))
    resolve(staged.table)
    with another_tool(staged.environment):
        staged.table.append(staged.rows((5, "eu", "by another tool")))
        staged.table.append(staged.rows((6, "eu", "by another tool")))
    forget_for_good(staged)
    before = staged.published()
    with pytest.raises(InvalidInputError, match="--from-staging-state"):
        resolve(staged.table)
    with pytest.raises(InvalidInputError, match="--staged-after N"):
        resolve(staged.table, from_staging_state=True)
    head = staged.table.refresh().state.head("staging")
    resolve(staged.table, from_staging_state=True, staged_after=head.sequence_number)
    assert resolve(staged.table).staged_snapshots == 0
    assert staged.published() == before
    staged.table.stage(deletes=keys(5))
    resolve(staged.table)
    assert staged.published() == before - Counter([(5, "eu", "by another tool")])


@pytest.mark.parametrize("stager", ["icefold", "another tool"])
def test_what_main_had_before_a_rollback_is_not_staged(staged, stager):
    """Another tool's commit on main, which staging stands on; the first staged ones are gone."""
    before = head_id(staged, "main")
    with another_tool(staged.environment):
        staged.table.append(staged.rows((5, "eu", "rolled back")))
        after = head_id(staged, "main")
        staged.table.refs.create_branch("staging", snapshot_id=after)
    staged.table.refs.rollback(snapshot_id=before)
    with another_tool(staged.environment) if stager == "another tool" else nullcontext():
        stage_three(staged)
    staged.table.append(staged.rows((6, "eu", "later")))
    forget(staged, before, after)
    with pytest.raises(InvalidInputError, match="--from-staging-state"):
        resolve(staged.table)
    resolve(staged.table, from_staging_state=True)
    assert staged.published() == STAGED_THREE + Counter([(6, "eu", "later")])


def test_another_tools_commit_to_main_below_staging_was_not_staged(staged):
    before = head_id(staged, "main")
    with another_tool(staged.environment):
        staged.table.append(staged.rows((5, "eu", "rolled back")))
    after = head_id(staged, "main")
    staged.table.refs.create_branch("staging", snapshot_id=after)
    staged.table.stage(upserts=staged.rows((4, "eu", "waits")))
    staged.table.stage(upserts=staged.rows((4, "eu", "waits, too")))
    staged.table.refs.rollback(snapshot_id=before)
    staged.table.append(staged.rows((6, "eu", "later")))
    forget(staged, before, after)
    kept = staged.published()
    resolve(staged.table, from_staging_state=True)
    assert staged.published() == kept + Counter([(4, "eu", "waits, too")])


@pytest.mark.parametrize("stager", ["icefold", "another tool"])
@pytest.mark.parametrize("is_rolled_back", [True, False])
def test_what_main_was_forwarded_to_is_told_once_the_logs_have_expired(
    staged, is_rolled_back, stager
):
    before = head_id(staged, "main")
    with another_tool(staged.environment) if stager == "another tool" else nullcontext():
        staged.table.stage(upserts=staged.rows((4, "eu", "forwarded to")))
    staged.table.refs.fast_forward("main", to="staging")
    staged.table.stage(upserts=staged.rows((5, "eu", "waits")))
    if is_rolled_back:
        staged.table.refs.rollback(snapshot_id=before)
    staged.table.append(staged.rows((6, "eu", "later")))
    forget(staged)
    kept = staged.published()
    with pytest.raises(InvalidInputError, match="--from-staging-state"):
        resolve(staged.table)
    if is_rolled_back:
        with pytest.raises(InvalidInputError, match=r"rolled back behind .* 1 to 2"):
            resolve(staged.table, from_staging_state=True)
        assert staged.published() == kept
        return
    resolve(staged.table, from_staging_state=True)
    assert staged.published() == kept + Counter([(5, "eu", "waits")])


def test_main_that_was_empty_is_not_taken_to_begin_after_what_it_was_forwarded_to(tmp_path):
    """Seed 7602653: what main was forwarded to was published again, over a newer row."""
    staged = StagedTable(tmp_path)
    staged.table.stage(deletes=keys(7))
    staged.table.refs.create_branch("main", snapshot_id=head_id(staged, "staging"))
    resolve(staged.table, staging="main", target="main")
    staged.table.append(staged.rows((7, "eu", "later")))
    vars(staged.table.refresh().state.head("main"))["parent_snapshot_id"] = None  # as by PyIceberg
    forget(staged)
    staged.table.stage(upserts=staged.rows((8, "eu", "waits")))
    resolve(staged.table)
    assert staged.published() == Counter([(7, "eu", "later"), (8, "eu", "waits")])


def test_main_that_was_emptied_is_not_taken_to_begin_after_its_cursor(tmp_path):
    """Seed 7800595: of a file that a publish had rewritten, staged positions were ignored."""
    staged = StagedTable(tmp_path)
    staged.table.set_properties({"icefold.publish": "rewrite"})
    staged.table.stage(upserts=staged.rows((1, "eu", "a"), (2, "eu", "a")))
    [task] = staged.tasks("staging")
    staged.stage_vector(task.entry.data_file, 0)
    resolve(staged.table, limit=1)
    staged.table.delete("id > 0")
    staged.table.append(staged.rows((1, "eu", "newer"), (2, "eu", "newer")))
    vars(staged.table.refresh().state.head("main"))["parent_snapshot_id"] = None  # as by PyIceberg
    forget(staged, *log_of(staged, "staging"))
    with pytest.raises(UnsupportedError, match="delete these rows by their keys"):
        resolve(staged.table)


def test_main_that_was_emptied_is_not_taken_to_begin_with_another_tools_rows(tmp_path):
    """What was published before is not published again, over what others have written since."""
    staged = StagedTable(tmp_path)
    staged.table.stage(upserts=staged.rows((1, "eu", "a"), (2, "eu", "a")))
    staged.table.stage(upserts=staged.rows((3, "eu", "waits")))
    resolve(staged.table, limit=1)
    with another_tool(staged.environment):
        staged.table.delete("id > 0")
        staged.table.append(staged.rows((1, "eu", "newer")))
    vars(staged.table.refresh().state.head("main"))["parent_snapshot_id"] = None  # as by PyIceberg
    forget(staged, *log_of(staged, "staging"))
    with pytest.raises(LostCursorError, match="--from-staging-state"):
        resolve(staged.table)
    resolve(staged.table, from_staging_state=True)
    assert staged.published() == Counter([(1, "eu", "newer"), (3, "eu", "waits")])


def test_main_that_another_tool_began_late_is_whole_whatever_has_expired(tmp_path):
    staged = StagedTable(tmp_path)
    staged.table.stage(upserts=staged.rows((1, "eu", "a")))
    staged.table.refs.create_branch("audit", snapshot_id=head_id(staged, "staging"))
    staged.table.append(staged.rows((5, "eu", "a")), branch="audit")
    staged.table.refs.drop("audit")
    with another_tool(staged.environment):
        staged.table.append(staged.rows((2, "eu", "a")))
    forget(staged)
    resolve(staged.table)
    assert staged.published() == Counter([(1, "eu", "a"), (2, "eu", "a")])


def test_the_option_changes_nothing_where_the_log_is_whole(staged):
    stage_three(staged)
    report = resolve(staged.table, from_staging_state=True)
    assert report.staged_snapshots == 3
    assert staged.published() == STAGED_THREE


def test_what_was_published_before_the_log_expired_is_not_published_again(staged):
    stage_three(staged)
    resolve(staged.table, limit=1)
    staged.table.append(staged.rows((4, "us", "appended after the publish")))
    forget(staged)
    resolve(staged.table, from_staging_state=True)
    # The third staged commit deletes key 4 on the target, too; the first one is not applied again.
    assert staged.published() == STAGED_THREE


def test_first_publish_is_not_applied_to_rows_that_came_after_it(staged):
    staged.table.stage(upserts=staged.rows((4, "eu", "a")))
    staged.table.stage(upserts=staged.rows((5, "eu", "a")))
    staged.table.stage(upserts=staged.rows((6, "eu", "a")))
    resolve(staged.table, limit=1)
    staged.table.append(staged.rows((4, "us", "appended")))
    forget(staged)
    resolve(staged.table, from_staging_state=True)
    added = [(4, "eu", "a"), (4, "us", "appended"), (5, "eu", "a"), (6, "eu", "a")]
    old = [(key, "eu", "old") for key in (1, 2, 3)]
    assert staged.published() == Counter([*old, *added])


def test_files_of_the_target_that_compaction_took_meanwhile_are_not_staged(staged):
    staged.table.append(staged.rows((9, "eu", "old")))
    stage_three(staged)
    assert compact(staged.table.refresh(), CompactOptions(rewrite_all=True)).commits
    forget(staged)
    resolve(staged.table, from_staging_state=True)
    assert staged.published() == STAGED_THREE + Counter([(9, "eu", "old")])


def test_other_writers_commits_are_told_by_what_the_target_has(staged):
    stage_three(staged)
    strip_own_properties(staged)
    forget(staged)
    resolve(staged.table, from_staging_state=True)
    assert staged.published() == STAGED_THREE


def test_other_writers_commits_above_a_compacted_target_are_asked_for(staged):
    base = staged.table.refresh().state.head("main").sequence_number
    stage_three(staged)
    assert compact(staged.table.refresh(), CompactOptions(rewrite_all=True)).commits
    strip_own_properties(staged)
    forget_for_good(staged)
    with pytest.raises(InvalidInputError, match=r"--staged-after N") as refused:
        resolve(staged.table, from_staging_state=True)
    assert "2 (2), 3 (2), 4 (2)" in str(refused.value)
    resolve(staged.table, from_staging_state=True, staged_after=base)
    assert staged.published() == STAGED_THREE


def test_older_metadata_tells_what_neither_branch_does_any_more(staged):
    """Else another tool's commits to main hide how far it has got, and after a compaction from
    where staging left it."""
    stage_three(staged)
    resolve(staged.table, limit=1)
    with another_tool(staged.environment):
        staged.table.append(staged.rows((4, "eu", "by another tool")))
        assert compact(staged.table.refresh(), CompactOptions(rewrite_all=True)).commits
    forget(staged)
    resolve(staged.table, from_staging_state=True)
    assert staged.published() == STAGED_THREE


def test_corrupt_older_metadata_stops_and_says_that_it_may_be_moved_away(staged):
    stage_three(staged)
    forget(staged)
    store, log = staged.environment.store, staged.table.refresh().state.metadata.metadata_log
    older = log[-1].metadata_file
    store.delete([older])
    store.put(older, b"{")
    before = staged.published()
    with pytest.raises(CorruptDataError, match="restore it, or move it away") as caught:
        resolve(staged.table, from_staging_state=True)
    assert older in str(caught.value)
    assert staged.published() == before
    store.delete([older])
    resolve(staged.table, from_staging_state=True)
    assert staged.published() == STAGED_THREE


def test_older_metadata_tells_that_main_was_rolled_back_behind_what_staging_stands_on(staged):
    """Seed 7602034: what main had lost came back as staged."""
    before = head_id(staged, "main")
    staged.table.append(staged.rows((4, "eu", "lost")))
    staged.table.stage(upserts=staged.rows((5, "eu", "a")))
    staged.table.refs.rollback(snapshot_id=before)
    with another_tool(staged.environment):
        staged.table.stage(upserts=staged.rows((6, "eu", "a")))
    rows = staged.published()
    forget(staged)
    resolve(staged.table, from_staging_state=True)
    assert staged.published() == rows + Counter([(5, "eu", "a"), (6, "eu", "a")])


def test_refusal_names_the_number_that_icefolds_staged_commits_stand_on(staged):
    """As iceberg-go's expiry leaves it: the branch keeps its log, main only another tool's head."""
    base = staged.table.refresh().state.head("main").sequence_number
    stage_three(staged)
    by_id = {s.snapshot_id: s for s in staged.table.refresh().state.metadata.snapshots}
    with another_tool(staged.environment):
        staged.table.append(staged.rows((8, "eu", "by another tool")))
        staged.table.append(staged.rows((9, "eu", "by another tool")))
    forget_for_good(staged, *(i for i, each in by_id.items() if each.sequence_number > base))
    with pytest.raises(InvalidInputError, match="--from-staging-state"):
        resolve(staged.table)
    with pytest.raises(InvalidInputError, match=rf"published since .* main, N is {base}$"):
        resolve(staged.table, from_staging_state=True)
    resolve(staged.table, from_staging_state=True, staged_after=base)
    later = Counter([(8, "eu", "by another tool"), (9, "eu", "by another tool")])
    assert staged.published() == STAGED_THREE + later


@pytest.mark.parametrize("publish", ["link", "rewrite"])
def test_vector_of_a_file_that_left_cannot_be_told_from_what_it_repeats(staged, publish):
    """A later upsert of the key does not tell either: its row would take a dead row's id."""
    staged.table.set_properties({"icefold.publish": publish})
    [file] = [t.entry.data_file for t in staged.table.refresh().scan().plan.tasks]
    staged.commit(deletes=staged.vectors({file.file_path: [0]}, [file]))
    staged.table.stage(upserts=staged.rows((1, "eu", "new"), (5, "eu", "a")))
    staged.table.stage(upserts=staged.rows((6, "eu", "a")))
    assert compact(staged.table.refresh(), CompactOptions(rewrite_all=True)).commits
    forget(staged)
    before = staged.published()
    with pytest.raises(UnsupportedError, match="roll the target back"):
        resolve(staged.table, from_staging_state=True)
    assert staged.published() == before


@pytest.mark.parametrize("base_is_known", [False, True])
def test_vector_that_replaced_another_takes_the_newer_row_of_its_key(staged, base_is_known):
    """As with the log; where it is not known since when the row is dead, the cycle stops."""
    file = staged.only_file()
    staged.stage_vector(file, 1)
    [vector] = [task.dv for task in staged.tasks("staging") if task.dv]
    staged.stage_vector(file, 0, 1, removed=[vector])
    staged.table.stage(upserts=staged.rows((6, "eu", "a")))
    staged.table.delete("id = 1")
    staged.table.append(staged.rows((1, "eu", "newer")))
    forget(staged, *(log_of(staged, "main") if base_is_known else []))
    if not base_is_known:
        with pytest.raises(UnsupportedError, match="whether it deletes them anew is not known"):
            resolve(staged.table, from_staging_state=True, staged_after=1)
        staged.table.delete("id = 1")
    resolve(staged.table, from_staging_state=True)
    assert staged.published() == Counter([(3, "eu", "old"), (6, "eu", "a")])


def test_vector_repeats_what_the_target_had_deleted_when_staging_left_it(staged):
    staged.table.delete("id = 1")
    staged.table.append(staged.rows((1, "eu", "again")))
    [old] = [task for task in staged.tasks() if task.dv]
    staged.stage_vector(old.entry.data_file, 0, 1, removed=[old.dv])
    staged.table.stage(upserts=staged.rows((6, "eu", "a")))
    staged.table.append(staged.rows((7, "eu", "main")))
    forget(staged, *log_of(staged, "main"))
    resolve(staged.table, from_staging_state=True)
    expected = [(1, "eu", "again"), (3, "eu", "old"), (6, "eu", "a"), (7, "eu", "main")]
    assert staged.published() == Counter(expected)


def test_vector_repeats_what_was_published_before(staged):
    file = staged.only_file()
    staged.stage_vector(file, 0)
    resolve(staged.table)
    staged.table.append(staged.rows((1, "eu", "again")))
    [vector] = [task.dv for task in staged.tasks("staging") if task.dv]
    staged.stage_vector(file, 0, 1, removed=[vector])
    staged.table.stage(upserts=staged.rows((6, "eu", "a")))
    forget(staged, *log_of(staged, "main"))
    resolve(staged.table, from_staging_state=True)
    assert staged.published() == Counter([(1, "eu", "again"), (3, "eu", "old"), (6, "eu", "a")])


@pytest.mark.parametrize("base_is_known", [False, True])
@pytest.mark.parametrize("published_before", [0, 1])
def test_target_rolled_back_behind_what_staging_stands_on_is_refused(
    staged, base_is_known, published_before
):
    """The branch does not list what the lost publish brought, so it would go without a word."""
    for key in range(published_before):
        staged.table.stage(upserts=staged.rows((20 + key, "eu", "a")))
        resolve(staged.table)
    before = head_id(staged, "main")
    staged.table.stage(upserts=staged.rows((4, "eu", "lost")))
    resolve(staged.table)
    base = head_id(staged, "staging")
    number = staged.table.refresh().state.head("staging").sequence_number
    staged.table.stage(upserts=staged.rows((5, "eu", "a")))
    staged.table.stage(upserts=staged.rows((6, "eu", "a")))
    staged.table.refs.rollback(snapshot_id=before)
    forget(staged, *([base] if base_is_known else []))
    rows = staged.published()
    with pytest.raises(InvalidInputError, match="rolled back behind publishes") as refused:
        resolve(staged.table, from_staging_state=True)
    assert f"--staged-after {number}" in str(refused.value)
    assert staged.published() == rows
    resolve(staged.table, from_staging_state=True, staged_after=number)
    assert staged.published() == rows + Counter([(5, "eu", "a"), (6, "eu", "a")])


def test_starting_from_a_snapshot_says_how_many_staged_ones_it_skips(staged):
    stage_three(staged)
    with pytest.raises(InvalidInputError, match=r"3 staged snapshots \(4 rows, 6 equality") as no:
        resolve(staged.table, from_snapshot=head_id(staged, "staging"))
    assert "--yes" in str(no.value)
    forget(staged)
    with pytest.raises(InvalidInputError, match=r"1 staged snapshot .* unknown number of expired"):
        resolve(staged.table, from_snapshot=head_id(staged, "staging"))
    report = resolve(staged.table, from_snapshot=head_id(staged, "staging"), skip_unpublished=True)
    assert report.staged_snapshots == 0


def test_table_on_which_nothing_was_staged_has_nothing_to_resolve(staged):
    report = resolve(staged.table)
    assert report.staged_snapshots == 0
    assert report.target_snapshot_id == head_id(staged, "main")


def test_staging_branch_that_was_dropped_unpublished_is_named(staged):
    staged.table.stage(upserts=staged.rows((1, "eu", "a")))
    dropped = head_id(staged, "staging")
    staged.table.refs.drop("staging")
    with pytest.raises(LookupError, match=f"1 unpublished snapshot.*{dropped}"):
        resolve(staged.table)
    staged.table.refs.create_branch("staging", snapshot_id=dropped)
    resolve(staged.table)
    assert staged.published()[(1, "eu", "a")] == 1
    staged.table.refs.drop("staging")
    assert resolve(staged.table).staged_snapshots == 0


@pytest.mark.parametrize("published", [0, 1])
def test_dropped_staging_branch_is_named_where_another_tool_staged_last(staged, published):
    """Its commits do not say their branch."""
    staged.table.stage(upserts=staged.rows((1, "eu", "a")))
    with another_tool(staged.environment):
        staged.table.stage(upserts=staged.rows((2, "eu", "b")))
    if published:
        resolve(staged.table, limit=published)
    dropped = head_id(staged, "staging")
    staged.table.refs.drop("staging")
    with pytest.raises(LookupError, match=f"{2 - published} unpublished snapshot.*{dropped}"):
        resolve(staged.table)
    staged.table.refs.create_branch("staging", snapshot_id=dropped)
    resolve(staged.table)
    assert staged.published() == Counter([(1, "eu", "a"), (2, "eu", "b"), (3, "eu", "old")])


def strip_own_properties(staged):
    """Staged commits as another writer leaves them."""
    state = staged.table.refresh().state
    for snapshot in state.metadata.snapshots:
        said = snapshot.summary.additional_properties
        if said.get(COMMITTED_TO) == "staging":
            left = {k: v for k, v in said.items() if k not in (COMMITTED_TO, STAGING_BASE)}
            vars(snapshot)["summary"] = Summary(snapshot.summary.operation, **left)


def test_partial_row_behind_a_row_whose_death_only_the_log_told_is_refused_until_it_is_whole(
    staged,
):
    """The last vector of a file does not say that an older one had deleted the row before."""
    table = staged.table
    table.set_properties({"icefold.on-missing-row": "null"})
    table.stage(upserts=staged.rows((4, "eu", "a"), (5, "eu", "a")))
    files = [each.entry.data_file for each in staged.tasks("staging")]
    [file] = [each for each in files if each.record_count == 2]
    staged.stage_vector(file, 0)
    partial_row(staged, 4, "us")
    [vector] = [each.dv for each in staged.tasks("staging") if each.dv]
    staged.stage_vector(file, 0, 1, removed=[vector])
    partial_row(staged, 4, "asia")  # goes back to it by way of the other one
    forget_for_good(staged)
    before = staged.published()
    with pytest.raises(UnsupportedError, match=r"stage these rows whole") as refused:
        resolve(table, from_staging_state=True)
    assert refused.value.context["key"] == "{'id': 4}"
    assert staged.published() == before
    table.stage(upserts=staged.rows((4, "us", "whole")))
    resolve(table, from_staging_state=True)
    assert staged.published()[(4, "us", "whole")] == 1


def partial_row(staged, key, region):
    staged.table.stage(pa.table({"id": [key], "region": [region]}), columns="partial")
