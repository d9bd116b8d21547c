import pytest
from pyiceberg.expressions import AlwaysTrue, And, EqualTo, GreaterThanOrEqual, LessThan, NotEqualTo

from tableformat.commit.operations import (
    overwrite_changeset,
    replace_partitions_changeset,
    select_files,
)
from tableformat.errors import CommitConflictError, InvalidInputError
from tests.support.changesets import delete_changeset, rewrite_changeset
from tests.support.commit_tables import CommitTable
from tests.support.table_checker import check_table

IN_A = EqualTo("part", "a")


@pytest.fixture
def table():
    table = CommitTable(partitioned=True)
    table.a = table.data("a", ids=range(10))
    table.b = table.data("b", part="b", ids=range(10, 20))
    table.wide = table.data("wide", part="b", ids=range(15, 40))
    table.start = table.append(table.a, table.b, table.wide).snapshot
    return table


def select(table, row_filter):
    return select_files(table.environment, table.state, row_filter)


def names(table, entries):
    return {table.short_name(each.data_file) for each in entries}


def check(table):
    check_table(table.store.get, table.state.metadata_location)


def test_partition_and_statistics_sort_files_by_the_filter(table):
    found = select(table, IN_A)
    assert (names(table, found.all_match), names(table, found.some_match)) == ({"a"}, set())
    found = select(table, GreaterThanOrEqual("id", 10))
    assert names(table, found.all_match) == {"b", "wide"}
    found = select(table, LessThan("id", 20))
    assert names(table, found.all_match) == {"a", "b"}
    assert names(table, found.some_match) == {"wide"}
    found = select(table, AlwaysTrue())
    assert names(table, found.all_match) == {"a", "b", "wide"}


def test_empty_branch_has_no_files():
    found = select(CommitTable(), AlwaysTrue())
    assert found.snapshot_id is None
    assert found.live_rows == 0


def test_null_rows_do_not_match_a_negative_comparison(table):
    unknown = table.data("unknown", part="c")
    table.append(unknown)
    assert "unknown" in names(table, select(table, NotEqualTo("id", 99)).some_match)


def test_missing_statistics_prove_nothing(table):
    bare = table.data("bare", part="c", ids=range(5)).with_(null_value_counts=None)
    table.append(bare)
    found = select(table, LessThan("id", 10))
    assert "bare" in names(table, found.some_match)


def test_live_rows_of_dropped_files_are_counted_from_metadata(table):
    table.row_delta(deletes=[table.vector(table.a, "p", cardinality=3)])
    assert select(table, IN_A).live_rows == 7
    table.row_delta(deletes=[table.equality_delete("e")])
    assert select(table, IN_A).live_rows is None


def test_delete_by_metadata_drops_files_and_their_vectors(table):
    table.row_delta(deletes=[table.vector(table.a, "p")])
    snapshot = table.commit(delete_changeset(select(table, IN_A), IN_A)).snapshot
    assert set(table.live()) == {"b", "wide"}
    assert snapshot.summary.operation.value == "delete"
    check(table)


def test_delete_tolerates_a_vector_that_landed_meanwhile(table):
    change = delete_changeset(select(table, IN_A), IN_A)
    table.row_delta(deletes=[table.vector(table.a, "late")])
    table.commit(change)
    assert set(table.live()) == {"b", "wide"}
    check(table)


def test_delete_minds_rows_that_landed_meanwhile(table):
    change = delete_changeset(select(table, IN_A), IN_A)
    table.append(table.data("new"))
    with pytest.raises(CommitConflictError, match="checks=P"):
        table.commit(change)


def test_static_overwrite_replaces_what_matches(table):
    change = overwrite_changeset(
        select(table, IN_A), [table.data("a2", rows=3)], IN_A, table.state.metadata
    )
    snapshot = table.commit(change).snapshot
    assert set(table.live()) == {"a2", "b", "wide"}
    assert snapshot.summary.operation.value == "overwrite"
    check(table)


def test_static_overwrite_that_would_need_reading_is_refused(table):
    row_filter = LessThan("id", 20)
    with pytest.raises(InvalidInputError, match="whole files"):
        overwrite_changeset(select(table, row_filter), [], row_filter, table.state.metadata)


def test_static_overwrite_refuses_rows_outside_of_the_filter(table):
    with pytest.raises(InvalidInputError, match="may not match"):
        overwrite_changeset(
            select(table, IN_A), [table.data("c", part="c")], IN_A, table.state.metadata
        )


def test_overwrite_operation_follows_what_it_does(table):
    none = And(IN_A, LessThan("id", -1))
    table.commit(overwrite_changeset(select(table, none), [], none, table.state.metadata))
    nothing = EqualTo("part", "new")
    added = [table.data("n", part="new")]
    appended = table.commit(
        overwrite_changeset(select(table, nothing), added, nothing, table.state.metadata)
    )
    assert appended.snapshot.summary.operation.value == "append"
    emptied = table.commit(overwrite_changeset(select(table, IN_A), [], IN_A, table.state.metadata))
    assert emptied.snapshot.summary.operation.value == "delete"


def test_dynamic_overwrite_replaces_the_partitions_it_writes(table):
    change = replace_partitions_changeset(
        table.environment, table.state, [table.data("b2", part="b"), table.data("c", part="c")]
    )
    snapshot = table.commit(change).snapshot
    assert set(table.live()) == {"a", "b2", "c"}
    assert snapshot.summary["replace-partitions"] == "true"
    check(table)


def test_dynamic_overwrite_minds_its_own_partitions_only(table):
    change = replace_partitions_changeset(
        table.environment, table.state, [table.data("b2", part="b")]
    )
    table.append(table.data("elsewhere", part="a"))
    table.commit(change)
    change = replace_partitions_changeset(
        table.environment, table.state, [table.data("b3", part="b")]
    )
    table.append(table.data("late", part="b"))
    with pytest.raises(CommitConflictError, match="checks=P"):
        table.commit(change)


def test_dynamic_overwrite_of_an_unpartitioned_table_replaces_all():
    table = CommitTable()
    table.append(table.data("x"), table.data("y"))
    change = replace_partitions_changeset(table.environment, table.state, [table.data("z")])
    table.commit(change)
    assert set(table.live()) == {"z"}


def test_rewrite_keeps_the_rows_and_drops_the_vectors(table):
    vector = table.vector(table.b, "p", cardinality=2)
    start = table.row_delta(deletes=[vector]).snapshot
    removed = [table.entry(table.b), table.entry(table.wide)]
    snapshot = table.commit(
        rewrite_changeset(
            removed=removed, added=[table.data("bw", part="b", rows=18)], starting_snapshot=start
        )
    ).snapshot
    assert set(table.live()) == {"a", "bw"}
    assert snapshot.summary.operation.value == "replace"
    assert snapshot.summary["removed-dvs"] == "1"
    check(table)


def test_rewrite_that_adds_rows_is_refused(table):
    change = rewrite_changeset(
        removed=[table.entry(table.a)],
        added=[table.data("more", rows=11)],
        starting_snapshot=table.start,
    )
    with pytest.raises(InvalidInputError, match="cannot add rows"):
        table.commit(change)
