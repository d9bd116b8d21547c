import struct

import pytest
from pyiceberg.expressions import (
    AlwaysFalse,
    AlwaysTrue,
    And,
    EqualTo,
    GreaterThan,
    In,
    IsNull,
    LessThan,
    Not,
    NotEqualTo,
    NotIn,
    NotNull,
    Or,
)
from pyiceberg.types import DoubleType

from tableformat.commit.evolution import update_schema, update_spec
from tableformat.commit.matching import FileMatcher
from tableformat.errors import InvalidInputError
from tests.support.commit_tables import IDENTIFIER, CommitTable


@pytest.fixture
def table():
    return CommitTable(partitioned=True)


def matcher(table, row_filter, **options):
    return FileMatcher(table.state.metadata, row_filter, **options)


@pytest.mark.parametrize(
    ("row_filter", "may", "must"),
    [
        (AlwaysTrue(), True, True),
        (AlwaysFalse(), False, False),
        (EqualTo("part", "a"), True, True),
        (EqualTo("part", "b"), False, False),
        (NotEqualTo("part", "a"), False, False),
        (NotEqualTo("part", "b"), True, True),
        (In("part", ["a", "b"]), True, True),
        (LessThan("id", 10), True, True),
        (LessThan("id", 5), True, False),
        (LessThan("id", 0), False, False),
        (GreaterThan("id", 9), False, False),
        (NotEqualTo("id", 50), True, True),
        (NotEqualTo("id", 5), True, False),
        (NotIn("id", [50, 60]), True, True),
        (And(EqualTo("part", "a"), LessThan("id", 10)), True, True),
        (And(EqualTo("part", "a"), LessThan("id", 5)), True, False),
        (Or(EqualTo("part", "b"), LessThan("id", 10)), True, True),
        (Not(LessThan("id", 10)), False, False),
        (IsNull("id"), False, False),
        (NotNull("id"), True, True),
        (EqualTo("note", "x"), True, False),  # no statistics
        (NotEqualTo("note", "x"), True, False),
        (NotNull("note"), True, False),
    ],
    ids=str,
)
def test_partition_and_statistics_decide(table, row_filter, may, must):
    file = table.data("f", ids=range(10))
    assert matcher(table, row_filter).may_match(file) is may
    assert matcher(table, row_filter).must_match(file) is must


def test_null_partition_value_matches_no_comparison(table):
    file = table.data("f", part=None)
    assert not matcher(table, EqualTo("part", "a")).may_match(file)
    assert not matcher(table, NotEqualTo("part", "a")).must_match(file)
    assert matcher(table, IsNull("part")).may_match(file)


def test_column_with_nulls_proves_no_negative_comparison(table):
    file = table.data("f", ids=range(10))
    nullable = file.with_(
        value_counts={3: 10},
        null_value_counts={3: 1},
        lower_bounds={3: b"m"},
        upper_bounds={3: b"n"},
    )
    assert not matcher(table, NotEqualTo("note", "x")).must_match(nullable)
    full = nullable.with_(null_value_counts={3: 0})
    assert matcher(table, NotEqualTo("note", "x")).must_match(full)


def test_bounds_of_a_float_column_prove_nothing_without_nan_counts(table):
    update_schema(table.environment, IDENTIFIER, lambda s: s.add_column("d", DoubleType()))
    one = struct.pack("<d", 1.0)
    file = table.data("f").with_(
        value_counts={4: 10}, null_value_counts={4: 0}, lower_bounds={4: one}, upper_bounds={4: one}
    )
    assert not matcher(table, LessThan("d", 2.0)).must_match(file)
    assert matcher(table, GreaterThan("d", 5.0)).may_match(file)  # NaN is above every number
    counted = file.with_(nan_value_counts={4: 0})
    assert matcher(table, LessThan("d", 2.0)).must_match(counted)
    assert not matcher(table, GreaterThan("d", 5.0)).may_match(counted)


def test_bound_that_does_not_decode_excludes_nothing_and_proves_nothing(table):
    # R21: a four-byte bound from before the column was widened.
    file = table.data("f", ids=range(10)).with_(
        lower_bounds={1: b"\x01\x02\x03"}, upper_bounds={1: b"\x01\x02\x03"}
    )
    assert matcher(table, GreaterThan("id", 1 << 40)).may_match(file)
    assert not matcher(table, LessThan("id", 1 << 40)).must_match(file)


def test_delete_files_are_tested_by_their_partition_only(table):
    # R14: the statistics of an equality delete on columns it merely carries.
    file = table.equality_delete("e").with_(
        lower_bounds={1: struct.pack("<q", 500)},
        upper_bounds={1: struct.pack("<q", 500)},
        value_counts={1: 1},
        null_value_counts={1: 0},
    )
    assert matcher(table, LessThan("id", 10)).partition_may_match(file)
    assert not matcher(table, EqualTo("part", "b")).partition_may_match(file)


def test_filter_is_bound_to_an_older_schema_when_its_column_is_gone(table):
    update_schema(table.environment, IDENTIFIER, lambda s: s.delete_column("note"))
    assert matcher(table, EqualTo("note", "x")).may_match(table.data("f"))
    with pytest.raises(InvalidInputError, match="nowhere"):
        matcher(table, EqualTo("nowhere", "x"))


def test_partitions_narrow_the_filter(table):
    a, b = table.data("a"), table.data("b", part="b")
    narrow = matcher(table, AlwaysTrue(), partitions=frozenset({a.partition_key}))
    assert narrow.may_match(a)
    assert not narrow.may_match(b)
    update_spec(table.environment, IDENTIFIER, lambda s: s.remove_field("part"))
    other_spec = a.with_(spec_id=1, partition=())
    assert matcher(table, AlwaysTrue(), partitions=frozenset({a.partition_key})).may_match(
        other_spec
    )
