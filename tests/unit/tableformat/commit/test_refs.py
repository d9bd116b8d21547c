import pytest

from tableformat.commit.refs import (
    create_branch,
    create_tag,
    drop_ref,
    fast_forward,
    replace_branch,
    rollback,
)
from tableformat.commit.retention import Retention
from tableformat.errors import (
    AlreadyExistsError,
    CommitConflictError,
    CommitUnknownError,
    InvalidInputError,
    NotFoundError,
)
from tests.support.commit_tables import IDENTIFIER, CommitTable
from tests.support.table_checker import check_table


@pytest.fixture
def table():
    table = CommitTable()
    table.one = table.append(table.data("x")).snapshot.snapshot_id
    table.two = table.append(table.data("y")).snapshot.snapshot_id
    return table


def call(table, function, *args, **kwargs):
    return function(table.environment, IDENTIFIER, *args, **kwargs)


def ref(table, name):
    found = table.state.ref(name)
    return None if found is None else found.snapshot_id


def test_branch_starts_at_the_head_of_main(table):
    call(table, create_branch, "b")
    assert ref(table, "b") == table.two


def test_branch_and_tag_start_where_told(table):
    call(table, create_branch, "b", snapshot_id=table.one)
    call(table, create_tag, "t", snapshot_id=table.one, max_ref_age_ms=5)
    assert ref(table, "b") == ref(table, "t") == table.one
    assert table.state.ref("t").max_ref_age_ms == 5
    assert table.state.ref("t").snapshot_ref_type == "tag"


def test_creating_what_exists_is_refused_unless_it_is_the_same(table):
    call(table, create_branch, "b", snapshot_id=table.one)
    call(table, create_branch, "b", snapshot_id=table.one)
    with pytest.raises(AlreadyExistsError):
        call(table, create_branch, "b", snapshot_id=table.two)
    with pytest.raises(AlreadyExistsError):
        call(table, create_tag, "b", snapshot_id=table.one)


def test_branch_of_an_empty_table_is_refused_with_advice():
    table = CommitTable()
    with pytest.raises(InvalidInputError, match="commit to the branch instead"):
        call(table, create_branch, "b")


def test_unknown_snapshot_is_not_found(table):
    for function in (create_branch, create_tag):
        with pytest.raises(NotFoundError):
            call(table, function, "b", snapshot_id=99)
    with pytest.raises(NotFoundError):
        call(table, rollback, snapshot_id=99)
    with pytest.raises(NotFoundError):
        call(table, fast_forward, "main", to="nowhere")


def test_main_cannot_be_a_tag_nor_be_dropped(table):
    with pytest.raises(InvalidInputError):
        call(table, create_tag, "main")
    with pytest.raises(InvalidInputError):
        call(table, drop_ref, "main")


def test_dropped_ref_is_gone_and_its_snapshot_stays(table):
    call(table, create_branch, "b")
    call(table, drop_ref, "b")
    assert ref(table, "b") is None
    assert table.state.metadata.snapshot_by_id(table.two) is not None
    with pytest.raises(NotFoundError):
        call(table, drop_ref, "b")


def test_fast_forward_keeps_snapshot_and_row_ids(table):
    staged = table.append(table.data("s"), branch="staging").snapshot
    state = call(table, fast_forward, "main", to="staging", expected_head=table.two)
    assert state.head("main").snapshot_id == staged.snapshot_id
    assert state.metadata.current_snapshot_id == staged.snapshot_id
    assert set(table.live()) == {"x", "y", "s"}
    check_table(table.store.get, table.state.metadata_location)


def test_fast_forward_creates_a_missing_branch(table):
    call(table, fast_forward, "b", to=table.one)
    assert ref(table, "b") == table.one


def test_fast_forward_of_a_branch_with_own_commits_is_a_conflict(table):
    table.append(table.data("s"), branch="staging")
    moved = table.append(table.data("z")).snapshot.snapshot_id
    with pytest.raises(CommitConflictError, match="not an ancestor") as caught:
        call(table, fast_forward, "main", to="staging")
    assert caught.value.conflicts == (f"snapshot {moved}",)


def test_fast_forward_from_another_head_is_a_conflict(table):
    table.append(table.data("s"), branch="staging")
    with pytest.raises(CommitConflictError, match="has moved"):
        call(table, fast_forward, "main", to="staging", expected_head=table.one)


def test_fast_forward_to_where_it_is_does_nothing(table):
    before = table.state.metadata_location
    call(table, fast_forward, "main", to=table.two)
    assert table.state.metadata_location == before


