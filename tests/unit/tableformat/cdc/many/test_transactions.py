"""Batches that end where source transactions end: the alignment alone, and through the engine."""

from __future__ import annotations

import itertools
import json
import random

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resolver import resolve
from tableformat.cdc.many.local_engine import Cut
from tableformat.cdc.many.set_aside import read_set_aside
from tableformat.cdc.many.transactions import (
    Backlog,
    Boundary,
    TransactionCut,
    boundaries_of,
    runs_of,
    transaction_id,
)
from tableformat.errors import InvalidInputError, NotFoundError
from tableformat.runtime import Runtime
from tableformat.spec.names import SOURCE_OFFSETS, SOURCE_TRANSACTION
from tests.support.fake_kafka import FakeCluster
from tests.support.memory_tables import memory_catalog
from tests.support.stream_worlds import engine_of, killed_at, message, notes

A, B = "pg.public.a", "pg.public.b"
TURNS = 12  # far less than what one partition may lag behind another


def begin(name):
    return None, json.dumps({"status": "BEGIN", "id": name})


def end(name, at_ms=None, **counts):
    listed = [{"data_collection": f"public.{t}", "event_count": n} for t, n in counts.items()]
    event = {"status": "END", "id": name, "event_count": 1, "data_collections": listed}
    return None, json.dumps(event | ({} if at_ms is None else {"ts_ms": at_ms}))


def change(key, note, name, order, op="c", **more):
    return message(op, {"id": key, "note": note}, transaction=(name, order), **more)


def runs(*messages, first=0):
    values = pa.array([None if m[1] is None else m[1].encode() for m in messages], pa.binary())
    return runs_of(values, range(first, first + len(messages)))


def test_runs_are_neighbours_of_one_transaction_and_tombstones_go_with_them():
    found = runs(
        message("r", {"id": 0, "note": "snapshot"}),
        change(1, "x", "7:100", 1), change(2, "x", "7:101", 2, "d"), (None, None),
        change(3, "x", "8:102", 1, bare=True),
    )  # fmt: skip
    assert [(run.transaction, run.count, run.end) for run in found] == [
        (None, 1, 1), ("7", 3, 4), ("8", 1, 5),
    ]  # fmt: skip
    assert found[1].orders == (1, 2, 0)


def test_rows_of_a_snapshot_behind_what_comes_again_are_new():
    """An incremental snapshot goes on behind what the connector sends again; it is in none."""
    cut = cut_of(A)
    once = [change(1, "x", "1", 1)]
    cut.add_events((A, 0), runs(*once))
    cut.add_boundaries([ended("1", 1, a=1)], 2)
    assert cut.take()[0] == {(A, 0): 1}
    read = message("r", {"id": 7, "note": "snapshot"})
    again = [*once, read, (None, "{no json"), change(2, "x", "2", 1), read, (None, None)]
    found = cut.add_events((A, 0), runs(*again, first=1))
    assert found.tolist() == [False, True, True, True, True, True]
    cut.add_boundaries([ended("2", 2, a=1)], 3)
    assert cut.take()[0] == {(A, 0): 5}


def test_tombstone_that_comes_again_is_left_out_wherever_a_poll_ends():
    cut = cut_of(A)
    once = [change(1, "x", "1", 1, "d"), (None, None)]
    for first in range(2):
        assert cut.add_events((A, 0), runs(once[first], first=first)).tolist() == [True]
    cut.add_boundaries([ended("1", 1, a=1)], 2)
    assert cut.take()[0] == {(A, 0): 2}
    for first in range(2):
        assert cut.add_events((A, 0), runs(once[first], first=first + 2)).tolist() == [False]
    assert cut.add_events((A, 0), runs((None, None), first=4)).tolist() == [False]
    read = message("r", {"id": 7, "note": "snapshot"})
    assert cut.add_events((A, 0), runs(read, (None, None), first=5)).tolist() == [True, True]
    assert cut.add_events((A, 0), runs((None, None), first=7)).tolist() == [True]


def test_id_of_postgresql_is_without_the_position_and_others_stay():
    assert transaction_id("571:53195829") == "571"
    gtid = "0e4d5dcd-a33b-11ed-80c6-02420a05e6f2:10"
    assert transaction_id(gtid) == gtid


def cut_of(*topics, **more):
    return TransactionCut(prefix="pg", partitions=dict.fromkeys(topics, 1), **more)


