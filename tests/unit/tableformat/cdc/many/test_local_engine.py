"""Many topics into many tables in this process: made, staged once, set aside, resumed, joined."""

from __future__ import annotations

import json
from itertools import count

import pytest

from resolver import resolve_group
from tableformat.cdc.many import local_engine
from tableformat.cdc.many.set_aside import (
    LeftOut,
    SetAside,
    end_set_aside,
    left_out,
    read_set_aside,
    set_aside,
)
from tableformat.errors import FencedError, InvalidInputError, NotFoundError
from tableformat.runtime import Runtime
from tableformat.spec.names import (
    BATCH_ID,
    BATCH_TABLES,
    LEFT_OUT,
    QUERY_ID,
    SET_ASIDE,
    SOURCE_OFFSETS,
)
from tests.support.fake_kafka import FakeCluster
from tests.support.memory_tables import memory_catalog
from tests.support.stream_worlds import ROW, engine_of, message, notes


@pytest.fixture
def cluster():
    return FakeCluster()


@pytest.fixture
def catalog():
    return memory_catalog()


def put(cluster, name, *rows, op="c", **more):
    cluster.send(f"pg.public.{name}", *(message(op, r, **more) for r in rows))


def row(key, note="new"):
    return {"id": key, "note": note}


def summary(catalog, table):
    return catalog.load_table(table).state.head("staging").summary.additional_properties


@pytest.mark.parametrize("side_by_side", [False, True])
def test_tables_are_made_and_one_batch_is_staged_on_all_of_them(cluster, side_by_side):
    catalog = memory_catalog(runtime=Runtime(side_by_side=side_by_side))
    put(cluster, "orders", row(1), row(2))
    put(cluster, "lines", row(10))
    engine = engine_of(catalog, cluster)
    engine.run(follow=False)
    assert notes(catalog, "shop.orders") == {1: "new", 2: "new"}
    assert notes(catalog, "shop.lines") == {10: "new"}
    assert engine.listener.batches == [(0, ["shop.lines", "shop.orders"])]
    found = summary(catalog, "shop.orders")
    assert (found[QUERY_ID], found[BATCH_ID]) == ("kafka:shop", "0")
    assert json.loads(found[BATCH_TABLES]) == ["shop.lines", "shop.orders"]
    assert json.loads(found[SOURCE_OFFSETS]) == {
        "pg.public.orders": {"0": 2}, "pg.public.lines": {"0": 1},
    }  # fmt: skip
    table = catalog.load_table("shop.orders")
    assert table.primary_key == ("id",)
    assert [(f.name, str(f.field_type), f.required) for f in table.schema().fields] == [
        ("id", "long", True), ("note", "string", False),
    ]  # fmt: skip


def test_stream_goes_on_where_each_table_stands(catalog, cluster):
    put(cluster, "orders", row(1))
    put(cluster, "lines", row(10))
    engine_of(catalog, cluster).run(follow=False)
    put(cluster, "orders", row(1, "paid"), op="u")
    cluster.send("pg.public.orders", (None, None))  # a tombstone
    engine = engine_of(catalog, cluster)
    engine.run(follow=False)
    assert engine.listener.batches == [(1, ["shop.orders"])]
    assert notes(catalog, "shop.orders") == {1: "paid"}
    again = engine_of(catalog, cluster)
    again.run(follow=False)
    assert again.listener.batches == []
    assert json.loads(summary(catalog, "shop.orders")[SOURCE_OFFSETS]) == {
        "pg.public.orders": {"0": 3}
    }


def test_delete_of_a_compacted_topic_of_which_only_the_tombstone_is_left_is_applied(
    catalog, cluster
):
    put(cluster, "orders", row(1), row(2))
    engine_of(catalog, cluster).run(follow=False)
    key, _ = message("d", row(1))
    cluster.send("pg.public.orders", (key, None))
    engine_of(catalog, cluster).run(follow=False)
    assert notes(catalog, "shop.orders") == {2: "new"}


def test_batch_without_a_change_is_on_its_table_nevertheless(catalog, cluster):
    put(cluster, "orders", row(1))
    engine_of(catalog, cluster).run(follow=False)
    cluster.send("pg.public.orders", (None, None))
    engine_of(catalog, cluster).run(follow=False)
    assert summary(catalog, "shop.orders")[BATCH_ID] == "1"


