"""`icefold run` is killed at random instants: staging is the truth, no cut shows half a deal."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from dataclasses import replace

import pytest

import tableformat as tf
from lock import open_lock
from maintenance.cli.ingest_stream import Interrupt
from maintenance.cli.run import AT_ONCE, run_together
from maintenance.scheduler import Scheduler
from maintenance.scheduler_options import SchedulerOptions
from tableformat.cdc.many.local_engine import Cut
from tableformat.cdc.many.stream_tables import StreamListener
from tableformat.errors import NotFoundError
from tableformat.recent_store import RecentStore
from tests.support.crash_child import KILLED, started
from tests.support.fake_kafka import FakeCluster
from tests.support.goals import goal
from tests.support.stream_worlds import engine_of, message

TABLES = ("a", "b", "c")
ACCOUNTS, START, TRANSFERS = 4, 100, 150
LEASE_MS, PATIENT_LEASE_MS = 1_500, 30_000  # of who is killed: it is waited for; of who lives
FIELDS = [{"field": name, "type": "int64", "optional": False} for name in ("id", "balance")]


def bank(seed):
    """The topics of a bank, each transfer a transaction; and what the tables hold at the end."""
    rng = random.Random(seed)
    cluster = FakeCluster()
    held = {name: dict.fromkeys(range(ACCOUNTS), START) for name in TABLES}
    transaction(cluster, 1, "c", held)
    for number in range(2, TRANSFERS + 2):
        giver, taker = rng.sample(TABLES, 2)
        amount, at, to = rng.randint(1, 50), rng.randrange(ACCOUNTS), rng.randrange(ACCOUNTS)
        held[giver][at] -= amount
        held[taker][to] += amount
        changed = {giver: {at: held[giver][at]}, taker: {to: held[taker][to]}}
        transaction(cluster, number, "u", changed)
    return cluster, held


def transaction(cluster, number, op, changed):
    name = f"{number}:{number * 7}"
    cluster.send("pg.transaction", (None, json.dumps({"status": "BEGIN", "id": name})))
    for table, balances in changed.items():
        topic = f"pg.public.{table}"
        for order, (key, balance) in enumerate(balances.items(), 1):
            row = {"id": key, "balance": balance}
            event = message(op, row, fields=FIELDS, transaction=(name, order))
            cluster.send(topic, event, partition=key % cluster.partitions(topic))
    counts = [
        {"data_collection": f"public.{table}", "event_count": len(rows)}
        for table, rows in changed.items()
    ]
    end = {"status": "END", "id": name, "data_collections": counts}
    cluster.send("pg.transaction", (None, json.dumps(end)))


class Waking(StreamListener):
    def __init__(self, scheduler):
        self.scheduler = scheduler

    def staged(self, number, results):
        self.scheduler.wake(results.keys())


def run_for_ever(warehouse, seed, lease_ms):
    """In a child: what the command does, with the fake cluster for Kafka."""
    opened = tf.open_catalog("local", warehouse=warehouse).environment
    catalog = tf.TableCatalog(replace(opened, store=RecentStore(opened.store)))
    runtime = catalog.environment.runtime
    lock = open_lock(
        f"{catalog.environment.catalog.properties['uri']}.locks",
        clock=runtime.clock, ids=runtime.ids, lease_ms=lease_ms, fail_point=runtime.fail_point,
    )  # fmt: skip
    options = SchedulerOptions(defaults=AT_ONCE)
    scheduler = Scheduler(catalog, ["shop.*"], options, lock=lock)
    cluster, _ = bank(seed)
    engine = engine_of(catalog, cluster, cut=Cut.TRANSACTION, chunk=2, interval_ms=100)
    engine.listener = Waking(scheduler)

    def stream(stop):
        def slowly():
            time.sleep(0.05)
            return stop()

        engine.run(follow=True, stop=slowly)

    run_together(scheduler, stream, Interrupt())


def balances(table, snapshot_id=None):
    rows = table.scan(snapshot_id=snapshot_id).to_arrow().to_pylist()
    assert len({row["id"] for row in rows}) == len(rows), "a key has two rows"
    return {row["id"]: row["balance"] for row in rows}


def check_cuts(catalog, checked):
    """Every cut that is named holds all the money."""
    try:
        cuts = catalog.cuts("shop")
    except NotFoundError:
        return
    for cut in cuts:
        seen = cut.name, tuple(sorted(cut.snapshots.items()))
        if seen in checked:
            continue
        held = [balances(catalog.load_table(n), at) for n, at in cut.snapshots.items()]
        assert sum(sum(each.values()) for each in held) == START * ACCOUNTS * len(TABLES), cut.name
        checked.add(seen)


@pytest.mark.slow
def test_run_that_is_killed_at_random_instants_shows_every_cut_whole_and_ends_the_same(tmp_path):
    warehouse, seed = str(tmp_path), 5
    rng = random.Random(seed)
    _, held = bank(seed)
    catalog = tf.open_catalog("local", warehouse=warehouse)
    child, kills, deadline = None, 6, time.monotonic() + 200
    checked = set()
    try:
        while True:
            lease_ms = LEASE_MS if kills else PATIENT_LEASE_MS
            child = child or started(run_for_ever, warehouse, seed, lease_ms)
            if kills:
                time.sleep(rng.uniform(0.3, 1.5))
                os.kill(child.pid, signal.SIGKILL)
                child.join(30)
                assert child.exitcode == KILLED
                child, kills = None, kills - 1
                goal("G4", kills=1)
            check_cuts(catalog, checked)
            names = {name for name in catalog.list_tables("shop") if "dead" not in name}
            if names == {f"shop.{name}" for name in TABLES} and not kills:
                shown = {name: balances(catalog.load_table(f"shop.{name}")) for name in TABLES}
                if shown == held:
                    break
            assert child is None or child.is_alive(), "it has ended"
            assert time.monotonic() < deadline, "it is never done"
            time.sleep(0.1)
    finally:
        if child is not None:
            child.kill()
            child.join()
    check_cuts(catalog, checked)
    assert len(checked) > 2