def ended(name, offset, **counts):
    return Boundary(name, offset, name, {f"public.{t}": n for t, n in counts.items()})


def test_transaction_waits_for_every_table_that_its_end_counts():
    cut = cut_of(A, B)
    cut.add_events((A, 0), runs(change(1, "x", "1", 1)))
    cut.add_boundaries([ended("1", 1, a=1, b=2)], 2)
    cut.add_events((B, 0), runs(change(1, "x", "1", 1)))
    assert cut.take() == ({}, None)
    assert cut.waits_for()[1] == B
    cut.add_events((B, 0), runs(change(2, "x", "1", 2), first=1))
    counts, last = cut.take()
    assert counts == {(A, 0): 1, (B, 0): 2}
    assert last.text == "1"


def test_open_transaction_behind_a_whole_one_stays():
    cut = cut_of(A)
    cut.add_events((A, 0), runs(change(1, "x", "1", 1), change(2, "x", "2", 1)))
    cut.add_boundaries([ended("1", 1, a=1), Boundary("2", 2, "2")], 3)
    assert cut.take()[0] == {(A, 0): 1}
    assert cut.take() == ({}, None)
    cut.add_boundaries([ended("2", 3, a=1)], 4)
    assert cut.take()[0] == {(A, 0): 1}


def test_table_that_is_not_read_is_not_waited_for_unless_it_will_be():
    cut = cut_of(A)
    cut.add_events((A, 0), runs(change(1, "x", "1", 1)))
    cut.add_boundaries([ended("1", 1, a=1, b=5)], 2)
    cut.expects = lambda topic: topic == B
    assert cut.take() == ({}, None)
    assert cut.waits_for()[1] == B
    cut.expects = lambda _: False
    assert cut.take()[0] == {(A, 0): 1}


def test_events_sent_again_are_left_out_and_make_nothing_whole_too_early():
    cut = TransactionCut(prefix="pg", partitions={A: 2})
    twice = [change(1, "x", "1", 1), (None, None), change(1, "x", "1", 1), (None, None)]
    assert cut.add_events((A, 0), runs(*twice)).tolist() == [True, True, False, False]
    cut.add_boundaries([ended("1", 1, a=2)], 2)
    assert cut.take() == ({}, None)
    more = [change(1, "x", "1", 1), change(2, "x", "1", 2)]
    assert cut.add_events((A, 1), runs(*more)).tolist() == [False, True]
    assert cut.take()[0] == {(A, 0): 2, (A, 1): 1}
    assert not cut.add_events((A, 0), runs(change(1, "x", "1", 1), first=4)).any()
    cut.add_boundaries([ended("1", 4, a=2)], 5)
    assert cut.take() == ({}, None)
    assert cut.open_count == 0


def test_partition_that_joins_late_brings_what_its_table_has_not_seen():
    cut = cut_of(A)
    cut.remember([ended("1", 1, a=1)])
    cut.let_join({(A, 0): 2, (B, 0): 0})
    cut.partitions[B] = 1
    assert not cut.add_events((A, 0), runs(change(1, "x", "1", 1))).any()
    assert cut.add_events((B, 0), runs(change(1, "x", "1", 1))).all()
    assert cut.take()[0] == {(B, 0): 1}


def test_partition_that_was_left_out_for_a_time_brings_what_came_meanwhile():
    cut = cut_of(A)
    cut.remember([ended("1", 1, a=1), ended("2", 3, a=1), ended("3", 5, a=1)])
    cut.let_join({(A, 0): 2})
    cut.add_boundaries([ended("4", 7, a=1)], 8)
    for name, is_new in [("1", False), ("2", True), ("3", True), ("4", True)]:
        found = cut.add_events((A, 0), runs(change(1, "x", name, 1), first=int(name)))
        assert found.tolist() == [is_new]
    assert cut.take()[0] == {(A, 0): 3}
    assert not cut.add_events((A, 0), runs(change(1, "x", "4", 1), first=5)).any()


def test_backlog_whose_ends_are_gone_is_taken_but_not_what_is_open():
    cut = cut_of(A, backlogs={(A, 0): Backlog(3, 5, 3, 5)})
    cut.add_events(
        (A, 0),
        runs(change(1, "x", "1", 1), change(2, "x", "2", 1), change(3, "x", "3", 1)),
    )
    assert cut.take() == ({}, None)
    cut.add_boundaries([Boundary("3", 4, "3")], 5)
    assert cut.take()[0] == {(A, 0): 2}
    cut.add_boundaries([ended("3", 5, a=1)], 6)
    assert cut.take()[0] == {(A, 0): 1}