def test_table_that_cannot_take_its_events_stands_aside_and_stops_no_other(catalog, cluster):
    put(cluster, "orders", row(1))
    put(cluster, "lines", row(10))
    engine_of(catalog, cluster).run(follow=False)
    cluster.send("pg.public.lines", (None, "{no json"))
    put(cluster, "orders", row(2))
    engine = engine_of(catalog, cluster)
    engine.run(follow=False)
    assert notes(catalog, "shop.orders") == {1: "new", 2: "new"}
    assert "not a JSON object" in engine.aside["shop.lines"]
    assert "pg.public.lines-0@1" in engine.aside["shop.lines"]
    assert json.loads(summary(catalog, "shop.orders")[BATCH_TABLES]) == ["shop.orders"]
    record = read_set_aside(catalog.load_table("shop.lines").properties)
    assert (record.query, record.batch) == ("kafka:shop", 1)

    put(cluster, "lines", row(11))
    put(cluster, "orders", row(3))
    later = engine_of(catalog, cluster)
    later.run(follow=False)
    assert set(later.aside) == {"shop.lines"}
    assert notes(catalog, "shop.orders").keys() == {1, 2, 3}
    assert notes(catalog, "shop.lines").keys() == {10}

    back = engine_of(catalog, cluster, resume=["shop.lines"],
                     defaults={"on-bad-record": "dead-letter"})  # fmt: skip
    back.run(follow=False)
    assert back.aside == {}
    assert notes(catalog, "shop.lines").keys() == {10, 11}
    assert SET_ASIDE not in catalog.load_table("shop.lines").properties


def test_table_that_is_resumed_stays_out_of_cuts_until_it_has_caught_up(catalog, cluster):
    """Its batches hold old events beside the others' new ones; a process that ends keeps that."""
    put(cluster, "orders", row(1))
    put(cluster, "lines", row(10))
    engine_of(catalog, cluster).run(follow=False)
    cluster.send("pg.public.lines", (None, "{no json"))
    engine_of(catalog, cluster).run(follow=False)
    for key in range(5):
        put(cluster, "lines", row(20 + key))
        put(cluster, "orders", row(2 + key))
        engine_of(catalog, cluster).run(follow=False)
    options = {"defaults": {"on-bad-record": "dead-letter"}, "batch_events": 2, "chunk": 2}
    turns = iter(range(100))
    back = engine_of(catalog, cluster, resume=["shop.lines"], interval_ms=0, **options)
    back.run(follow=True, stop=lambda: len(back.listener.batches) > 1 or next(turns) > 90)
    record = read_set_aside(catalog.load_table("shop.lines").properties)
    assert (record.batch, record.resumed) == (1, True)
    assert "not a JSON object" in record.reason
    put(cluster, "orders", row(7))
    engine_of(catalog, cluster, **options).run(follow=False)
    assert notes(catalog, "shop.lines").keys() == {10, *range(20, 25)}
    properties = catalog.load_table("shop.lines").properties
    assert SET_ASIDE not in properties
    last = int(summary(catalog, "shop.lines")[BATCH_ID])
    assert last > 6
    (gap,) = left_out(properties)
    assert (gap.begin, gap.covers("kafka:shop", last - 1), gap.covers("kafka:shop", last)) == (
        1, True, False,
    )  # fmt: skip


@pytest.mark.parametrize("has_lacked", [False, True])
def test_table_whose_topics_a_run_leaves_out_is_in_no_cut_until_one_has_read_them(
    catalog, cluster, has_lacked
):
    names = ("orders", "lines")
    tables = {f"shop.{name}" for name in names}

    def publish():
        resolve_group([catalog.load_table(name) for name in sorted(tables)])
        newest = catalog.cuts("shop")[0]
        return newest.name.batch, newest.snapshots.keys()

    for name in names:
        put(cluster, name, row(1))
    engine_of(catalog, cluster).run(follow=False)
    assert publish() == (0, tables)
    for name in names if has_lacked else ["orders"]:
        put(cluster, name, row(2))
    few = engine_of(catalog, cluster, exclude=["pg.public.lines"])
    few.open()
    few.plan_tables()
    assert SET_ASIDE not in catalog.load_table("shop.lines").properties  # a dry run
    few.run(follow=False)
    assert publish() == (1, {"shop.orders"})
    put(cluster, "orders", row(3))
    engine_of(catalog, cluster).run(follow=False)
    assert SET_ASIDE not in catalog.load_table("shop.lines").properties
    assert publish() == (2, tables)
    assert notes(catalog, "shop.lines").keys() == ({1, 2} if has_lacked else {1})
    held = [cut.snapshots.keys() for cut in catalog.cuts("shop")]
    assert held == [tables, {"shop.orders"}, tables]


