import threading
from dataclasses import replace

import pytest
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.update import AddSnapshotUpdate, SetSnapshotRefUpdate

from tableformat.codec.avro.manifest_store import load_manifest_list
from tableformat.commit.changeset import Changeset, CommitKind, Fence, Validation
from tableformat.commit.refs import rollback
from tableformat.errors import (
    CommitConflictError,
    CommitUnknownError,
    FencedError,
    InvalidInputError,
    StoreUnavailableError,
)
from tableformat.spec.data_file import EntryStatus
from tableformat.spec.manifest_file import ManifestContent
from tableformat.spec.names import STAGING_MARKER
from tests.support.commit_tables import IDENTIFIER, CommitTable
from tests.support.table_checker import check_table


@pytest.fixture
def table():
    return CommitTable()


def check(table):
    return check_table(table.store.get, table.state.metadata_location)


def test_first_append_starts_the_branch(table):
    result = table.append(table.data("x", rows=7))
    snapshot = result.snapshot
    assert result.attempts == 1
    assert snapshot.parent_snapshot_id is None
    assert (snapshot.sequence_number, snapshot.first_row_id, snapshot.added_rows) == (1, 0, 7)
    assert snapshot.summary["added-data-files"] == "1"
    assert snapshot.summary["total-records"] == "7"
    assert snapshot.summary["changed-partition-count"] == "1"
    assert result.state.metadata.next_row_id == 7
    assert list(table.live()) == ["x"]
    check(table)


def test_commit_without_files_makes_a_snapshot(table):
    table.append(table.data("x"))
    result = table.append(summary={"note": "only this"})
    assert result.snapshot.summary["note"] == "only this"
    assert list(table.live()) == ["x"]
    check(table)


def test_missing_branch_is_forked_from_main(table):
    first = table.append(table.data("x")).snapshot
    staged = table.append(table.data("y"), branch="staging").snapshot
    assert staged.parent_snapshot_id == first.snapshot_id
    assert set(table.live("staging")) == {"x", "y"}
    assert set(table.live("main")) == {"x"}
    check(table)


def test_missing_branch_of_an_empty_table_starts_empty(table):
    staged = table.append(table.data("y"), branch="staging").snapshot
    assert staged.parent_snapshot_id is None
    assert table.state.head("main") is None
    main = table.append(table.data("x")).snapshot
    assert main.parent_snapshot_id is None
    assert main.sequence_number == 2
    assert main.first_row_id == staged.first_row_id + staged.added_rows
    check(table)


def test_change_planned_on_an_empty_table_is_refused_on_the_first_rows(table):
    table.append(table.data("x"))
    with pytest.raises(CommitConflictError, match="has moved"):
        table.append(table.data("y"), branch="staging", expected_head=None, strict_head=True)


def test_sequence_numbers_and_row_ids_rise_over_branches(table):
    for number in range(6):
        table.append(table.data(f"f{number}"), branch=["main", "staging", "audit"][number % 3])
    check(table)
    assert table.state.metadata.last_sequence_number == 6
    assert table.state.metadata.next_row_id == 60


def test_removed_file_leaves_with_its_vector(table):
    x, y = table.data("x"), table.data("y")
    start = table.append(x, y).snapshot.snapshot_id
    table.row_delta(
        deletes=[table.vector(x, "p", offset=4), table.vector(y, "p", offset=99)], start=start
    )
    result = table.commit(Changeset(kind=CommitKind.DELETE, removed_entries=(table.entry(x),)))
    assert set(table.live()) == {"y", "p.puffin@99"}
    assert result.snapshot.summary["removed-dvs"] == "1"
    assert result.snapshot.summary["deleted-data-files"] == "1"
    check(table)


def test_rewritten_manifest_keeps_sequence_numbers_and_row_ids(table):
    x, y = table.data("x", rows=3), table.data("y", rows=4)
    table.append(x, y)
    before = table.entry(y)
    table.commit(Changeset(kind=CommitKind.DELETE, removed_entries=(table.entry(x),)))
    after = table.entry(y)
    assert after.status == EntryStatus.EXISTING
    assert after.data_file.first_row_id == before.data_file.first_row_id == 3
    assert after.sequence_number == before.sequence_number
    assert after.file_sequence_number == before.file_sequence_number
    check(table)