def test_part_that_was_read_before_is_not_waited_for():
    cut = cut_of(A, backlogs={(A, 0): Backlog(8, 3, 8, 3)})
    cut.add_boundaries([ended("1", 1, a=9), ended("2", 2, a=1)], 3)
    cut.add_events((A, 0), runs(change(2, "x", "2", 1), first=7))
    assert cut.take()[0] == {(A, 0): 1}


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32))
def test_every_cut_holds_whole_transactions_whatever_comes_when(seed):
    """Partitions and boundaries are read at random speeds; a dict of transactions is the oracle."""
    drawn = random.Random(seed)
    partitions = {A: drawn.choice([1, 3]), B: 1}
    logs = {(t, p): [] for t, n in partitions.items() for p in range(n)}
    boundaries, size, order_of = [], {}, {}
    for number in range(drawn.randint(1, 8)):
        name = str(number)
        boundaries.append(Boundary(name, len(boundaries), name))
        counts = {"a": 0, "b": 0}
        for _ in range(drawn.randint(1, 6)):
            topic = drawn.choice([A, B])
            short = topic[-1]
            counts[short] += 1
            place = (topic, drawn.randrange(partitions[topic]))
            logs[place].append(change(0, name, name, counts[short], bare=True))
        size[name] = sum(counts.values())
        order_of[name] = number
        counted = {f"public.{t}": n for t, n in counts.items() if n}
        boundaries.append(Boundary(name, len(boundaries), name, counted))
    cut = TransactionCut(prefix="pg", partitions=partitions)
    at = dict.fromkeys(logs, 0)
    taken = dict.fromkeys(logs, 0)
    read = 0

    def check():
        counts, last = cut.take()
        for place, count in counts.items():
            taken[place] += count
        found = {}
        for place, log in logs.items():
            for _, value in log[: taken[place]]:
                name = json.loads(value)["transaction"]["id"]
                found[name] = found.get(name, 0) + 1
        assert all(size[name] == count for name, count in found.items()), "a part of one"
        assert sorted(found, key=order_of.get) == [str(n) for n in range(len(found))], "a gap"
        return last

    while any(at[p] < len(logs[p]) for p in logs) or read < len(boundaries):
        if drawn.random() < 0.4 and read < len(boundaries):
            step = drawn.randint(1, 3)
            cut.add_boundaries(boundaries[read : read + step], min(read + step, len(boundaries)))
            read += step
        else:
            place = drawn.choice(sorted(logs))
            some = logs[place][at[place] : at[place] + drawn.randint(1, 4)]
            if some:
                cut.add_events(place, runs(*some, first=at[place]))
                at[place] += len(some)
        if drawn.random() < 0.5:
            check()
    check()
    assert taken == {place: len(log) for place, log in logs.items()}, "something is left"


def test_partition_of_which_nothing_is_gone_is_waited_for():
    cut = cut_of(A, B, backlogs={(A, 0): Backlog(1, 2, 1, 2), (B, 0): Backlog(0, 2, 0, 2)})
    cut.add_boundaries([ended("1", 1, a=1, b=1)], 2)
    cut.add_events((A, 0), runs(change(1, "x", "1", 1)))
    assert cut.take() == ({}, None)
    assert cut.waits_for()[1] == B
    cut.add_events((B, 0), runs(change(1, "x", "1", 1)))
    assert cut.take()[0] == {(A, 0): 1, (B, 0): 1}


def test_boundaries_are_read_with_and_without_their_schema():
    plain = {"status": "END", "id": "7:2", "data_collections": [
        {"data_collection": "public.a", "event_count": 3}]}  # fmt: skip
    values = [json.dumps(plain), json.dumps({"schema": {}, "payload": plain}), None, "{no"]
    found = boundaries_of([v and v.encode() for v in values], [4, 5, 6, 7])
    assert found == [Boundary("7", at, "7:2", {"public.a": 3}) for at in (4, 5)]


# ---- through the engine


@pytest.fixture
def world():
    cluster = FakeCluster()
    for topic in (A, B, "pg.transaction"):
        cluster.create(topic)
    return memory_catalog(), cluster