def test_table_that_lacked_nothing_keeps_what_it_lacked_before_and_no_more(catalog, cluster):
    """Else what waits on it from between would be in a gap, and published with no cut."""
    put(cluster, "orders", row(1))
    engine_of(catalog, cluster).run(follow=False)
    table = catalog.load_table("shop.orders")
    table.set_properties({LEFT_OUT: '{"query": "kafka:shop", "begin": 1, "end": 3}'})
    record = SetAside(query="kafka:shop", batch=5, reason="x", at_ms=0, resumed=True)
    set_aside(catalog.environment, table.identifier, record)
    end_set_aside(catalog.environment, table.refresh().state, record, batch=5)
    assert left_out(table.refresh().properties) == [LeftOut(query="kafka:shop", begin=1, end=3)]
    assert SET_ASIDE not in table.properties


def test_table_whose_topic_is_gone_stays_in_cuts(catalog, cluster):
    """It holds all that there was."""
    for name in ("orders", "lines"):
        put(cluster, name, row(1))
    engine_of(catalog, cluster).run(follow=False)
    del cluster.logs["pg.public.lines", 0]
    put(cluster, "orders", row(2))
    engine_of(catalog, cluster).run(follow=False)
    resolve_group([catalog.load_table(f"shop.{name}") for name in ("lines", "orders")])
    assert catalog.cuts("shop")[0].snapshots.keys() == {"shop.lines", "shop.orders"}


def test_table_that_cannot_be_made_says_so_and_is_tried_again(catalog, cluster):
    put(cluster, "bare", row(1), bare=True)
    put(cluster, "orders", row(1))
    engine = engine_of(catalog, cluster)
    engine.run(follow=False)
    assert "carry no schema" in engine.aside["shop.bare"]
    assert notes(catalog, "shop.orders") == {1: "new"}
    catalog.create_table("shop.bare", catalog.load_table("shop.orders").schema(),
                         primary_key=["id"])  # fmt: skip
    again = engine_of(catalog, cluster)
    again.run(follow=False)
    assert notes(catalog, "shop.bare") == {1: "new"}
    assert again.aside == {}


def test_topic_that_comes_later_joins_and_one_that_is_resumed_elsewhere_too(catalog, cluster):
    put(cluster, "orders", row(1))
    put(cluster, "lines", row(1))
    cluster.send("pg.public.lines", (None, "{no json"))
    turns = iter(range(10_000))

    def stop():
        turn = next(turns)
        if turn == 5:
            put(cluster, "late", row(7))
        if turn == 10:
            catalog.load_table("shop.lines").set_properties({SET_ASIDE: "resume"})
            cluster.logs["pg.public.lines", 0][1] = (None, None)
        return turn == 20

    engine = engine_of(catalog, cluster, interval_ms=0, refresh_ms=0)
    catalog.create_table("shop.lines", _schema(catalog), primary_key=["id"])
    engine.run(follow=True, stop=stop)
    assert notes(catalog, "shop.late") == {7: "new"}
    assert notes(catalog, "shop.lines") == {1: "new"}
    assert engine.listener.back == ["shop.lines"]
    assert engine.aside == {}
    assert SET_ASIDE not in catalog.load_table("shop.lines").properties


