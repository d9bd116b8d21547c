import pytest

from tableformat.commit.changeset import Changeset, CommitKind, Validation
from tableformat.commit.cherry_pick import cherry_pick
from tableformat.commit.expire import apply_expiry
from tableformat.commit.expiry_plan import ExpiryPolicy
from tableformat.commit.refs import create_branch, create_tag, drop_ref
from tableformat.errors import (
    AlreadyExistsError,
    CommitConflictError,
    InvalidInputError,
    NotFoundError,
)
from tests.support.commit_tables import IDENTIFIER, CommitTable
from tests.support.table_checker import check_table


@pytest.fixture
def table():
    table = CommitTable()
    table.x = table.data("x")
    table.append(table.x)
    create_branch(table.environment, IDENTIFIER, "audit")
    return table


def pick(table, snapshot_id, **options):
    result = cherry_pick(table.environment, IDENTIFIER, snapshot_id=snapshot_id, **options)
    check_table(table.store.get, table.state.metadata_location)
    return result


def test_pick_onto_the_parent_moves_the_branch(table):
    staged = table.append(table.data("y"), branch="audit").snapshot
    assert pick(table, staged.snapshot_id).snapshot == staged
    assert table.head() == staged.snapshot_id


def test_snapshot_that_expires_while_it_is_picked_is_not_picked(table):
    """Its files may be gone with it."""
    staged = table.append(table.data("y"), branch="audit").snapshot
    table.append(table.data("z"))
    policy = ExpiryPolicy(max_snapshot_age_ms=0, min_snapshots_to_keep=1)
    points = table.environment.runtime.fail_points

    def expire(_name):
        points.armed.clear()
        drop_ref(table.environment, IDENTIFIER, "audit")
        table.environment.runtime.clock.sleep_ms(1_000)
        apply_expiry(table.environment, IDENTIFIER, policy, fence=None)

    points.armed["commit.before_swap"] = expire
    with pytest.raises(CommitConflictError, match="expired"):
        pick(table, staged.snapshot_id)
    assert set(table.live()) == {"x", "z"}


def test_picked_append_gets_new_row_ids(table):
    staged = table.append(table.data("y"), branch="audit").snapshot
    table.append(table.data("z"))
    picked = pick(table, staged.snapshot_id).snapshot
    assert set(table.live()) == {"x", "y", "z"}
    assert picked.summary["source-snapshot-id"] == str(staged.snapshot_id)
    assert picked.summary.operation == staged.summary.operation
    row_ids = {
        branch: table.live(branch)["y"].data_file.first_row_id for branch in ("main", "audit")
    }
    assert row_ids["main"] != row_ids["audit"]


def test_same_snapshot_is_picked_once(table):
    staged = table.append(table.data("y"), branch="audit").snapshot.snapshot_id
    table.append(table.data("z"))
    pick(table, staged)
    table.append(table.data("w"))
    with pytest.raises(AlreadyExistsError):
        pick(table, staged)
    with pytest.raises(AlreadyExistsError):
        pick(table, table.head())


def test_same_wap_id_is_published_once(table):
    first = table.append(table.data("y"), branch="audit", summary={"wap.id": "w1"}).snapshot
    again = table.append(table.data("y2"), branch="audit", summary={"wap.id": "w1"}).snapshot
    table.append(table.data("z"))
    picked = pick(table, first.snapshot_id).snapshot
    assert picked.summary["published-wap-id"] == "w1"
    with pytest.raises(AlreadyExistsError):
        pick(table, again.snapshot_id)


def test_pick_that_races_with_the_same_pick_lands_once(table):
    staged = table.append(table.data("y"), branch="audit").snapshot.snapshot_id
    table.append(table.data("z"))

    def intrude(_):
        table.catalog.before_commit = None
        pick(table, staged)

    table.catalog.before_commit = intrude
    with pytest.raises(AlreadyExistsError):
        pick(table, staged)
    assert sorted(table.live()) == ["x", "y", "z"]


def test_picked_vector_is_validated_from_the_common_ancestor(table):
    staged = table.row_delta(
        deletes=[table.vector(table.x, "p")], branch="audit", start=table.head()
    ).snapshot.snapshot_id
    table.append(table.data("z"))
    pick(table, staged)
    assert set(table.live()) == {"x", "z", "p.puffin@4"}


def test_picked_vector_on_a_file_that_has_another_is_a_conflict(table):
    start = table.head()
    staged = table.row_delta(
        deletes=[table.vector(table.x, "p")], branch="audit", start=start
    ).snapshot.snapshot_id
    table.row_delta(deletes=[table.vector(table.x, "q")], start=start)
    with pytest.raises(CommitConflictError):
        pick(table, staged)


def test_picked_rewrite_replaces_the_same_files(table):
    start = table.head()
    staged = table.commit(
        Changeset(
            kind=CommitKind.REWRITE,
            branch="audit",
            removed_entries=(table.entry(table.x),),
            added_data_files=(table.data("compact"),),
            validation=Validation(starting_snapshot_id=start),
        )
    ).snapshot.snapshot_id
    table.append(table.data("z"))
    pick(table, staged)
    assert set(table.live()) == {"compact", "z"}


def test_pick_of_a_removal_without_common_history_is_refused():
    table = CommitTable()
    y = table.data("y")
    table.append(y, branch="staging")
    entry = table.entry(y, "staging")
    staged = table.commit(
        Changeset(kind=CommitKind.DELETE, branch="staging", removed_entries=(entry,))
    ).snapshot.snapshot_id
    table.append(table.data("x"))
    with pytest.raises(InvalidInputError, match="no snapshot in common"):
        pick(table, staged)


def test_unknown_snapshot_is_not_found(table):
    with pytest.raises(NotFoundError):
        pick(table, 99)


def test_files_that_are_live_are_not_added_again_when_the_history_has_expired(table):
    # The branch has the snapshot's files, but nothing left in its history says so.
    picked = table.append(table.data("y")).snapshot.snapshot_id
    create_tag(table.environment, IDENTIFIER, "keep", snapshot_id=picked)
    table.append(table.data("z"))
    table.append(table.data("w"))
    table.clock.advance(1)
    apply_expiry(table.environment, IDENTIFIER, ExpiryPolicy(max_snapshot_age_ms=0), fence=None)
    with pytest.raises(AlreadyExistsError, match=r"y\.parquet"):
        pick(table, picked)


def test_missing_branch_is_forked_from_main_for_a_pick(table):
    staged = table.append(table.data("y"), branch="audit").snapshot.snapshot_id
    table.append(table.data("z"))
    pick(table, staged, branch="new")
    assert set(table.live("new")) == {"x", "y", "z"}