def transfer(cluster, name, key, note):
    cluster.send("pg.transaction", begin(name))
    cluster.send(A, change(key, note, name, 1, "u"))
    cluster.send(B, change(key, note, name, 1, "u"))


def test_engine_ends_batches_with_transactions_and_says_which(world):
    catalog, cluster = world
    transfer(cluster, "1", 1, "one")
    cluster.send("pg.transaction", end("1", a=1, b=1))
    transfer(cluster, "2", 1, "two")
    engine = engine_of(catalog, cluster, cut=Cut.TRANSACTION, settle_ms=0)
    engine.run(follow=False)
    assert notes(catalog, "shop.a") == notes(catalog, "shop.b") == {1: "one"}
    summary = catalog.load_table("shop.a").state.head("staging").summary.additional_properties
    assert summary[SOURCE_TRANSACTION] == "1"
    assert json.loads(summary[SOURCE_OFFSETS]) == {
        A: {"0": 1}, B: {"0": 1}, "pg.transaction": {"0": 2},
    }  # fmt: skip
    cluster.send("pg.transaction", end("2", a=1, b=1))
    engine_of(catalog, cluster, cut=Cut.TRANSACTION, chunk=1).run(follow=False)
    assert notes(catalog, "shop.a") == notes(catalog, "shop.b") == {1: "two"}


@pytest.mark.parametrize("is_new_process", [False, True])
def test_ids_that_begin_again_stop_the_stream_and_lose_nothing(world, is_new_process):
    """After RESET MASTER MariaDB's GTIDs begin at 0-1-1; a restored PostgreSQL counts on from then.

    What is sent again has the time that it had.
    """
    catalog, cluster = world
    engine = engine_of(catalog, cluster, cut=Cut.TRANSACTION, settle_ms=0)
    for _ in range(2):
        transfer(cluster, "0-1-1", 1, "one")
        cluster.send("pg.transaction", end("0-1-1", at_ms=5_000, a=1, b=1))
    engine.run(follow=False)
    assert notes(catalog, "shop.a") == {1: "one"}
    transfer(cluster, "0-1-1", 1, "another")
    cluster.send("pg.transaction", end("0-1-1", at_ms=6_000, a=1, b=1))
    transfer(cluster, "0-1-2", 1, "last")
    cluster.send("pg.transaction", end("0-1-2", at_ms=6_000, a=1, b=1))
    for _ in range(1 + is_new_process):
        again = engine_of(catalog, cluster, cut=Cut.TRANSACTION, settle_ms=0)
        with pytest.raises(InvalidInputError, match="ids of the source have begun again"):
            again.run(follow=False)
    assert notes(catalog, "shop.a") == notes(catalog, "shop.b") == {1: "one"}


def truncate(connector, name=None):
    block = {"id": name, "total_order": 1, "data_collection_order": 1} if name else None
    event = {"op": "t", "before": None, "after": None, "ts_ms": 1, "transaction": block}
    return None, json.dumps(event | {"source": {"connector": connector}})


@pytest.mark.parametrize(("connector", "name"), [("mysql", None), ("mariadb", "0-1-2")])
@pytest.mark.parametrize("on_truncate", ["apply", "ignore"])
def test_truncate_outside_of_transactions_is_not_applied_twice_and_holds_nothing_up(
    world, connector, name, on_truncate
):
    """MariaDB's connector tells a BEGIN of it, and no END."""
    catalog, cluster = world
    transfer(cluster, "0-1-1", 1, "one")
    cluster.send("pg.transaction", end("0-1-1", a=1, b=1), begin("0-1-2"))
    cluster.send(A, truncate(connector, name))
    transfer(cluster, "0-1-3", 2, "two")
    cluster.send("pg.transaction", end("0-1-3", a=1, b=1))
    engine = engine_of(
        catalog, cluster, cut=Cut.TRANSACTION, defaults={"on-truncate": on_truncate}, settle_ms=0
    )
    engine.run(follow=False)
    assert notes(catalog, "shop.b") == {1: "one", 2: "two"}
    if on_truncate == "ignore":
        assert notes(catalog, "shop.a") == {1: "one", 2: "two"}
    else:
        assert "has a TRUNCATE, which is in no transaction" in engine.aside["shop.a"]


