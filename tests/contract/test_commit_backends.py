"""What the commit engine promises, on every catalog."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER

from tableformat.backend import open_backend
from tableformat.catalog.base import TableState
from tableformat.commit.changeset import Changeset, CommitKind, Validation
from tableformat.commit.cherry_pick import cherry_pick
from tableformat.commit.engine import commit
from tableformat.commit.evolution import update_properties, update_schema, upgrade_format_version
from tableformat.commit.expire import apply_expiry
from tableformat.commit.expiry_plan import ExpiryPolicy
from tableformat.commit.refs import create_tag, drop_ref, fast_forward, replace_branch, rollback
from tableformat.commit.retention import STAGING_RETENTION, retention_of
from tableformat.environment import Environment
from tableformat.errors import CommitConflictError
from tableformat.runtime import Runtime
from tests.support.commit_tables import IDENTIFIER, SCHEMA, CommitTable
from tests.support.memory_catalog import MemoryCatalog, MemoryPointers
from tests.support.memory_store import MemoryObjectStore
from tests.support.table_checker import check_table

# Enough for a writer that loses to every commit of the others.
RETRIES = {"commit.retry.min-wait-ms": "1", "commit.retry.num-retries": "100"}


class BackendTable(CommitTable):
    """`CommitTable` on a catalog of choice."""

    def __init__(self, environment: Environment, properties: dict[str, str]) -> None:
        self.runtime = environment.runtime
        self.prepare(environment, properties)

    def check(self) -> None:
        check_table(self.store.get, self.state.metadata_location)


@pytest.fixture(params=["memory", "sqlite", "postgres", "rest"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BackendTable]:
    options: dict[str, Any] = {"warehouse": f"file://{tmp_path}/wh"}
    name = "local"
    if request.param == "memory":
        store = MemoryObjectStore()
        environment = Environment(MemoryCatalog(store, pointers=MemoryPointers()), store, Runtime())
        yield BackendTable(environment, RETRIES)
        return
    if request.param == "postgres":
        from tests.support.postgres import postgres_server

        name, options["uri"] = tmp_path.name, postgres_server().url()
    elif request.param == "rest":
        from tests.support.rest_catalog import rest_server

        server = rest_server()
        name = "rest"
        options = {"type": "rest", "uri": server.uri, "warehouse": server.warehouse}
    yield BackendTable(open_backend(name, options), RETRIES)


def test_row_delta_on_a_missing_branch_of_an_empty_table(table: BackendTable) -> None:
    table.append(table.data("s"), branch="staging")
    table.row_delta(data=[table.data("t")], deletes=[table.equality_delete("e")], branch="staging")
    assert set(table.live("staging")) == {"s", "t", "e-eq"}
    assert table.head("main") is None
    table.append(table.data("x"))
    table.append(table.data("a"), branch="audit")
    assert set(table.live("audit")) == {"x", "a"}
    table.check()


def test_v2_table_is_committed_to_by_its_own_rules_and_upgraded(table: BackendTable) -> None:
    """What Java's own server checks, too: no row ids, and no deletion vectors."""
    environment, location = table.environment, table.state.metadata.location
    environment.catalog.drop_table(IDENTIFIER)
    state = environment.catalog.create_table(
        IDENTIFIER,
        schema=SCHEMA,
        partition_spec=UNPARTITIONED_PARTITION_SPEC,
        sort_order=UNSORTED_SORT_ORDER,
        location=f"{location}-v2",
        properties={"format-version": "2"},
    )
    assert state.metadata.format_version == 2
    x, y = table.data("x"), table.data("y")
    start = table.append(x, y).snapshot.snapshot_id
    deletes = replace(
        table.vector(x, "p"),
        file_format="PARQUET",
        content_offset=None,
        content_size_in_bytes=None,
    )
    deleted = table.row_delta(deletes=[deletes], start=start).snapshot
    assert deleted.first_row_id is None
    table.append(table.data("z"), branch="staging")
    table.check()
    rollback(environment, IDENTIFIER, snapshot_id=start)
    assert set(table.live("main")) == {"x", "y"}
    assert upgrade_format_version(environment, IDENTIFIER).metadata.format_version == 3
    table.append(table.data("w"))
    table.check()


def test_vectors_are_replaced_and_leave_with_their_file(table: BackendTable) -> None:
    x, y = table.data("x"), table.data("y")
    start = table.append(x, y).snapshot.snapshot_id
    old = table.vector(x, "p")
    start = table.row_delta(deletes=[old], start=start).snapshot.snapshot_id
    new = table.vector(x, "q", cardinality=2)
    start = table.row_delta(deletes=[new], removed=[table.entry(old)], start=start).snapshot
    with pytest.raises(CommitConflictError):
        table.row_delta(deletes=[table.vector(x, "r")], start=start.snapshot_id)
    table.commit(Changeset(kind=CommitKind.DELETE, removed_entries=(table.entry(x),)))
    assert set(table.live()) == {"y"}
    table.check()


