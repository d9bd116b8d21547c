"""An idle staging branch follows its target, and hides nothing that a writer or resolver needs."""

from collections import Counter

import pytest

from maintenance import compact, expire
from maintenance.tasks.options import CompactOptions, ExpireOptions
from resolver import resolve
from resolver.cursor import plan_backlog
from tableformat.catalog.base import TableState
from tableformat.cdc.batch_commit import BatchId, commit_batch, committed_batch
from tableformat.commit.branch_history import ancestors, summary_of
from tableformat.commit.changeset import Changeset, CommitKind
from tableformat.commit.engine import commit
from tableformat.commit.expiry_plan import ExpiryPolicy
from tableformat.commit.refs import rollback
from tableformat.spec.names import SNAPSHOTS_MAX
from tests.support.staged_tables import StagedTable

ALL_BUT_NEEDED = ExpiryPolicy(max_snapshot_age_ms=-1, min_snapshots_to_keep=1)


@pytest.fixture
def staged(tmp_path):
    staged = StagedTable(tmp_path)
    staged.table.append(staged.rows((1, "eu", "base")))
    return staged


def heads(staged):
    state = staged.table.refresh().state
    return [state.head(branch).snapshot_id for branch in ("staging", "main")]


def publish(staged, key, note):
    staged.table.refresh().stage(upserts=staged.rows((key, "eu", note)))
    assert resolve(staged.table).staged_snapshots == 1


def test_history_of_a_stream_is_bounded(staged):
    """Each batch leaves two snapshots: the staged one is on no branch any more."""
    staged.table.set_properties({SNAPSHOTS_MAX: "5"})
    for number in range(20):
        publish(staged, number, "x")
        expire(staged.table)
        staged.table.refresh()
    assert len(staged.table.state.metadata.snapshots) == 2 * 5
    assert staged.published().total() == 20


def commit_as_others_do(staged, row):
    """A commit on `main` that repeats nothing of what older summaries say."""
    changeset = Changeset(
        kind=CommitKind.APPEND,
        branch="main",
        added_data_files=tuple(staged.data_files(row)),
        carry_marker=False,
    )
    return commit(staged.environment, staged.table.identifier, changeset).snapshot.snapshot_id


def stage_batch(staged, query, number, branch="staging"):
    return commit_batch(
        staged.environment,
        staged.table.identifier,
        branch=branch,
        kind=CommitKind.ROW_DELTA,
        batch=BatchId(query, number),
        data_files=staged.data_files((number + 100, "eu", query)),
    )


def expire_all(staged):
    return expire(staged.table, ExpireOptions(policy=ALL_BUT_NEEDED))


@pytest.mark.parametrize("by", [resolve, expire_all], ids=["resolve", "expire"])
def test_files_from_before_a_compaction_can_expire_when_staging_is_idle(staged, by):
    publish(staged, 1, "a")
    publish(staged, 2, "b")
    before = {task.entry.data_file.file_path for task in staged.table.scan().plan.tasks}
    compact(staged.table, CompactOptions(rewrite_all=True))
    by_hand = expire(staged.table, ExpireOptions(policy=ALL_BUT_NEEDED), dry_run=True)
    if by is resolve:
        assert resolve(staged.table).trimmed
        assert not resolve(staged.table).trimmed
        expire_all(staged)
    else:
        report = expire_all(staged)
        assert set(report.snapshots) == set(by_hand.snapshots)
    assert len(staged.table.refresh().state.metadata.snapshots) == 1
    assert heads(staged)[0] == heads(staged)[1]
    store, location = staged.environment.store, staged.table.state.metadata.location
    assert before.isdisjoint(info.location for info in store.list_prefix(location))
    publish(staged, 3, "c")
    assert staged.published() == Counter([(1, "eu", "a"), (2, "eu", "b"), (3, "eu", "c")])


def test_staging_with_a_waiting_change_stays_where_it_is(staged):
    publish(staged, 1, "a")
    staged.table.refresh().stage(upserts=staged.rows((1, "eu", "waiting")))
    waiting = heads(staged)[0]
    staged.table.append(staged.rows((2, "eu", "appended")))
    expire_all(staged)
    assert heads(staged)[0] == waiting
    resolve(staged.table)
    assert staged.published() == Counter([(1, "eu", "waiting"), (2, "eu", "appended")])


def test_change_staged_while_an_idle_cycle_looks_is_kept(staged, monkeypatch):
    publish(staged, 1, "a")
    staged.table.append(staged.rows((2, "eu", "appended")))
    fail_point = staged.environment.runtime.fail_point

    def stage_first(name):
        if name == "resolve.before_trim":
            monkeypatch.undo()
            staged.table.refresh().stage(upserts=staged.rows((1, "eu", "late")))
        fail_point(name)

    monkeypatch.setattr(type(staged.environment.runtime), "fail_point", lambda _, n: stage_first(n))
    assert not resolve(staged.table).trimmed
    resolve(staged.table)
    assert staged.published() == Counter([(1, "eu", "late"), (2, "eu", "appended")])