def test_manifest_of_deleted_entries_lives_for_one_snapshot(table):
    x = table.data("x")
    table.append(x)
    table.commit(Changeset(kind=CommitKind.DELETE, removed_entries=(table.entry(x),)))
    assert [entry.status for entry in table.entries()] == [EntryStatus.DELETED]
    table.append(table.data("y"))
    assert [entry.status for entry in table.entries()] == [EntryStatus.ADDED]
    check(table)


def test_manifests_that_lose_all_their_files_become_one_per_content(table):
    files = [table.data(f"f{number}", rows=number + 1) for number in range(5)]
    for file in files:
        table.append(file)
    start = table.append(table.data("x"), table.data("y")).snapshot.snapshot_id
    for file in files[:3]:
        vector = table.vector(file, file.file_path.rsplit("/", 1)[-1])
        start = table.row_delta(deletes=[vector], start=start).snapshot.snapshot_id
    before = {entry.data_file.identity: entry for entry in table.entries()}
    gone = [table.entry(file) for file in (*files, table.data("x"))]
    table.commit(Changeset(kind=CommitKind.DELETE, removed_entries=tuple(gone)))
    manifests = load_manifest_list(table.store, table.state.head("main"))
    counts = [(m.content, m.existing_files_count, m.deleted_files_count) for m in manifests]
    assert sorted(counts) == [
        (ManifestContent.DATA, 0, 5),
        (ManifestContent.DATA, 1, 1),
        (ManifestContent.DELETES, 0, 3),
    ]
    for entry in table.entries():
        kept = before[entry.data_file.identity]
        assert entry.data_file == kept.data_file
        assert entry.sequence_number == kept.sequence_number
        assert entry.file_sequence_number == kept.file_sequence_number
    assert len({manifest.manifest_path for manifest in manifests} & table.objects()) == 3
    check(table)


def test_vector_replacing_another_must_remove_it(table):
    x = table.data("x")
    start = table.append(x).snapshot.snapshot_id
    old = table.vector(x, "p")
    start = table.row_delta(deletes=[old], start=start).snapshot.snapshot_id
    new = table.vector(x, "q", cardinality=2)
    with pytest.raises(CommitConflictError, match="two deletion vectors"):
        table.row_delta(deletes=[new], start=start)
    table.row_delta(deletes=[new], removed=[table.entry(old)], start=start)
    assert set(table.live()) == {"x", "q.puffin@4"}
    check(table)


def test_one_of_two_vectors_in_a_puffin_file_is_replaced_alone(table):
    # R44: identity is (path, offset, size).
    x, y = table.data("x"), table.data("y")
    start = table.append(x, y).snapshot.snapshot_id
    old_x, old_y = table.vector(x, "p", offset=4), table.vector(y, "p", offset=60)
    start = table.row_delta(deletes=[old_x, old_y], start=start).snapshot.snapshot_id
    table.row_delta(deletes=[table.vector(x, "q")], removed=[table.entry(old_x)], start=start)
    assert set(table.live()) == {"x", "y", "q.puffin@4", "p.puffin@60"}
    check(table)


def test_removing_a_file_that_is_gone_is_a_conflict_naming_it(table):
    x = table.data("x")
    table.append(x)
    entry = table.entry(x)
    change = Changeset(kind=CommitKind.DELETE, removed_entries=(entry,))
    table.commit(change)
    with pytest.raises(CommitConflictError, match="missing data files") as caught:
        table.commit(change)
    assert caught.value.conflicts == (x.file_path,)


def test_strict_head_names_what_came_between(table):
    planned = table.append(table.data("x")).snapshot.snapshot_id
    between = table.append(table.data("y")).snapshot.snapshot_id
    with pytest.raises(CommitConflictError) as caught:
        table.append(table.data("z"), expected_head=planned, strict_head=True)
    assert caught.value.conflicts == (f"snapshot {between} (append)",)
    assert caught.value.files_safe_to_delete
    assert set(table.live()) == {"x", "y"}


