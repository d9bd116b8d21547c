"""Topics that are not what their offsets in the tables are of: made anew, or emptied unseen."""

from __future__ import annotations

import json
from contextlib import suppress
from types import SimpleNamespace

import pytest

from resolver import resolve, resolve_group
from tableformat.cdc.many import staging
from tableformat.cdc.many.local_engine import Cut
from tableformat.cdc.many.set_aside import read_set_aside
from tableformat.spec.names import SET_ASIDE, SOURCE_OFFSETS, SOURCE_TOPICS
from tests.crash.test_run_kills import FIELDS, transaction
from tests.support.fake_kafka import FakeCluster
from tests.support.memory_tables import memory_catalog
from tests.support.stream_worlds import Killed, engine_of, message, notes

ORDERS, LINES = "pg.public.orders", "pg.public.lines"


@pytest.fixture
def cluster():
    return FakeCluster()


@pytest.fixture
def catalog():
    return memory_catalog()


def put(cluster, name, *keys, **more):
    changes = [message("c", {"id": key, "note": "new"}) for key in keys]
    cluster.send(f"pg.public.{name}", *changes, **more)


def ran(catalog, cluster, **more):
    engine = engine_of(catalog, cluster, **more)
    engine.run(follow=False)
    return engine


def summary(catalog, table):
    return catalog.load_table(table).state.head("staging").summary.additional_properties


@pytest.mark.parametrize("is_published", [False, True])
@pytest.mark.parametrize("count", [2, 3, 9])
def test_topic_made_anew_sets_its_table_aside_however_many_messages_it_has(
    catalog, cluster, count, is_published
):
    put(cluster, "orders", 1, 2, 3)
    put(cluster, "lines", 1)
    ran(catalog, cluster)
    ids = json.loads(summary(catalog, "shop.orders")[SOURCE_TOPICS])
    assert ids == {ORDERS: ORDERS, LINES: LINES}
    if is_published:  # and the staged commits are gone
        resolve_group([catalog.load_table(name) for name in ("shop.orders", "shop.lines")])
        resolve(catalog.load_table("shop.orders"))
    cluster.make_anew(ORDERS)
    put(cluster, "orders", *range(10, 10 + count))
    put(cluster, "lines", 2)
    for _ in range(2):
        engine = ran(catalog, cluster)
        reason = engine.aside["shop.orders"]
        assert f"topic {ORDERS} was deleted and made anew" in reason
        assert "\n" not in reason
        assert notes(catalog, "shop.orders").keys() == {1, 2, 3}
        assert notes(catalog, "shop.lines").keys() == {1, 2}


def test_table_that_is_resumed_goes_on_at_its_offsets_for_good(catalog, cluster):
    """A cluster that was copied: the messages are those of before, the ids are not."""
    put(cluster, "orders", 1, 2, 3)
    ran(catalog, cluster)
    cluster.ids[ORDERS] = "copied"
    assert "made anew" in ran(catalog, cluster).aside["shop.orders"]
    for words in ({"resume": ["shop.orders"]}, {}, {}):
        assert not ran(catalog, cluster, **words).aside  # also before it has a batch that says so
    put(cluster, "orders", 4)
    assert not ran(catalog, cluster).aside
    assert notes(catalog, "shop.orders").keys() == {1, 2, 3, 4}
    assert json.loads(summary(catalog, "shop.orders")[SOURCE_TOPICS]) == {ORDERS: "copied"}
    ran(catalog, cluster)
    assert SET_ASIDE not in catalog.load_table("shop.orders").properties
    cluster.make_anew(ORDERS)
    assert "made anew" in ran(catalog, cluster).aside["shop.orders"]


def test_table_that_is_resumed_for_another_reason_stands_aside_for_this_one(catalog, cluster):
    put(cluster, "orders", 1)
    ran(catalog, cluster)
    cluster.send(ORDERS, (None, "{no json"))
    assert "not a JSON object" in ran(catalog, cluster).aside["shop.orders"]
    batch = read_set_aside(catalog.load_table("shop.orders").properties).batch
    cluster.make_anew(ORDERS)
    put(cluster, "orders", 5, 6, 7)
    engine = ran(catalog, cluster, resume=["shop.orders"])
    assert "made anew" in engine.aside["shop.orders"]
    assert read_set_aside(catalog.load_table("shop.orders").properties).batch == batch
    assert notes(catalog, "shop.orders").keys() == {1}


