"""Whole commands while the catalog's server or the bucket misbehaves behind a proxy.

`python -m tests.support.faulty_histories FIRST COUNT` runs more seeds, and prints what was said.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.fault_proxy import Fault
from tests.support.faulty_histories import (
    MAKERS,
    Commands,
    History,
    World,
)

pytestmark = [pytest.mark.services, pytest.mark.slow, pytest.mark.interop]


@pytest.fixture
def commands(tmp_path: Path) -> Iterator[Commands]:
    runner = Commands(tmp_path)
    yield runner
    runner.close()


@pytest.fixture(params=[*MAKERS])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    made = MAKERS[request.param](tmp_path)
    yield made
    for proxy in made.proxies:
        proxy.refuse_connections()


@pytest.mark.parametrize(
    ("first", "count", "steps"), [(7, 1, 4), pytest.param(5000, 100, 7, marks=pytest.mark.long)]
)
@pytest.mark.timeout(7200)
def test_commands_say_what_they_did_and_clean_runs_make_it_right(
    world: World, commands: Commands, first: int, count: int, steps: int
) -> None:
    for seed in range(first, first + count):
        history = History(world, commands, seed)
        history.run(steps)
        assert not history.failures, "\n".join([*history.failures, *history.log])


@pytest.mark.parametrize("world", ["rest"], indirect=True)
def test_landed_commit_whose_repeated_request_is_refused_is_done_once(
    world: World, commands: Commands
) -> None:
    """The gateway repeats each commit, and what is asked next lags behind for a while."""
    history = History(world, commands, seed=1)
    history.begin()
    before = dict(history.main)
    world.proxy.faults[:] = [
        Fault("twice", "POST", r"/tables/[^/]+$", times=50),
        Fault("stale", "GET", r"/tables/[^/?]+(\?|$)", skip=2, times=2, back=0),
    ]
    statement = f"UPDATE {history.table} SET v = v + 1 WHERE id >= 0"
    ended = commands.run([*world.options(clean=False), "sql", statement, "--retries", "3"])
    world.proxy.faults.clear()
    assert ended.code == 0, ended
    assert history.rows() == {key: value + 1 for key, value in before.items()}