def test_strict_head_is_checked_again_after_a_lost_swap(table):
    planned = table.append(table.data("x")).snapshot.snapshot_id

    def intrude(_):
        table.catalog.before_commit = None
        table.append(table.data("intruder"))

    table.catalog.before_commit = intrude
    with pytest.raises(CommitConflictError, match="has moved"):
        table.append(table.data("z"), expected_head=planned, strict_head=True)
    assert set(table.live()) == {"x", "intruder"}


def test_strict_head_tolerates_commits_to_other_branches(table):
    planned = table.append(table.data("x")).snapshot.snapshot_id

    def intrude(_):
        table.catalog.before_commit = None
        table.append(table.data("staged"), branch="staging")

    table.catalog.before_commit = intrude
    result = table.append(table.data("z"), expected_head=planned, strict_head=True)
    assert result.attempts == 2
    assert set(table.live()) == {"x", "z"}
    check(table)


def test_lost_swap_is_tried_again_with_new_numbers_and_the_same_manifest(table):
    table.append(table.data("x", rows=5))

    def intrude(_):
        table.catalog.before_commit = None
        table.append(table.data("y", rows=6))

    table.catalog.before_commit = intrude
    result = table.append(table.data("z", rows=7))
    assert result.attempts == 2
    assert result.snapshot.sequence_number == 3
    assert result.snapshot.first_row_id == 11
    assert table.clock.sleeps == [pytest.approx(100, rel=0.1)]
    check(table)
    # One manifest per append: the lost attempt's was used again, its list is gone.
    assert len(table.objects("-m0.avro")) == 3
    lists = [each for each in table.objects(".avro") if "/snap-" in each]
    assert len(lists) == 3


def test_conflict_found_only_on_the_retry_is_raised(table):
    # I12: what landed between two attempts is validated too.
    x = table.data("x")
    start = table.append(x).snapshot.snapshot_id

    def intrude(_):
        table.catalog.before_commit = None
        table.row_delta(deletes=[table.vector(x, "theirs")], start=start)

    table.catalog.before_commit = intrude
    with pytest.raises(CommitConflictError) as caught:
        table.row_delta(deletes=[table.vector(x, "ours")], start=start)
    assert "added a deletion vector" in caught.value.conflicts[0]
    assert set(table.live()) == {"x", "theirs.puffin@4"}


def test_swap_lost_too_often_gives_up_and_cleans_up(table):
    table.append(table.data("x"))
    before = table.objects(".avro")

    def refuse(_):
        raise CommitConflictError("lost")

    table.catalog.before_commit = refuse
    with pytest.raises(CommitConflictError) as caught:
        table.append(table.data("z"))
    assert caught.value.context["attempts"] == "5"
    assert caught.value.files_safe_to_delete
    assert [round(s, -2) for s in table.clock.sleeps] == [100, 200, 400, 800]
    assert table.objects(".avro") == before


def test_retry_properties_are_obeyed(table):
    table = CommitTable(
        properties={"commit.retry.num-retries": "2", "commit.retry.min-wait-ms": "10"}
    )

    def refuse(_):
        raise CommitConflictError("lost")

    table.catalog.before_commit = refuse
    with pytest.raises(CommitConflictError):
        table.append(table.data("z"))
    assert table.catalog.commits == 3
    assert [10 <= s <= 22 for s in table.clock.sleeps] == [True, True]


def test_lost_answer_is_settled_by_looking(table):
    def lose_answer(_):
        table.catalog.after_commit = None
        raise CommitUnknownError("answer lost")

    table.catalog.after_commit = lose_answer
    result = table.append(table.data("x"))
    assert result.looked_up
    assert result.attempts == 1
    assert list(table.live()) == ["x"]
    check(table)


@pytest.mark.parametrize("error", [RuntimeError("boom"), MemoryError(), OSError("reset")])
def test_any_error_at_the_swap_is_settled_by_looking(table, error):
    # R58, R60: whatever the client library throws, the commit may have landed.
    def fail(_):
        table.catalog.after_commit = None
        raise error

    table.catalog.after_commit = fail
    assert table.append(table.data("x")).looked_up
    check(table)


