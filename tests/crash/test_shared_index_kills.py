"""SIGKILL at every step of a resolve whose index is in shared storage.

The run after the kill is on another machine: it has no copy of anything but shared storage.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from resolver import resolve
from resolver.index.depot import IndexDepot
from resolver.shared_keeper import index_depot
from tests.crash.test_resolver_kills import NAME, History
from tests.support.crash_child import KILLED, lock_of, open_table, run_until_killed

BUILD_POINTS = [
    "index.build.shard", "index.build.before_current", "index.build.after_current",
    "resolve.after_match", "index.prepare.written",
]  # fmt: skip
POINTS = [
    "resolve.after_match", "commit.before_swap", "commit.after_swap", "resolve.after_publish",
    "index.prepare.written", "resolve.after_prepare", "index.apply.before", "index.apply.after",
    "resolve.after_apply",
]  # fmt: skip


class SharedHistory(History):
    @property
    def index_location(self):
        return location_of(self.warehouse)


def location_of(warehouse: str) -> str:
    return f"{warehouse}/indexes"


def run_on_machine(table, machine: str) -> str:
    warehouse = table.environment.catalog.properties["warehouse"].removeprefix("file://")
    os.environ["XDG_CACHE_HOME"] = str(Path(warehouse).parent / machine)
    location = location_of(warehouse)
    return resolve(table, lock=lock_of(table), index_location=location).index


def run_first(table):
    run_on_machine(table, "first")


def depot_of(history: SharedHistory) -> IndexDepot:
    table = history.table
    return index_depot(table.environment, history.index_location, table.state, "main")


@pytest.fixture
def history(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "second"))
    history = SharedHistory(tmp_path)
    history.stage([(1, "us", 1), (9, "eu", 1)], deletes=[2])
    history.stage([(1, "eu", 2), (3, "us", 2)], deletes=[9])
    return history


@pytest.mark.parametrize("point", BUILD_POINTS)
def test_resolve_killed_in_its_first_cycle_gives_the_same_table(history, point):
    assert run_until_killed(run_first, history.warehouse, NAME, point=point) == KILLED
    history.table.refresh()
    history.stage([(4, "us", 3)], deletes=[3])
    run_on_machine(open_table(history.warehouse, NAME), "second")
    history.check()


@pytest.mark.parametrize("point", POINTS)
def test_resolve_killed_with_an_index_is_followed_elsewhere(history, point):
    assert run_on_machine(open_table(history.warehouse, NAME), "second") == "built"
    history.table.refresh()
    history.stage([(key, "us", 7) for key in range(3, 9)], deletes=[1])  # enough for a split
    assert run_until_killed(run_first, history.warehouse, NAME, point=point) == KILLED
    depot = depot_of(history)
    is_split = len(depot.load(depot.newest_number()).shards) > 1
    assert is_split == (point in ("index.apply.after", "resolve.after_apply"))
    history.table.refresh()
    history.stage([(4, "us", 3)], deletes=[3])
    assert run_on_machine(open_table(history.warehouse, NAME), "second") in ("current", "followed")
    history.check()


def test_what_killed_cycles_leave_is_collected(history):
    run_on_machine(open_table(history.warehouse, NAME), "second")
    for point in ("index.prepare.written", "index.apply.before", "resolve.after_publish"):
        history.table.refresh()
        history.stage([(4, "us", 3)], deletes=[3])
        assert run_until_killed(run_first, history.warehouse, NAME, point=point) == KILLED
    run_on_machine(open_table(history.warehouse, NAME), "second")
    history.table.refresh()
    depot = depot_of(history)
    assert depot.collect_garbage(age_min_ms=0) > 0
    files = {
        info.location.rsplit("/", 1)[-1] for info in depot.store.list_prefix(f"{depot.root}/files")
    }
    newest = depot.newest_number()
    assert files == depot.load(newest).object_names() | depot.load(newest - 1).object_names()
    history.check()