def test_engine_goes_from_batches_to_transactions(world):
    catalog, cluster = world
    transfer(cluster, "1", 1, "one")
    engine_of(catalog, cluster).run(follow=False)
    cluster.send(B, change(2, "late", "1", 2, "u"))
    cluster.send("pg.transaction", end("1", a=1, b=2))
    transfer(cluster, "2", 3, "two")
    engine_of(catalog, cluster, cut=Cut.TRANSACTION, settle_ms=0).run(follow=False)
    assert notes(catalog, "shop.a") == {1: "one"}
    assert notes(catalog, "shop.b") == {1: "one", 2: "late"}
    cluster.send("pg.transaction", end("2", a=1, b=1))
    engine_of(catalog, cluster, cut=Cut.TRANSACTION).run(follow=False)
    assert notes(catalog, "shop.b") == {1: "one", 2: "late", 3: "two"}


def test_batch_without_a_transaction_leaves_nothing_to_be_done_again(world):
    """Rows of an incremental snapshot, of one table."""
    catalog, cluster = world
    transfer(cluster, "1", 1, "one")
    cluster.send("pg.transaction", end("1", a=1, b=1))
    engine_of(catalog, cluster, cut=Cut.TRANSACTION, settle_ms=0).run(follow=False)
    cluster.send(B, message("r", {"id": 7, "note": "snapshot"}))
    for batches in ([(1, ["shop.b"])], []):
        engine = engine_of(catalog, cluster, cut=Cut.TRANSACTION, settle_ms=0)
        engine.run(follow=False)
        assert engine.listener.batches == batches
    assert notes(catalog, "shop.b") == {1: "one", 7: "snapshot"}


@pytest.mark.slow
@pytest.mark.parametrize("first", [(A, B), (A,)], ids=["left out", "later"])
def test_table_of_which_others_were_published_before_lacks_nothing_after_a_kill(first):
    for step in itertools.count(1, 4):
        catalog, cluster = memory_catalog(), FakeCluster()
        for topic in (A, B, "pg.transaction"):
            cluster.create(topic)

        def run(*include, catalog=catalog, cluster=cluster, **pace):
            options = {"include": include, "cut": Cut.TRANSACTION, "settle_ms": 0}
            engine_of(catalog, cluster, **options, **pace).run(follow=False)

        def change_both(*numbers, cluster=cluster):
            for number in numbers:
                transfer(cluster, str(number), number, "new")
                cluster.send("pg.transaction", end(str(number), a=1, b=1))

        change_both(0)
        run(*first)
        change_both(1, 2, 3)
        run(A)
        change_both(4)
        with killed_at(catalog.environment.runtime, step) as life:
            run(A, B, chunk=1, batch_events=1)
        change_both(5)
        run(A, B)
        assert (
            notes(catalog, "shop.a") == notes(catalog, "shop.b") == dict.fromkeys(range(6), "new")
        )
        record = read_set_aside(catalog.load_table("shop.b").properties)
        assert record is None, "it has caught up"
        if not life.is_killed:
            break
    assert step > 20


