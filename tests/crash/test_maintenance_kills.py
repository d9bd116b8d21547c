"""SIGKILL at the fail points of every maintenance task: nothing is lost, running it again works.

After each kill: rows with their row ids as before, a structure that a foreign checker accepts,
every reachable file there; after the next run the task is done, and orphan removal finds exactly
what the dead process left.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

import tableformat as tf
from maintenance.tasks.compact import compact
from maintenance.tasks.drop_dead_deletes import drop_dead_deletes
from maintenance.tasks.expire import expire
from maintenance.tasks.options import (
    CompactOptions,
    ExpireOptions,
    RemoveOrphansOptions,
    RewriteManifestsOptions,
    RewriteVectorsOptions,
)
from maintenance.tasks.remove_orphans import remove_orphans
from maintenance.tasks.rewrite_manifests import rewrite_manifests
from maintenance.tasks.rewrite_vectors import rewrite_vectors
from resolver import resolve
from resolver.index_check import verify
from tableformat.commit.expiry_plan import ExpiryPolicy
from tests.support.crash_child import KILLED, lock_of, open_table, run_until_killed
from tests.support.reachable import reachable_locations
from tests.support.staging_ledger import check_exactly_once, markers
from tests.support.table_checker import check_table

SCHEMA = pa.schema([("id", pa.int64()), ("region", pa.string())])
LINEAGE = ["_row_id", "_last_updated_sequence_number"]
FORMATS = {
    "v2-partition": {"format-version": "2"},
    "v2-file": {"format-version": "2", "write.delete.granularity": "file"},
    "v3": {},
}
NAME = "t.rows"
COMMIT_POINTS = [
    "commit.before_manifest_put", "commit.before_list_put", "commit.before_swap",
    "catalog.before_swap", "catalog.after_swap", "commit.after_swap",
]  # fmt: skip
OLD = RemoveOrphansOptions(older_than_ms=3_600_000)


def run_compact(table):
    return compact(table, CompactOptions(rewrite_all=True), lock=lock_of(table))


def run_compact_in_parts(table):
    options = CompactOptions(
        rewrite_all=True, partial_progress=True, partial_progress_commits_max=2
    )
    return compact(table, options, lock=lock_of(table))


def run_manifests(table):
    return rewrite_manifests(table, RewriteManifestsOptions(rewrite_all=True), lock=lock_of(table))


def run_vectors(table):
    return rewrite_vectors(table, RewriteVectorsOptions(rewrite_all=True), lock=lock_of(table))


def run_drop(table):
    return drop_dead_deletes(table, lock=lock_of(table))


def run_upgrade(table):
    return table.upgrade()


def run_expire(table):
    policy = ExpiryPolicy(max_snapshot_age_ms=0, min_snapshots_to_keep=1)
    return expire(table, ExpireOptions(policy=policy), lock=lock_of(table))


def run_orphans(table):
    return remove_orphans(table, OLD, lock=lock_of(table))


CASES = [
    *[(run_compact, point) for point in (
        "lock.after_acquire", "compact.after_plan", "compact.after_write",
        "compact.before_commit", *COMMIT_POINTS, "compact.after_commit", "lock.before_release",
    )],
    *[(run_compact_in_parts, point) for point in (
        "compact.after_write", "compact.before_commit", "catalog.after_swap",
        "compact.after_commit",
    )],
    *[(run_manifests, point) for point in ("commit.before_manifest_put", "catalog.after_swap")],
    *[(run_vectors, point) for point in (
        "resolve.after_dv_write", "rewrite-vectors.before_commit", "catalog.after_swap",
    )],
    *[(run_expire, point) for point in ("catalog.before_swap", "catalog.after_swap")],
    *[(run_orphans, point) for point in ("orphans.after_list", "orphans.before_delete")],
]  # fmt: skip


def rows(*values):
    return pa.Table.from_pylist(
        [dict(zip(SCHEMA.names, value, strict=True)) for value in values], SCHEMA
    )


def identified(table, *, lineage=None):
    """Rows, by default with what v3 knows them by."""
    lineage = table.state.metadata.format_version > 2 if lineage is None else lineage
    columns = [*SCHEMA.names, *(LINEAGE if lineage else ())]
    found = table.scan(columns=columns).to_arrow().to_pylist()
    return Counter(tuple(row.values()) for row in found)


def folder(table):
    return Path(table.state.metadata.location.removeprefix("file://"))


def make_old(table):
    for path in folder(table).rglob("*"):
        if path.is_file():
            os.utime(path, (1e9, 1e9))


@pytest.fixture
def table(tmp_path, request):
    catalog = tf.open_catalog("local", warehouse=str(tmp_path / "warehouse"))
    table = catalog.create_table(
        NAME,
        SCHEMA,
        primary_key=["id"],
        partition_by=["region"],
        properties=FORMATS[getattr(request, "param", "v3")],
    )
    for step in range(3):
        table.append(rows((2 * step, "eu"), (2 * step + 1, "us"), (10 + step, "eu")))
    for key in (0, 10):
        table.stage(deletes=pa.table({"id": pa.array([key], pa.int64())}))
        resolve(table)
    (folder(table) / "data" / "left.parquet").write_bytes(b"left behind")
    make_old(table)
    return table


@pytest.mark.parametrize(
    ("table", "task", "point"),
    [
        *[(each, *case) for each in ("v3", "v2-partition") for case in CASES],
        *[("v2-file", run_compact, each) for each in ("compact.after_write", "catalog.after_swap")],
    ],
    indirect=["table"],
)
def test_killed_task_run_again_gives_the_same_rows(tmp_path, table, task, point):
    before = identified(table)
    warehouse = str(tmp_path / "warehouse")
    assert run_until_killed(task, warehouse, NAME, point=point) == KILLED
    check(warehouse, before)
    task(open_table(warehouse, NAME))
    check(warehouse, before)
    again = open_table(warehouse, NAME)
    make_old(again)
    run_orphans(again)
    left = {f"file://{path}" for path in folder(again).rglob("*") if path.is_file()}
    assert left == reachable_locations(again.environment.store, again.refresh().state)
    check(warehouse, before)
    again.stage(upserts=rows((0, "us")))
    staged = [*published(again), again.state.head("staging").snapshot_id]
    assert resolve(again).staged_snapshots == 1
    assert verify(again).report.is_sound
    check_exactly_once(again.environment.store.get, again.metadata_location, staged)
    assert again.scan().to_arrow().num_rows == sum(before.values()) + 1


@pytest.mark.parametrize("table", ["v2-partition", "v2-file"], indirect=True)
@pytest.mark.parametrize(
    ("task", "point"),
    [
        (run_upgrade, "catalog.before_metadata_put"),
        (run_upgrade, "catalog.before_swap"),
        (run_upgrade, "catalog.after_swap"),
        (run_vectors, "resolve.after_dv_write"),
        (run_vectors, "rewrite-vectors.before_commit"),
        (run_vectors, "catalog.after_swap"),
    ],
)
def test_killed_upgrade_run_again_gives_the_same_rows_with_vectors(tmp_path, table, task, point):
    """`run_vectors`: the upgrade is through, and its position deletes are made vectors."""
    if task is run_vectors:
        run_upgrade(table)
    before = identified(table, lineage=False)
    warehouse = str(tmp_path / "warehouse")
    assert run_until_killed(task, warehouse, NAME, point=point) == KILLED
    assert identified(open_table(warehouse, NAME), lineage=False) == before
    again = run_upgrade(open_table(warehouse, NAME))
    again.append(rows((7, "us")))  # the first commit on v3 gives rows their ids
    with_ids = identified(again)
    run_vectors(again)
    check(warehouse, with_ids)
    head = again.refresh().current_snapshot().snapshot_id
    live = check_table(again.environment.store.get, again.metadata_location)[head].live
    assert [file.offset for file in live if file.content == 1]
    assert all(file.offset is not None for file in live if file.content == 1)
    again.stage(upserts=rows((3, "us")))
    assert resolve(again).staged_snapshots == 1
    assert identified(again, lineage=False) == before + Counter([(7, "us")])
    assert verify(again).report.is_sound


def published(table):
    """Markers of the snapshots of main that are left."""
    found = [marker for _, marker in markers(table.environment.store.get, table.metadata_location)]
    return list(dict.fromkeys(marker for marker in found if marker is not None))


def check(warehouse, expected):
    table = open_table(warehouse, NAME)
    assert identified(table) == expected
    check_table(table.environment.store.get, table.metadata_location)
    for location in reachable_locations(table.environment.store, table.state):
        if not location.endswith(".metadata.json"):
            table.environment.store.size_bytes(location)