def test_stale_plan_is_validated_against_what_landed(table: BackendTable) -> None:
    x = table.data("x")
    start = table.append(x).snapshot.snapshot_id
    entry = table.entry(x)
    table.row_delta(deletes=[table.vector(x, "theirs")], start=start)
    with pytest.raises(CommitConflictError, match="checks=F"):
        table.commit(
            Changeset(
                kind=CommitKind.REWRITE,
                removed_entries=(entry,),
                added_data_files=(table.data("y"),),
                validation=Validation(starting_snapshot_id=start),
            )
        )


def test_strict_head_is_a_compare_and_swap(table: BackendTable) -> None:
    planned = table.append(table.data("x")).snapshot.snapshot_id
    table.append(table.data("y"), expected_head=planned, strict_head=True)
    with pytest.raises(CommitConflictError, match="has moved"):
        table.append(table.data("z"), expected_head=planned, strict_head=True)


def test_refs_are_created_moved_and_dropped(table: BackendTable) -> None:
    environment = table.environment
    one = table.append(table.data("x")).snapshot.snapshot_id
    two = table.append(table.data("y")).snapshot.snapshot_id
    create_tag(environment, IDENTIFIER, "t", snapshot_id=one)
    staged = table.append(table.data("s"), branch="staging").snapshot.snapshot_id
    fast_forward(environment, IDENTIFIER, "main", to="staging", expected_head=two)
    assert table.head() == staged
    rollback(environment, IDENTIFIER, snapshot_id=one)
    replace_branch(environment, IDENTIFIER, "staging", to="main", expected_head=staged)
    assert table.head("staging") == table.head() == one
    drop_ref(environment, IDENTIFIER, "t")
    assert table.state.ref("t") is None
    picked = cherry_pick(environment, IDENTIFIER, snapshot_id=staged).snapshot
    assert picked.parent_snapshot_id == one
    assert set(table.live()) == {"x", "s"}
    table.check()


def test_schema_and_properties_evolve_between_commits(table: BackendTable) -> None:
    from pyiceberg.types import LongType

    table.append(table.data("x"))
    state = update_schema(
        table.environment, IDENTIFIER, lambda s: s.add_column("n", LongType(), default_value=7)
    )
    assert state.metadata.schema().find_field("n").initial_default == 7
    update_properties(table.environment, IDENTIFIER, updates={"a": "1"})
    snapshot = table.append(table.data("y")).snapshot
    assert snapshot.schema_id == state.metadata.current_schema_id
    assert table.state.metadata.properties["a"] == "1"
    table.check()


def test_expired_snapshots_take_their_files_along(table: BackendTable) -> None:
    x, y = table.data("x"), table.data("y")
    for file in (x, y):
        table.store.put(file.file_path, b"x" * file.file_size_in_bytes)
    table.append(x)
    table.commit(Changeset(kind=CommitKind.DELETE, removed_entries=(table.entry(x),)))
    table.append(y)
    table.clock_tick()
    policy = ExpiryPolicy(max_snapshot_age_ms=0)
    report = apply_expiry(table.environment, IDENTIFIER, policy, fence=None)
    assert (len(report.plan.snapshot_ids), report.data_files) == (2, 1)
    assert table.store.size_bytes(y.file_path) == y.file_size_in_bytes
    table.check()


def test_concurrent_commits_to_three_branches_all_land(table: BackendTable) -> None:
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for count in range(5):
                name = f"t{number}-{count}"
                table.append(table.data(name), branch=["main", "staging", "audit"][number % 3])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert table.state.metadata.last_sequence_number == 20
    assert len(table.state.metadata.snapshots) == 20
    table.check()


def test_staging_branch_keeps_its_retention_on_every_backend(table):
    table.append(table.data("x"))
    for name in ("s1", "s2"):
        table.append(table.data(name), branch="staging")
        found = table.catalog.load_table(IDENTIFIER).ref("staging")
        assert retention_of(found) == STAGING_RETENTION


def test_branch_that_a_change_was_made_from_is_looked_at_again_where_it_was_moved(
    table: BackendTable,
) -> None:
    """A move adds no snapshot: a server that compares refs only has to be told of the branch."""
    main = table.append(table.data("x")).snapshot.snapshot_id
    staged = table.append(table.data("s"), branch="staging").snapshot.snapshot_id
    seen: list[int | None] = []
    points = table.runtime.fail_points

    def move(_: str) -> None:
        points.armed.clear()
        replace_branch(table.environment, IDENTIFIER, "staging", to="main", expected_head=staged)

    def check(state: TableState) -> None:
        seen.append(state.head_id("staging"))
        if state.head_id("staging") != staged:
            raise CommitConflictError("it was moved")

    points.armed["commit.before_swap"] = move
    change = Changeset(
        kind=CommitKind.APPEND,
        added_data_files=(table.data("y"),),
        expected_head=main,
        strict_head=True,
        source="staging",
    )
    with pytest.raises(CommitConflictError, match="it was moved"):
        commit(table.environment, IDENTIFIER, change, state=table.state, check=check)
    assert seen == [staged, main]
    assert set(table.live()) == {"x"}
    table.check()
