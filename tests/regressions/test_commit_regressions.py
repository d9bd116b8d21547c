"""Bugs other projects had on the commit path, by the ids of docs/guarantees.md.

Each test fails when the named mistake is made; details and neighbours are in the unit tests.
"""

from __future__ import annotations

import pytest
from pyiceberg.expressions import EqualTo
from pyiceberg.table.snapshots import IsolationLevel

from tableformat.commit.changeset import Changeset, CommitKind, Fence, Validation
from tableformat.commit.expire import apply_expiry
from tableformat.commit.expiry_plan import ExpiryPolicy
from tableformat.errors import (
    CommitConflictError,
    CommitUnknownError,
    FencedError,
    StoreUnavailableError,
)
from tests.support.commit_tables import IDENTIFIER, CommitTable
from tests.support.table_checker import check_table


@pytest.fixture
def table():
    table = CommitTable()
    table.x = table.data("x", rows=100)
    table.start = table.append(table.x).snapshot
    return table


def rewrite(table, **options):
    """Compaction of x, planned on the start."""
    return Changeset(
        kind=CommitKind.REWRITE,
        removed_entries=(table.entry(table.x),),
        added_data_files=(table.data("compacted", rows=100),),
        validation=Validation(starting_snapshot_id=table.start.snapshot_id),
        **options,
    )


def check(table):
    check_table(table.store.get, table.state.metadata_location)


def test_r32_compaction_and_an_equality_delete_beside_it_lose_no_delete(table):
    safe, keeping = rewrite(table), rewrite(table, data_sequence_number=1)
    table.row_delta(deletes=[table.equality_delete("e")])
    with pytest.raises(CommitConflictError):
        table.commit(safe)
    table.commit(keeping)
    live = table.live()
    assert live["compacted"].sequence_number < live["e-eq"].sequence_number  # still applies


def test_r33_compaction_does_not_undo_a_vector_added_beside_it(table):
    change = rewrite(table)
    table.row_delta(deletes=[table.vector(table.x, "p")], start=table.start.snapshot_id)
    with pytest.raises(CommitConflictError):
        table.commit(change)


def test_r35_retry_does_not_add_what_was_made_of_a_file_deleted_meanwhile(table):
    change = rewrite(table)

    def intrude(_):
        table.catalog.before_commit = None
        table.commit(Changeset(kind=CommitKind.DELETE, removed_entries=(table.entry(table.x),)))

    table.catalog.before_commit = intrude
    with pytest.raises(CommitConflictError):
        table.commit(change)
    assert table.live() == {}


def test_r39_compaction_keeps_a_concurrent_insert(table):
    change = rewrite(table)
    table.append(table.data("inserted"))
    table.commit(change)
    assert set(table.live()) == {"compacted", "inserted"}
    check(table)


def test_r43_second_vector_for_a_file_never_commits(table):
    for filtered in (None, IsolationLevel.SNAPSHOT, IsolationLevel.SERIALIZABLE):
        validation = Validation(
            starting_snapshot_id=table.start.snapshot_id,
            isolation=filtered,
            conflict_filter=EqualTo("id", 5),
        )
        vectors = (table.vector(table.x, f"ours-{filtered}"),)
        change = Changeset(
            kind=CommitKind.ROW_DELTA, added_delete_files=vectors, validation=validation
        )
        if filtered is None:
            table.commit(change)
        else:
            with pytest.raises(CommitConflictError):
                table.commit(change)
    check(table)


def test_r44_vectors_of_one_puffin_file_are_told_apart(table):
    y = table.data("y")
    start = table.append(y).snapshot.snapshot_id
    of_x, of_y = table.vector(table.x, "p", offset=4), table.vector(y, "p", offset=48)
    table.row_delta(deletes=[of_x, of_y], start=start)
    table.commit(Changeset(kind=CommitKind.DELETE, removed_entries=(table.entry(table.x),)))
    assert set(table.live()) == {"y", "p.puffin@48"}


def test_r45_vector_leaves_with_its_data_file(table):
    table.row_delta(deletes=[table.vector(table.x, "p")], start=table.start.snapshot_id)
    table.start = table.state.head("main")
    table.commit(rewrite(table))
    assert set(table.live()) == {"compacted"}
    check(table)


def test_r52_update_beside_a_delete_of_the_same_row_is_a_conflict_at_any_level(table):
    for isolation in IsolationLevel:
        update = Changeset(
            kind=CommitKind.ROW_DELTA,
            added_data_files=(table.data(f"updated-{isolation.value}"),),
            added_delete_files=(table.vector(table.x, f"update-{isolation.value}"),),
            validation=Validation(
                starting_snapshot_id=table.start.snapshot_id, isolation=isolation
            ),
        )
        if "delete.puffin@4" not in table.live():
            table.row_delta(
                deletes=[table.vector(table.x, "delete")], start=table.start.snapshot_id
            )
        with pytest.raises(CommitConflictError):
            table.commit(update)


