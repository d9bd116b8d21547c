"""What every primary-key index does: in memory, in a folder, and in shared storage."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from resolver.index.base import IndexChanges, IndexedFile, PrimaryKeyIndex
from resolver.index.entry import POSITION_LIMIT
from resolver.index.open import open_index
from resolver.keys import EncodedKeys
from tableformat.errors import InvalidInputError, UnsupportedError
from tableformat.runtime import Runtime
from tests.support.index_builder import (
    BINDING,
    Row,
    binding_at,
    build_local,
    build_shared_in,
    content_of,
    entries_of,
    file_of,
    keys_of,
    reopen_shared,
    rows_of,
)
from tests.support.memory_index import MemoryIndex

IMPLEMENTATIONS = ["memory", "local-1", "local-3", "shared-1", "shared-3"]
SHARD_ROWS = {"1": None, "3": 2}  # those with three shards split them all the time
Make = Callable[[Path], PrimaryKeyIndex]


def make_index(name: str, folder: Path) -> PrimaryKeyIndex:
    if name == "memory":
        return MemoryIndex.create(BINDING, runtime=Runtime())
    if name.startswith("shared-"):
        shards = name.removeprefix("shared-")
        return build_shared_in(folder, shards=int(shards), shard_rows=SHARD_ROWS[shards])
    shards = name.removeprefix("local-")
    return build_local(folder, shards=int(shards), shard_rows=SHARD_ROWS[shards])


def reopen(name: str, folder: Path, machine: str) -> PrimaryKeyIndex:
    """Open what is there; a shared index on another machine, with a cache of its own."""
    if name.startswith("shared-"):
        return reopen_shared(folder, machine)
    opened = open_index(folder, BINDING, runtime=Runtime())
    assert opened.index is not None, opened
    return opened.index


@pytest.fixture(params=IMPLEMENTATIONS)
def index(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[PrimaryKeyIndex]:
    made = make_index(request.param, tmp_path / "index")
    yield made
    made.close()


def change(index: PrimaryKeyIndex, snapshot_id: int, changes: IndexChanges) -> None:
    index.apply(index.prepare(changes), binding_at(snapshot_id))


def put(index: PrimaryKeyIndex, path: str, rows: list[tuple[int | None, int]]) -> None:
    """Put (key, position) rows of one file."""
    entries = entries_of([(key, 0, position) for key, position in rows])
    change(index, 2, IndexChanges(added_files=(file_of(path),), put=(entries,)))


def test_lookup_in_empty_index_finds_nothing(index: PrimaryKeyIndex) -> None:
    assert rows_of(index, [1, None, -5]) == [[], [], []]
    assert len(index.lookup(EncodedKeys.empty())) == 0
    assert content_of(index) == {}
    assert index.files() == {}


def test_lookup_returns_every_row_of_each_key_in_key_order(index: PrimaryKeyIndex) -> None:
    put(index, "a", [(7, 0), (8, 1), (7, 2), (None, 3), (-1, 4)])
    put(index, "b", [(7, 0)])
    assert rows_of(index, [8, 99, 7, -1, None, 7]) == [
        [("a", 1)],
        [],
        [("a", 0), ("a", 2), ("b", 0)],
        [("a", 4)],
        [("a", 3)],
        [("a", 0), ("a", 2), ("b", 0)],
    ]


def test_lookup_gives_the_whole_record_of_each_file(index: PrimaryKeyIndex) -> None:
    partition = (1, None, "x", b"\x00\xff", Decimal("1.20"), UUID(int=5), True, float("inf"), -0.0)
    file = IndexedFile(file_path="s3://b/ü.parquet", spec_id=3, partition=partition)
    change(index, 2, IndexChanges(added_files=(file,), put=(entries_of([(1, 0, 0)]),)))
    (found,) = index.lookup(keys_of([1])).files.values()
    assert (found.file_path, found.spec_id) == (file.file_path, 3)
    assert repr(found.partition) == repr(partition)


def test_put_of_an_existing_entry_changes_nothing(index: PrimaryKeyIndex) -> None:
    put(index, "a", [(1, 0), (1, 0)])
    put(index, "a", [(1, 0), (2, 1)])
    assert rows_of(index, [1, 2]) == [[("a", 0)], [("a", 1)]]
    assert len(index.files()) == 1


def test_removed_keys_lose_all_rows(index: PrimaryKeyIndex) -> None:
    put(index, "a", [(1, 0), (1, 1), (2, 2)])
    change(index, 3, IndexChanges(removed_keys=(keys_of([1, 5, 1]),)))
    assert rows_of(index, [1, 2, 5]) == [[], [("a", 2)], []]


def test_removed_entries_leave_other_rows_of_the_key(index: PrimaryKeyIndex) -> None:
    put(index, "a", [(1, 0), (1, 1), (2, 2)])
    put(index, "b", [(1, 0)])
    ids = index.file_ids(["a", "b"])
    gone = entries_of([(1, ids["a"], 0), (1, ids["b"], 0), (1, ids["b"], 77), (9, ids["a"], 0)])
    change(index, 3, IndexChanges(removed=(gone,)))
    assert rows_of(index, [1, 2, 9]) == [[("a", 1)], [("a", 2)], []]


def test_removal_comes_before_put_in_one_change(index: PrimaryKeyIndex) -> None:
    put(index, "a", [(1, 0), (2, 1)])
    ids = index.file_ids(["a"])
    change(
        index,
        3,
        IndexChanges(
            added_files=(file_of("a"),),
            removed_keys=(keys_of([1]),),
            removed=(entries_of([(2, ids["a"], 1)]),),
            put=(entries_of([(1, 0, 0), (2, 0, 1)]),),
        ),
    )
    assert rows_of(index, [1, 2]) == [[("a", 0)], [("a", 1)]]


def test_rows_of_a_dropped_file_are_gone(index: PrimaryKeyIndex) -> None:
    put(index, "a", [(1, 0), (2, 1)])
    put(index, "b", [(1, 0)])
    change(index, 3, IndexChanges(dropped_files=("a", "never-seen")))
    assert rows_of(index, [1, 2]) == [[("b", 0)], []]
    assert index.file_ids(["a", "b"]).keys() == {"b"}
    assert [file.file_path for file in index.files().values()] == ["b"]
    assert content_of(index).keys() == set(keys_of([1]).to_list())


def test_a_file_that_returns_has_only_the_rows_put_again(index: PrimaryKeyIndex) -> None:
    put(index, "a", [(1, 0), (2, 1)])
    change(index, 3, IndexChanges(dropped_files=("a",)))
    put(index, "a", [(2, 1)])
    assert rows_of(index, [1, 2]) == [[], [("a", 1)]]


def test_a_file_dropped_and_added_in_one_change_starts_empty(index: PrimaryKeyIndex) -> None:
    put(index, "a", [(1, 0), (2, 1)])
    changes = IndexChanges(
        dropped_files=("a",), added_files=(file_of("a"),), put=(entries_of([(2, 0, 5)]),)
    )
    change(index, 3, changes)
    assert rows_of(index, [1, 2]) == [[], [("a", 5)]]


def test_compaction_moves_rows_without_naming_their_keys_twice(index: PrimaryKeyIndex) -> None:
    put(index, "a", [(1, 0), (2, 1)])
    put(index, "b", [(3, 0)])
    moved = entries_of([(3, 0, 0), (1, 0, 1), (2, 0, 2)])
    change(
        index,
        3,
        IndexChanges(dropped_files=("a", "b"), added_files=(file_of("c"),), put=(moved,)),
    )
    assert rows_of(index, [1, 2, 3]) == [[("c", 1)], [("c", 2)], [("c", 0)]]


def test_prepared_change_is_invisible_until_applied(index: PrimaryKeyIndex) -> None:
    put(index, "a", [(1, 0)])
    prepared = index.prepare(
        IndexChanges(
            dropped_files=("a",),
            added_files=(file_of("b"),),
            put=(entries_of([(1, 0, 9), (2, 0, 8)]),),
        )
    )
    assert rows_of(index, [1, 2]) == [[("a", 0)], []]
    assert index.binding == binding_at(2)
    index.apply(prepared, binding_at(3))
    assert rows_of(index, [1, 2]) == [[("b", 9)], [("b", 8)]]
    assert index.binding == binding_at(3)


def test_discarded_change_leaves_no_trace(index: PrimaryKeyIndex) -> None:
    put(index, "a", [(1, 0)])
    prepared = index.prepare(IndexChanges(removed_keys=(keys_of([1]),)))
    index.discard(prepared)
    index.discard(prepared)
    assert rows_of(index, [1]) == [[("a", 0)]]
    with pytest.raises(InvalidInputError):
        index.apply(prepared, binding_at(3))
    put(index, "b", [(1, 1)])
    assert rows_of(index, [1]) == [[("a", 0), ("b", 1)]]


def test_change_prepared_on_an_older_state_is_refused(index: PrimaryKeyIndex) -> None:
    first = index.prepare(IndexChanges(added_files=(file_of("a"),)))
    second = index.prepare(
        IndexChanges(added_files=(file_of("b"),), put=(entries_of([(1, 0, 0)]),))
    )
    index.apply(first, binding_at(2))
    with pytest.raises(InvalidInputError):
        index.apply(second, binding_at(3))
    assert rows_of(index, [1]) == [[]]
    assert index.binding == binding_at(2)
    index.discard(second)


def test_change_is_applied_once(index: PrimaryKeyIndex) -> None:
    prepared = index.prepare(IndexChanges(added_files=(file_of("a"),)))
    index.apply(prepared, binding_at(2))
    with pytest.raises(InvalidInputError):
        index.apply(prepared, binding_at(3))


def test_empty_change_moves_the_binding(index: PrimaryKeyIndex) -> None:
    put(index, "a", [(1, 0)])
    change(index, 42, IndexChanges())
    assert index.binding == binding_at(42)
    assert rows_of(index, [1]) == [[("a", 0)]]


def test_index_keeps_its_table_branch_and_key(index: PrimaryKeyIndex) -> None:
    for other in (
        replace(BINDING, table_uuid="other"),
        replace(BINDING, branch="other"),
        replace(BINDING, key_fingerprint="v1;2:long"),
        replace(BINDING, encoding_version=99),
    ):
        prepared = index.prepare(IndexChanges())
        with pytest.raises(InvalidInputError):
            index.apply(prepared, other)
    assert index.binding == BINDING


def test_position_beyond_the_limit_is_refused(index: PrimaryKeyIndex) -> None:
    put(index, "a", [(1, POSITION_LIMIT - 1)])
    assert rows_of(index, [1]) == [[("a", POSITION_LIMIT - 1)]]
    for position in (POSITION_LIMIT, -1):
        with pytest.raises(UnsupportedError):
            put(index, "a", [(2, position)])
    assert rows_of(index, [1, 2]) == [[("a", POSITION_LIMIT - 1)], []]


def test_failing_source_of_rows_leaves_the_index_unchanged(index: PrimaryKeyIndex) -> None:
    def rows() -> Iterator[object]:
        yield entries_of([(1, 0, 0)])
        raise InvalidInputError("the data file is broken")

    class Rows:
        def __iter__(self) -> Iterator[object]:
            return rows()

    with pytest.raises(InvalidInputError, match="broken"):
        index.prepare(IndexChanges(added_files=(file_of("a"),), put=Rows()))  # type: ignore[arg-type]
    assert content_of(index) == {}
    put(index, "a", [(1, 0)])
    assert rows_of(index, [1]) == [[("a", 0)]]


# -- against a model -----------------------------------------------------------------------------

PATHS = [f"f{i}" for i in range(5)]
KEYS = [None, *range(-2, 6), 2**40, -(2**63), 2**63 - 1]


@dataclass
class Model:
    rows: dict[int | None, set[Row]] = field(default_factory=dict)

    def drop(self, paths: list[str]) -> None:
        for rows in self.rows.values():
            rows.difference_update({row for row in rows if row[0] in paths})

    def remove_keys(self, keys: list[int | None]) -> None:
        for key in keys:
            self.rows.pop(key, None)

    def content(self) -> dict[bytes, set[Row]]:
        return {keys_of([key]).to_list()[0]: rows for key, rows in self.rows.items() if rows}


row = st.tuples(st.sampled_from(KEYS), st.integers(0, 3), st.integers(0, 6))
step = st.fixed_dictionaries(
    {
        "dropped": st.lists(st.sampled_from(PATHS), max_size=2, unique=True),
        "added": st.lists(st.sampled_from(PATHS), min_size=4, max_size=4),
        "removed_keys": st.lists(st.sampled_from(KEYS), max_size=4),
        "removed": st.lists(
            st.tuples(st.sampled_from(KEYS), st.sampled_from(PATHS), st.integers(0, 6)), max_size=6
        ),
        "put": st.lists(row, max_size=12),
        "discard": st.booleans(),
        "reopen": st.booleans(),
    }
)


@pytest.mark.parametrize("name", ["memory", "local-1", "local-3", "shared-3"])
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=st.lists(step, max_size=6))
def test_index_equals_model_after_any_changes(
    name: str, steps: list[dict[str, object]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("index")
    index = make_index(name, folder)
    model = Model()
    try:
        for number, action in enumerate(steps, start=2):
            prepared = index.prepare(_changes(index, action))
            if action["discard"]:
                index.discard(prepared)
            else:
                index.apply(prepared, binding_at(number))
                _apply_to_model(model, action)
                assert index.binding == binding_at(number)
            if action["reopen"] and name != "memory":
                bound = index.binding
                index.close()
                index = reopen(name, folder, machine=f"machine-{number % 2}")
                assert index.binding == bound
            assert content_of(index) == model.content()
            assert rows_of(index, KEYS) == [sorted(model.rows.get(key, ())) for key in KEYS]
    finally:
        index.close()


def _changes(index: PrimaryKeyIndex, action: dict) -> IndexChanges:
    ids = index.file_ids(PATHS)
    removed = [(key, ids.get(path, 999), position) for key, path, position in action["removed"]]
    half = len(action["put"]) // 2
    return IndexChanges(
        dropped_files=tuple(action["dropped"]),
        added_files=tuple(file_of(path) for path in action["added"]),
        removed_keys=(keys_of(action["removed_keys"]),),
        removed=(entries_of(removed),),
        put=(entries_of(action["put"][:half]), entries_of(action["put"][half:])),
    )


def _apply_to_model(model: Model, action: dict) -> None:
    model.drop(action["dropped"])
    model.remove_keys(action["removed_keys"])
    for key, path, position in action["removed"]:
        model.rows.get(key, set()).discard((path, position))
    for key, ordinal, position in action["put"]:
        model.rows.setdefault(key, set()).add((action["added"][ordinal], position))


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_large_random_change_equals_model(name: str, tmp_path: Path) -> None:
    generator = np.random.default_rng(3)
    index = make_index(name, tmp_path / "index")
    model = Model()
    for number in range(2, 6):
        keys = generator.integers(0, 3000, 4000)
        gone = generator.integers(0, 3000, 800).tolist()
        positions = generator.permutation(4000)
        rows = [(int(k), 0, int(p)) for k, p in zip(keys, positions, strict=True)]
        change(
            index,
            number,
            IndexChanges(
                added_files=(file_of(f"f{number}"),),
                removed_keys=(keys_of(gone),),
                put=(entries_of(rows),),
            ),
        )
        model.remove_keys(gone)
        for key, _, position in rows:
            model.rows.setdefault(key, set()).add((f"f{number}", position))
    assert content_of(index) == model.content()
    wanted = list(range(3100))
    assert rows_of(index, wanted) == [sorted(model.rows.get(key, ())) for key in wanted]
    index.close()
