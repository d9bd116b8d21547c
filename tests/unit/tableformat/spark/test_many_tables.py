"""One Spark query over many topics; what it stages is tried with Kafka (tests/interop)."""

import json
from types import SimpleNamespace

import pytest
from pyspark.sql import functions as sf

from tableformat.cdc.many.staging import StreamTable
from tableformat.spark.many_tables import SparkEngine
from tableformat.spark.stream_writer import OFFSETS

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
