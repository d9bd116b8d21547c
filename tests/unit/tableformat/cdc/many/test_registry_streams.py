"""Streams whose messages are Avro: the registry fails, messages are wrong, nothing is lost."""

from __future__ import annotations

import json
import logging

import pyarrow as pa
import pytest

from tableformat.cdc.ingest import IngestResult
from tableformat.cdc.many.local_engine import Cut
from tableformat.cdc.registry.client import RegistrySettings
from tableformat.cdc.registry.decoder import RegistryDecoder
from tableformat.cdc.replay import replay_dead_letters
from tableformat.cdc.sink import plan_sink
from tableformat.errors import StoreUnavailableError
from tableformat.spec.names import SOURCE_TRANSACTION
from tests.support import debezium_events as real
from tests.support.fake_kafka import FakeCluster
from tests.support.fake_registry import Converter, fake_registry, framed
from tests.support.memory_tables import memory_catalog
from tests.support.stream_worlds import ROW, engine_of, message, notes

LONG = {"type": "int64", "optional": False}
BLOCK = {"type": "struct", "optional": True, "field": "transaction", "name": "event.block",
         "fields": [{"type": "string", "optional": False, "field": "id"},
                    LONG | {"field": "total_order"},
                    LONG | {"field": "data_collection_order"}]}  # fmt: skip
COUNTS = {"type": "array", "optional": True, "field": "data_collections",
          "items": {"type": "struct", "name": "event.collection", "fields": [
              {"type": "string", "field": "data_collection"},
              LONG | {"field": "event_count"}]}}  # fmt: skip
BOUNDARY = {"type": "struct", "name": "TransactionMetadataValue", "fields": [
    {"type": "string", "field": "status"}, {"type": "string", "field": "id"}, COUNTS]}  # fmt: skip


class World:
    def __init__(self, registry):
        self.registry = registry
        self.catalog, self.cluster = memory_catalog(), FakeCluster()
        self.decoder = RegistryDecoder(RegistrySettings(registry.url, {"max.retries": "0"}))

    def avro(self, sent):
        key, value = (json.loads(each) for each in sent)
        value["schema"]["fields"].append(BLOCK)
        value["payload"].setdefault("transaction", None)
        converter = Converter(self.registry)
        return converter.write(key), converter.write(value)

    def put(self, table, *rows, op="c", **more):
        self.cluster.send(f"pg.public.{table}",
                          *(self.avro(message(op, row, **more)) for row in rows))  # fmt: skip

    def engine(self, **more):
        return engine_of(self.catalog, self.cluster, decoder=self.decoder, **more)

    def run(self, **more):
        engine = self.engine(**more)
        engine.run(follow=False)
        return engine

    def notes(self, table):
        return notes(self.catalog, table)


@pytest.fixture
def world():
    with fake_registry() as registry:
        yield World(registry)


def row(key, note="new"):
    return {"id": key, "note": note}


def test_real_history_in_avro_makes_the_table_that_it_makes_in_json(world):
    plain = FakeCluster(), memory_catalog()
    for catalog in (world.catalog, plain[1]):  # some of its types are none that columns have
        catalog.create_table("shop.account_full", real.ACCOUNT, primary_key=["id"])
    for topic in ("db.public.line", "db.public.account_full"):
        for each in real.records(topic):
            texts = [None if each[n] is None else json.dumps(each[n]) for n in ("key", "value")]
            plain[0].send(topic, tuple(texts))
            converter = Converter(world.registry)
            world.cluster.send(topic, tuple(converter.write(each[n]) for n in ("key", "value")))
    engine = world.run(include=["db.public.*"])
    wanted = engine_of(plain[1], plain[0], include=["db.public.*"])
    wanted.run(follow=False)
    assert engine.listener.batches == wanted.listener.batches
    assert engine.aside == wanted.aside == {}
    for name in ("shop.line", "shop.account_full"):
        found, expected = (c.load_table(name) for c in (world.catalog, plain[1]))
        assert str(found.schema()) == str(expected.schema())
        rows = [t.scan(branch="staging").to_arrow().to_pylist() for t in (found, expected)]
        assert sorted(rows[0], key=str) == sorted(rows[1], key=str)
        assert len(rows[1]) > 1