@pytest.mark.parametrize("hidden", [False, True])
def test_partition_that_comes_is_read_though_the_brokers_left_its_topic_out_once(
    catalog, cluster, hidden, caplog
):
    put(cluster, "orders", row(1))
    put(cluster, "lines", row(10))
    engine = engine_of(catalog, cluster, refresh_ms=0, interval_ms=0)
    listed, turns = engine.source.topics, iter(range(40))

    def topics():
        found = dict(listed())
        if hidden and ("pg.public.orders", 1) in cluster.logs and not asked:
            asked.append(found.pop("pg.public.orders"))
        return found

    def stop():
        turn = next(turns)
        if turn == 10:
            cluster.send("pg.public.orders", message("c", row(2)), partition=1)
        return turn == 39

    asked: list[int] = []
    engine.source.topics = topics
    engine.run(follow=True, stop=stop)
    assert len(asked) == hidden
    (warning,) = [each.getMessage() for each in caplog.records if "more part" in each.getMessage()]
    assert "topic pg.public.orders has more partitions" in warning
    assert notes(catalog, "shop.orders") == {1: "new", 2: "new"}


def test_late_stream_takes_what_waits_into_one_batch(catalog, cluster, monkeypatch):
    """Cut as often as one that is not late, its batches would be small, and it stay late."""
    monkeypatch.setattr("tableformat.cdc.many.local_engine.POLL_MESSAGES", 10)
    put(cluster, "orders", *(row(number) for number in range(25)))
    turns = iter(range(100))
    engine = engine_of(catalog, cluster, interval_ms=0)
    engine.run(follow=True, stop=lambda: next(turns) == 20)
    assert engine.listener.batches == [(0, ["shop.orders"])]
    assert len(notes(catalog, "shop.orders")) == 25

    put(cluster, "orders", *(row(number) for number in range(25, 125)))
    turns = iter(range(100))
    bounded = engine_of(catalog, cluster, interval_ms=0, batch_events=40)
    bounded.run(follow=True, stop=lambda: next(turns) == 40)
    assert len(bounded.listener.batches) == 3
    assert len(notes(catalog, "shop.orders")) == 125


def _schema(catalog):
    import pyarrow as pa

    return pa.schema([pa.field("id", pa.int64(), nullable=False), ("note", pa.string())])


def test_columns_that_come_later_are_added_where_the_table_may_change(catalog, cluster):
    put(cluster, "orders", row(1))
    put(cluster, "lines", row(1))
    options = [("orders", {"schema-evolution": "add-columns"})]
    engine_of(catalog, cluster, tables=options).run(follow=False)
    wide = [*ROW, {"field": "more", "type": "int32", "optional": True}]
    for name in ("orders", "lines"):
        put(cluster, name, row(2) | {"more": 5}, fields=wide)
    engine = engine_of(catalog, cluster, tables=options)
    engine.run(follow=False)
    assert "column 'more'" in engine.aside["shop.lines"]
    assert catalog.load_table("shop.orders").schema().column_names == ["id", "note", "more"]


def test_messages_that_kafka_has_deleted_set_the_table_aside(catalog, cluster):
    put(cluster, "orders", row(1))
    put(cluster, "lines", row(1))
    engine_of(catalog, cluster).run(follow=False)
    put(cluster, "lines", row(2), row(3))
    cluster.first["pg.public.lines", 0] = 2
    put(cluster, "orders", row(2))
    engine = engine_of(catalog, cluster)
    engine.run(follow=False)
    assert "no longer has what comes next in pg.public.lines-0" in engine.aside["shop.lines"]
    assert notes(catalog, "shop.orders").keys() == {1, 2}


@pytest.mark.parametrize("ends", [True, False])
def test_batch_waits_for_a_publish_in_this_process_but_not_for_ever(
    catalog, cluster, monkeypatch, ends
):
    now_ms = count(step=10)  # of calls: the machine's pace does not matter
    monkeypatch.setattr(local_engine.LocalEngine, "_now_ms", lambda _: next(now_ms))
    monkeypatch.setattr(local_engine, "HELD_MS", 1e9 if ends else 1_000)
    engine = engine_of(catalog, cluster, interval_ms=0)
    monkeypatch.setattr(engine.listener, "is_publishing", lambda: True, raising=False)
    put(cluster, "orders", row(1))
    turns = []

    def stop():
        if engine.batches_staged:
            turns.append(engine.batches_staged)
        if len(turns) == 1:
            put(cluster, "orders", row(2))
        if ends and len(turns) == 20:
            monkeypatch.setattr(engine.listener, "is_publishing", lambda: False)
        return engine.batches_staged == 2

    engine.run(follow=True, stop=stop)
    assert len(turns) > (20 if ends else 2)
    assert notes(catalog, "shop.orders").keys() == {1, 2}