def test_trouble_after_the_swap_is_no_failure(table):
    """R60: the swap has returned, so the commit is in the table whatever comes then."""

    def fail(_):
        raise StoreUnavailableError("the store is away")

    table.runtime.fail_points.armed["commit.after_swap"] = fail
    assert table.append(table.data("x")).looked_up
    check(table)


def test_lost_request_stays_unknown_and_deletes_nothing(table):
    table.append(table.data("x"))
    before = table.objects(".avro")

    def lose_request(_):
        raise CommitUnknownError("answer lost")

    table.catalog.before_commit = lose_request
    with pytest.raises(CommitUnknownError) as caught:
        table.append(table.data("y"))
    assert not caught.value.files_safe_to_delete
    assert caught.value.context["snapshot_id"].isdigit()
    assert len(table.objects(".avro")) == len(before) + 2
    assert [round(s, -3) for s in table.clock.sleeps] == [1000, 2000, 4000]


def test_late_landing_is_found_by_a_later_look(table):
    pending = []

    def delay(_):
        raise CommitUnknownError("answer lost")

    inner_commit = table.catalog.inner.commit

    def lose(base, updates):
        pending.append((base, updates))
        raise CommitUnknownError("answer lost")

    table.catalog.inner.commit = lose
    sleep = table.clock.sleep_ms

    def land_meanwhile(duration):
        sleep(duration)
        if len(table.clock.sleeps) == 2:
            inner_commit(*pending[0])

    table.clock.sleep_ms = land_meanwhile
    assert table.append(table.data("x")).looked_up
    table.catalog.inner.commit = inner_commit
    assert list(table.live()) == ["x"]


@pytest.mark.parametrize("point", ["commit.before_swap", "commit.after_swap"])
def test_interrupt_around_the_swap_deletes_nothing(table, point):
    # R60: an interrupt is not a failure.
    table.append(table.data("x"))
    before = table.objects(".avro")

    def interrupt(_):
        raise KeyboardInterrupt

    table.runtime.fail_points.armed[point] = interrupt
    with pytest.raises(KeyboardInterrupt) as caught:
        table.append(table.data("y"))
    assert len(table.objects(".avro")) == len(before) + 2
    if point == "commit.after_swap":
        assert "snapshot_id=" in caught.value.__notes__[0]
        assert set(table.live()) == {"x", "y"}
        check(table)


def test_commit_repeated_by_the_transport_is_recognised(table):
    # R69: the library sends the request again; the second answer is a conflict with ourselves.
    def repeat(_):
        table.catalog.after_commit = None
        raise CommitConflictError("lost")

    table.catalog.after_commit = repeat
    result = table.append(table.data("x"))
    assert result.looked_up
    assert len(table.entries()) == 1
    check(table)


def test_store_failure_before_the_swap_is_definite_and_cleaned_up(table):
    table.append(table.data("x"))
    before = table.objects()

    def fail(_):
        raise StoreUnavailableError("store is down")

    for point in ("commit.before_manifest_put", "commit.before_list_put", "commit.before_swap"):
        table.runtime.fail_points.armed = {point: fail}
        with pytest.raises(StoreUnavailableError) as caught:
            table.append(table.data("y"))
        assert caught.value.files_safe_to_delete
        assert table.objects() == before


def test_manifests_and_their_list_are_put_side_by_side(table):
    table.environment = replace(
        table.environment, runtime=replace(table.runtime, side_by_side=True)
    )
    x = table.data("x")
    start = table.append(x).snapshot.snapshot_id
    began = threading.Barrier(3)  # data manifest, delete manifest, list
    for point in ("commit.before_manifest_put", "commit.before_list_put"):
        table.runtime.fail_points.armed[point] = lambda _: began.wait(10)
    table.row_delta(data=[table.data("y")], deletes=[table.vector(x, "p")], start=start)
    check(table)


def test_snapshot_id_in_use_is_drawn_again(table):
    first = table.append(table.data("x")).snapshot.snapshot_id
    drawn = iter([first, first, 42])
    table.runtime.ids.snapshot_id = lambda: next(drawn)
    assert table.append(table.data("y")).snapshot.snapshot_id == 42