@pytest.mark.parametrize("is_asked", [True, False])
def test_stream_that_runs_notices_and_is_asked_to_go_on(catalog, cluster, is_asked):
    put(cluster, "orders", 1)
    turns, shown = iter(range(9)), []

    def stop():
        turn = next(turns)
        shown.append(dict(engine.aside))
        if turn == 2:
            cluster.ids[ORDERS] = "copied"
        if turn == 4:
            put(cluster, "orders", 2)
        if turn == 5 and is_asked:
            catalog.load_table("shop.orders").set_properties({SET_ASIDE: "resume"})
        return turn == 8

    engine = engine_of(catalog, cluster, interval_ms=0, refresh_ms=0)
    engine.run(follow=True, stop=stop)
    assert shown[2] == {}
    assert "made anew" in shown[4]["shop.orders"]
    assert notes(catalog, "shop.orders").keys() == ({1, 2} if is_asked else {1})
    assert bool(engine.aside) is not is_asked


@pytest.mark.parametrize("is_first", [False, True])
def test_one_topic_of_a_table_made_anew_is_noticed_when_it_or_another_joins(
    catalog, cluster, is_first
):
    """It was not there when the stream began; or the table got a topic meanwhile."""
    one, other, third = (f"pg.public.{name}" for name in ("o1", "o2", "o3"))
    words = {"routes": [("pg.public.o*", "orders")], "interval_ms": 0}
    put(cluster, "o1", 1, 2)
    put(cluster, "o2", 3, 4)
    ran(catalog, cluster, **words)
    anew, log = (one, []) if is_first else (other, cluster.logs.pop((other, 0)))
    turns = iter(range(12))

    def stop():
        turn = next(turns)
        if turn == 2:
            cluster.logs.setdefault((anew, 0), log)
            cluster.make_anew(anew)
            put(cluster, anew.rpartition(".")[2], 5, 6, 7, 8)
            cluster.create(third if is_first else other)
        return turn == 11

    engine = engine_of(catalog, cluster, refresh_ms=0, **words)
    engine.run(follow=True, stop=stop)
    assert f"topic {anew} was deleted and made anew" in engine.aside["shop.orders"]
    assert "made anew" in ran(catalog, cluster, **words).aside["shop.orders"]


@pytest.mark.parametrize("count", [2, 9])
@pytest.mark.parametrize("is_dropped", [False, True])
def test_topic_made_anew_before_its_table_had_the_batch_that_was_first_to_read_it_is_told(
    catalog, cluster, caplog, monkeypatch, count, is_dropped
):
    put(cluster, "lines", 1)
    ran(catalog, cluster)
    put(cluster, "lines", 2)
    put(cluster, "orders", 1, 2, 3)
    commit = staging._commit

    def dies(environment, ready, **more):
        if ready.table.name == "shop.orders":
            raise Killed
        return commit(environment, ready, **more)

    with monkeypatch.context() as patch, suppress(Killed):
        patch.setattr(staging, "_commit", dies)
        ran(catalog, cluster)
    assert notes(catalog, "shop.lines").keys() == {1, 2}
    if is_dropped:
        catalog.drop_table("shop.orders")
    cluster.make_anew(ORDERS)
    put(cluster, "orders", *range(10, 10 + count))
    for _ in range(2):
        assert not ran(catalog, cluster).aside
    told = [m for m in caplog.messages if f"shop.orders: topic {ORDERS} was deleted and" in m]
    assert len(told) == (0 if is_dropped else 1)
    assert notes(catalog, "shop.orders").keys() == {*range(10, 10 + count)}


def test_topic_made_anew_of_which_nothing_was_staged_is_read_from_its_beginning(catalog, cluster):
    cluster.create(ORDERS)
    put(cluster, "lines", 1)
    turns = iter(range(9))

    def stop():
        turn = next(turns)
        if turn == 2:
            cluster.make_anew(ORDERS)
        if turn == 4:
            put(cluster, "orders", 3, 4)
        return turn == 8

    engine = engine_of(catalog, cluster, interval_ms=0, refresh_ms=0)
    engine.run(follow=True, stop=stop)
    assert not engine.aside
    assert notes(catalog, "shop.orders").keys() == {3, 4}
    assert not ran(catalog, cluster).aside


def test_brokers_that_tell_no_ids_forget_none(catalog, cluster):
    put(cluster, "orders", 1)
    ran(catalog, cluster)
    cluster.tells_ids = False
    put(cluster, "orders", 2)
    assert not ran(catalog, cluster).aside
    cluster.tells_ids = True
    put(cluster, "orders", 3)
    assert not ran(catalog, cluster).aside
    assert notes(catalog, "shop.orders").keys() == {1, 2, 3}
    cluster.make_anew(ORDERS)
    assert "made anew" in ran(catalog, cluster).aside["shop.orders"]