def test_two_processes_of_one_stream_do_not_mix_their_batches(catalog, cluster):
    put(cluster, "orders", row(1))
    engine_of(catalog, cluster).run(follow=False)
    slow = engine_of(catalog, cluster, interval_ms=0)
    turns = iter(range(100))

    def stop():
        if next(turns) == 3:
            put(cluster, "orders", row(2))
            engine_of(catalog, cluster).run(follow=False)
            put(cluster, "orders", row(3))
        return False

    with pytest.raises(FencedError, match="another process of this stream"):
        slow.run(follow=True, stop=stop)
    engine_of(catalog, cluster).run(follow=False)
    assert notes(catalog, "shop.orders").keys() == {1, 2, 3}


def test_process_that_is_behind_in_its_numbers_is_noticed_by_the_offsets(catalog, cluster):
    put(cluster, "a", row(1))
    put(cluster, "b", row(1))
    engine_of(catalog, cluster).run(follow=False)
    other = engine_of(catalog, cluster, exclude=["pg.public.b"])
    other.open()  # its next batch is 1
    turns = iter(range(100))

    def stop():
        turn = next(turns)
        if turn in (2, 4):
            put(cluster, "b", row(turn))
        if turn == 6:
            put(cluster, "a", row(2))
            other.run(follow=False)
        return turn == 20

    slow = engine_of(catalog, cluster, interval_ms=0)
    with pytest.raises(FencedError, match="another process of this stream"):
        slow.run(follow=True, stop=stop)
    numbers = [
        int(s.summary.additional_properties[BATCH_ID])
        for s in catalog.load_table("shop.a").state.metadata.snapshots
    ]
    assert numbers == [0, 1]


def test_table_that_has_gone_back_stops_the_stream_which_then_goes_on_from_there(catalog, cluster):
    put(cluster, "orders", row(1))
    put(cluster, "lines", row(1))
    engine_of(catalog, cluster).run(follow=False)
    backup = catalog.load_table("shop.orders").state.ref("staging").snapshot_id
    turns = iter(range(100))

    def stop():
        turn = next(turns)
        if turn in (2, 8):
            put(cluster, "orders", row(turn))
            put(cluster, "lines", row(turn))
        if turn == 6:  # between two batches an operator restores one of the tables
            table = catalog.load_table("shop.orders")
            head = table.state.ref("staging").snapshot_id
            table.refs.replace("staging", to=backup, expected_head=head)
        return False

    with pytest.raises(FencedError, match="no longer has what this stream has staged"):
        engine_of(catalog, cluster, interval_ms=0).run(follow=True, stop=stop)
    assert notes(catalog, "shop.orders").keys() == {1}
    engine_of(catalog, cluster).run(follow=False)
    assert notes(catalog, "shop.orders").keys() == {1, 2, 8}
    assert notes(catalog, "shop.lines").keys() == {1, 2, 8}


def test_other_query_on_the_table_hides_no_offset(catalog, cluster):
    put(cluster, "orders", row(1))
    engine_of(catalog, cluster).run(follow=False)
    import pyarrow as pa

    table = catalog.load_table("shop.orders")
    table.write_changes(pa.table({"id": [5], "note": ["by hand"]}), query_id="q", batch_id=0)
    put(cluster, "orders", row(2))
    engine = engine_of(catalog, cluster)
    engine.run(follow=False)
    assert engine.listener.batches == [(1, ["shop.orders"])]
    assert notes(catalog, "shop.orders").keys() == {1, 2, 5}


def test_topics_that_meet_in_one_table_need_a_route(catalog, cluster):
    put(cluster, "orders", row(1))
    cluster.send("pg.public.old.orders", message("c", row(2)))
    with pytest.raises(InvalidInputError, match="several topics would go to one table"):
        engine_of(catalog, cluster).run(follow=False)
    engine_of(catalog, cluster, routes=[("pg.public.*orders", "orders")]).run(follow=False)
    assert notes(catalog, "shop.orders").keys() == {1, 2}


