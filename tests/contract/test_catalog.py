"""What every catalog promises (catalog/base.py), run on each of them."""

from __future__ import annotations

import threading

import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import (
    RemovePropertiesUpdate,
    RemoveSnapshotRefUpdate,
    RemoveSnapshotsUpdate,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
)
from pyiceberg.transforms import BucketTransform

from tableformat.catalog.base import Catalog, TableState
from tableformat.errors import (
    AlreadyExistsError,
    CommitConflictError,
    CommitUnknownError,
    InvalidInputError,
    NotFoundError,
)
from tests.support.catalog_backends import Backend
from tests.support.table_metadata import SCHEMA, append_updates, create, set_ref

TABLE = ("shop", "orders")


# -- namespaces and tables


def test_new_namespace_brings_its_parents_and_may_exist(backend: Backend) -> None:
    catalog = backend.catalog()
    catalog.create_namespace(("a", "b"))
    catalog.create_namespace(("a", "b"))
    catalog.create_namespace(("c",))
    assert sorted(catalog.list_namespaces()) == [("a",), ("a", "b"), ("c",)]
    assert catalog.list_tables() == []


def test_only_an_empty_namespace_can_be_dropped(backend: Backend) -> None:
    catalog = backend.catalog()
    create(catalog, TABLE)
    catalog.create_namespace(("a", "b"))
    for full in (("shop",), ("a",)):
        with pytest.raises(InvalidInputError, match="tables or namespaces in the namespace"):
            catalog.drop_namespace(full)
    with pytest.raises(NotFoundError, match="namespace"):
        catalog.drop_namespace(("none",))
    catalog.drop_namespace(("a", "b"))
    catalog.drop_namespace(("a",))
    assert backend.catalog().list_namespaces() == [("shop",)]


def test_renamed_table_is_the_same_table(backend: Backend) -> None:
    made = create(backend.catalog(), TABLE)
    catalog = backend.catalog()
    catalog.create_namespace(("archive",))
    new = ("archive", "old_orders")
    catalog.rename_table(TABLE, new)
    assert backend.catalog().list_tables() == [new]
    moved = backend.catalog().load_table(new)
    assert moved.metadata.table_uuid == made.metadata.table_uuid
    assert moved.metadata.location == made.metadata.location
    with pytest.raises(NotFoundError):
        catalog.load_table(TABLE)
    done = catalog.commit(moved, append_updates(moved.metadata))
    assert backend.catalog().load_table(new).metadata == done.metadata


def test_commit_under_the_old_name_is_refused_after_a_rename(backend: Backend) -> None:
    made = create(backend.catalog(), TABLE)
    backend.catalog().rename_table(TABLE, ("shop", "renamed"))
    with pytest.raises((CommitConflictError, CommitUnknownError, NotFoundError)):
        backend.catalog().commit(made, append_updates(made.metadata))
    renamed = backend.catalog().load_table(("shop", "renamed"))
    assert renamed.metadata.snapshots == []


@pytest.mark.parametrize("new", [TABLE, ("shop", "taken")])
def test_rename_to_a_name_that_is_taken_is_refused(backend: Backend, new: tuple[str, ...]) -> None:
    made = create(backend.catalog(), TABLE)
    create(backend.catalog(), ("shop", "taken"))
    with pytest.raises(AlreadyExistsError):
        backend.catalog().rename_table(TABLE, new)
    assert backend.catalog().load_table(TABLE).metadata.table_uuid == made.metadata.table_uuid


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        (("shop", "none"), ("shop", "new"), NotFoundError),
        (TABLE, ("nowhere", "orders"), NotFoundError),
        (TABLE, ("shop", "a/b"), InvalidInputError),
        (TABLE, ("orders",), InvalidInputError),
    ],
)
def test_rename_that_cannot_be_right_is_refused(
    backend: Backend, old: tuple[str, ...], new: tuple[str, ...], error: type[Exception]
) -> None:
    create(backend.catalog(), TABLE)
    with pytest.raises(error):
        backend.catalog().rename_table(old, new)
    assert backend.catalog().list_tables() == [TABLE]


def test_created_table_is_an_empty_v3_table(backend: Backend) -> None:
    made = create(backend.catalog(), TABLE, owner="me")
    loaded = backend.catalog().load_table(TABLE)
    for state in (made, loaded):
        assert state.identifier == TABLE
        assert state.metadata.format_version == 3
        assert state.metadata.next_row_id == 0
        assert state.metadata.current_snapshot_id is None
        assert state.metadata.properties["owner"] == "me"
        assert state.metadata.schema().identifier_field_ids == [1]
        assert [field.name for field in state.metadata.schema().fields] == ["id", "name"]
    assert made.metadata_location == loaded.metadata_location
    assert made.metadata.table_uuid == loaded.metadata.table_uuid


