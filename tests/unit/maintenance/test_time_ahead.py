"""A table to which a clock that was a year ahead has committed: its figures are those of now."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa

import tableformat as tf
from maintenance.run_history import Ledger
from maintenance.settings import MaintainConfig, TaskName
from maintenance.table_figures import figures_of
from maintenance.triggers import plan_table
from resolver import resolve
from tableformat.runtime import Runtime, SystemClock
from tests.support.skewed_clock import SkewedClock

MINUTE_MS = 60_000
YEAR_MS = 365 * 24 * 60 * MINUTE_MS
SETTINGS = MaintainConfig({"resolve.min-interval-ms": MINUTE_MS, "resolve.age-ms": MINUTE_MS})


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64())})


def test_figures_and_pauses_of_a_table_whose_time_is_ahead_are_those_of_now(tmp_path: Path) -> None:
    catalog = tf.open_catalog("local", warehouse=str(tmp_path))
    table = catalog.create_table("t.rows", rows(1).schema, primary_key=["id"])
    ahead = replace(table.environment, runtime=Runtime(clock=SkewedClock(YEAR_MS)))
    tf.Table(ahead, table.state).append(rows(1))
    table.refresh().stage(upserts=rows(2))
    now_ms = SystemClock().now_ms()
    assert table.refresh().state.metadata.last_updated_ms > now_ms + YEAR_MS // 2

    def figures():
        return figures_of(table.refresh().state, Ledger(), staging="staging", target="main")

    def is_due() -> bool:
        plan = plan_table(figures(), Ledger(), SETTINGS, now_ms=now_ms)
        return TaskName.RESOLVE in [each.task for each in plan.due]

    assert abs(figures().backlog.oldest_ms - now_ms) < MINUTE_MS
    assert not is_due()  # it waits for its age, as always
    assert resolve(table.refresh()).freshness_ms < MINUTE_MS
    assert abs(figures().published_ms - now_ms) < MINUTE_MS
    table.stage(upserts=rows(*range(3, 9)))
    for key in range(30):
        table.refresh().stage(upserts=rows(key))
    assert not is_due()  # many wait, and the pause is kept