def test_snapshot_id_taken_during_the_commit_is_not_mistaken_for_ours(table):
    table.append(table.data("x"))
    drawn = iter([42, 42, 43])
    table.runtime.ids.snapshot_id = lambda: next(drawn)

    def intrude(_):
        table.catalog.before_commit = None
        table.append(table.data("theirs"))

    table.catalog.before_commit = intrude
    result = table.append(table.data("ours"))
    assert result.snapshot.snapshot_id == 43
    assert set(table.live()) == {"x", "theirs", "ours"}
    check(table)


def test_clock_that_goes_back_does_not_move_snapshots_back(table):
    first = table.append(table.data("x")).snapshot
    table.clock.wall_ms -= 3_600_000
    second = table.append(table.data("y")).snapshot
    assert second.timestamp_ms >= first.timestamp_ms
    check(table)


def test_lower_fence_token_is_refused(table):
    table.append(table.data("x"), fence=Fence("resolver", 7))
    with pytest.raises(FencedError) as caught:
        table.append(table.data("y"), fence=Fence("resolver", 6))
    assert caught.value.context["seen"] == "7"
    assert caught.value.files_safe_to_delete
    table.append(table.data("z"), fence=Fence("resolver", 7))


def test_fence_token_is_seen_behind_commits_without_one(table):
    table.append(table.data("x"), fence=Fence("resolver", 7))
    table.append(table.data("y"))
    table.append(table.data("z"), fence=Fence("compactor", 1))
    with pytest.raises(FencedError):
        table.append(table.data("w"), fence=Fence("resolver", 6))


def test_fence_is_checked_again_after_a_lost_swap(table):
    table.append(table.data("x"), fence=Fence("resolver", 7))

    def intrude(_):
        table.catalog.before_commit = None
        table.append(table.data("new holder"), fence=Fence("resolver", 9))

    table.catalog.before_commit = intrude
    with pytest.raises(FencedError):
        table.append(table.data("zombie"), fence=Fence("resolver", 8))
    assert set(table.live()) == {"x", "new holder"}


def test_marker_is_carried_on_the_target_and_not_on_staging(table):
    table.append(table.data("x"), summary={STAGING_MARKER: "11"})
    assert table.append(table.data("y")).snapshot.summary[STAGING_MARKER] == "11"
    staged = table.append(table.data("s"), branch="staging").snapshot
    assert STAGING_MARKER not in staged.summary.additional_properties
    named = table.append(table.data("t"), branch="incoming", carry_marker=False).snapshot
    assert STAGING_MARKER not in named.summary.additional_properties
    moved = table.append(table.data("z"), summary={STAGING_MARKER: "12"}).snapshot
    assert moved.summary[STAGING_MARKER] == "12"


def test_marker_and_fence_are_seen_behind_commits_of_other_writers(table):
    # Other writers repeat nothing, so the walk must pass their snapshots.
    table.append(table.data("x"), summary={STAGING_MARKER: "11"}, fence=Fence("resolver", 7))
    for _ in range(3):
        foreign_commit(table)
    with pytest.raises(FencedError):
        table.append(table.data("y"), fence=Fence("resolver", 6))
    snapshot = table.append(table.data("z")).snapshot
    assert snapshot.summary[STAGING_MARKER] == "11"


def test_newest_marker_wins_whoever_wrote_it(table):
    table.append(table.data("x"), summary={STAGING_MARKER: "11"})
    foreign_commit(table, {STAGING_MARKER: "12"})
    assert table.append(table.data("y")).snapshot.summary[STAGING_MARKER] == "12"


def foreign_commit(table, properties=None):
    """A snapshot as another engine writes it: same files, its own summary."""
    state = table.state
    head = state.head("main")
    snapshot = head.model_copy(
        update={
            "snapshot_id": table.runtime.ids.snapshot_id(),
            "parent_snapshot_id": head.snapshot_id,
            "sequence_number": state.metadata.last_sequence_number + 1,
            "first_row_id": state.metadata.next_row_id,
            "added_rows": 0,
            "summary": Summary(Operation.APPEND, **(properties or {})),
        }
    )
    moved = SetSnapshotRefUpdate(ref_name="main", type="branch", snapshot_id=snapshot.snapshot_id)
    table.catalog.commit(state, [AddSnapshotUpdate(snapshot=snapshot), moved])


