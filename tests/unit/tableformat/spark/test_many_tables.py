"""One Spark query over many topics; what it stages is tried with Kafka (tests/interop)."""

import json
from types import SimpleNamespace

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as sf

from tableformat.cdc.many.positions import UnfinishedBatch
from tableformat.cdc.many.staging import StreamTable
from tableformat.cdc.many.stream_tables import open_tables
from tableformat.errors import StoreUnavailableError, UnsupportedError
from tableformat.spark import many_tables
from tableformat.spark.many_tables import SparkEngine
from tableformat.spark.stream_writer import OFFSETS
from tests.support.fake_kafka import FakeCluster
from tests.support.memory_tables import memory_catalog
from tests.support.stream_worlds import engine_of, message

pytestmark = pytest.mark.spark


def test_tables_of_a_batch_do_not_look_into_a_part_for_each_topic(spark, tmp_path):
    """Else 200 topics cost each of 200 tables 200 tasks, with a Python worker each."""
    names = ["orders", "lines", "items"]
    topics = {f"pg.{name}": f"shop.{name}" for name in names}
    ends = json.dumps({topic: {"0": 10, "1": 0} for topic in topics})
    (tmp_path / OFFSETS).mkdir()
    (tmp_path / OFFSETS / "0").write_text(f"v1\n{{}}\n{ends}")
    staged = {}
    tables = SimpleNamespace(
        table_of=topics,
        tables={
            name: StreamTable(identifier=tuple(name.split(".")), topics=(topic,), options=None)
            for topic, name in topics.items()
        },
        standing={},
        partitions={},
        batch_id=lambda: None,
        stage=lambda batch, _: staged.update(
            {n: (each.rdd.getNumPartitions(), each.count()) for n, each in batch.events.items()}
        ),
    )
    topic = sf.element_at(sf.array(*map(sf.lit, topics)), (sf.col("id") % 3 + 1).cast("int"))
    events = spark.range(0, 30, numPartitions=24).select(
        topic.alias("topic"),
        sf.lit(0).alias("partition"),
        sf.col("id").alias("offset"),
        sf.lit(None).cast("binary").alias("value"),
        sf.lit(None).cast("binary").alias("key"),
        sf.current_timestamp().alias("timestamp"),
    )
    engine = SparkEngine(environment=None, spark=spark, source=None, settings=None)
    engine._batch(tables, str(tmp_path), events, 0)
    most = spark.sparkContext.defaultParallelism
    assert {name: count for name, (_, count) in staged.items()} == dict.fromkeys(
        topics.values(), 10
    )
    assert max(parts for parts, _ in staged.values()) <= most < 24
    assert tables.partitions == dict.fromkeys(topics, 2)  # those that bring nothing, too


def test_topic_that_was_not_listed_at_first_is_not_staged_from_its_beginning():
    """Spark begins there with a topic that comes; the table has what it held before."""
    catalog, cluster = memory_catalog(), FakeCluster()
    for name in ("orders", "lines"):
        cluster.send(f"pg.public.{name}", message("c", {"id": 1, "note": "new"}))
    stream = engine_of(catalog, cluster)
    stream.run(follow=False)
    listed = {"pg.public.lines": 1}
    tables = open_tables(
        catalog.environment, stream.settings, listed, stream.listener, ids_of=stream.source.ids
    )
    engine = SparkEngine(environment=None, spark=None, source=None, settings=None)
    cluster.create("pg.public.items")
    engine._join(tables, {"pg.public.items"}, {"pg.public.items": 1})
    with pytest.raises(StoreUnavailableError, match="start the stream again") as caught:
        engine._join(tables, {"pg.public.orders"}, {"pg.public.orders": 1})
    assert caught.value.context["topic"] == "pg.public.orders"
    assert not tables.aside


def test_batch_that_is_done_again_and_whose_messages_are_gone_is_one_line(monkeypatch):
    text = "Some data may have been lost\n\tat org.apache.spark"

    def stage_again(*_):
        raise PySparkException(text)

    found = UnfinishedBatch(number=1, tables=(), lacking=(), ends={})
    tables = SimpleNamespace(unfinished=lambda: found, tables={}, stage_again=stage_again)
    monkeypatch.setattr(many_tables, "partition_bounds", lambda *_: ({}, {}))
    engine = SparkEngine(environment=None, spark=None, source=None, settings=None)
    with pytest.raises(UnsupportedError, match="no longer has messages") as caught:
        engine._finish(tables)
    assert "\n" not in str(caught.value)
