"""The commit of a pointer catalog, step by step, on the memory catalog."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import pytest
from pyiceberg.table.update import RemoveSnapshotsUpdate, SetLocationUpdate, SetPropertiesUpdate

from tableformat.catalog.base import TableCommit, TableState
from tableformat.catalog.pointers import PointerSwap
from tableformat.errors import (
    CommitConflictError,
    CommitUnknownError,
    InvalidInputError,
    NotFoundError,
    StoreUnavailableError,
)
from tableformat.runtime import FailPoints, Runtime
from tests.support.memory_catalog import MemoryCatalog, MemoryPointers
from tests.support.memory_store import MemoryObjectStore
from tests.support.table_metadata import append_updates, create

TABLE = ("shop", "orders")


class Faulty(MemoryPointers):
    """Pointers whose swap or read goes wrong once."""

    def __init__(self) -> None:
        super().__init__()
        self.swap_lands = True
        self.swap_error: Exception | None = None
        self.read_error: Exception | None = None

    def swap(self, identifier: tuple[str, ...], *, expected: str, new: str) -> bool:
        if self.swap_error is None:
            return super().swap(identifier, expected=expected, new=new)
        error, self.swap_error = self.swap_error, None
        if self.swap_lands:
            super().swap(identifier, expected=expected, new=new)
        raise error

    def swap_all(self, swaps: Sequence[PointerSwap]) -> bool:
        if self.swap_error is None:
            return super().swap_all(swaps)
        error, self.swap_error = self.swap_error, None
        if self.swap_lands:
            super().swap_all(swaps)
        raise error

    def read(self, identifier: tuple[str, ...]) -> str | None:
        if self.read_error is not None:
            raise self.read_error
        return super().read(identifier)


class World:
    """One memory catalog with one table."""

    def __init__(self) -> None:
        self.points = FailPoints()
        self.store = MemoryObjectStore()
        self.pointers = Faulty()
        self.catalog = self.another(self.points)
        self.base = create(self.catalog, TABLE)

    def another(self, points: FailPoints | None = None) -> MemoryCatalog:
        runtime = Runtime(fail_points=points or FailPoints())
        return MemoryCatalog(self.store, runtime=runtime, pointers=self.pointers)

    def append(
        self, base: TableState | None = None, catalog: MemoryCatalog | None = None
    ) -> TableState:
        base = base or self.base
        return (catalog or self.catalog).commit(base, append_updates(base.metadata))

    def files(self) -> set[str]:
        return {one.location for one in self.store.list_prefix("memory://warehouse")}


@pytest.fixture
def world() -> World:
    return World()


def test_steps_of_a_commit_are_in_their_order(world: World) -> None:
    seen: list[tuple[str, int]] = []
    world.points.observer = lambda name: seen.append((name, len(world.files())))
    world.append()
    assert seen == [
        ("catalog.before_metadata_put", 1),
        ("catalog.before_swap", 2),
        ("catalog.after_swap", 2),
    ]


def test_metadata_files_count_up(world: World) -> None:
    state = world.append(world.append())
    name = state.metadata_location.rsplit("/", 1)[-1]
    assert name.startswith("00002-")
    assert name.endswith(".metadata.json")


def test_metadata_goes_where_the_properties_say(world: World) -> None:
    place = "memory://warehouse/elsewhere/meta"
    update = SetPropertiesUpdate(updates={"write.metadata.path": place})
    state = world.catalog.commit(world.base, [update])
    assert state.metadata_location.startswith(f"{place}/00001-")
    assert world.another().load_table(TABLE).metadata == state.metadata


def test_metadata_is_compressed_where_asked_for(world: World) -> None:
    update = SetPropertiesUpdate(updates={"write.metadata.compression-codec": "gzip"})
    state = world.append(world.catalog.commit(world.base, [update]))
    assert state.metadata_location.endswith(".gz.metadata.json")
    assert "/00002-" in state.metadata_location
    assert world.store.get(state.metadata_location).startswith(b"\x1f\x8b")
    assert world.another().load_table(TABLE).metadata == state.metadata


def test_unknown_compression_codec_is_refused(world: World) -> None:
    update = SetPropertiesUpdate(updates={"write.metadata.compression-codec": "lzma"})
    with pytest.raises(InvalidInputError, match="codec"):
        world.catalog.commit(world.base, [update])


def test_commit_that_changes_nothing_writes_nothing(world: World) -> None:
    before = world.files()
    assert world.catalog.commit(world.base, []) is world.base
    assert world.files() == before


@pytest.mark.parametrize("key", ["write.data.path", "write.metadata.path"])
def test_property_that_sends_files_elsewhere_is_refused(world: World, key: str) -> None:
    before = world.files()
    with pytest.raises(InvalidInputError, match="outside") as caught:
        world.catalog.commit(world.base, [SetPropertiesUpdate(updates={key: "/etc"})])
    assert caught.value.context["key"] == key
    with pytest.raises(InvalidInputError):
        world.catalog.commit(world.base, [SetLocationUpdate(location="s3://elsewhere/t")])
    assert world.files() == before


def test_unavailable_swap_changed_nothing_and_leaves_nothing(world: World) -> None:
    before = world.files()
    world.pointers.swap_error, world.pointers.swap_lands = StoreUnavailableError("down"), False
    with pytest.raises(StoreUnavailableError):
        world.append()
    assert world.files() == before
    world.append()


def test_broken_swap_that_landed_is_settled(world: World) -> None:
    world.pointers.swap_error = RuntimeError("connection reset")
    state = world.append()
    assert world.another().load_table(TABLE).metadata_location == state.metadata_location


def test_broken_swap_without_a_trace_is_unknown_and_keeps_its_file(world: World) -> None:
    world.pointers.swap_error, world.pointers.swap_lands = RuntimeError("reset"), False
    with pytest.raises(CommitUnknownError) as caught:
        world.append()
    assert caught.value.context["metadata_location"] in world.files()
    assert "snapshot_id" in caught.value.context


@pytest.mark.parametrize("landed", [True, False])
def test_broken_swap_of_a_group_is_settled_by_the_pointer_that_moved(
    world: World, landed: bool
) -> None:
    other = create(world.another(), ("shop", "items"))
    group = [TableCommit(each, append_updates(each.metadata)) for each in (world.base, other)]

    def break_(*_: object) -> NoReturn:
        if landed:
            MemoryPointers.swap_all(world.pointers, *_)
            world.another().drop_table(TABLE)  # which tells nothing any more
        else:
            world.append(other, world.another())
        raise RuntimeError("reset")

    world.pointers.swap_all = break_
    if landed:
        assert [len(each.metadata.snapshots) for each in world.catalog.commit_group(group)] == [
            1,
            1,
        ]
        return
    with pytest.raises(CommitConflictError):
        world.catalog.commit_group(group)
    assert len(world.files()) == 3


def test_broken_swap_of_a_group_without_a_trace_is_unknown(world: World) -> None:
    other = create(world.another(), ("shop", "items"))
    world.pointers.swap_error, world.pointers.swap_lands = RuntimeError("reset"), False
    group = [TableCommit(each, append_updates(each.metadata)) for each in (world.base, other)]
    with pytest.raises(CommitUnknownError) as caught:
        world.catalog.commit_group(group)
    assert len(world.files()) == 4
    assert caught.value.context["table"] == "shop.items, shop.orders"


def test_broken_swap_under_another_commit_is_a_definite_conflict(world: World) -> None:
    world.pointers.swap_lands = False

    def swap(identifier: tuple[str, ...], *, expected: str, new: str) -> bool:
        world.pointers.swap = MemoryPointers.swap.__get__(world.pointers)
        world.append(catalog=world.another())
        raise RuntimeError("reset")

    world.pointers.swap = swap
    with pytest.raises(CommitConflictError):
        world.append()
    assert len(world.files()) == 2


def test_landed_commit_is_found_under_many_others(world: World) -> None:
    def lose(_: str) -> None:
        state = world.another().load_table(TABLE)
        for _number in range(150):  # beyond the metadata log
            state = world.append(state, world.another())
        raise RuntimeError("reset")

    world.points.armed["catalog.after_swap"] = lose
    state = world.append()
    assert state.metadata.last_sequence_number == 1
    assert world.another().load_table(TABLE).metadata.last_sequence_number == 151


def test_landed_property_commit_is_found_in_the_metadata_log(world: World) -> None:
    def follow_and_lose(_: str) -> None:
        world.append(world.another().load_table(TABLE), world.another())
        raise RuntimeError("reset")

    world.points.armed["catalog.after_swap"] = follow_and_lose
    state = world.catalog.commit(world.base, [SetPropertiesUpdate(updates={"a": "b"})])
    seen = world.another().load_table(TABLE).metadata
    assert state.metadata_location in [entry.metadata_file for entry in seen.metadata_log]
    assert seen.properties["a"] == "b"


def test_trace_that_expired_leaves_the_outcome_unknown(world: World) -> None:
    update = SetPropertiesUpdate(updates={"write.metadata.previous-versions-max": "1"})
    base = world.catalog.commit(world.base, [update])
    world.pointers.swap_error = RuntimeError("reset")
    original = world.pointers.read

    def read(identifier: tuple[str, ...]) -> str | None:
        world.pointers.read = original
        other = world.another()
        state = other.load_table(TABLE)
        ours = state.metadata.current_snapshot_id
        state = world.append(world.append(state, other), other)
        other.commit(state, [RemoveSnapshotsUpdate(snapshot_ids=[ours])])
        return original(identifier)

    world.pointers.read = read
    with pytest.raises(CommitUnknownError):
        world.append(base)


def test_table_that_cannot_be_looked_at_is_unknown(world: World) -> None:
    world.pointers.swap_error = RuntimeError("reset")
    world.pointers.read_error = StoreUnavailableError("down")
    with pytest.raises(CommitUnknownError):
        world.append()


def test_interrupt_passes_and_nothing_is_cleaned_up(world: World) -> None:
    for point in ("before_swap", "after_swap"):

        def interrupt(_: str) -> None:
            raise KeyboardInterrupt

        world.points.armed[f"catalog.{point}"] = interrupt
        base = world.another().load_table(TABLE)
        before = len(world.files())
        with pytest.raises(KeyboardInterrupt):
            world.append(base)
        assert len(world.files()) == before + 1
        world.points.armed.clear()


def test_old_metadata_is_deleted_only_where_asked_for(world: World) -> None:
    limit = {"write.metadata.previous-versions-max": "2"}
    state = world.catalog.commit(world.base, [SetPropertiesUpdate(updates=limit)])
    for _ in range(4):
        state = world.append(state)
    assert len(world.files()) == 6
    asked = {"write.metadata.delete-after-commit.enabled": "true"}
    state = world.catalog.commit(state, [SetPropertiesUpdate(updates=asked)])
    state = world.append(state)
    kept = {entry.metadata_file for entry in state.metadata.metadata_log}
    assert len(kept) == 2
    assert kept | {state.metadata_location} <= world.files()
    gone = 7 + 1 - len(world.files())
    assert gone == 2, "one file per commit leaves the log from then on"


def test_failed_deletion_of_old_metadata_does_not_fail_the_commit(world: World) -> None:
    options = {
        "write.metadata.previous-versions-max": "1",
        "write.metadata.delete-after-commit.enabled": "true",
    }
    state = world.catalog.commit(world.base, [SetPropertiesUpdate(updates=options)])

    def fail(_: object) -> None:
        raise StoreUnavailableError("down")

    world.store.delete = fail
    world.append(state)


def test_load_survives_a_deletion_of_the_version_it_read(world: World) -> None:
    options = {
        "write.metadata.previous-versions-max": "1",
        "write.metadata.delete-after-commit.enabled": "true",
    }
    state = world.catalog.commit(world.base, [SetPropertiesUpdate(updates=options)])
    other = world.another()
    original = world.store.get
    moved: list[TableState] = []

    def get(location: str, **options: int) -> bytes:
        if not moved:
            moved.append(world.append(world.append(state)))
        return original(location, **options)

    world.store.get = get
    assert other.load_table(TABLE).metadata_location == moved[0].metadata_location


def test_lost_metadata_file_is_not_found(world: World) -> None:
    world.store.delete([world.base.metadata_location])
    with pytest.raises(NotFoundError):
        world.another().load_table(TABLE)


def test_known_metadata_is_not_read_again(world: World) -> None:
    state = world.append()
    calls: list[str] = []
    original = world.store.get
    world.store.get = lambda location, **options: calls.append(location) or original(location)
    assert world.catalog.load_table(TABLE) == state
    assert calls == []
    assert world.another().load_table(TABLE).metadata == state.metadata
    assert calls == [state.metadata_location]


def test_versions_of_many_tables_are_known_however_often_each_changes(world: World) -> None:
    names = [("shop", f"t{number}") for number in range(200)]
    states = {name: create(world.catalog, name) for name in names}
    for _ in range(9):
        states[names[0]] = world.append(states[names[0]])
    calls: list[str] = []
    original = world.store.get
    world.store.get = lambda location, **options: calls.append(location) or original(location)
    assert [world.catalog.load_table(name) for name in names] == list(states.values())
    assert calls == []


def test_foreign_metadata_name_starts_the_count_anew(world: World) -> None:
    odd = "memory://warehouse/shop/orders/metadata/some-name.json"
    world.store.put(odd, world.store.get(world.base.metadata_location))
    world.pointers.swap(TABLE, expected=world.base.metadata_location, new=odd)
    state = world.append(world.catalog.load_table(TABLE))
    assert "/00001-" in state.metadata_location