def test_stream_waits_for_a_registry_that_is_down_and_goes_on(world, caplog):
    caplog.set_level(logging.INFO, "icefold.ingest")
    world.put("orders", row(1))
    engine = world.engine(interval_ms=0, refresh_ms=0)
    turns = 0

    def stop():
        nonlocal turns
        turns += 1
        if turns == 3:
            assert world.notes("shop.orders") == {1: "new"}
            world.put("orders", row(2))  # of a schema that is known: no need to ask
            world.registry.down = True
        if turns == 8:
            assert world.notes("shop.orders") == {1: "new", 2: "new"}
            world.put("lines", row(10))
            wide = [*ROW, {"field": "more", "type": "int32", "optional": True}]
            world.put("orders", {**row(3), "more": 7}, fields=wide)
        if turns == 20:
            assert "shop.lines" not in str(engine.listener.batches)
            engine._ask_again_ms = 0.0
            world.registry.down = False
        return turns > 40

    engine.run(follow=True, stop=stop)
    assert engine.aside.keys() == {"shop.orders"}  # it may not add a column
    assert world.notes("shop.lines") == {10: "new"}
    told = [record.getMessage() for record in caplog.records if "registry" in record.getMessage()]
    assert len(told) == 2, told
    assert "does not answer: HTTP 503" in told[0]
    assert "the stream waits for it" in told[0]
    back = world.run(resume=["shop.orders"], defaults={"schema-evolution": "add-columns"})
    assert back.aside == {}
    assert world.notes("shop.orders") == {1: "new", 2: "new", 3: "new"}


def test_run_that_ends_says_that_the_registry_is_down_and_the_next_loses_nothing(world):
    world.put("orders", row(1))
    world.registry.down = True
    with pytest.raises(StoreUnavailableError, match="registry does not answer: HTTP 503"):
        world.run()
    assert world.catalog.list_tables("shop") == []
    world.registry.down = False
    world.run()
    assert world.notes("shop.orders") == {1: "new"}


def test_message_of_an_unknown_schema_sets_its_table_aside_until_it_is_known(world):
    world.put("orders", row(1))
    world.put("lines", row(10))
    world.run()
    wide = [*ROW, {"field": "more", "type": "int32", "optional": True}]
    world.put("orders", {**row(2), "more": 7}, fields=wide)
    world.put("lines", row(11))
    lost = world.registry.schemas.pop(max(world.registry.schemas))
    engine = world.run()
    number = max(world.registry.schemas) + 1
    assert f"bad record: the schema registry has no schema {number}" in engine.aside["shop.orders"]
    assert "pg.public.orders-0@1" in engine.aside["shop.orders"]
    assert world.notes("shop.lines") == {10: "new", 11: "new"}
    world.registry.schemas[number] = lost
    world.run(resume=["shop.orders"], defaults={"schema-evolution": "add-columns"})
    assert world.notes("shop.orders") == {1: "new", 2: "new"}