def test_replace_swaps_unrelated_heads_only_if_the_head_is_expected(table):
    staged = table.append(table.data("s"), branch="staging").snapshot.snapshot_id
    moved = table.append(table.data("z")).snapshot.snapshot_id
    with pytest.raises(CommitConflictError):
        call(table, replace_branch, "staging", to="main", expected_head=table.two)
    call(table, replace_branch, "staging", to="main", expected_head=staged)
    assert ref(table, "staging") == moved


def test_replace_of_a_branch_that_should_not_exist(table):
    call(table, replace_branch, "b", to=table.one, expected_head=None)
    assert ref(table, "b") == table.one
    with pytest.raises(CommitConflictError):
        call(table, replace_branch, "b", to=table.two, expected_head=None)


def test_replace_checks_the_head_again_after_a_lost_swap(table):
    staged = table.append(table.data("s"), branch="staging").snapshot.snapshot_id

    def intrude(_):
        table.catalog.before_commit = None
        table.append(table.data("t"), branch="staging")

    table.catalog.before_commit = intrude
    with pytest.raises(CommitConflictError, match="has moved"):
        call(table, replace_branch, "staging", to="main", expected_head=staged)
    assert set(table.live("staging")) == {"x", "y", "s", "t"}


def test_move_survives_a_commit_to_another_branch(table):
    staged = table.append(table.data("s"), branch="staging").snapshot.snapshot_id

    def intrude(_):
        table.catalog.before_commit = None
        table.append(table.data("z"))

    table.catalog.before_commit = intrude
    call(table, replace_branch, "staging", to=table.two, expected_head=staged)
    assert ref(table, "staging") == table.two
    assert "z" in table.live()


def test_lost_answer_of_a_move_is_settled_by_looking(table):
    def lose(_):
        table.catalog.after_commit = None
        raise CommitUnknownError("answer lost")

    table.catalog.after_commit = lose
    call(table, rollback, snapshot_id=table.one)
    assert ref(table, "main") == table.one


def test_lost_request_of_a_move_stays_unknown(table):
    def lose(_):
        raise CommitUnknownError("answer lost")

    table.catalog.before_commit = lose
    with pytest.raises(CommitUnknownError, match="ref=main"):
        call(table, rollback, snapshot_id=table.one)


def test_rollback_goes_to_ancestors_only(table):
    staged = table.append(table.data("s"), branch="staging").snapshot.snapshot_id
    with pytest.raises(InvalidInputError, match="not in the branch's history"):
        call(table, rollback, snapshot_id=staged)
    with pytest.raises(CommitConflictError):
        call(table, rollback, snapshot_id=table.one, expected_head=table.one + 1)
    call(table, rollback, snapshot_id=table.one, expected_head=table.two)
    assert set(table.live()) == {"x"}


def test_commit_after_a_rollback_uses_fresh_numbers(table):
    call(table, rollback, snapshot_id=table.one)
    snapshot = table.append(table.data("z", rows=4)).snapshot
    assert snapshot.parent_snapshot_id == table.one
    assert snapshot.sequence_number == 3
    assert snapshot.first_row_id == 20
    check_table(table.store.get, table.state.metadata_location)


def test_commit_keeps_the_retention_of_its_branch(table):
    retention = Retention(max_snapshot_age_ms=5, min_snapshots_to_keep=3, max_ref_age_ms=7)
    call(table, create_branch, "b", retention=retention)
    table.append(table.data("z"), branch="b")
    found = table.state.ref("b")
    assert (found.max_snapshot_age_ms, found.min_snapshots_to_keep, found.max_ref_age_ms) == (
        5,
        3,
        7,
    )


def test_move_keeps_the_retention_of_its_branch(table):
    call(table, create_branch, "b", retention=Retention(min_snapshots_to_keep=3))
    call(table, replace_branch, "b", to=table.one, expected_head=table.two)
    call(table, fast_forward, "b", to="main")
    assert table.state.ref("b").min_snapshots_to_keep == 3


def test_tag_cannot_be_moved_like_a_branch(table):
    call(table, create_tag, "t", snapshot_id=table.one)
    for function, options in (
        (fast_forward, {"to": table.two}),
        (replace_branch, {"to": table.two, "expected_head": table.one}),
    ):
        with pytest.raises(InvalidInputError, match="tag"):
            call(table, function, "t", **options)


def test_retention_that_makes_no_sense_is_refused(table):
    with pytest.raises(InvalidInputError, match="ref=b"):
        call(table, create_branch, "b", retention=Retention(min_snapshots_to_keep=0))
    with pytest.raises(InvalidInputError, match="ref=t"):
        call(table, create_tag, "t", max_ref_age_ms=-1)