def test_v3_table_refuses_new_position_delete_files(table):
    x = table.data("x")
    start = table.append(x).snapshot.snapshot_id
    old_style = table.vector(x, "p").with_(
        file_format="PARQUET", content_offset=None, content_size_in_bytes=None
    )
    with pytest.raises(InvalidInputError, match="deletion vectors"):
        table.row_delta(deletes=[old_style], start=start)


def test_first_row_id_of_added_files_is_reset(table):
    table.append(table.data("x", rows=5))
    table.append(table.data("y", rows=5).with_(first_row_id=0))
    assert table.entry(table.data("y")).data_file.first_row_id == 5
    check(table)


def test_removing_and_giving_a_vector_to_one_file_is_refused(table):
    x = table.data("x")
    start = table.append(x).snapshot.snapshot_id
    with pytest.raises(InvalidInputError, match="one commit"):
        table.row_delta(deletes=[table.vector(x, "p")], removed=[table.entry(x)], start=start)


def test_replacing_data_files_needs_the_snapshot_that_was_read(table):
    x = table.data("x")
    table.append(x)
    with pytest.raises(InvalidInputError, match="which snapshot"):
        table.commit(
            Changeset(
                kind=CommitKind.OVERWRITE,
                removed_entries=(table.entry(x),),
                added_data_files=(table.data("y"),),
            )
        )


def test_starting_snapshot_outside_of_the_history_is_a_conflict(table):
    x = table.data("x")
    table.append(x)
    other = table.append(table.data("s"), branch="staging").snapshot.snapshot_id
    with pytest.raises(CommitConflictError, match="not in the branch's history"):
        table.row_delta(deletes=[table.vector(x, "p")], start=other)


def test_referenced_file_without_a_starting_snapshot_must_be_live(table):
    x = table.data("x")
    table.append(x)
    table.commit(Changeset(kind=CommitKind.DELETE, removed_entries=(table.entry(x),)))
    with pytest.raises(CommitConflictError):
        table.row_delta(deletes=[table.vector(x, "p")])


def test_commit_to_a_tag_is_refused(table):
    from tableformat.commit.refs import create_tag

    table.append(table.data("x"))
    create_tag(table.environment, IDENTIFIER, "v1")
    with pytest.raises(InvalidInputError, match="tag"):
        table.append(table.data("y"), branch="v1")


def test_rewrite_keeps_the_sequence_number_it_is_given(table):
    x, y = table.data("x"), table.data("y")
    start = table.append(x, y).snapshot
    table.row_delta(deletes=[table.equality_delete("late")])
    table.commit(
        Changeset(
            kind=CommitKind.REWRITE,
            removed_entries=(table.entry(x), table.entry(y)),
            added_data_files=(table.data("xy", rows=20),),
            data_sequence_number=start.sequence_number,
            validation=Validation(starting_snapshot_id=start.snapshot_id),
        )
    )
    entry = table.entry(table.data("xy"))
    assert entry.sequence_number == start.sequence_number
    assert entry.file_sequence_number == 3
    check(table)


def test_file_that_left_and_came_back_is_not_the_one_that_was_planned(table):
    """Rolled back and published again it has other row ids; a rewrite would bring the old ones."""
    table.append(table.data("kept"))
    before = table.head()
    x, y, z = table.data("x"), table.data("y"), table.data("z")
    table.append(x)
    planned = table.entry(x)
    rollback(table.environment, IDENTIFIER, snapshot_id=before)
    table.append(y)
    table.append(x)
    table.append(z)
    again = table.entry(x)
    assert again.data_file.first_row_id != planned.data_file.first_row_id
    rewrite = Changeset(
        kind=CommitKind.REWRITE,
        added_data_files=(table.data("rewritten"),),
        removed_entries=(planned, table.entry(y), table.entry(z)),
        validation=Validation(starting_snapshot_id=table.head()),
    )
    with pytest.raises(CommitConflictError, match="missing data files") as caught:
        table.commit(rewrite)
    assert caught.value.conflicts == (x.file_path,)
    assert set(table.live()) == {"kept", "x", "y", "z"}
