"""What every catalog that commits groups promises (catalog/base.py: `commit_group`)."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from pyiceberg.table.update import SetPropertiesUpdate

from tableformat.catalog.base import TableCommit, TableState
from tableformat.commit.changeset import Changeset, CommitKind
from tableformat.commit.engine import TableChangeset, commit, commit_group
from tableformat.environment import Environment
from tableformat.errors import CommitConflictError, CommitUnknownError, StoreUnavailableError
from tests.support.catalog_backends import Backend
from tests.support.table_metadata import append_updates, create

NAMES = [("shop", "orders"), ("shop", "items"), ("bank", "accounts")]


def tables(environment: Environment) -> list[TableState]:
    return [create(environment.catalog, each) for each in NAMES]


def appends(states: list[TableState]) -> list[TableCommit]:
    return [TableCommit(each, append_updates(each.metadata)) for each in states]


def locations(backend: Backend) -> list[str]:
    catalog = backend.catalog()
    return [catalog.load_table(each).metadata_location for each in NAMES]


def fail(error: Exception) -> Callable[[str], None]:
    def strike(_: str) -> None:
        raise error

    return strike


def test_group_changes_all_tables_and_answers_in_its_order(backend: Backend) -> None:
    catalog = backend.catalog()
    assert catalog.commits_groups
    landed = catalog.commit_group(appends(tables(backend.open())))
    assert [each.identifier for each in landed] == NAMES
    assert [each.metadata_location for each in landed] == locations(backend)
    assert [len(each.metadata.snapshots) for each in landed] == [1, 1, 1]
    [again] = catalog.commit_group(appends(landed[:1]))
    assert len(again.metadata.snapshots) == 2


@pytest.mark.parametrize("stale", [0, 1, 2])
def test_group_with_one_stale_base_changes_nothing(backend: Backend, stale: int) -> None:
    environment = backend.open()
    catalog = environment.catalog
    bases = tables(environment)
    catalog.commit(bases[stale], append_updates(bases[stale].metadata))
    before = locations(backend)
    files = {one.location for base in bases for one in files_of(environment, base)}
    with pytest.raises(CommitConflictError) as caught:
        catalog.commit_group(appends(bases))
    assert caught.value.files_safe_to_delete
    assert locations(backend) == before
    assert {one.location for base in bases for one in files_of(environment, base)} == files


def files_of(environment: Environment, base: TableState):
    return environment.store.list_prefix(base.metadata.location)


def test_table_without_a_change_is_left_alone(backend: Backend) -> None:
    catalog = backend.catalog()
    bases = tables(backend.open())
    landed = catalog.commit_group([TableCommit(bases[0], []), *appends(bases[1:])])
    assert landed[0].metadata_location == bases[0].metadata_location == locations(backend)[0]
    assert [len(each.metadata.snapshots) for each in landed] == [0, 1, 1]


def test_trouble_before_the_swap_changes_nothing(backend: Backend) -> None:
    bases = tables(backend.open())
    broken = backend.open(before_swap=fail(StoreUnavailableError("down")))
    with pytest.raises(StoreUnavailableError):
        broken.catalog.commit_group(appends(bases))
    assert locations(backend) == [each.metadata_location for each in bases]


def test_lost_answer_of_a_group_that_landed_is_found(backend: Backend) -> None:
    bases = tables(backend.open())
    broken = backend.open(after_swap=fail(RuntimeError("reset")))
    landed = broken.catalog.commit_group(appends(bases))
    assert [each.metadata_location for each in landed] == locations(backend)


def test_lost_answer_is_told_by_one_table_while_others_have_moved_on(backend: Backend) -> None:
    bases = tables(backend.open())

    def follow(_: str) -> None:
        catalog = backend.catalog()
        for each in NAMES[:2]:  # properties only: the log of metadata files tells
            catalog.commit(catalog.load_table(each), [SetPropertiesUpdate(updates={"a": "b"})])
        raise RuntimeError("reset")

    broken = backend.open(after_swap=follow)
    landed = broken.catalog.commit_group(appends(bases))
    assert [len(each.metadata.snapshots) for each in landed] == [1, 1, 1]


def test_groups_that_name_tables_in_other_orders_neither_wait_for_each_other_nor_get_lost(
    backend: Backend,
) -> None:
    bases = tables(backend.open())
    failures: list[BaseException] = []

    def work(names: list[tuple[str, ...]], catalog) -> None:
        try:
            for _ in range(4):
                _append_until_landed(catalog, names)
        except BaseException as error:
            failures.append(error)

    orders = [NAMES, NAMES[::-1], [NAMES[2], NAMES[0]]]
    threads = [threading.Thread(target=work, args=(each, backend.catalog())) for each in orders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert failures == []
    loaded = [backend.catalog().load_table(each.identifier) for each in bases]
    # Apache's fixture of a REST server commits the tables of a transaction one by one.
    wanted = [4 * sum(each in order for order in orders) for each in NAMES]
    found = [len(each.metadata.snapshots) for each in loaded]
    assert found == wanted or backend.kind == "rest"


def _append_until_landed(catalog, names: list[tuple[str, ...]]) -> None:
    while True:
        try:
            catalog.commit_group(appends([catalog.load_table(each) for each in names]))
        except (CommitConflictError, CommitUnknownError):
            continue
        return


# -- the engine


def changesets(states: list[TableState], **options) -> list[TableChangeset]:
    changeset = Changeset(kind=CommitKind.DELETE, **options)  # an empty snapshot
    return [
        TableChangeset(identifier=each.identifier, changeset=changeset, state=each)
        for each in states
    ]


def test_only_the_table_that_others_changed_is_prepared_again(backend: Backend) -> None:
    environment = backend.open()
    bases = [each.state for each in commit_group(environment, changesets(tables(environment)))]
    points = environment.runtime.fail_points.armed

    def commit_of_another(_name: str) -> None:
        del points["commit.before_swap"]
        commit(backend.open(), NAMES[1], Changeset(kind=CommitKind.DELETE, branch="staging"))
        lists.clear()

    points["commit.before_swap"] = commit_of_another
    lists: list[str] = []
    put = environment.store.put

    def watch(location: str, data) -> None:
        if "/snap-" in location:
            lists.append(location)
        put(location, data)

    environment.store.put = watch
    results = commit_group(environment, changesets(bases))
    assert [each.attempts for each in results] == [2, 2, 2]
    assert len(lists) == 1
    assert [each.state.head("main").snapshot_id for each in results] == [
        each.snapshot.snapshot_id for each in results
    ]


def test_group_looks_again_before_it_begins_where_that_is_cheap(backend: Backend) -> None:
    environment = backend.open()
    bases = [each.state for each in commit_group(environment, changesets(tables(environment)))]
    commit(backend.open(), NAMES[1], Changeset(kind=CommitKind.DELETE, branch="staging"))
    is_cheap = environment.catalog.metadata_locations(NAMES) is not None
    results = commit_group(environment, changesets(bases))
    assert {each.attempts for each in results} == {1 if is_cheap else 2}


def test_table_whose_head_moved_is_named_and_nothing_lands(backend: Backend) -> None:
    environment = backend.open()
    bases = tables(environment)
    commit(backend.open(), NAMES[2], Changeset(kind=CommitKind.DELETE))
    before = locations(backend)
    with pytest.raises(CommitConflictError) as caught:
        commit_group(environment, changesets(bases, strict_head=True, expected_head=None))
    assert caught.value.context["table"] == "bank.accounts"
    assert caught.value.files_safe_to_delete
    assert locations(backend) == before
