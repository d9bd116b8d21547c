from __future__ import annotations

import random
from typing import Any

import pytest
from pyiceberg.table.update import RemoveSnapshotsUpdate, TableUpdate

from tableformat.catalog.base import TableState
from tableformat.cdc.batch_commit import (
    BatchId,
    batch_in,
    check_not_lost,
    commit_batch,
    committed_batch,
)
from tableformat.commit import carried_properties
from tableformat.commit.branch_history import snapshots_by_id, walk_back
from tableformat.commit.carried_properties import (
    OTHER_QUERIES_MAX,
    load_carried,
    writer_properties,
)
from tableformat.commit.changeset import Changeset, CommitKind, Fence
from tableformat.commit.engine import CommitResult
from tableformat.commit.refs import replace_branch
from tableformat.errors import (
    CommitConflictError,
    CommitUnknownError,
    CorruptDataError,
    FencedError,
    InvalidInputError,
    StoreUnavailableError,
)
from tableformat.spec.names import BATCH_ID, OTHER_QUERY_BATCH, QUERY_ID
from tests.support.another_tool import another_tool
from tests.support.commit_tables import IDENTIFIER, CommitTable


def write(
    table: CommitTable,
    number: int,
    *,
    query: str = "q",
    name: str | None = None,
    branch: str = "staging",
) -> CommitResult | None:
    return commit_batch(
        table.environment,
        IDENTIFIER,
        branch=branch,
        kind=CommitKind.ROW_DELTA,
        batch=BatchId(query, number),
        data_files=[table.data(name or f"{query}-{number}")],
    )


def live(table: CommitTable) -> list[str]:
    return sorted(table.live("staging"))


def test_batch_is_committed_once_and_older_ones_never_again() -> None:
    table = CommitTable()
    assert write(table, 0) is not None
    assert write(table, 1) is not None
    assert write(table, 1, name="again") is None
    assert write(table, 0, name="again") is None
    assert live(table) == ["q-0", "q-1"]
    assert committed_batch(table.state, "staging", "q") == 1


def test_queries_do_not_see_each_others_batches() -> None:
    table = CommitTable()
    assert write(table, 5, query="a") is not None
    assert write(table, 0, query="b") is not None
    assert committed_batch(table.state, "staging", "a") == 5
    assert committed_batch(table.state, "staging", "b") == 0
    assert committed_batch(table.state, "staging", "c") is None


def test_batch_is_found_after_a_trim_through_what_the_publish_repeats() -> None:
    table = CommitTable()
    write(table, 3, query="a")
    write(table, 7, query="b")
    table.append(
        table.data("published"),
        summary={QUERY_ID: "b", BATCH_ID: "7", OTHER_QUERY_BATCH + "a": "3"},
    )
    head = table.head()
    assert head is not None
    staged = table.head("staging")
    replace_branch(table.environment, IDENTIFIER, "staging", to=head, expected_head=staged)
    assert write(table, 3, query="a", name="again") is None
    assert write(table, 7, query="b", name="again") is None
    assert write(table, 4, query="a") is not None


@pytest.mark.parametrize("branch", ["main", "staging", "audit"])
def test_batch_is_found_after_its_snapshot_has_expired(branch: str) -> None:
    """The last commit of a query that rests may expire while another one goes on."""
    table = CommitTable()
    resting = write(table, 3, query="a", branch=branch)
    assert resting is not None
    write(table, 0, query="b", branch=branch)
    write(table, 1, query="b", branch=branch)
    gone = RemoveSnapshotsUpdate(snapshot_ids=[resting.snapshot.snapshot_id])
    table.environment.catalog.commit(table.state, [gone])
    assert committed_batch(table.state, branch, "a") == 3
    assert write(table, 3, query="a", name="again", branch=branch) is None
    assert write(table, 4, query="a", branch=branch) is not None
    assert committed_batch(table.state, branch, "b") == 1


def test_batch_is_found_where_a_staged_commit_of_no_query_is_all_that_is_left() -> None:
    """Seed 8600306: a sink is killed before the answer comes; its batch expires."""
    table = CommitTable()
    batch = write(table, 3, query="a")
    assert batch is not None
    table.append(table.data("by hand"), branch="staging")
    gone = RemoveSnapshotsUpdate(snapshot_ids=[batch.snapshot.snapshot_id])
    table.environment.catalog.commit(table.state, [gone])
    assert write(table, 3, query="a", name="again") is None
    assert write(table, 4, query="a") is not None


