"""A Spark query of Iceberg's own writer that appends a batch to a branch twice: published once."""

from collections import Counter

import pytest

from maintenance import expire
from resolver import resolve
from resolver.staging import cursor_of
from tableformat.commit.carried_properties import OTHER_QUERIES_MAX, writer_properties
from tableformat.commit.refs import fast_forward, rollback
from tableformat.spec.names import STAGED_EPOCH
from tests.support.another_tool import another_tool
from tests.support.staged_tables import EVERYTHING, StagedTable


@pytest.fixture
def staged(tmp_path):
    staged = StagedTable(tmp_path)
    staged.table.append(staged.rows((0, "eu", "base")))
    return staged


def append(staged, query, epoch, branch="staging"):
    """As Iceberg's writer does; the row, which is the same whenever the batch is."""
    row = (100 * ord(query) + epoch, "eu", f"{query}{epoch}")
    said = {"spark.sql.streaming.queryId": query, "spark.sql.streaming.epochId": str(epoch)}
    data = staged.data_files(row)
    with another_tool(staged.environment):
        staged.commit(data=data, branch=branch, summary=said)
    return row


def published(staged):
    return sorted(staged.published().elements())[1:]


def test_batch_that_waits_twice_is_published_once(staged):
    rows = [append(staged, "a", epoch) for epoch in (0, 1, 1, 2)]
    assert resolve(staged.table).staged_snapshots == 4
    assert published(staged) == sorted(set(rows))


def test_batch_that_comes_again_alone_moves_the_cursor_and_nothing_else(staged):
    row = append(staged, "a", 3)
    resolve(staged.table)
    append(staged, "a", 3)
    staged_id = staged.table.refresh().state.head("staging").snapshot_id
    report = resolve(staged.table)
    assert (report.staged_rows, report.data_files, report.trimmed) == (0, 0, True)
    assert cursor_of(staged.table.refresh().state, "main") == staged_id
    assert published(staged) == [row]


def test_checkpoint_that_has_lost_several_batches(staged):
    rows = [append(staged, "a", epoch) for epoch in (0, 1, 2, 1, 2, 3)]
    while resolve(staged.table, limit=1).staged_snapshots:
        pass
    assert published(staged) == sorted(set(rows))
    newest = staged.table.state.head("main").summary.additional_properties
    assert newest["spark.sql.streaming.epochId"] == newest[f"{STAGED_EPOCH}a"] == "3"


def test_batch_that_comes_again_when_everything_old_has_expired(staged):
    """One of two queries is named by no summary that the other one does not name as well."""
    rows = [append(staged, "a", 5), append(staged, "b", 7)]
    resolve(staged.table)
    expire(staged.table, EVERYTHING)
    staged.table.refresh().stage(upserts=staged.rows((1, "eu", "ours")))
    resolve(staged.table)
    rows += [append(staged, "a", 5), append(staged, "b", 7), append(staged, "a", 6)]
    resolve(staged.table)
    assert published(staged) == sorted({*rows, (1, "eu", "ours")})


def test_query_that_went_on_to_main_has_staged_what_waits_before(staged):
    rows = [append(staged, "a", 6)]
    rows += [append(staged, "a", epoch, "main") for epoch in (7, 8)]
    staged.table.refresh().append(staged.rows((1, "eu", "ours")))  # repeats epoch 8
    resolve(staged.table)
    assert published(staged) == sorted([*rows, (1, "eu", "ours")])


def test_append_of_icefold_that_repeats_what_the_query_said_is_none_of_its(staged):
    staged.table.refs.create_branch("changes")
    row = append(staged, "a", 1, "changes")
    staged.table.refresh().append(staged.rows((1, "eu", "ours")), branch="changes")
    head = staged.table.refresh().state.head("changes").summary.additional_properties
    assert head["spark.sql.streaming.epochId"] == "1"
    resolve(staged.table, staging="changes")
    assert published(staged) == sorted([row, (1, "eu", "ours")])


def test_batch_whose_publish_was_rolled_back_is_published_again_once(staged):
    base = staged.table.state.head("main").snapshot_id
    row = append(staged, "a", 1)
    resolve(staged.table)
    rollback(staged.environment, staged.table.identifier, snapshot_id=base)
    append(staged, "a", 1)
    resolve(staged.table)
    assert published(staged) == [row]


@pytest.mark.parametrize("in_one_cycle", [True, False])
def test_rows_that_another_tool_deletes_in_both_copies_are_gone(staged, in_one_cycle):
    base = staged.only_file().file_path
    append(staged, "a", 1)
    append(staged, "a", 1)
    if not in_one_cycle:
        resolve(staged.table, limit=1)
    files = [each.entry.data_file for each in staged.tasks("staging")]
    twice = [file for file in files if file.file_path != base]
    assert len(twice) == 2
    vectors = staged.vectors({file.file_path: [0] for file in twice}, twice)
    with another_tool(staged.environment):
        staged.commit(deletes=vectors)
    resolve(staged.table)
    assert staged.published() == Counter([(0, "eu", "base")])


def test_queries_that_are_remembered_are_those_that_wrote_last():
    summaries = [{f"{STAGED_EPOCH}{n}": "0"} for n in range(OTHER_QUERIES_MAX)]
    kept = writer_properties([*summaries, {f"{STAGED_EPOCH}0": "1"}, {f"{STAGED_EPOCH}new": "0"}])
    assert len(kept) == OTHER_QUERIES_MAX
    assert kept[f"{STAGED_EPOCH}0"] == "1"
    assert f"{STAGED_EPOCH}1" not in kept


def test_batch_that_main_was_forwarded_to_does_not_come_again(staged):
    row = append(staged, "a", 1)
    fast_forward(staged.environment, staged.table.identifier, "main", to="staging")
    append(staged, "a", 1)
    resolve(staged.table)
    assert published(staged) == [row]