def test_nothing_of_a_topic_made_anew_is_staged_where_the_one_before_was_read_to(catalog, cluster):
    """Before anyone has looked around, which is every five seconds."""
    put(cluster, "orders", 1)
    turn = iter(range(9))

    def stop():
        now = next(turn)
        if now == 3:
            cluster.make_anew(ORDERS)
            put(cluster, "orders", 5, 6, 7)
        return now == 8

    engine = engine_of(catalog, cluster, refresh_ms=1e9, interval_ms=0)
    engine.run(follow=True, stop=stop)
    assert f"topic {ORDERS} was deleted and made anew" in engine.aside["shop.orders"]
    assert notes(catalog, "shop.orders").keys() == {1}


def test_messages_of_a_partition_that_was_empty_are_not_deleted_unseen(catalog, cluster):
    cluster.create(ORDERS, 3)
    put(cluster, "orders", 1, partition=0)
    cluster.delete_records((ORDERS, 1))
    ran(catalog, cluster)
    assert json.loads(summary(catalog, "shop.orders")[SOURCE_OFFSETS]) == {
        ORDERS: {"0": 1, "1": 0, "2": 0}
    }
    put(cluster, "orders", 2, partition=2)
    cluster.delete_records((ORDERS, 2))
    reason = ran(catalog, cluster).aside["shop.orders"]
    assert f"Kafka no longer has what comes next in {ORDERS}-2" in reason


@pytest.mark.parametrize("is_read", [False, True])
def test_partition_that_came_and_was_emptied_before_a_batch_noted_it_is_told(
    catalog, cluster, caplog, is_read
):
    put(cluster, "orders", 1)
    ran(catalog, cluster)
    cluster.create(ORDERS, 2)
    put(cluster, "orders", 2, partition=1)
    if is_read:
        ran(catalog, cluster)
        put(cluster, "orders", 3, partition=1)
    cluster.delete_records((ORDERS, 1))
    put(cluster, "orders", 4, partition=1)
    for _ in range(2):  # once: then a batch has noted it
        engine = ran(catalog, cluster)
    told = [each.getMessage() for each in caplog.records if "has partition" in each.msg]
    if is_read:
        assert not told
        assert "no longer has what comes next" in engine.aside["shop.orders"]
    else:
        assert len(told) == 1
        assert f"shop.orders: topic {ORDERS} has partition 1" in told[0]
        assert "all before offset 1 of it" in told[0]
        assert notes(catalog, "shop.orders").keys() == {1, 4}


def test_topic_that_was_emptied_before_its_table_could_be_made_is_told(catalog, cluster, caplog):
    put(cluster, "lines", 1)
    put(cluster, "orders", 1)
    ran(catalog, cluster, tables=[("shop.orders", {"columns": '{"no": "int"}'})])
    cluster.delete_records((ORDERS, 0))
    put(cluster, "orders", 2)
    assert not ran(catalog, cluster).aside
    assert notes(catalog, "shop.orders").keys() == {2}
    (told,) = [each.getMessage() for each in caplog.records if "has partition" in each.msg]
    assert f"shop.orders: topic {ORDERS} has partition 0" in told


def test_partition_that_was_emptied_before_it_was_read_begins_where_it_is(catalog, cluster):
    cluster.create(ORDERS, 2)
    put(cluster, "orders", 7, 8, partition=1)
    cluster.delete_records((ORDERS, 1))
    put(cluster, "orders", 1, partition=0)
    assert not ran(catalog, cluster).aside
    assert json.loads(summary(catalog, "shop.orders")[SOURCE_OFFSETS]) == {ORDERS: {"0": 1, "1": 2}}
    put(cluster, "orders", 2, partition=1)
    assert not ran(catalog, cluster).aside
    assert notes(catalog, "shop.orders").keys() == {1, 2}


@pytest.mark.parametrize("is_behind", [False, True])
def test_dropped_table_begins_anew_in_what_its_topic_has_by_now(catalog, cluster, is_behind):
    """The newest batch names it, so it lacks that, which ends elsewhere."""
    cluster.create(ORDERS, 2)
    put(cluster, "orders", 1, 2, 3, partition=0)
    put(cluster, "orders", 4, 5, partition=1)
    put(cluster, "lines", 1)
    ran(catalog, cluster)
    catalog.drop_table("shop.orders")
    if is_behind:
        put(cluster, "orders", 6)
        cluster.delete_records((ORDERS, 0))
    else:
        cluster.make_anew(ORDERS)
        del cluster.logs[ORDERS, 1]
    put(cluster, "orders", 7)
    assert not ran(catalog, cluster).aside
    put(cluster, "orders", 8)
    put(cluster, "orders", 9, partition=1)
    assert not ran(catalog, cluster).aside
    wanted = {4, 5, 7, 8, 9} if is_behind else {7, 8, 9}
    assert notes(catalog, "shop.orders").keys() == wanted


