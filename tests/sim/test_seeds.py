"""A fixed number of seeds, the seeds that once failed, and what the simulator rests on."""

from collections import Counter

import pyarrow as pa
import pytest

from resolver import resolve
from tableformat.commit.expire import apply_expiry
from tableformat.commit.expiry_plan import ExpiryPolicy
from tests.support.goals import goal
from tests.support.memory_tables import memory_catalog
from tests.support.sim_run import SeedResult, run_seed

SEEDS = 288
SEEDS_OF_A_TEST = 12
STEPS = 1_200
# (seed, steps): expiry broke the chain that tells target snapshots from staged ones (31: an append
# of main was resolved as a staged change; 49: an idle staging branch stopped the resolver). A
# partition spec changed: deletes of one partition missed rows of the new spec (66, 377;
# unit/tableformat/write/test_stage.py, unit/resolver/test_moved_rows.py). Expiry cut the log that
# knew of an append rolled back (5000054; unit/resolver/test_cursor.py). 6006037: the oracle forgot
# what a dropped column held, by which a statement planned before the drop goes. 7012249: a flipped
# bit in a footer, and Arrow ended the process (unit/tableformat/codec/test_parquet_checksums.py).
# 8008513: the oracle did not know that a column of longs may be staged for one of ints if its
# values fit (test_model_of_types.py).
FAILED_ONCE = [
    (31, 2_000), (49, 2_000), (66, 1_000), (377, 1_000), (5_000_054, 1_000), (6_006_037, 1_000),
    (7_012_249, 1_000), (8_008_513, 1_000), (61_000_726, 1_000),
]  # fmt: skip


def counted(seed: int, steps: int) -> SeedResult:
    result = run_seed(seed, steps=steps)
    goal("G1", seeds=1, steps=result.steps)
    goal("G5", trials=result.faults["swap lost"] + result.faults["swap late"])
    goal("G6", seeds=int(result.profile.lock != "honest"))
    goal("G10", simulated=result.outcomes["statement ok"])
    goal("G18", seeds=1)
    return result


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1, SEEDS + 1, SEEDS_OF_A_TEST))
def test_seeds_hold_every_invariant(first):
    results = [counted(seed, STEPS) for seed in range(first, first + SEEDS_OF_A_TEST)]
    assert {result.seed: result.violation for result in results if result.violation} == {}
    assert sum(result.publishes for result in results) > 6


@pytest.mark.slow
@pytest.mark.parametrize("rewrites", [False, True], ids=["link", "rewrite"])
def test_seeds_in_which_writers_leave_columns_out_hold_every_invariant(rewrites):
    seeds = range(1, SEEDS_OF_A_TEST + 1)
    results = [run_seed(each, steps=STEPS, leaves_out=True, rewrites=rewrites) for each in seeds]
    assert {result.seed: result.violation for result in results if result.violation} == {}
    assert sum(result.publishes for result in results) > 6


@pytest.mark.slow
def test_seeds_of_v2_tables_hold_every_invariant():
    results = [run_seed(each, steps=STEPS, v2=True) for each in range(1, 2 * SEEDS_OF_A_TEST + 1)]
    assert {result.seed: result.violation for result in results if result.violation} == {}
    assert {result.profile.v2 for result in results} == {"partition", "file"}
    assert sum(result.publishes for result in results) > 12


@pytest.mark.slow
@pytest.mark.parametrize("v2", [False, True], ids=["v3", "v2"])
def test_seeds_in_which_a_tool_deletes_by_keys_on_main_hold_every_invariant(v2):
    seeds = range(1, SEEDS_OF_A_TEST + 1)
    results = [run_seed(each, steps=STEPS, in_place=True, v2=v2) for each in seeds]
    assert {result.seed: result.violation for result in results if result.violation} == {}
    assert sum(result.outcomes["upsert ok"] for result in results) > 60
    assert sum(result.publishes for result in results) > 12


@pytest.mark.slow
@pytest.mark.parametrize("rewrites", [False, True], ids=["link", "rewrite"])
def test_seeds_in_which_staging_is_dropped_and_moved_hold_every_invariant(rewrites):
    seeds = range(1, SEEDS_OF_A_TEST + 1)
    results = [run_seed(each, steps=STEPS, moves=True, rewrites=rewrites) for each in seeds]
    assert {result.seed: result.violation for result in results if result.violation} == {}
    assert sum(result.outcomes["staged and given up"] for result in results) > 30
    assert sum(result.publishes for result in results) > 12


@pytest.mark.parametrize(("seed", "steps"), FAILED_ONCE)
def test_seed_that_failed_once_holds_every_invariant(seed, steps):
    assert counted(seed, steps).violation is None


@pytest.mark.parametrize("seed", [5, 8])
def test_seed_run_twice_gives_the_same_log(seed):
    first, second = (run_seed(seed, steps=600) for _ in range(2))
    assert first.log_hash == second.log_hash
    assert first.outcomes == second.outcomes


SCHEMA = pa.schema([("id", pa.int64()), ("amount", pa.int64())])
EVERYTHING = ExpiryPolicy(max_snapshot_age_ms=0, min_snapshots_to_keep=1)


@pytest.fixture
def table(tmp_path):
    catalog = memory_catalog(str(tmp_path))
    return catalog.create_table("t.rows", SCHEMA, primary_key=["id"])


def rows(*pairs):
    return pa.table({"id": [p[0] for p in pairs], "amount": [p[1] for p in pairs]}, schema=SCHEMA)


def published(table):
    return Counter(tuple(row.values()) for row in table.scan().to_arrow().to_pylist())


@pytest.mark.parametrize("fork", ["after an append", "from nothing"])
@pytest.mark.parametrize("limit", [1, None])
def test_backlog_under_expiry_of_main_is_resolved_once_and_appends_are_no_part_of_it(
    table, fork, limit
):
    """Seed 31: the fork point's append was resolved as if it had been staged."""
    expected = Counter()
    if fork == "after an append":
        table.append(rows((1, 0)))
        expected[(1, 0)] = 1
    table.stage(upserts=rows((2, 10)))
    table.stage(upserts=rows((3, 11)))
    for amount in range(20, 24):
        table.append(rows((amount, amount)))
        expected[(amount, amount)] = 1
    apply_expiry(table.environment, table.identifier, EVERYTHING, fence=None)
    counts = [resolve(table, limit=limit).staged_snapshots for _ in range(3)]
    assert sum(counts) == 2
    assert published(table) == expected + Counter([(2, 10), (3, 11)])


def test_idle_staging_branch_under_expiry_of_main_does_not_stop_the_resolver(table):
    """Seed 49: the trimmed staging head is a publish that expiry has cut from main's history."""
    table.stage(upserts=rows((1, 10)))
    assert resolve(table).trimmed
    for amount in range(20, 24):
        table.append(rows((amount, amount)))
    report = apply_expiry(table.environment, table.identifier, EVERYTHING, fence=None)
    assert len(report.plan.snapshot_ids) >= 3  # an idle staging branch keeps nothing of main
    assert resolve(table).staged_snapshots == 0
    table.stage(upserts=rows((1, 11)))
    assert resolve(table).staged_snapshots == 1
    assert published(table)[(1, 11)] == 1
    assert published(table)[(1, 10)] == 0
