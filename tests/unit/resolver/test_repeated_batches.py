"""A Spark query of Iceberg's own writer that appends a batch to a branch twice: published once."""

import pytest

from maintenance import expire
from resolver import resolve
from resolver.cursor import cursor_of
from tableformat.commit.carried_properties import OTHER_QUERIES_MAX, writer_properties
from tableformat.commit.refs import fast_forward, rollback
from tableformat.errors import UnsupportedError
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


@pytest.mark.parametrize("publish", ["link", "rewrite"])
@pytest.mark.parametrize("limit", [1, 2, None])
@pytest.mark.parametrize("dead", ["both", "second"])
def test_rows_that_another_tool_deletes_in_a_copy_that_is_left_out(staged, publish, limit, dead):
    """In both copies: gone. In the second alone: that one never was on the target."""
    row, first, second = staged_twice(staged, publish)
    files = [e.data_file for e in ([first, second] if dead == "both" else [second])]
    vectors = staged.vectors({file.file_path: [0] for file in files}, files)
    with another_tool(staged.environment):
        staged.commit(deletes=vectors)
    resolve_all(staged, limit)
    assert published(staged) == ([] if dead == "both" else [row])


@pytest.mark.parametrize("publish", ["link", "rewrite"])
@pytest.mark.parametrize("limit", [1, 2, None])
def test_rows_of_a_batch_that_is_left_out_do_not_come_by_a_copy_of_their_file(
    staged, publish, limit
):
    row, _, second = staged_twice(staged, publish)
    head = staged.table.refresh().state.head_id("staging")
    with another_tool(staged.environment):
        staged.commit(data=staged.data_files(row), removed=[second])
    with pytest.raises(UnsupportedError, match="would bring these back"):
        resolve_all(staged, limit)
    rollback(staged.environment, staged.table.identifier, snapshot_id=head, branch="staging")
    resolve_all(staged, limit)
    assert published(staged) == [row]
    assert [e.entry.data_file.file_path for e in staged.tasks("staging")] == [
        e.entry.data_file.file_path for e in staged.tasks()
    ]


def resolve_all(staged, limit):
    while resolve(staged.table, limit=limit).staged_snapshots:
        pass


def staged_twice(staged, publish):
    """A batch and its entries, the first and the second."""
    staged.table.set_properties({"icefold.publish": publish})
    base = staged.only_file().file_path
    row = append(staged, "a", 1)
    append(staged, "a", 1)
    found = (each.entry for each in staged.tasks("staging"))
    twice = [each for each in found if each.data_file.file_path != base]
    return row, *sorted(twice, key=lambda each: each.sequence_number)


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