@pytest.mark.parametrize("count", [1, 3, 5])
def test_transaction_topic_made_anew_is_read_from_its_beginning(catalog, cluster, count):
    def transfer(number, op="u"):
        transaction(cluster, number, op, {name: {1: number} for name in "ab"})

    def balances():
        tables = (catalog.load_table(f"shop.{name}") for name in "ab")
        return [t.scan(branch="staging").to_arrow()["balance"].to_pylist() for t in tables]

    def run():
        ran(catalog, cluster, cut=Cut.TRANSACTION, settle_ms=0, interval_ms=0)

    for number in range(1, 4):
        transfer(number, "u" if number > 1 else "c")
    run()
    assert balances() == [[3], [3]]
    cluster.make_anew("pg.transaction")
    for number in range(4, 4 + count):
        transfer(number)
    for end in (3 + count, 4 + count):
        run()
        assert balances() == [[end], [end]]
        transfer(4 + count)


def test_run_that_ends_says_what_waits_for_events_that_went_with_their_topic(
    catalog, cluster, caplog
):
    """The stream that follows says it every minute."""
    changed = {name: {2: 0} for name in "ab"}
    cluster.create("pg.public.b", 2)
    for number in range(1, 4):
        transaction(cluster, number, "u" if number > 1 else "c", changed)
        if number == 1:
            ran(catalog, cluster, cut=Cut.TRANSACTION, settle_ms=0)
            assert not caplog.records
    cluster.make_anew("pg.public.b")
    catalog.drop_table("shop.b")
    transaction(cluster, 4, "u", changed)
    ran(catalog, cluster, cut=Cut.TRANSACTION, settle_ms=0)
    wanted = "3 messages are not staged: transaction 2:14 waits for events in topic pg.public.b"
    assert any(wanted in each and "--cut batch" in each for each in caplog.messages)
    ran(catalog, cluster, settle_ms=0)
    caplog.clear()
    transaction(cluster, 5, "u", changed)
    ran(catalog, cluster, cut=Cut.TRANSACTION, settle_ms=0)
    assert not any("are not staged" in each for each in caplog.messages)
    offsets = json.loads(summary(catalog, "shop.b")[SOURCE_OFFSETS])
    assert offsets == {
        "pg.public.a": {"0": 5},
        "pg.public.b": {"0": 2, "1": 0},
        "pg.transaction": {"0": 10},
    }


@pytest.mark.parametrize("has_snapshot", [False, True])
def test_stream_goes_on_without_what_a_run_that_ends_anywhere_has_left(
    catalog, cluster, caplog, has_snapshot
):
    """No batch has ended with a transaction: one that holds a snapshot's rows says so, too."""
    if has_snapshot:
        rows = (message("r", {"id": key, "balance": 0}, fields=FIELDS) for key in (1, 2))
        cluster.send("pg.public.a", *rows)
        cluster.create("pg.transaction")
        ran(catalog, cluster, cut=Cut.TRANSACTION, settle_ms=0)
        assert json.loads(summary(catalog, "shop.a")[SOURCE_OFFSETS])["pg.transaction"] == {"0": 0}
    transaction(cluster, 1, "u", {"a": {1: 1}, "b": {1: 1}})
    cluster.make_anew("pg.public.b")
    for _ in range(2):
        ran(catalog, cluster, cut=Cut.TRANSACTION, settle_ms=0)
        assert "1 messages are not staged: transaction 1:7 waits" in caplog.text
    ran(catalog, cluster, settle_ms=0)
    caplog.clear()
    transaction(cluster, 2, "u", {"a": {1: 2}})
    ran(catalog, cluster, cut=Cut.TRANSACTION, settle_ms=0)
    assert "are not staged" not in caplog.text
    [row] = (
        catalog.load_table("shop.a").scan(branch="staging", filter="id = 1").to_arrow()["balance"]
    )
    assert row.as_py() == 2


def test_ids_are_written_alike_by_both_clients() -> None:
    """Java writes base64 for URLs, librdkafka the other one."""
    kafka_consumer = pytest.importorskip("tableformat.cdc.many.kafka_consumer")
    pytest.importorskip("confluent_kafka")
    given = {"a": "ey4CXXY0QfiKC8ASd/gK+Q", "b": "A" * 22}
    answers = {
        name: SimpleNamespace(result=lambda text=text: SimpleNamespace(topic_id=text))
        for name, text in given.items()
    }
    consumer = kafka_consumer.KafkaConsumer("127.0.0.1:1")
    consumer._admin = SimpleNamespace(describe_topics=lambda *_, **__: answers)
    assert consumer.ids(["a", "b"]) == {"a": "ey4CXXY0QfiKC8ASd_gK-Q"}
    consumer.close()