@pytest.mark.parametrize("now", [{QUERY_ID: "a", BATCH_ID: "7"}, {OTHER_QUERY_BATCH + "a": "7"}])
def test_what_an_older_staged_commit_says_of_a_query_takes_nothing_back(now) -> None:
    known = writer_properties([now, {OTHER_QUERY_BATCH + "a": "3"}])
    assert known == now
    later = writer_properties([now, {OTHER_QUERY_BATCH + "a": "9"}])
    found = batch_in(later, "a", 1)
    assert found is not None
    assert found.number == 9


@pytest.mark.parametrize("seed", range(6))
def test_staged_commit_repeats_what_the_whole_history_says(seed: int) -> None:
    """Of fences and queries, by whichever writers; it looks no further than the newest one."""
    table, rng = CommitTable(), random.Random(seed)
    table.append(table.data("base"), fence=Fence("base", 1))
    to_come = Changeset(kind=CommitKind.APPEND, branch="staging", carry_marker=False)
    for step in range(40):
        data = table.data(f"s{step}")
        match rng.randrange(6):
            case 0 | 1 | 2:
                write(table, step, query=rng.choice("abc"))
            case 3:
                fence = Fence(rng.choice(["f", "g"]), step)
                table.append(data, branch="staging", carry_marker=False, fence=fence)
            case 4:
                table.append(data, branch="staging", carry_marker=False)
            case 5:
                with another_tool(table.environment):
                    summary = {QUERY_ID: rng.choice("abc"), BATCH_ID: str(step)}
                    table.append(data, branch="staging", carry_marker=False, summary=summary)
        metadata, head = table.state.metadata, table.head("staging")
        said = [
            carried_properties.carried_properties(
                load_carried(snapshots_by_id(metadata), head, metadata, is_staged=is_staged),
                to_come,
            )
            for is_staged in (False, True)
        ]
        assert said[0] == said[1]
        assert len(said[0]) >= 1


def test_staged_commit_takes_no_longer_the_more_of_them_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[int] = []

    def walk(*args: Any) -> Any:
        for snapshot in walk_back(*args):
            seen.append(snapshot.snapshot_id)
            yield snapshot

    table = CommitTable()
    table.append(table.data("base"))
    for number in range(30):
        write(table, number)
    monkeypatch.setattr(carried_properties, "walk_back", walk)
    write(table, 30)
    assert 0 < len(seen) < 10


def test_queries_of_long_ago_are_forgotten_in_the_order_in_which_they_last_wrote() -> None:
    """A new query id for every run would make every snapshot larger than the one before."""
    table = CommitTable()
    write(table, 7, query="first", branch="main")
    write(table, 3, query="back", branch="main")
    for number in range(OTHER_QUERIES_MAX):
        if number == 10:
            write(table, 4, query="back", branch="main")
        write(table, 0, query=f"run-{number}", branch="main")
    assert committed_batch(table.state, "main", "back") == 4
    head = table.state.head("main")
    assert head is not None
    assert head.summary is not None
    named = [key for key in head.summary.additional_properties if key.startswith(OTHER_QUERY_BATCH)]
    assert len(named) == OTHER_QUERIES_MAX
    assert OTHER_QUERY_BATCH + "first" not in named


def test_batch_committed_by_a_second_driver_meanwhile_is_not_committed_twice() -> None:
    table = CommitTable()
    write(table, 0)

    def other_driver(_: TableState) -> None:
        table.catalog.before_commit = None
        assert write(table, 1, name="other") is not None

    table.catalog.before_commit = other_driver
    assert write(table, 1) is None
    assert live(table) == ["other", "q-0"]


def test_head_moved_by_somebody_else_is_no_reason_to_fail() -> None:
    table = CommitTable()
    write(table, 0)

    def stranger(_: TableState) -> None:
        table.catalog.before_commit = None
        write(table, 9, query="stranger")

    table.catalog.before_commit = stranger
    assert write(table, 1) is not None
    assert live(table) == ["q-0", "q-1", "stranger-9"]


def test_head_that_never_stops_moving_is_a_conflict_in_the_end() -> None:
    table = CommitTable()
    count = 0

    def stranger(_: TableState) -> None:
        nonlocal count
        count += 1
        table.catalog.before_commit = None
        write(table, count, query="stranger")
        table.catalog.before_commit = stranger

    table.catalog.before_commit = stranger
    with pytest.raises(CommitConflictError):
        write(table, 1)
    assert "q-1" not in live(table)