def test_partition_spec_of_a_new_table_is_kept(backend: Backend) -> None:
    catalog = backend.catalog()
    catalog.create_namespace(("shop",))
    field = PartitionField(source_id=1, field_id=1000, transform=BucketTransform(4), name="b")
    state = catalog.create_table(
        TABLE,
        schema=SCHEMA,
        partition_spec=PartitionSpec(field),
        sort_order=UNSORTED_SORT_ORDER,
        location=None,
        properties={},
    )
    assert [one.name for one in state.metadata.spec().fields] == ["b"]


def test_second_table_of_a_name_is_refused(backend: Backend) -> None:
    first = create(backend.catalog(), TABLE)
    with pytest.raises(AlreadyExistsError):
        create(backend.catalog(), TABLE)
    assert backend.catalog().load_table(TABLE).metadata.table_uuid == first.metadata.table_uuid


def test_table_in_missing_namespace_is_not_found(backend: Backend) -> None:
    with pytest.raises(NotFoundError, match="namespace"):
        backend.catalog().create_table(
            TABLE,
            schema=SCHEMA,
            partition_spec=PartitionSpec(),
            sort_order=UNSORTED_SORT_ORDER,
            location=None,
            properties={},
        )


def test_table_outside_the_allowed_locations_is_refused(backend: Backend) -> None:
    catalog = backend.catalog()
    catalog.create_namespace(("shop",))
    with pytest.raises(InvalidInputError, match="outside"):
        catalog.create_table(
            TABLE,
            schema=SCHEMA,
            partition_spec=PartitionSpec(),
            sort_order=UNSORTED_SORT_ORDER,
            location=f"{backend.outside}/orders",
            properties={},
        )
    assert catalog.list_tables() == []


def test_missing_table_is_not_found(backend: Backend) -> None:
    catalog = backend.catalog()
    catalog.create_namespace(("shop",))
    with pytest.raises(NotFoundError):
        catalog.load_table(TABLE)
    with pytest.raises(NotFoundError):
        catalog.drop_table(TABLE)


@pytest.mark.parametrize("identifier", [("orders",), ("", "orders"), ("shop", "")])
def test_unusable_table_name_is_refused(backend: Backend, identifier: tuple[str, ...]) -> None:
    with pytest.raises(InvalidInputError):
        backend.catalog().load_table(identifier)


@pytest.mark.parametrize("name", ["../orders", "a/b", "a.b", " x", "x\n", "*", "%2e%2e"])
def test_new_name_that_could_mean_another_place_is_refused(backend: Backend, name: str) -> None:
    with pytest.raises(InvalidInputError):
        create(backend.catalog(), ("shop", name))


def test_tables_are_listed_by_namespace(backend: Backend) -> None:
    catalog = backend.catalog()
    for identifier in (("a", "t1"), ("a", "t2"), ("a", "b", "t3"), ("c", "t4")):
        create(catalog, identifier)
    assert sorted(catalog.list_tables(("a",))) == [("a", "t1"), ("a", "t2")]
    assert sorted(catalog.list_tables()) == [
        ("a", "b", "t3"),
        ("a", "t1"),
        ("a", "t2"),
        ("c", "t4"),
    ]


@pytest.mark.parametrize("missing", [("never",), ("a", "never"), ("never", "below")])
def test_namespace_that_is_missing_has_no_tables(
    backend: Backend, missing: tuple[str, ...]
) -> None:
    """A stream asks for the tables of the namespace that it will make with its first one."""
    catalog = backend.catalog()
    create(catalog, ("a", "t1"))
    assert catalog.list_tables(missing) == []


def test_metadata_locations_follow_commits_and_leave_missing_tables_out(backend: Backend) -> None:
    catalog = backend.catalog()
    before = create(catalog, TABLE)
    others = [("shop", f"other{number}") for number in range(20)]  # enough for one read of all
    for wanted in ([TABLE, others[0]], [TABLE, *others]):
        found = catalog.metadata_locations(wanted)
        if backend.kind == "rest":
            assert found is None
        else:
            assert found == {TABLE: before.metadata_location}
    after = catalog.commit(before, [SetPropertiesUpdate(updates={"a": "b"})])
    for wanted in ([TABLE], [TABLE, *others]):
        assert catalog.metadata_locations(wanted) in (None, {TABLE: after.metadata_location})