def test_wrong_messages_are_dead_letters_as_they_came_and_can_be_replayed(world):
    world.put("orders", row(1))
    key, whole = world.avro(message("c", row(2)))
    world.cluster.send("pg.public.orders", (key, whole[:-1]), (key, b"plain"),
                       (key, framed(9, b"\2")), (None, None))  # fmt: skip
    world.put("orders", row(3))
    engine = world.run(defaults={"on-bad-record": "dead-letter"})
    assert engine.aside == {}
    assert world.notes("shop.orders") == {1: "new", 3: "new"}
    letters = world.catalog.load_table("shop.orders_dead_letter").scan().to_arrow().to_pylist()
    reasons = {each["value"]: each["reason"] for each in letters}
    assert "is not what schema" in reasons[whole[:-1]]
    assert "does not begin with a zero byte" in reasons[b"plain"]
    assert "has no schema 9" in reasons[framed(9, b"\2")]

    world.registry.schemas[9] = {"schema": json.dumps({"type": "int"})}
    table = world.catalog.load_table("shop.orders")
    plan = plan_sink(
        table.environment, table.identifier, format_name="debezium-json", branch="staging",
        options={"on-bad-record": "dead-letter"}, decoder=world.decoder,
    )  # fmt: skip
    (result,) = replay_dead_letters(plan, any_order=True)
    assert isinstance(result, IngestResult)
    assert result.bad_records == 3  # still; of the third the reason is another one
    left = world.catalog.load_table("shop.orders_dead_letter").scan().to_arrow().to_pylist()
    assert {each["value"] for each in left} == set(reasons)
    assert "not a JSON object" in {e["value"]: e["reason"] for e in left}[framed(9, b"\2")]


@pytest.mark.parametrize(("kind", "value", "takes"), [("string", "x", False), ("int64", 7, True)])
def test_column_that_changed_its_type_is_widened_or_sets_the_table_aside(world, kind, value, takes):
    small = [ROW[0], {"field": "n", "type": "int32", "optional": True}]
    defaults = {"schema-evolution": "full"}
    world.put("orders", {"id": 1, "n": 5}, fields=small)
    world.put("lines", row(1))
    world.run(defaults=defaults)
    other = [ROW[0], {"field": "n", "type": kind, "optional": True}]
    world.put("orders", {"id": 2, "n": value}, fields=other)
    world.put("lines", row(2))
    engine = world.run(defaults=defaults)
    assert world.notes("shop.lines").keys() == {1, 2}
    found = world.catalog.load_table("shop.orders").scan(branch="staging").to_arrow()
    if takes:
        assert found.schema.field("n").type == pa.int64()
        assert sorted(found.column("n").to_pylist()) == [5, 7]
    else:
        assert found.column("n").to_pylist() == [5]
        assert "\n" not in engine.aside["shop.orders"]
        assert "n" in engine.aside["shop.orders"]


def boundary(world, name, status="END", **counts):
    listed = [{"data_collection": f"public.{t}", "event_count": n} for t, n in counts.items()]
    payload = {"status": status, "id": name, "data_collections": listed or None}
    return None, Converter(world.registry).write({"schema": BOUNDARY, "payload": payload})


def test_batches_of_avro_end_with_transactions(world):
    world.put("a", row(1), transaction=("7:100", 1))
    world.put("b", row(2), transaction=("7:101", 2))
    world.put("a", row(3), transaction=("8:102", 1))
    world.cluster.send("pg.transaction", boundary(world, "7:100", "BEGIN"),
                       boundary(world, "7:103", a=1, b=1),
                       boundary(world, "8:102", "BEGIN"))  # fmt: skip
    engine = world.engine(cut=Cut.TRANSACTION, interval_ms=0)
    turns = iter(range(30))
    engine.run(follow=True, stop=lambda: next(turns) > 20)
    assert (world.notes("shop.a"), world.notes("shop.b")) == ({1: "new"}, {2: "new"})
    summary = world.catalog.load_table("shop.a").state.head("staging").summary
    assert summary.additional_properties[SOURCE_TRANSACTION] == "7:103"
    world.cluster.send("pg.transaction", boundary(world, "8:104", a=1))
    world.run(cut=Cut.TRANSACTION)
    assert world.notes("shop.a") == {1: "new", 3: "new"}


def test_dry_run_makes_the_tables_that_the_stream_would_make(world):
    world.put("orders", row(1))
    engine = world.engine()
    engine.open()
    plans = engine.plan_tables()
    assert plans["shop.orders"].key == ("id",)
    assert world.catalog.list_tables("shop") == []
