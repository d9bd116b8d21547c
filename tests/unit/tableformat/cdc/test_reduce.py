from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from tableformat.cdc.reduce import reduce_changes
from tableformat.cdc.rowkind import RowKind

NEW, UB, U, D = RowKind.INSERT, RowKind.UPDATE_BEFORE, RowKind.UPDATE_AFTER, RowKind.DELETE


def changes(rows: list[tuple[Any, RowKind, int | None, int]]) -> pa.Table:
    """Rows of (key, kind, sequence, ordinal); `value` tells them apart."""
    keys, kinds, sequences, ordinals = zip(*rows, strict=True) if rows else ((), (), (), ())
    return pa.table(
        {
            "k": pa.array(keys, pa.string()),
            "value": pa.array(range(len(rows)), pa.int64()),
            "_sequence_0": pa.array(sequences, pa.int64()),
            "_ordinal": pa.array(ordinals, pa.int64()),
            "_kind": pa.array([kind.value for kind in kinds], pa.int8()),
        }
    )


def reduce(
    rows: list[tuple[Any, RowKind, int | None, int]], *, sequence: bool = False, new: bool = False
) -> tuple[dict[str, int], set[str]]:
    order = ["_sequence_0"] if sequence else []
    reduced = reduce_changes(changes(rows), key=["k"], order=order, assume_new_keys=new)
    upserts = reduced.rows(["k", "value"]).to_pylist()
    return {row["k"]: row["value"] for row in upserts}, set(
        reduced.keys(["k"]).column("k").to_pylist()
    )


def test_insert_delete_insert_keeps_the_last_insert() -> None:
    rows = [("a", NEW, None, 0), ("a", D, None, 1), ("a", NEW, None, 2)]
    assert reduce(rows) == ({"a": 2}, {"a"})


def test_key_whose_last_change_is_a_delete_has_no_row() -> None:
    assert reduce([("a", NEW, None, 0), ("b", U, None, 1), ("a", D, None, 2)]) == (
        {"b": 1},
        {"a", "b"},
    )


def test_order_is_by_ordinal_not_by_place() -> None:
    assert reduce([("a", U, None, 5), ("a", D, None, 2)]) == ({"a": 0}, {"a"})


def test_sequence_wins_over_ordinal_and_ordinal_breaks_ties() -> None:
    assert reduce([("a", U, 9, 0), ("a", D, 3, 1)], sequence=True) == ({"a": 0}, {"a"})
    assert reduce([("a", U, 3, 0), ("a", U, 3, 1)], sequence=True) == ({"a": 1}, {"a"})


def test_change_without_sequence_is_oldest() -> None:
    assert reduce([("a", U, 1, 0), ("a", U, None, 1)], sequence=True) == ({"a": 0}, {"a"})


def test_update_before_deletes_and_its_update_after_restores() -> None:
    rows = [("a", UB, None, 0), ("b", U, None, 1), ("c", UB, None, 2), ("c", U, None, 3)]
    assert reduce(rows) == ({"b": 1, "c": 3}, {"a", "b", "c"})


def test_delete_and_insert_of_one_event_keep_their_order() -> None:
    # Two spellings of one key (a UUID in other letter case) make -D and +U of equal ordinals.
    assert reduce([("a", D, None, 4), ("a", U, None, 4)]) == ({"a": 1}, {"a"})


def test_assumed_new_key_needs_no_delete_unless_something_came_before_its_insert() -> None:
    rows = [
        ("new", NEW, None, 0),
        ("gone", NEW, None, 1),
        ("gone", D, None, 2),
        ("old", D, None, 3),
        ("old", NEW, None, 4),
        ("changed", U, None, 5),
    ]
    assert reduce(rows, new=True) == ({"new": 0, "old": 4, "changed": 5}, {"old", "changed"})


def test_no_changes_are_no_rows() -> None:
    assert reduce([]) == ({}, set())


@pytest.mark.parametrize("seed", range(20))
def test_random_changes_end_as_in_a_dict(seed: int) -> None:
    source = random.Random(seed)
    rows: list[tuple[Any, RowKind, int | None, int]] = []
    for ordinal in range(source.randrange(200)):
        rows.append((f"k{source.randrange(12)}", source.choice([NEW, U, D, UB]), None, ordinal))
    state: dict[str, int] = {}
    for place, (key, kind, _, _) in enumerate(rows):
        state.pop(key, None)
        if kind.adds:
            state[key] = place
    upserts, deletes = reduce(rows)
    assert upserts == state
    assert deletes == {key for key, *_ in rows}


def test_composite_keys_and_uuid_keys_do_not_collide() -> None:
    ids = pa.ExtensionArray.from_storage(
        pa.uuid(), pa.array([b"\0" * 16, b"\1" * 16, b"\0" * 16], pa.binary(16))
    )
    table = pa.table(
        {
            "u": ids,
            "a": ["a", "ab", "a"],
            "b": ["bc", "c", "bc"],
            "_ordinal": pa.array([0, 1, 2], pa.int64()),
            "_kind": pa.array([2, 2, 2], pa.int8()),
        }
    )
    assert reduce_changes(table, key=["a", "b"], order=[]).last.num_rows == 2
    assert reduce_changes(table, key=["u"], order=[]).last.column("_ordinal").to_pylist() == [2, 1]