def test_dropped_table_is_gone_but_its_files_stay(backend: Backend) -> None:
    environment = backend.open()
    state = create(environment.catalog, TABLE)
    environment.catalog.drop_table(TABLE)
    assert environment.catalog.list_tables() == []
    assert environment.store.size_bytes(state.metadata_location) > 0
    again = create(environment.catalog, TABLE)
    assert again.metadata.table_uuid != state.metadata.table_uuid


# -- commits


def test_commit_is_seen_by_everyone(backend: Backend) -> None:
    catalog, other = backend.catalog(), backend.catalog()
    base = create(catalog, TABLE)
    other.load_table(TABLE)
    landed = catalog.commit(base, append_updates(base.metadata))
    seen = other.load_table(TABLE)
    assert seen.metadata.snapshots == landed.metadata.snapshots
    assert seen.metadata_location == landed.metadata_location != base.metadata_location
    assert (seen.metadata.last_sequence_number, seen.metadata.next_row_id) == (1, 10)
    assert [entry.metadata_file for entry in seen.metadata.metadata_log] == [base.metadata_location]


def test_returned_state_is_what_a_fresh_load_gives(backend: Backend) -> None:
    catalog = backend.catalog()
    state = create(catalog, TABLE)
    for _ in range(3):
        state = catalog.commit(state, append_updates(state.metadata))
    loaded = backend.catalog().load_table(TABLE)
    assert loaded.metadata == state.metadata


def test_commit_on_a_stale_base_is_a_conflict_that_changes_nothing(backend: Backend) -> None:
    environment = backend.open()
    catalog = environment.catalog
    base = create(catalog, TABLE)
    landed = catalog.commit(base, append_updates(base.metadata))
    files = {one.location for one in environment.store.list_prefix(base.metadata.location)}
    with pytest.raises(CommitConflictError) as caught:
        catalog.commit(base, append_updates(base.metadata))
    assert caught.value.files_safe_to_delete
    assert catalog.load_table(TABLE).metadata_location == landed.metadata_location
    assert {one.location for one in environment.store.list_prefix(base.metadata.location)} == files


def test_stale_commit_to_another_branch_is_a_conflict_too(backend: Backend) -> None:
    catalog = backend.catalog()
    base = create(catalog, TABLE)
    base = catalog.commit(base, append_updates(base.metadata))
    catalog.commit(base, append_updates(base.metadata))
    with pytest.raises(CommitConflictError):
        catalog.commit(base, append_updates(base.metadata, "staging"))


def test_commit_to_a_dropped_table_does_not_bring_it_back(backend: Backend) -> None:
    catalog = backend.catalog()
    base = create(catalog, TABLE)
    backend.catalog().drop_table(TABLE)
    with pytest.raises((CommitConflictError, NotFoundError)):
        catalog.commit(base, append_updates(base.metadata))
    assert catalog.list_tables() == []


def test_commit_to_a_table_dropped_and_made_again_is_a_conflict(backend: Backend) -> None:
    catalog = backend.catalog()
    base = create(catalog, TABLE)
    catalog.drop_table(TABLE)
    again = create(catalog, TABLE)
    with pytest.raises(CommitConflictError):
        catalog.commit(base, append_updates(base.metadata))
    assert catalog.load_table(TABLE).metadata_location == again.metadata_location


def test_branches_tags_properties_and_expiry_go_through_commits(backend: Backend) -> None:
    catalog = backend.catalog()
    state = create(catalog, TABLE, keep="1", drop="2")
    for _ in range(3):
        state = catalog.commit(state, append_updates(state.metadata))
    first, second, third = (one.snapshot_id for one in state.metadata.snapshots)
    state = catalog.commit(state, [set_ref(second, "audit"), set_ref(third, "v3", "tag")])
    state = catalog.commit(state, append_updates(state.metadata, "audit"))
    state = catalog.commit(
        state,
        [SetPropertiesUpdate(updates={"new": "3"}), RemovePropertiesUpdate(removals=["drop"])],
    )
    state = catalog.commit(state, [RemoveSnapshotsUpdate(snapshot_ids=[first])])
    state = catalog.commit(state, [RemoveSnapshotRefUpdate(ref_name="v3")])
    seen = backend.catalog().load_table(TABLE).metadata
    assert sorted(seen.refs) == ["audit", "main"]
    assert seen.refs["main"].snapshot_id == third
    assert first not in {one.snapshot_id for one in seen.snapshots}
    assert (seen.properties.get("keep"), seen.properties.get("new")) == ("1", "3")
    assert "drop" not in seen.properties
    assert seen.last_sequence_number == 4