def test_idle_staging_stops_below_commits_that_repeat_nothing(staged):
    publish(staged, 1, "a")
    staged.table.append(staged.rows((2, "eu", "own")))
    own = heads(staged)[1]
    for key in range(3, 6):
        commit_as_others_do(staged, (key, "eu", "foreign"))
    assert resolve(staged.table).trimmed
    assert heads(staged)[0] == own
    assert not resolve(staged.table).trimmed


def test_cursor_survives_expiry_under_commits_that_repeat_nothing(staged):
    publish(staged, 1, "a")
    for key in range(2, 6):
        commit_as_others_do(staged, (key, "eu", "foreign"))
    expire_all(staged)
    publish(staged, 1, "b")
    assert staged.published() == Counter(
        [(1, "eu", "b"), *((key, "eu", "foreign") for key in range(2, 6))]
    )


def test_rolled_back_target_takes_its_idle_staging_along(staged):
    publish(staged, 1, "a")
    published = heads(staged)[1]
    staged.table.append(staged.rows((2, "eu", "appended")))
    assert resolve(staged.table).trimmed
    rollback(staged.environment, staged.table.identifier, snapshot_id=published)
    state: TableState = staged.table.refresh().state
    assert plan_backlog(state, staging="staging", target="main") == []
    publish(staged, 1, "b")
    assert staged.published() == Counter([(1, "eu", "b")])


@pytest.mark.parametrize("between", ["nothing", "append", "statement"])
def test_batches_of_all_queries_are_found_again_after_everything_old_has_expired(staged, between):
    stage_batch(staged, "a", 7)
    resolve(staged.table)
    if between == "append":
        staged.table.append(staged.rows((2, "eu", "appended")))
    elif between == "statement":
        staged.table.delete("id = 1")
    stage_batch(staged, "b", 3)
    resolve(staged.table)
    expire_all(staged)
    state = staged.table.refresh().state
    assert {query: committed_batch(state, "staging", query) for query in "ab"} == {"a": 7, "b": 3}


def test_batch_is_found_though_its_staged_commit_was_published_and_expired_below_a_tail(staged):
    """Who stages without a pause is never trimmed; then only the target knows of older commits."""
    for query, number in (("a", 7), ("b", 0), ("b", 1)):
        stage_batch(staged, query, number)
    for _ in range(2):
        assert resolve(staged.table, limit=1).staged_snapshots == 1
    expire_all(staged)
    assert stage_batch(staged, "a", 7) is None
    assert stage_batch(staged, "b", 1) is None
    assert stage_batch(staged, "a", 8) is not None


def test_batch_that_another_branch_has_is_new_on_one_that_nothing_was_published_from(staged):
    stage_batch(staged, "a", 0, branch="audit")
    stage_batch(staged, "b", 0)
    resolve(staged.table)
    expire_all(staged)
    assert stage_batch(staged, "b", 0, branch="audit") is not None


def said_by_flink(writer, number):
    return {
        "flink.job-id": writer,
        "flink.operator-id": "o",
        "flink.max-committed-checkpoint-id": str(number),
    }


def said_by_spark(writer, number):
    return {"spark.sql.streaming.queryId": writer, "spark.sql.streaming.epochId": str(number)}


def said_by_connect(writer, number):
    return {f"kafka.connect.offsets.control-iceberg.{writer}": f'{{"0":{number}}}'}


def commit_of_a_writer(staged, said, writer, number, branch="staging"):
    data = staged.data_files((number + 10, "eu", writer))
    staged.commit(data=data, branch=branch, summary=said(writer, number))
    staged.table.refresh()


@pytest.mark.parametrize("said", [said_by_flink, said_by_spark])
def test_no_later_trim_hides_a_writer_that_the_first_one_would_have_hidden(staged, said):
    commit_of_a_writer(staged, said, "x", 1)
    commit_of_a_writer(staged, said, "y", 2)
    assert not resolve(staged.table).trimmed
    assert not resolve(staged.table).trimmed  # idle
    commit_of_a_writer(staged, said, "y", 3)
    assert not resolve(staged.table).trimmed
    commit_of_a_writer(staged, said, "x", 4)
    assert resolve(staged.table).trimmed  # both are on main now


def test_sinks_of_connect_are_found_beside_each_other(staged):
    for number, writer in enumerate("xy"):
        commit_of_a_writer(staged, said_by_connect, writer, number)
    assert resolve(staged.table).trimmed


@pytest.mark.parametrize("branch", ["staging", "main"])
@pytest.mark.parametrize("said", [said_by_flink, said_by_spark, said_by_connect])
def test_writer_finds_its_last_commit_when_everything_old_has_expired(staged, said, branch):
    """Else it commits again what it was not sure of: its rows would be there twice."""
    commit_of_a_writer(staged, said, "x", 7, branch)
    if branch == "staging":
        assert resolve(staged.table).trimmed
    compact(staged.table, CompactOptions(rewrite_all=True))
    expire_all(staged)
    found: dict[str, str] = {}
    state = staged.table.state
    for snapshot in ancestors(state.metadata, state.head(branch).snapshot_id):
        found = {**summary_of(snapshot), **found}
    assert found.items() >= said("x", 7).items()
