"""Who rewrites groups in this process: side by side or in turn, and how others get their turn."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

import tableformat as tf
from lock import LeaseLostError
from maintenance.tasks.compaction import workers
from maintenance.tasks.compaction.plan import plan_groups
from maintenance.tasks.compaction.rewrite import rewrite_job
from maintenance.tasks.compaction.workers import POLL_MS, rewrite_here
from maintenance.tasks.options import CompactOptions
from tableformat.errors import CorruptDataError
from tableformat.scan.plan import plan_scan

SCHEMA = pa.schema([("id", pa.int64()), ("region", pa.string())])
GROUPS = 8
BOTH = pytest.mark.parametrize("concurrent_max", [1, 3], ids=["in turn", "side by side"])


class SteppingClock:
    """Each question takes `step_ms`."""

    def __init__(self, step_ms):
        self.step_ms = step_ms
        self.now_ms = 0.0

    def monotonic_ms(self):
        self.now_ms += self.step_ms
        return self.now_ms


@pytest.fixture
def table(tmp_path):
    catalog = tf.open_catalog("local", warehouse=str(tmp_path / "warehouse"))
    table = catalog.create_table("t.rows", SCHEMA, primary_key=["id"], partition_by=["region"])
    regions = [f"r{n}" for n in range(GROUPS)]
    for first in (0, 100):
        table.append(pa.table({"id": [first + n for n in range(GROUPS)], "region": regions}))
    return table


def jobs_of(table):
    state = table.refresh().state
    plan = plan_scan(table.environment, state, snapshot_id=state.head("main").snapshot_id)
    groups = plan_groups(plan, state.metadata, CompactOptions(rewrite_all=True))
    return [rewrite_job(plan, state.metadata, group, None) for group in groups]


def environment_of(table, step_ms=300.0):
    runtime = replace(table.environment.runtime, clock=SteppingClock(step_ms))
    return replace(table.environment, runtime=runtime)


def files_of(table):
    prefix = f"{table.state.metadata.location}/data"
    return {info.location for info in table.environment.store.list_prefix(prefix)}


@BOTH
def test_every_group_is_rewritten_once(table, concurrent_max):
    jobs = jobs_of(table)
    found = list(
        rewrite_here(
            environment_of(table), jobs, concurrent_max=concurrent_max, between=lambda: None
        )
    )
    assert sorted(each.ordinal for each in found) == list(range(GROUPS))
    for each in found:
        assert each.group.files[0].partition == jobs[each.ordinal].partition.values
        assert sum(file.record_count for file in each.group.files) == 2


@BOTH
def test_waiting_task_is_let_through_between_groups_that_are_each_short(table, concurrent_max):
    """399 groups of 25 ms each held up a resolver for ten seconds."""
    calls = []
    step_ms = POLL_MS / (4 if concurrent_max == 1 else 1)  # a group in turn asks three times
    list(
        rewrite_here(
            environment_of(table, step_ms),
            jobs_of(table),
            concurrent_max=concurrent_max,
            between=lambda: calls.append(1),
        )
    )
    assert calls


@BOTH
def test_group_that_cannot_be_read_fails_alone(table, concurrent_max, monkeypatch):
    jobs = jobs_of(table)
    real = workers.rewrite_group

    def fail_one(store, ids, job, **options):
        if job is jobs[2]:
            raise CorruptDataError("simulated")
        return real(store, ids, job, **options)

    monkeypatch.setattr(workers, "rewrite_group", fail_one)
    found = rewrite_here(
        environment_of(table), jobs, concurrent_max=concurrent_max, between=lambda: None
    )
    assert [each.ordinal for each in found if each.group is None] == [2]


@BOTH
def test_stop_ends_all_and_leaves_only_files_that_were_handed_out(table, concurrent_max):
    before = files_of(table)

    def stop():
        raise LeaseLostError("simulated")

    taken = set()
    with pytest.raises(LeaseLostError):  # noqa: PT012
        for each in rewrite_here(
            environment_of(table), jobs_of(table), concurrent_max=concurrent_max, between=stop
        ):
            taken |= {file.file_path for file in each.group.files}
    assert files_of(table) - before == taken


def test_consumer_that_ends_early_leaves_only_files_that_were_handed_out(table):
    before = files_of(table)
    results = rewrite_here(
        environment_of(table), jobs_of(table), concurrent_max=3, between=lambda: None
    )
    first = next(results)
    results.close()
    assert files_of(table) - before == {file.file_path for file in first.group.files}