def test_pattern_without_a_topic_and_unknown_table_to_resume_are_refused(catalog, cluster):
    put(cluster, "orders", row(1))
    with pytest.raises(NotFoundError, match="no topic fits"):
        engine_of(catalog, cluster, include=["pg.other.*"]).run(follow=False)
    with pytest.raises(NotFoundError, match="no topic goes to table"):
        engine_of(catalog, cluster, resume=["shop.line"]).run(follow=False)


def test_dry_run_plans_tables_and_writes_nothing(catalog, cluster):
    put(cluster, "orders", row(1))
    put(cluster, "bare", row(1), bare=True)
    cluster.create("pg.public.empty")
    engine = engine_of(catalog, cluster, tables=[("orders", {"partition-by": "bucket(4, id)"})])
    engine.open()
    found = engine.plan_tables()
    assert found["shop.orders"].ddl() == (
        "CREATE TABLE shop.orders (\n  id BIGINT NOT NULL,\n  note STRING\n) USING iceberg\n"
        "PARTITIONED BY (bucket(4, id))\n"
        "TBLPROPERTIES ('format-version' = '3', 'icefold.expire.max-snapshots-to-keep' = '1000', "
        "'write.metadata.delete-after-commit.enabled' = 'true', "
        "'write.metadata.compression-codec' = 'gzip');\n"
        "ALTER TABLE shop.orders SET IDENTIFIER FIELDS id;"
    )
    assert "carry no schema" in found["shop.bare"]
    assert "empty" in found["shop.empty"]
    assert catalog.list_tables() == []


@pytest.mark.parametrize(
    "feeds", ["one partition", "two partitions", "two topics", "a later topic"]
)
def test_truncate_is_applied_only_where_one_partition_feeds_its_table(catalog, cluster, feeds):
    """Of the shards of a table one is truncated; its rows are not told from the others'."""
    routes = [(r"^pg\.public\.orders.*", "orders")]
    given = {"routes": routes, "defaults": {"on-truncate": "apply"}}
    put(cluster, "orders", row(1), row(2))
    match feeds:
        case "two partitions":
            cluster.send("pg.public.orders", message("c", row(3)), partition=1)
        case "two topics":
            put(cluster, "orders_2", row(3))
    engine_of(catalog, cluster, **given).run(follow=False)
    if feeds == "a later topic":
        put(cluster, "orders_2", row(3))
    cluster.send("pg.public.orders", (None, message("t", row(0))[1]))
    put(cluster, "orders", row(4))
    engine = engine_of(catalog, cluster, **given)
    engine.run(follow=False)
    if feeds == "one partition":
        assert notes(catalog, "shop.orders").keys() == {4}
        return
    assert "on-truncate=apply needs a topic of one partition" in engine.aside["shop.orders"]
    assert {1, 2} <= notes(catalog, "shop.orders").keys()
    given["defaults"] = {"on-truncate": "ignore"}
    engine_of(catalog, cluster, resume=["shop.orders"], **given).run(follow=False)
    assert notes(catalog, "shop.orders").keys() == {1, 2, 3, 4}


@pytest.mark.parametrize("on_truncate", ["apply", "ignore", "fail"])
@pytest.mark.parametrize("goes_on", [True, False], ids=["same process", "new process"])
def test_table_whose_first_batch_holds_truncates_only_is_made_by_its_first_row(
    catalog, cluster, on_truncate, goes_on
):
    given = {"defaults": {"on-truncate": on_truncate}, "chunk": 1, "batch_events": 1}
    truncate = (None, message("t", row(0))[1])
    put(cluster, "lines", row(10))
    cluster.send("pg.public.orders", truncate, (None, None), truncate)
    engine = engine_of(catalog, cluster, **given)
    if not goes_on:
        engine.run(follow=False)
        engine = engine_of(catalog, cluster, **given)
    put(cluster, "orders", row(1), row(2))
    engine.run(follow=False)
    assert notes(catalog, "shop.lines") == {10: "new"}
    if on_truncate == "fail":
        assert "a truncate event: all rows of the table were removed" in engine.aside["shop.orders"]
        return
    assert engine.aside == {}
    assert notes(catalog, "shop.orders") == {1: "new", 2: "new"}
    again = engine_of(catalog, cluster, **given)
    again.run(follow=False)
    assert again.listener.batches == []
