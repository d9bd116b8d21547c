"""Tables of one stream in a bucket: staged and published side by side, as are their locks."""

from __future__ import annotations

import pytest

import tableformat as tf
from lock import LockManager
from lock.memory_store import MemoryRecordStore
from resolver import resolve_group
from resolver.maintenance_lock import maintenance_lock_name
from tableformat.store import locations
from tests.support.bank import Bank, balances_of
from tests.support.fake_kafka import FakeCluster
from tests.support.lock_seams import ManualClock, SeededIds
from tests.support.slow_requests import READS, WRITES, SlowRequests
from tests.support.stream_worlds import engine_of, message

TABLES = 8
NAMES = tuple(f"bank.t{number}" for number in range(TABLES))
LOCKS = ((MemoryRecordStore, "load"), (MemoryRecordStore, "swap"))


@pytest.fixture
def slow(monkeypatch):
    """Everything is in a bucket."""
    monkeypatch.setattr(locations, "is_in_bucket", lambda _: True)
    monkeypatch.setattr(MemoryRecordStore, "poll_min_ms", 100.0)
    return SlowRequests()


class World:
    """A bank of which one batch waits on every table."""

    def __init__(self, folder, store):
        self.catalog = tf.open_catalog("local", warehouse=str(folder))
        self.bank = Bank(NAMES)
        self.tables = self.bank.create(self.catalog)
        self.clock = ManualClock()
        self.locks = LockManager(store, clock=self.clock, ids=SeededIds(1))
        self.bank.states.append(self.bank.states[-1])
        self.bank.batches.append({name: {1: 7} for name in NAMES})
        self.bank.stage(self.tables, 0)

    def shown(self):
        return [balances_of(table.refresh())[1] for table in self.tables.values()]

    def names(self):
        return {name: maintenance_lock_name(table.state) for name, table in self.tables.items()}


def test_tables_are_published_side_by_side(slow, tmp_path, monkeypatch):
    world = World(tmp_path, MemoryRecordStore())
    slow.watch(monkeypatch, [*READS, *WRITES, *LOCKS])
    resolve_group(list(world.tables.values()), lock=world.locks)
    assert len(slow.spans) >= 14 * TABLES
    assert slow.in_turn <= 1.5 * len(slow.spans) / TABLES
    assert world.shown() == [7] * TABLES
    assert not any(world.locks.inspect(name).is_held for name in world.names().values())


def test_tables_are_staged_side_by_side(slow, tmp_path, monkeypatch):
    catalog, cluster = tf.open_catalog("local", warehouse=str(tmp_path)), FakeCluster()
    topics = [f"pg.public.t{number}" for number in range(TABLES)]
    for topic in topics:
        cluster.create(topic)
        cluster.send(topic, message("c", {"id": 1, "note": "a"}))
    engine_of(catalog, cluster).run(follow=False)
    for topic in topics:
        cluster.send(topic, message("u", {"id": 1, "note": "b"}))
    slow.watch(monkeypatch, WRITES)
    engine_of(catalog, cluster).run(follow=False)
    assert len(slow.spans) == 6 * TABLES
    assert slow.in_turn <= 2 * 6


def test_lock_that_another_holds_is_waited_for_without_the_ones_behind_it(slow, tmp_path):
    """Two groups that take what is free, and wait for the rest, would wait for each other."""
    store = MemoryRecordStore()
    world = World(tmp_path, store)
    held = world.names()
    other = LockManager(store, clock=world.clock, ids=SeededIds(2))
    lease = other.acquire(held[NAMES[3]], task="compact")
    seen = []

    def look():
        seen.append([name for name in NAMES if other.inspect(held[name]).is_held])
        if len(seen) == 2:
            other.release(lease)

    world.clock.on_sleep = look
    resolve_group(list(world.tables.values()), lock=world.locks)
    assert seen == [list(NAMES[:4])] * 2
    assert world.shown() == [7] * TABLES
    assert not any(other.inspect(name).is_held for name in held.values())