def test_new_table_of_a_transaction_joins_before_it_is_cut(world):
    catalog, cluster = world
    turns = iter(range(100))

    def stop():
        turn = next(turns)
        if turn == 3:
            transfer(cluster, "1", 1, "one")
            cluster.send("pg.public.c", change(1, "one", "1", 1))
            cluster.send("pg.transaction", end("1", a=1, b=1, c=1))
        return turn == 20

    engine = engine_of(catalog, cluster, cut=Cut.TRANSACTION, interval_ms=0, refresh_ms=0)
    engine.run(follow=True, stop=stop)
    assert engine.listener.batches == [(0, ["shop.a", "shop.b", "shop.c"])]


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32))
def test_tables_never_go_back_when_the_source_sends_again(seed):
    """A connector that was killed goes on from an older transaction; we are killed, too.

    Kafka has what is sent in order in each partition, not across them: an END may be there before
    the events that it counts, and before a topic that it counts exists, or has anything.
    """
    drawn = random.Random(seed)
    runtime = Runtime()
    catalog, cluster = memory_catalog(runtime=runtime), FakeCluster()
    for topic in (A, B, "pg.transaction"):
        if topic != B or drawn.random() < 0.5:
            cluster.create(topic)
    sent, states, state = [], [({}, {})], ({}, {})
    shown = 0

    def send(number, some):
        counts = {"a": 0, "b": 0}
        logs = {"pg.transaction": [begin(str(number))], A: [], B: []}
        for side, key in some:
            counts["ab"[side]] += 1
            note = f"{number}.{counts['ab'[side]]}"
            logs[(A, B)[side]].append(change(key, note, str(number), counts["ab"[side]], "u"))
        counted = {name: count for name, count in counts.items() if count}
        logs["pg.transaction"].append(end(str(number), **counted))
        while waiting := [topic for topic, left in logs.items() if left]:
            topic = drawn.choice(waiting)
            if drawn.random() < 0.3:
                cluster.create(topic)  # Kafka Connect makes it, and sends then
                look(0.3)
            cluster.send(topic, logs[topic].pop(0))
            look(0.15)

    def look(share):
        nonlocal engine, shown
        if drawn.random() >= share:
            return
        if engine is None or drawn.random() < 0.5:
            pace = {"chunk": drawn.choice([1, 9]), "interval_ms": 0, "refresh_ms": 0}
            engine = engine_of(catalog, cluster, cut=Cut.TRANSACTION, **pace)
        turns = itertools.count()
        with killed_at(runtime, drawn.randint(1, 60)) as life:
            engine.run(follow=True, stop=lambda: next(turns) >= TURNS)
        if life.is_killed:  # in the middle of a batch, which the next one makes whole
            engine = None
            return
        found = held(catalog)
        assert found in states[shown:], f"torn or older than {shown}: {found}"
        shown = states.index(found, shown)

    engine = engine_of(catalog, cluster, cut=Cut.TRANSACTION)
    for number in range(drawn.randint(2, 8)):
        some = [(drawn.randrange(2), drawn.randrange(3)) for _ in range(drawn.randint(1, 4))]
        counts = [0, 0]
        state = (dict(state[0]), dict(state[1]))
        for side, key in some:
            counts[side] += 1
            state[side][key] = f"{number}.{counts[side]}"
        sent.append(some)
        states.append(state)
        send(number, some)
        look(0.4)
        if drawn.random() < 0.4:
            for older in range(drawn.randint(0, number), number + 1):
                send(older, sent[older])
                look(0.4)
    engine_of(catalog, cluster, cut=Cut.TRANSACTION).run(follow=False)
    assert held(catalog) == state


def held(catalog):
    found = []
    for name in ("shop.a", "shop.b"):
        try:
            found.append(notes(catalog, name))
        except NotFoundError:
            found.append({})
    return tuple(found)


def test_source_that_does_not_tell_its_transactions_is_refused(world):
    catalog, cluster = world
    del cluster.logs["pg.transaction", 0]
    with pytest.raises(InvalidInputError, match="set provide"):
        engine_of(catalog, cluster, cut=Cut.TRANSACTION).run(follow=False)


def follow(catalog, cluster, happens, turns=20, **more):
    """Follow for some turns, before some of which things happen; the engine."""
    count = itertools.count()

    def stop():
        turn = next(count)
        happens.get(turn, lambda: None)()
        return turn >= turns

    pace = {"interval_ms": 0, "refresh_ms": 0, "settle_ms": 0}
    engine = engine_of(catalog, cluster, cut=Cut.TRANSACTION, **pace | more)
    engine.run(follow=True, stop=stop)
    return engine


def test_stream_that_follows_waits_for_the_transaction_topic_and_stages_nothing_before(
    world, caplog
):
    """Debezium makes it with the first transaction after the snapshot."""
    catalog, cluster = world
    del cluster.logs["pg.transaction", 0]
    cluster.send(A, message("r", {"id": 1, "note": "snapshot"}))
    tables = []

    def first():
        tables.append(catalog.list_tables())
        cluster.send("pg.transaction", begin("1"))
        cluster.send(A, change(2, "one", "1", 1))

    def last():
        tables.append(notes(catalog, "shop.a"))
        cluster.send(B, change(2, "one", "1", 1))
        cluster.send("pg.transaction", end("1", a=1, b=1))

    engine = follow(catalog, cluster, {4: first, 12: last})
    assert tables == [[], {1: "snapshot"}]
    assert engine.listener.batches == [(0, ["shop.a"]), (1, ["shop.a", "shop.b"])]
    assert notes(catalog, "shop.a") == {1: "snapshot", 2: "one"}
    waits = [text for text in caplog.messages if "provide.transaction.metadata=true" in text]
    assert len(waits) == 1