def test_commits_that_fail_again_and_again_are_told_now_and_then(
    caplog: pytest.LogCaptureFixture,
) -> None:
    test_head_that_never_stops_moving_is_a_conflict_in_the_end()
    told = [one.getMessage() for one in caplog.records if "to commit a batch" in one.getMessage()]
    assert 3 <= len(told) <= 20  # of forty
    assert "attempt" in told[0]


def lost_answer(state: TableState) -> None:
    raise CommitUnknownError("the connection broke")


def test_lost_answer_of_a_landed_commit_is_success() -> None:
    table = CommitTable()
    table.catalog.after_commit = lost_answer
    result = write(table, 0)
    assert result is not None
    assert result.looked_up
    assert live(table) == ["q-0"]


def test_failure_behind_a_lost_answer_says_that_the_batch_may_have_landed() -> None:
    """Seed 2054 of the faulty histories: "unavailable" read as if nothing had been staged."""
    table = CommitTable()
    commit, load = table.catalog.inner.commit, table.catalog.inner.load_table

    def unreachable(*_: Any) -> TableState:
        raise StoreUnavailableError("the catalog did not answer")

    def cut_off(base: TableState, updates: list[TableUpdate]) -> TableState:
        commit(base, updates)
        table.catalog.inner.load_table = unreachable
        raise CommitUnknownError("the connection broke")

    table.catalog.inner.commit = cut_off
    with pytest.raises(StoreUnavailableError, match="may have landed") as told:
        write(table, 0)
    assert not told.value.files_safe_to_delete
    table.catalog.inner.load_table, table.catalog.inner.commit = load, commit
    assert write(table, 0) is None
    assert live(table) == ["q-0"]


def test_request_that_lands_after_all_is_not_repeated() -> None:
    table = CommitTable()
    write(table, 0)
    delayed: list[Any] = []
    commit = table.catalog.inner.commit

    def slow_network(base: TableState, updates: list[TableUpdate]) -> TableState:
        if not delayed:
            delayed.append((base, updates))
            raise CommitUnknownError("the connection broke")
        if len(delayed) == 1:
            delayed.append(commit(*delayed[0]))
        state: TableState = commit(base, updates)
        return state

    table.catalog.inner.commit = slow_network
    assert write(table, 1) is None
    assert live(table) == ["q-0", "q-1"]


def test_request_that_never_lands_is_repeated() -> None:
    table = CommitTable()

    def broken(_: TableState) -> None:
        table.catalog.before_commit = None
        raise CommitUnknownError("the connection broke")

    table.catalog.before_commit = broken
    assert write(table, 0) is not None
    assert live(table) == ["q-0"]


@pytest.mark.parametrize(("query", "number"), [("", 0), ("a", -1)])
def test_batch_that_could_not_be_found_again_is_refused(query: str, number: int) -> None:
    with pytest.raises(InvalidInputError, match=f"number from 0 on.*batch_id={number}"):
        write(CommitTable(), number, query=query)


def test_query_id_of_any_length_does_not_go_into_every_snapshot() -> None:
    table = CommitTable()
    with pytest.raises(InvalidInputError, match=r"too long.*chars=257"):
        write(table, 0, query="q" * 257)
    assert write(table, 0, query="q" * 256) is not None


def test_batch_id_that_is_no_number_is_corrupt() -> None:
    table = CommitTable()
    table.append(table.data("x"), branch="staging", summary={QUERY_ID: "q", BATCH_ID: "seven"})
    with pytest.raises(CorruptDataError, match="batch id is not a number"):
        write(table, 1)


def test_batch_that_a_branch_has_lost_is_noticed_and_one_that_is_only_forgotten_is_not() -> None:
    table = CommitTable()

    def check(number: int) -> None:
        before = BatchId("q", number)
        check_not_lost(table.state, "staging", before, action="run it again")

    check_not_lost(table.state, "staging", None, action="")
    for number in (0, 1):
        write(table, number)
        check(number)
    with pytest.raises(FencedError, match=r"no longer has batch 2 of this query.*run it again"):
        check(2)
    other = BatchId("never seen", 0)
    with pytest.raises(FencedError, match="committed=None"):
        check_not_lost(table.state, "staging", other, action="")
    names = {f"{OTHER_QUERY_BATCH}{n}": "0" for n in range(OTHER_QUERIES_MAX)}
    table.append(table.data("full"), branch="staging", summary=names)
    check_not_lost(table.state, "staging", other, action="")