def unavailable(_):
    raise StoreUnavailableError("catalog is down")


@pytest.mark.parametrize("lost", ["request", "answer"])
def test_r56_unknown_outcome_deletes_no_file_that_the_commit_may_need(table, lost):
    def lose(_):
        raise CommitUnknownError("answer lost")

    if lost == "request":
        table.catalog.before_commit = lose
    else:
        table.catalog.after_commit = lose
        table.catalog.load_table = unavailable  # nothing can be looked up either
    state = table.catalog.inner.load_table(IDENTIFIER)
    with pytest.raises(CommitUnknownError):
        table.commit(
            Changeset(kind=CommitKind.APPEND, added_data_files=(table.data("y"),)), state=state
        )
    if lost == "answer":
        del table.catalog.load_table
        assert set(table.live()) == {"x", "y"}
    check(table)


def test_r58_server_error_after_the_commit_is_no_failure(table):
    def fail(_):
        table.catalog.after_commit = None
        raise StoreUnavailableError("503")

    table.runtime.fail_points.armed["commit.after_swap"] = fail
    assert table.append(table.data("y")).looked_up
    check(table)


def test_r59_retry_of_an_empty_commit_keeps_the_live_manifest_list(table):
    def repeat(_):
        table.catalog.after_commit = None
        raise CommitConflictError("time-out, sent again")

    table.catalog.after_commit = repeat
    result = table.append()
    assert table.store.get(result.snapshot.manifest_list)
    assert set(table.live()) == {"x"}
    check(table)


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt, SystemExit])
def test_r60_error_after_the_swap_deletes_nothing(table, error):
    def fail(_):
        table.runtime.fail_points.armed.clear()
        raise error

    table.runtime.fail_points.armed["commit.after_swap"] = fail
    if error is MemoryError:
        table.append(table.data("y"))
    else:
        with pytest.raises(error):
            table.append(table.data("y"))
    assert set(table.live()) == {"x", "y"}
    check(table)


def test_r63_commit_that_was_applied_does_not_raise(table):
    def fail(_):
        table.catalog.after_commit = None
        raise OSError("connection reset")

    table.catalog.after_commit = fail
    assert table.append(table.data("y")).snapshot.snapshot_id == table.head()


def test_r67_holder_whose_lease_was_lost_during_the_commit_is_refused(table):
    def overtake(_):
        table.catalog.before_commit = None
        table.append(table.data("successor"), fence=Fence("resolver", 2))

    table.catalog.before_commit = overtake
    with pytest.raises(FencedError):
        table.append(table.data("zombie"), fence=Fence("resolver", 1))
    assert set(table.live()) == {"x", "successor"}


def test_r69_request_repeated_by_the_library_commits_once(table):
    def repeat(_):
        table.catalog.after_commit = None
        raise CommitConflictError("conflict with our own commit")

    table.catalog.after_commit = repeat
    table.append(table.data("y"))
    assert len(table.state.metadata.snapshots) == 2
    assert set(table.live()) == {"x", "y"}


def test_r78_clock_that_jumps_back_an_hour_breaks_no_reader(table):
    table.clock.wall_ms -= 3_600_000
    table.append(table.data("y"))
    times = [each.timestamp_ms for each in table.state.metadata.snapshots]
    assert times == sorted(times)
    check(table)


def test_p1_only_files_of_a_definite_failure_may_be_collected(table):
    def refuse(_):
        raise CommitConflictError("lost")

    def lose(_):
        raise CommitUnknownError("lost")

    for action, kind, safe in (
        (refuse, CommitConflictError, True), (lose, CommitUnknownError, False)
    ):  # fmt: skip
        table.catalog.before_commit = action
        with pytest.raises(kind) as caught:
            table.append(table.data("y"))
        assert caught.value.files_safe_to_delete is safe


def test_p2_snapshot_ids_carry_no_order(table):
    for snapshot_id in (900, 5, 700, 1):
        table.runtime.ids.snapshot_id = lambda value=snapshot_id: value
        table.append(table.data(f"f{snapshot_id}"))
    table.clock.advance(1)
    apply_expiry(
        table.environment,
        IDENTIFIER,
        ExpiryPolicy(max_snapshot_age_ms=0, min_snapshots_to_keep=2),
        fence=None,
    )
    assert [each.snapshot_id for each in table.state.metadata.snapshots] == [700, 1]
    check(table)


def test_p5_deleting_one_vector_of_a_shared_puffin_leaves_the_others(table):
    y = table.data("y")
    start = table.append(y).snapshot.snapshot_id
    of_x, of_y = table.vector(table.x, "p", offset=4), table.vector(y, "p", offset=48)
    start = table.row_delta(deletes=[of_x, of_y], start=start).snapshot.snapshot_id
    table.row_delta(removed=[table.entry(of_x)], start=start)
    assert set(table.live()) == {"x", "y", "p.puffin@48"}
    check(table)
