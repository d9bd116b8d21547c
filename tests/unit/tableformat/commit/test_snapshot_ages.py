"""Expiry of a table to which a clock has committed that was ahead: nobody waits until then."""

from __future__ import annotations

import pytest

from tableformat.commit.expiry_plan import ExpiryPolicy, plan_expiry
from tableformat.commit.snapshot_ages import dated_snapshots
from tableformat.spec.names import COMMITTED_MS, SNAPSHOTS_MAX
from tests.support.commit_tables import CommitTable

HOUR_MS = 3_600_000
DAY_MS, YEAR_MS = 24 * HOUR_MS, 365 * 24 * HOUR_MS
FIVE_DAYS = ExpiryPolicy(max_snapshot_age_ms=5 * DAY_MS)


class Table(CommitTable):
    def add(self, name: str, *, ahead_ms: int = 0, later_ms: int = DAY_MS) -> int:
        """A commit a day after the one before, by a clock that is so far ahead."""
        self.clock.wall_ms += later_ms + ahead_ms
        added = self.append(self.data(name)).snapshot.snapshot_id
        self.clock.wall_ms -= ahead_ms
        return added

    def expired(self, policy: ExpiryPolicy = FIVE_DAYS) -> tuple[int, ...]:
        metadata = self.state.metadata
        return plan_expiry(metadata, policy, now_ms=self.clock.now_ms()).snapshot_ids


@pytest.fixture
def table() -> Table:
    return Table()


@pytest.mark.parametrize("ahead_ms", [HOUR_MS, YEAR_MS])
def test_a_clock_that_was_ahead_does_not_keep_what_comes_after_it_young(table, ahead_ms):
    ids = [table.add("a"), table.add("b", ahead_ms=ahead_ms)]
    ids += [table.add(f"c{n}", later_ms=DAY_MS) for n in range(8)]
    times = {each.timestamp_ms for each in table.state.metadata.snapshots}
    assert len(times) == (2 if ahead_ms == YEAR_MS else 10)  # the table's time never goes back
    assert table.expired() == tuple(ids[:4])  # older than five days


def test_what_was_committed_by_that_clock_is_as_young_as_what_follows(table):
    table.add("a")
    ahead = table.add("b", ahead_ms=YEAR_MS)
    table.clock.advance(3 * DAY_MS)
    table.add("c")
    now_ms = table.clock.now_ms()
    dated = dated_snapshots(table.state.metadata, now_ms)
    assert dated[ahead].timestamp_ms == now_ms


def test_a_clock_that_is_behind_makes_nothing_old(table):
    """Neither a writer's on a table whose time is ahead, nor the one of whoever expires."""
    table.add("a")
    table.add("b", ahead_ms=YEAR_MS)
    table.add("c")
    late = table.add("d", ahead_ms=-10 * YEAR_MS)
    dated = dated_snapshots(table.state.metadata, table.clock.now_ms())
    assert dated[late].timestamp_ms == table.clock.now_ms() - DAY_MS  # its predecessor's
    assert table.expired() == ()
    table.clock.advance(-5 * YEAR_MS)
    assert table.expired() == ()


def test_a_commit_says_what_its_clock_shows_only_where_the_table_is_ahead(table):
    table.add("a")
    table.add("b", ahead_ms=30_000, later_ms=0)
    table.add("c", later_ms=0)
    table.add("d", ahead_ms=HOUR_MS, later_ms=0)
    table.add("e", later_ms=0)
    said = [each.summary[COMMITTED_MS] for each in table.state.metadata.snapshots]
    assert said == [None] * 4 + [str(table.clock.now_ms())]


def test_snapshots_of_one_time_are_counted():
    table = Table(properties={SNAPSHOTS_MAX: "3"})
    table.add("a", ahead_ms=YEAR_MS)
    ids = [table.add(f"b{n}", later_ms=0) for n in range(5)]
    assert table.expired(ExpiryPolicy()) == (
        table.state.metadata.snapshots[0].snapshot_id,
        *ids[:2],
    )
