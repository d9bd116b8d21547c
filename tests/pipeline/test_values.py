"""Every value that PostgreSQL has, in every shape of Debezium's events, in every reader."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.support.pipeline import SHAPES, Answer, Pipeline, wait_until
from tests.support.pipeline_readers import READERS
from tests.support.pipeline_tables import (
    ACCOUNT,
    ACCOUNT_FULL,
    GROWN,
    GROWN_LATER,
    GROWTH,
    LARGE,
    LINE,
    TOAST,
    TORN,
    WIPED,
    SourceColumn,
    SourceTable,
    differences,
    engine_rows,
    source_rows,
)
from tests.support.pipeline_workload import Workload

pytestmark = [
    pytest.mark.interop,
    pytest.mark.slow,
    pytest.mark.spark,
    pytest.mark.xdist_group("pipeline"),
]
SEED = 7
DB, BARE, FLAT = SHAPES.values()
# Debezium's flattening drops the event of a TRUNCATE, so nobody can apply it there.
TARGETS = (
    *((shape, table) for shape in (DB, BARE, FLAT) for table in (ACCOUNT, ACCOUNT_FULL)),
    (DB, GROWN),
    (FLAT, LINE),
    (DB, TOAST),
    (DB, TORN),
    (DB, WIPED),
    (BARE, WIPED),
)
TORN_ROWS = 3
OPTIONS = {
    "torn": ["-o", "on-unavailable-value=null"],
    "grown": ["-o", "schema-evolution=full"],
    "wiped": ["-o", "on-truncate=apply"],
}
# What does not work yet, and so differs.
PENDING = {
    "grown": "rows from before ADD COLUMN ... DEFAULT have no value",
    "torn": "the placeholders of arrays are stored as data",
    "wiped": "TRUNCATE cannot be applied",
}


@dataclass
class Run:
    """What has been done, and what the commands said."""

    pipeline: Pipeline
    answers: dict[tuple[str, str], Answer]

    @functools.cached_property
    def expected(self) -> dict[str, list[tuple[object, ...]]]:
        with self.pipeline.connection() as connection:
            rows = {
                table.name: source_rows(connection, table.name, columns_of(table))
                for _, table in TARGETS
            }
        large = len(TORN.columns) - len(LARGE)
        rows["torn"] = [
            (*row[:large], *[None] * len(LARGE)) if row[0] <= TORN_ROWS else row
            for row in rows["torn"]
        ]
        return rows


@pytest.fixture(scope="module")
def run(pipeline: Pipeline) -> Run:
    with pipeline.connection() as connection:
        workload = Workload(connection, SEED)
        workload.seed_rows(300)
        _snapshot_is_interrupted(pipeline, workload)
        pipeline.await_arrival()
        run = Run(pipeline, {})
        for shape, table in TARGETS:
            pipeline.create_table(shape.name, table)
        _publish(run, [(DB, GROWN), (BARE, ACCOUNT)])
        workload.run(120)
        pipeline.connect.kill()
        workload.run(30)
        for statement in GROWTH:
            connection.execute(statement)
        connection.execute(
            "INSERT INTO grown SELECT i, 3000000000 + i FROM generate_series(21, 30) i"
        )
        connection.execute("UPDATE grown SET rank = 8 WHERE id % 3 = 0")
        connection.execute(f"UPDATE torn SET n = -1 WHERE id <= {TORN_ROWS}")
        connection.execute("TRUNCATE wiped")
        connection.execute("INSERT INTO wiped VALUES (3, 'again'), (99, 'new')")
        pipeline.connect.start()
        workload.run(120)
        pipeline.await_arrival()
    _publish(run, TARGETS)
    return run


def _snapshot_is_interrupted(pipeline: Pipeline, workload: Workload) -> None:
    """The snapshot waits before its last table while others are in Kafka already."""
    with pipeline.closed_gate():
        pipeline.connect.launch()
        for shape in SHAPES.values():
            wait_until(
                lambda topic=f"{shape.name}.public.account_full": has_messages(pipeline, topic),
                f"snapshot reads of {shape.name}",
            )
        pipeline.connect.kill()
    for _ in range(10):
        workload.insert()
        workload.update_all()
    pipeline.connect.start()


def _publish(run: Run, targets) -> None:
    for shape, table in targets:
        words = run.pipeline.ingest_words(shape, table, *OPTIONS.get(table.name, ()))
        answer = run.pipeline.icefold(*words)
        run.answers[shape.name, table.name] = answer
        if answer.status == 0:
            name = run.pipeline.table_name(shape.name, table)
            done = run.pipeline.icefold("--warehouse", run.pipeline.warehouse, "resolve", name)
            assert done.status == 0, done.err


def has_messages(pipeline: Pipeline, topic: str) -> bool:
    settings = {"bootstrap.servers": pipeline.servers, "group.id": "look", "log_level": 2}
    consumer = Consumer(settings)
    try:
        if topic not in consumer.list_topics(timeout=10).topics:
            return False
        return consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=10)[1] > 0
    finally:
        consumer.close()


def columns_of(table: SourceTable) -> tuple[SourceColumn, ...]:
    return GROWN_LATER if table is GROWN else tuple(table.columns)


def compare(run: Run, shape, table: SourceTable, reader: str) -> dict[str, list[str]]:
    answer = run.answers[shape.name, table.name]
    assert answer.status == 0, answer.err
    columns = columns_of(table)
    loaded = run.pipeline.catalog.load_table(run.pipeline.table_name(shape.name, table))
    found = READERS[reader](loaded, [each.name for each in columns])
    expected = run.expected[table.name]
    assert expected, "there is nothing to compare"
    return differences(expected, engine_rows(found, columns), columns, table.key)


def _parameters():
    for shape, table in TARGETS:
        pending = PENDING.get(table.name)
        marks = [] if pending is None else [pytest.mark.xfail(reason=pending)]
        yield pytest.param(shape, table, id=f"{shape.name}-{table.name}", marks=marks)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(("shape", "table"), list(_parameters()))
def test_published_rows_are_those_of_postgresql(run, shape, table, reader):
    found = compare(run, shape, table, reader)
    assert {name: texts[:3] for name, texts in found.items()} == {}


def test_workload_has_the_changes_that_it_is_for(run):
    accounts = run.expected["account"]
    assert len(accounts) > 300
    assert any(row[12] == "moved" for row in accounts), "no key was changed"