def test_moving_main_back_is_a_commit(backend: Backend) -> None:
    catalog = backend.catalog()
    state = create(catalog, TABLE)
    for _ in range(2):
        state = catalog.commit(state, append_updates(state.metadata))
    first = state.metadata.snapshots[0].snapshot_id
    catalog.commit(state, [set_ref(first)])
    assert backend.catalog().load_table(TABLE).metadata.current_snapshot_id == first


def test_ref_retention_is_kept(backend: Backend) -> None:
    catalog = backend.catalog()
    state = create(catalog, TABLE)
    state = catalog.commit(state, append_updates(state.metadata))
    head = state.metadata.snapshots[0].snapshot_id
    ref = SetSnapshotRefUpdate(
        ref_name="kept",
        type="branch",
        snapshot_id=head,
        max_ref_age_ms=11,
        max_snapshot_age_ms=12,
        min_snapshots_to_keep=13,
    )
    catalog.commit(state, [ref])
    seen = backend.catalog().load_table(TABLE).metadata.refs["kept"]
    assert (seen.max_ref_age_ms, seen.max_snapshot_age_ms, seen.min_snapshots_to_keep) == (
        11,
        12,
        13,
    )


def test_racing_writers_each_land_exactly_once(backend: Backend) -> None:
    catalogs = [backend.catalog() for _ in range(4)]
    create(catalogs[0], TABLE)
    acknowledged: list[int] = []
    failures: list[BaseException] = []

    def write(number: int) -> None:
        try:
            for _ in range(5):
                acknowledged.append(_append_until_landed(catalogs[number], f"b{number % 2}"))
        except BaseException as error:
            failures.append(error)

    first = catalogs[0].load_table(TABLE)
    first = catalogs[0].commit(first, append_updates(first.metadata))
    head = first.metadata.current_snapshot_id
    catalogs[0].commit(first, [set_ref(head, "b0"), set_ref(head, "b1")])
    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    snapshots = backend.catalog().load_table(TABLE).metadata.snapshots
    assert sorted(one.snapshot_id for one in snapshots) == sorted([head, *acknowledged])
    assert sorted(one.sequence_number for one in snapshots) == list(range(1, 22))
    assert sorted(one.first_row_id for one in snapshots) == list(range(0, 210, 10))


def _append_until_landed(catalog: Catalog, branch: str) -> int:
    while True:
        base = catalog.load_table(TABLE)
        updates = append_updates(base.metadata, branch)
        try:
            catalog.commit(base, updates)
        except CommitConflictError:
            continue
        return updates[0].snapshot.snapshot_id


# -- answers that get lost


class Lost(Exception):
    """What a broken connection raises, as no one expects it."""


def _lose(_: str) -> None:
    raise Lost


def test_answer_lost_after_the_swap_is_settled_as_landed(backend: Backend) -> None:
    base = create(backend.catalog(), TABLE)
    updates = append_updates(base.metadata)
    landed = backend.open(after_swap=_lose).catalog.commit(base, updates)
    assert landed.metadata.current_snapshot_id == updates[0].snapshot.snapshot_id
    assert backend.catalog().load_table(TABLE).metadata_location == landed.metadata_location


def test_answer_lost_and_another_commit_on_top_is_settled_as_landed(backend: Backend) -> None:
    base = create(backend.catalog(), TABLE)
    updates = append_updates(base.metadata)

    def follow_and_lose(_: str) -> None:
        other = backend.catalog()
        state = other.load_table(TABLE)
        other.commit(state, append_updates(state.metadata))
        raise Lost

    backend.open(after_swap=follow_and_lose).catalog.commit(base, updates)
    snapshots = backend.catalog().load_table(TABLE).metadata.snapshots
    assert snapshots[0].snapshot_id == updates[0].snapshot.snapshot_id
    assert len(snapshots) == 2


@pytest.mark.parametrize("backend", ["memory", "sqlite", "postgres"], indirect=True)
def test_failure_before_the_swap_changes_nothing(backend: Backend) -> None:
    # With REST, metadata file and swap are both the server's: there is nothing between them here.
    environment = backend.open(before_swap=_lose)
    base = create(environment.catalog, TABLE)
    with pytest.raises(Lost):
        environment.catalog.commit(base, append_updates(base.metadata))
    assert backend.catalog().load_table(TABLE).metadata_location == base.metadata_location
    left = [one.location for one in environment.store.list_prefix(base.metadata.location)]
    assert left == [base.metadata_location]


def test_state_names_its_table(backend: Backend) -> None:
    state = create(backend.catalog(), TABLE)
    assert isinstance(state, TableState)
    assert state.name == "shop.orders"
