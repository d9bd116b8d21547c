"""The streaming job is killed with its JVM, the resolver goes on beside it: no state is ever wrong.

One run is `benchmarks.orders`: processes of their own, DuckDB reads and folds.
"""

import pytest

from benchmarks.orders import OrderRun

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def check(run):
    run.run()
    assert run.differences == []
    assert run.killed == run.kills
    assert 1 <= run.published <= run.batches
    assert run.live_rows > 0.1 * run.events


def test_every_published_state_is_the_fold_through_three_kills(tmp_path):
    check(OrderRun(folder=tmp_path, events=40_000, batches=10, kills=3, seed=3))


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("kills", "seed"), [(0, 1), (30, 2)])
def test_every_published_state_of_two_million_events_is_the_fold(tmp_path, kills, seed):
    check(OrderRun(folder=tmp_path, events=2_000_000, batches=40, kills=kills, seed=seed))


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_forty_thousand_events_in_forty_batches_are_the_fold(tmp_path):
    check(OrderRun(folder=tmp_path, events=40_000, batches=40, kills=0, before="full"))
