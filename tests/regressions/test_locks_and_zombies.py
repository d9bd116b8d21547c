"""Bugs other projects had with locks and zombies: group F of docs/guarantees.md.

R67 and R69 are in `test_commit_regressions.py`. Nothing here waits: clocks are moved by the test.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

import tableformat as tf
from lock import LeaseLostError, LeaseUnavailableError, UnsafeStoreError, open_lock
from lock.buckets import BucketConditionalStore
from lock.object_store import ObjectRecordStore
from lock.register import RecordStore
from maintenance import compact, expire, remove_orphans
from maintenance.tasks.options import CompactOptions, ExpireOptions, RemoveOrphansOptions
from resolver import maintenance_lock, resolve
from tableformat.commit.expiry_plan import ExpiryPolicy
from tableformat.errors import CommitConflictError, FencedError
from tableformat.runtime import Runtime
from tableformat.store import bucket_objects
from tests.support import commit_tables
from tests.support.fake_bucket import FakeBucket
from tests.support.interruptions import interrupt, other_process
from tests.support.lock_seams import FaultyRecordStore, ManualClock, SeededIds
from tests.support.lock_stores import manager_on, open_store
from tests.support.lying_lock import GrantAllLock
from tests.support.memory_catalog import MemoryCatalog
from tests.support.memory_store import MemoryObjectStore
from tests.support.row_model import Model, assert_holds, listed
from tests.support.s3_server import Fault, fresh_bucket, s3_properties, s3_server
from tests.support.staged_tables import BASE, SCHEMA, keys
from tests.support.table_checker import read_metadata

LEASE_MS = 10_000
NAME = "shop.orders"


@pytest.fixture(params=["memory", "sqlite", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RecordStore]:
    store = open_store(request.param, tmp_path)
    yield store
    store.close()


def manager(store, clock, process, seed=0):
    return manager_on(
        store, clock=clock, ids=SeededIds(seed), lease_ms=LEASE_MS, process=f"{process} {seed}"
    )


def overtaken(store, clock):
    """A lease that has run out, the lease of who took over, and their managers."""
    old, new = manager(store, clock, "old", 1), manager(store, clock, "new", 2)
    first = old.acquire(NAME, task="resolve")
    return old, first, new, new.acquire(NAME, task="resolve", timeout_ms=3 * LEASE_MS)


# -- R65 -----------------------------------------------------------------------------------------


def test_r65_release_of_a_former_owner_never_clears_a_live_lock(store):
    clock = ManualClock()
    old, first, new, second = overtaken(store, clock)
    assert not old.release(first)
    assert not old.release(replace(first, token=second.token))
    assert not old.release(replace(second, owner_id=first.owner_id))
    assert new.inspect(NAME).owner_id == second.owner_id
    assert manager(store, clock, "third", 3).try_acquire(NAME, task="compact") is None
    assert new.renew(second).token == second.token
    assert new.release(second)


def test_r65_end_of_a_job_that_was_overtaken_never_frees_its_successors_lock(store):
    clock = ManualClock()
    old, new = manager(store, clock, "old", 1), manager(store, clock, "new", 2)
    with old.hold(NAME, task="resolve", heartbeat=False) as lease:
        second = new.acquire(NAME, task="resolve", timeout_ms=3 * LEASE_MS)
        assert not lease.still_held()
        with pytest.raises(LeaseLostError):
            lease.confirm()
    assert new.inspect(NAME).owner_id == second.owner_id
    assert old.try_acquire(NAME, task="resolve") is None


# -- R66 -----------------------------------------------------------------------------------------


def test_r66_lock_of_a_killed_job_is_free_after_one_lease_and_not_before(store):
    clock = ManualClock()
    manager(store, clock, "killed", 1).acquire(NAME, task="resolve")
    began_ms = clock.elapsed_ms
    lease = manager(store, clock, "next", 2).acquire(NAME, task="resolve", timeout_ms=2 * LEASE_MS)
    assert lease.token == 2
    assert LEASE_MS <= clock.elapsed_ms - began_ms <= LEASE_MS + 1_000


def test_r66_new_job_never_takes_the_lock_of_a_live_holder(store):
    """Twenty leases of waiting; the holder gives a sign of life every third of a lease."""
    clock = ManualClock()
    holder = manager(store, clock, "holder", 1)
    lease = holder.acquire(NAME, task="compact")
    renewed_ms = clock.elapsed_ms

    def beat() -> None:
        nonlocal lease, renewed_ms
        if clock.elapsed_ms - renewed_ms >= LEASE_MS / 3:
            lease, renewed_ms = holder.renew(lease), clock.elapsed_ms

    clock.on_sleep = beat
    with pytest.raises(LeaseUnavailableError, match="holder 1"):
        manager(store, clock, "new", 2).acquire(NAME, task="resolve", timeout_ms=20 * LEASE_MS)
    clock.on_sleep = lambda: None
    assert holder.renew(lease).token == 1


def test_r66_operator_who_saw_a_dead_holder_never_breaks_the_lock_of_a_new_one(store):
    clock = ManualClock()
    _, dead, new, second = overtaken(store, clock)
    with pytest.raises(LeaseUnavailableError, match="changed hands"):
        manager(store, clock, "operator", 3).break_(NAME, token=dead.token)
    assert new.renew(second).token == second.token


# -- R70 -----------------------------------------------------------------------------------------

MARKER = "equality-convert-staging-snapshot"
ZOMBIE_POINTS = ["resolve.after_plan", "resolve.after_match", "resolve.after_dv_write",
                 "commit.before_swap"]  # fmt: skip


def published_markers(table):
    """The staged snapshots that publishes on `main` say they covered, oldest first."""
    metadata = read_metadata(table.environment.store.get, table.refresh().metadata_location)
    by_id = {each["snapshot-id"]: each for each in metadata["snapshots"]}
    found, current = [], metadata["current-snapshot-id"]
    while current in by_id:
        marker = by_id[current]["summary"].get(MARKER)
        if marker is not None and marker not in found[-1:]:
            found.append(marker)
        current = by_id[current].get("parent-snapshot-id")
    return [int(marker) for marker in reversed(found)]


@pytest.mark.parametrize("tokens", ["rising", "same"])
@pytest.mark.parametrize("point", ZOMBIE_POINTS)
def test_r70_zombie_resolver_never_loses_or_repeats_what_its_successor_published(
    staged, tmp_path, point, tokens
):
    """It sleeps in mid-cycle; the successor publishes its backlog, takes more, compacts."""
    table, liar = staged.table, GrantAllLock(tokens=tokens)
    first = table.stage(upserts=staged.rows((1, "eu", "one"), (30, "eu", "new")))
    other = other_process(table)
    ids = [first.snapshot.snapshot_id]

    def succeed() -> None:
        folder = tmp_path / "successor"
        resolve(other, lock=liar, index_directory=folder)
        later = other.stage(upserts=staged.rows((1, "eu", "two")), deletes=keys(30, 2))
        ids.append(later.snapshot.snapshot_id)
        resolve(other, lock=liar, index_directory=folder)
        compact(other, CompactOptions(rewrite_all=True), lock=liar)

    interrupt(table, point, succeed)
    with pytest.raises((CommitConflictError, FencedError)):
        resolve(table, lock=liar)
    expected = Model().upsert(*BASE, (1, "eu", "two")).drop(2)
    assert_holds(table, expected)
    table.stage(upserts=staged.rows((3, "eu", "after")))
    resolve(table, lock=liar)
    assert_holds(table, expected.upsert((3, "eu", "after")))
    markers = published_markers(table)
    assert markers[:2] == ids
    assert len(set(markers)) == len(markers) == 3


def test_r70_zombie_compactor_never_brings_back_what_was_deleted_meanwhile(staged):
    table, liar = staged.table, GrantAllLock()
    table.append(staged.rows((40, "eu", "other file")))
    other = other_process(table)

    def succeed() -> None:
        other.stage(upserts=staged.rows((40, "eu", "new")), deletes=keys(0, 1))
        resolve(other, lock=liar)

    interrupt(table, "commit.before_swap", succeed)
    with pytest.raises((CommitConflictError, FencedError)):
        compact(table, CompactOptions(rewrite_all=True), lock=liar)
    assert_holds(table, Model().upsert(*BASE, (40, "eu", "new")).drop(0, 1))


CLEAN_UPS = {
    "orphans.after_list": lambda table, lock: remove_orphans(
        table, RemoveOrphansOptions(older_than_ms=7_200_000), lock=lock
    ),
    "commit.after_swap": lambda table, lock: expire(
        table,
        ExpireOptions(policy=ExpiryPolicy(max_snapshot_age_ms=0, min_snapshots_to_keep=1)),
        lock=lock,
    ),
}


@pytest.mark.parametrize("point", CLEAN_UPS)
def test_r70_zombie_clean_up_deletes_nothing_after_a_takeover(tmp_path, point):
    clock = commit_tables.ManualClock()
    runtime = Runtime(clock=clock)
    store = MemoryObjectStore(runtime)
    catalog = MemoryCatalog(store, runtime=runtime, properties={"index-directory": str(tmp_path)})
    catalog = tf.TableCatalog(tf.Environment(catalog, store, runtime))
    table = catalog.create_table("t.rows", SCHEMA, primary_key=["id"])
    rows = pa.Table.from_pylist([dict(zip(SCHEMA.names, BASE[0], strict=True))], SCHEMA)
    table.append(rows)
    table.overwrite(rows)
    store.put(f"{table.state.metadata.location}/data/orphan.parquet", b"left behind")
    clock.advance(30 * 24 * 3_600_000)
    liar, other = GrantAllLock(), other_process(table)
    other.stage(deletes=keys(99))
    before = listed(table)

    interrupt(table, point, lambda: resolve(other, lock=liar))
    with pytest.raises(FencedError):
        CLEAN_UPS[point](table, liar)
    assert before <= listed(table)
    assert_holds(table, Counter(BASE[:1]))


# -- R71 -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["resent", "lost_reply"])
def test_r71_own_write_that_answers_412_never_orphans_the_lock(store, fault):
    """Every write lands, and every answer says that somebody else was first, or nothing at all."""
    clock = ManualClock()
    faulty = FaultyRecordStore(store, faults={fault: 1.0})
    job, other = manager(faulty, clock, "job", 1), manager(faulty, clock, "other", 2)
    for token in (1, 3):
        lease = job.try_acquire(NAME, task="resolve")
        assert lease is not None
        assert job.renew(lease).token == lease.token == token
        assert job.release(lease)
        after = other.try_acquire(NAME, task="compact")
        assert after is not None
        assert other.release(after)
    assert faulty.hits[fault] >= 10
    assert clock.elapsed_ms < LEASE_MS


def records_on(client: FakeBucket) -> ObjectRecordStore:
    store = BucketConditionalStore("s3://bucket", "locks", client=client)
    return ObjectRecordStore(store, ids=SeededIds(9))


# -- R72 -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [429, 500, 503])
def test_r72_release_that_is_refused_once_frees_the_lock_at_once(status):
    client, clock = FakeBucket(), ManualClock()
    job = manager(records_on(client), clock, "job", 1)
    with job.hold(NAME, task="resolve", heartbeat=False):
        client.answers.append(status)
    assert client.answers == []
    assert manager(records_on(client), clock, "next", 2).try_acquire(NAME, task="x") is not None
    assert clock.elapsed_ms < LEASE_MS


@pytest.mark.parametrize("status", [429, 500, 503])
def test_r72_release_that_never_succeeds_blocks_others_for_one_lease_only(status):
    client, clock = FakeBucket(), ManualClock()
    job = manager(records_on(client), clock, "job", 1)
    with job.hold(NAME, task="resolve", heartbeat=False):
        client.answers += [status] * 100_000
    client.answers.clear()
    began_ms = clock.elapsed_ms
    after = manager(records_on(client), clock, "next", 2).acquire(
        NAME, task="resolve", timeout_ms=2 * LEASE_MS
    )
    assert after.token == 2
    assert clock.elapsed_ms - began_ms <= LEASE_MS + 1_000


# -- R73 -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("ignored", ["create", "match"])
def test_r73_store_that_ignores_a_condition_is_never_used_for_locks(tmp_path, monkeypatch, ignored):
    """Refused when it is opened, by `resolve` too, and before anything is written."""

    def connect(*_: object, **__: object) -> FakeBucket:
        return FakeBucket(ignores=(ignored,))

    monkeypatch.setattr(maintenance_lock, "connect", connect)
    with pytest.raises(UnsafeStoreError):
        open_lock("s3://bucket/locks", clock=ManualClock(), ids=SeededIds(), connect=connect)
    store = MemoryObjectStore()
    catalog = MemoryCatalog(
        store,
        properties={"lock-url": "s3://bucket/locks", "index-directory": str(tmp_path)},
    )
    table = tf.TableCatalog(tf.Environment(catalog, store)).create_table(
        "t.rows", SCHEMA, primary_key=["id"]
    )
    table.stage(upserts=pa.Table.from_pylist([{"id": 1, "region": "eu", "note": "x"}], SCHEMA))
    before = listed(table)
    with pytest.raises(UnsafeStoreError):
        resolve(table)
    assert listed(table) == before


def test_r73_two_owners_at_one_epoch_never_publish_the_same_changes_twice(staged, tmp_path):
    """If such a store gets through after all: both hold token 1."""
    liar, other = GrantAllLock(tokens="same"), other_process(staged.table)
    staged.table.stage(upserts=staged.rows((1, "eu", "new"), (50, "eu", "new")))
    interrupt(
        staged.table,
        "resolve.after_dv_write",
        lambda: resolve(other, lock=liar, index_directory=tmp_path / "other"),
    )
    with pytest.raises(CommitConflictError):
        resolve(staged.table, lock=liar)
    assert {lease.token for lease in liar.granted} == {1}
    assert_holds(staged.table, Model().upsert(*BASE, (1, "eu", "new"), (50, "eu", "new")))


# -- R74 -----------------------------------------------------------------------------------------


def test_r74_conflict_answer_never_means_that_somebody_else_has_the_lock():
    """409: nothing was written, nothing is known. Nobody holds the lock, so somebody gets it."""
    client, clock = FakeBucket(), ManualClock()
    client.answers += [409] * 3  # while the store is probed
    opened = open_lock(
        "s3://bucket/locks",
        clock=clock,
        ids=SeededIds(),
        lease_ms=LEASE_MS,
        connect=lambda _: client,
    )
    assert client.answers == []
    for token in range(1, 5):
        client.answers += [409] * 4
        lease = opened.try_acquire(NAME, task=f"job {token}")
        assert lease is not None
        assert lease.token == token
        client.answers += [409] * 4
        assert opened.release(lease)
    assert clock.elapsed_ms < LEASE_MS


def test_r74_conflict_answer_never_means_that_the_object_exists(tmp_path, monkeypatch):
    monkeypatch.setattr(bucket_objects, "_WAIT_S", (0.001, 0.01))
    server, bucket = s3_server(), fresh_bucket()
    catalog = tf.open_catalog(
        "lake",
        type="sql",
        uri=f"sqlite:///{tmp_path}/catalog.db",
        warehouse=f"s3://{bucket}/lake",
        **s3_properties(),
    )
    table = catalog.create_table("t.rows", SCHEMA, primary_key=["id"])
    rows = pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in BASE], SCHEMA)
    try:
        server.faults.append(Fault("PUT", "before", "409 Conditional Request Conflict", times=3))
        table.append(rows)
        assert server.faults == []
    finally:
        server.faults.clear()
    assert_holds(table, Counter(BASE))
