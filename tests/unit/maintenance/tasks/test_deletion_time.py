"""Tasks of a machine whose clock is ahead of the store's: nothing is old before its time (I21)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

import tableformat as tf
from maintenance.tasks.expire import expire
from maintenance.tasks.options import ExpireOptions, RemoveOrphansOptions
from maintenance.tasks.remove_orphans import remove_orphans
from tableformat.commit.expiry_plan import ExpiryPolicy
from tableformat.environment import Environment
from tableformat.errors import AccessRefusedError
from tableformat.runtime import Runtime
from tests.support.skewed_clock import SkewedClock

HOUR_MS = 3_600_000
YEAR_MS = 365 * 24 * HOUR_MS
NAME = "t.rows"


def ahead(environment: Environment) -> Environment:
    return replace(environment, runtime=Runtime(clock=SkewedClock(YEAR_MS)))


@pytest.fixture
def table(tmp_path: Path) -> tf.Table:
    catalog = tf.open_catalog("local", warehouse=str(tmp_path / "warehouse"))
    schema = pa.schema([("id", pa.int64())])
    table = catalog.create_table(NAME, schema, primary_key=["id"])
    for key in range(3):
        table.append(pa.table({"id": pa.array([key], pa.int64())}))
    return table


@pytest.fixture
def by_wrong_clock(table: tf.Table) -> tf.Table:
    return tf.Table(ahead(table.environment), table.state)


def files(table: tf.Table) -> set[Path]:
    root = Path(table.state.metadata.location.removeprefix("file://"))
    return {path for path in root.rglob("*") if path.is_file()}


def test_history_does_not_expire_by_a_clock_that_is_ahead(table, by_wrong_clock):
    before = files(table)
    assert expire(by_wrong_clock, ExpireOptions()).snapshots == ()
    assert files(table) == before  # what asked for the store's time has gone, too
    at_once = ExpireOptions(policy=ExpiryPolicy(max_snapshot_age_ms=0))
    assert len(expire(by_wrong_clock, at_once).snapshots) == 2


def test_files_are_no_orphans_by_a_clock_that_is_ahead(table, by_wrong_clock):
    under_way = next(iter(files(table))).parent.parent / "data/under-way.parquet"
    under_way.write_bytes(b"of a writer that has not committed yet")
    options = RemoveOrphansOptions(older_than_ms=HOUR_MS)
    report = remove_orphans(by_wrong_clock, options)
    assert (report.removed_files, report.young_files) == (0, 1)
    assert under_way.exists()


def test_dry_run_writes_nothing(table, by_wrong_clock):
    before = files(table)
    assert len(expire(by_wrong_clock, ExpireOptions(), dry_run=True).snapshots) == 2
    assert files(table) == before
    assert not (next(iter(before)).parent.parent / "metadata/clock").exists()


def test_who_may_not_list_expires_by_its_own_clock(table, by_wrong_clock, monkeypatch):
    def refused(*_):
        raise AccessRefusedError("listing is not allowed")

    monkeypatch.setattr(type(table.environment.store), "list_prefix", refused)
    assert len(expire(by_wrong_clock, ExpireOptions()).snapshots) == 2