def test_tables_that_come_while_the_stream_waits_for_the_transaction_topic_are_in_it(world):
    catalog, cluster = world
    for topic in (B, "pg.transaction"):
        del cluster.logs[topic, 0]

    def first():
        transfer(cluster, "1", 1, "one")
        cluster.send("pg.transaction", end("1", a=1, b=1))

    engine = follow(catalog, cluster, {3: lambda: cluster.create(B), 5: first})
    assert engine.listener.batches == [(0, ["shop.a", "shop.b"])]


def test_stop_ends_the_wait_for_the_transaction_topic(world):
    catalog, cluster = world
    del cluster.logs["pg.transaction", 0]
    cluster.send(A, change(1, "x", "1", 1))
    engine = follow(catalog, cluster, {}, turns=1, refresh_ms=60_000)
    assert engine.listener.batches == []


@pytest.mark.parametrize("topic", ["other.public.c", "c"])
def test_no_transaction_topic_is_waited_for_that_could_not_be_of_all_topics(world, topic):
    catalog, cluster = world
    del cluster.logs["pg.transaction", 0]
    cluster.create(topic)
    with pytest.raises(InvalidInputError, match="no one topic"):
        follow(catalog, cluster, {}, include=("pg.public.*", topic))


def test_table_that_is_called_transaction_is_not_taken_for_the_transaction_topic(world):
    catalog, cluster = world
    cluster.send("pg.transaction", begin("1"))
    cluster.send("pg.public.transaction", change(1, "one", "1", 1))
    cluster.send("pg.transaction", end("1", transaction=1))
    engine_of(catalog, cluster, cut=Cut.TRANSACTION, settle_ms=0).run(follow=False)
    assert notes(catalog, "shop.transaction") == {1: "one"}


@pytest.mark.parametrize("again", [Cut.TRANSACTION, Cut.BATCH])
@pytest.mark.parametrize("chunk", [1, 1_000])
def test_table_that_fell_behind_gets_what_the_newest_batch_did_not_move(chunk, again):
    """Its events were taken for repeats: the batch that it was given again says it has them all."""
    catalog, cluster = memory_catalog(), FakeCluster()
    cluster.create(B, 2)

    def ran(cut=Cut.TRANSACTION, stop=lambda: False):
        engine = engine_of(catalog, cluster, cut=cut, settle_ms=0, chunk=chunk)
        engine.run(follow=False, stop=stop)

    def transfer(number, op, a, changed):
        name = f"{number}:{number}"
        cluster.send(A, change(0, a, name, 1, op))
        for order, (key, note) in enumerate(changed.items(), 1):
            cluster.send(B, change(key, note, name, order, op), partition=key)
        cluster.send("pg.transaction", begin(name), end(name, a=1, b=len(changed)))
        ran()

    transfer(1, "c", "one", {0: "one", 1: "one"})
    resolve(catalog.load_table("shop.b"))
    transfer(2, "u", "two", {1: "two"})
    transfer(3, "u", "three", {0: "three"})
    catalog.load_table("shop.b").refs.drop("staging")
    ran(again, stop=lambda: True)  # the newest batch alone
    transfer(4, "u", "four", {0: "four"})
    resolve(catalog.load_table("shop.b"))
    rows = catalog.load_table("shop.b").scan().to_arrow()
    assert sorted(rows["note"].to_pylist()) == ["four", "two"]


def test_table_that_was_dropped_is_whole_again_with_the_newest_batch():
    """It had only what that batch had moved: a cut showed rows of two states of the source."""
    catalog, cluster = memory_catalog(), FakeCluster()
    cluster.create(B, 2)

    def transfer(number, op, changed):
        name = f"{number}:{number}"
        for order, (key, note) in enumerate(changed.items(), 1):
            cluster.send(B, change(key, note, name, order, op), partition=key)
        cluster.send(A, change(0, "any", name, 1, op))
        cluster.send("pg.transaction", begin(name), end(name, a=1, b=len(changed)))

    def ran():
        engine_of(catalog, cluster, cut=Cut.TRANSACTION, settle_ms=0).run(follow=False)

    transfer(1, "c", {0: "one", 1: "one"})
    ran()
    transfer(2, "u", {1: "two"})
    ran()
    catalog.drop_table("shop.b")
    transfer(3, "u", {0: "three"})
    engine = engine_of(catalog, cluster, cut=Cut.TRANSACTION, settle_ms=0)
    engine.run(follow=False, stop=lambda: True)
    assert notes(catalog, "shop.b") == {0: "one", 1: "two"}
    ran()
    assert notes(catalog, "shop.b") == {0: "three", 1: "two"}
