"""Every schedule of a few actors (G3), and some of the very many of more.

Whole scopes are searched to their end; of the others as much as a test run has time for.
`scripts/test -m long tests/sim/test_small_scope.py` searches all of them whole.
"""

from __future__ import annotations

import logging

import pytest

from tests.support.goals import goal
from tests.support.sim_search import Scope, search

WRITE, SWEEP, RESOLVE, COMPACT = "upsert", "delete", "resolve", "compact"
WHOLE = {
    "resolver and append": Scope(actors={"resolver": RESOLVE, "other": "append"}),
    "writer and resolver": Scope(actors={"writer": WRITE, "resolver": RESOLVE}),
    "resolver and zombie": Scope(actors={"resolver": RESOLVE, "zombie": RESOLVE}),
    "resolver and compaction": Scope(actors={"resolver": RESOLVE, "compactor": COMPACT}),
}
LARGE = {
    "writer and resolver, a death": Scope(actors={"writer": WRITE, "resolver": RESOLVE}, deaths=1),
    "four actors": Scope(
        actors={"first": WRITE, "second": SWEEP, "resolver": RESOLVE, "compactor": COMPACT},
        deaths=1,
    ),
    "four actors, partitioned": Scope(
        actors={"first": WRITE, "second": SWEEP, "resolver": RESOLVE, "compactor": COMPACT},
        deaths=1,
        partition_by=("region",),
    ),
    "resolver, zombie and compaction": Scope(
        actors={"resolver": RESOLVE, "zombie": RESOLVE, "compactor": COMPACT}, deaths=1
    ),
    "expiry": Scope(
        actors={"writer": WRITE, "resolver": RESOLVE, "expirer": "expire", "other": "append"},
        deaths=1,
    ),
}
RUNS = 20  # of each large scope; some 10 a second


@pytest.fixture(autouse=True)
def quiet():
    logging.disable(logging.WARNING)  # rebuilt indexes and the like are what deaths are for
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("name", WHOLE)
def test_every_schedule_holds_every_invariant(name: str) -> None:
    found = search(WHOLE[name], runs_max=2_000)
    assert found.violation is None
    assert found.is_whole
    goal("G3", states=found.states, depth=found.depth)


@pytest.mark.parametrize("name", LARGE)
def test_some_schedules_of_a_large_scope_hold_every_invariant(name: str) -> None:
    found = search(LARGE[name], runs_max=RUNS)
    assert found.violation is None
    goal("G3", states=found.states, depth=found.depth)


@pytest.mark.long
@pytest.mark.timeout(14_400)
@pytest.mark.parametrize("name", LARGE)
def test_every_schedule_of_a_large_scope_holds_every_invariant(name: str) -> None:
    found = search(LARGE[name], runs_max=1_000_000)
    assert found.violation is None
    assert found.is_whole
    goal("G3", states=found.states, depth=found.depth)
