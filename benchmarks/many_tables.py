"""Many topics into many tables in this process: `scripts/bench many_tables`.

    scripts/bench many_tables [--events N] [--tables 1 10] [--schemas] [--quiet-tables N]

A real broker on loopback holds Debezium JSON events of about 480 bytes, spread over the topics. A
process of its own, bound to one core, stages what is there (`icefold ingest --topics --engine
local`). `events/s` is by the clock, `events/CPU s` by the CPU time of all its threads, librdkafka's
among them: on a machine that other work shares it says more. Every table is compared with the
number of its keys.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from confluent_kafka import Producer
from rich.console import Console
from rich.table import Table as Report

from tableformat import open_catalog
from tableformat.cdc.ingest import IngestResult
from tableformat.cdc.many.kafka_consumer import KafkaConsumer
from tableformat.cdc.many.local_engine import BATCH_EVENTS, LocalEngine, Pace
from tableformat.cdc.many.routing import Routing, TopicPattern
from tableformat.cdc.many.stream_tables import StreamListener, StreamSettings
from tableformat.cdc.many.table_options import StreamOptions

FIELDS = [
    {"field": "id", "type": "int64", "optional": False},
    {"field": "customer", "type": "string", "optional": False},
    {"field": "status", "type": "string", "optional": True},
    {"field": "quantity", "type": "int32", "optional": True},
    {"field": "price", "type": "double", "optional": True},
    {"field": "changed_at", "type": "int64", "optional": True,
     "name": "io.debezium.time.MicroTimestamp"},
]  # fmt: skip
KEYS_SHARE = 2  # every key is changed so often


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=400_000)
    parser.add_argument("--tables", type=int, nargs="+", default=[1, 10])
    parser.add_argument("--quiet-tables", type=int, default=0, help="more tables, of one row each")
    parser.add_argument("--batch-events", type=int, default=BATCH_EVENTS)
    parser.add_argument("--schemas", action="store_true", help="events carry their schema")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        _child(json.loads(options.child))
        return
    from tests.support.kafka import kafka

    broker = kafka()
    report = Report("tables", "events", "seconds", "events/s", "events/CPU s", "peak memory",
                    "first batch after", title="many tables, one core")  # fmt: skip
    for number, count in enumerate(options.tables):
        prefix = f"run{number}.public"
        names = [f"t{each}" for each in range(count)]
        quiet = [f"q{each}" for each in range(options.quiet_tables)]
        for name in [*names, *quiet]:
            broker.create_topic(f"{prefix}.{name}")
        _produce(broker.servers, prefix, names, options.events, schemas=options.schemas)
        _produce(broker.servers, prefix, quiet, len(quiet), schemas=True)
        with tempfile.TemporaryDirectory() as folder:
            given = {"servers": broker.servers, "prefix": prefix, "warehouse": folder,
                     "batch_events": options.batch_events}  # fmt: skip
            answer = _run(given)
            _check(folder, names, options.events)
        events = answer["events"]
        report.add_row(
            f"{count} + {len(quiet)} quiet" if quiet else str(count),
            f"{events:,}",
            f"{answer['seconds']:.1f}",
            f"{events / answer['seconds']:,.0f}",
            f"{events / answer['cpu']:,.0f}",
            f"{answer['peak_mb']:.0f} MB",
            f"{answer['first_s']:.2f} s ({answer['first_cpu']:.2f} s CPU)",
        )
    Console().print(report)


def _produce(
    servers: str, prefix: str, names: Sequence[str], events: int, *, schemas: bool
) -> None:
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 50, "log_level": 2,
                         "queue.buffering.max.messages": 1_000_000})  # fmt: skip
    for number, (key, value) in enumerate(_messages(names, events, schemas=schemas)):
        topic = f"{prefix}.{names[number % len(names)]}"
        while True:
            try:
                producer.produce(topic, value, key)
                break
            except BufferError:
                producer.poll(1)
        if number % 1000 == 0:
            producer.poll(0)
    producer.flush()


def _messages(names: Sequence[str], events: int, *, schemas: bool) -> Iterator[tuple[str, str]]:
    row = {"type": "struct", "fields": FIELDS, "optional": True}
    envelope = {"type": "struct", "fields": [{**row, "field": "before"}, {**row, "field": "after"}]}
    source = {
        "version": "3.3.1", "connector": "postgresql", "name": "run", "ts_ms": 1_700_000_000_000,
        "snapshot": "false", "db": "shop", "sequence": '["1","2"]', "schema": "public",
        "table": "t", "txId": 1234, "lsn": 123456789, "xmin": None,
    }  # fmt: skip
    keys = max(events // KEYS_SHARE // max(len(names), 1), 1)
    for number in range(events):
        key = number // len(names) % keys
        is_new = number // len(names) < keys
        # The first event of each table carries the schema in any case: the table is made of it.
        with_schema = schemas or number < len(names)
        after = {"id": key, "customer": f"customer {key % 997}", "status": "new" if is_new else
                 "paid", "quantity": number % 100, "price": number / 100,
                 "changed_at": 1_700_000_000_000_000 + number}  # fmt: skip
        payload = {"before": None, "after": after, "source": source,
                   "op": "c" if is_new else "u", "ts_ms": 1_700_000_000_001}  # fmt: skip
        of_key: Any = {"id": key}
        if with_schema:
            of_key = {"schema": {"type": "struct", "fields": FIELDS[:1]}, "payload": of_key}
            yield json.dumps(of_key), json.dumps({"schema": envelope, "payload": payload})
        else:
            yield json.dumps(of_key), json.dumps(payload)


def _run(given: Mapping[str, Any]) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.many_tables", "--child", json.dumps(given)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


class _Counted(StreamListener):
    events = 0
    first: float | None = None
    first_cpu = 0.0

    def staged(self, number: int, results: Mapping[str, IngestResult]) -> None:
        del number
        if self.first is None:
            self.first, self.first_cpu = time.perf_counter(), time.process_time()
        self.events += sum(result.events for result in results.values())

    def set_aside(self, table: str, reason: str) -> None:
        raise SystemExit(f"{table}: {reason}")


def _child(given: Mapping[str, Any]) -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    catalog = open_catalog("local", warehouse=given["warehouse"])
    heard = _Counted()
    routing = Routing(namespace="shop", include=[TopicPattern.of(f"{given['prefix']}.*")])
    source = KafkaConsumer(given["servers"])
    engine = LocalEngine(
        environment=catalog.environment,
        source=source,
        settings=StreamSettings(
            query_id="bench",
            routing=routing,
            # Bare events say no unit of a time: as the schema of the first one has it.
            options=StreamOptions(namespace="shop", defaults={"timestamp-unit": "us"}),
        ),
        pace=Pace(batch_events=given["batch_events"]),
        listener=heard,
    )
    started, cpu = time.perf_counter(), time.process_time()
    source.topics()
    answered, answered_cpu = time.perf_counter(), time.process_time()
    engine.run(follow=False)
    print(json.dumps({
        "events": heard.events,
        "seconds": time.perf_counter() - started,
        "cpu": time.process_time() - cpu,
        "first_s": (heard.first or 0.0) - answered,
        "first_cpu": heard.first_cpu - answered_cpu,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }))  # fmt: skip


def _check(warehouse: str, names: Sequence[str], events: int) -> None:
    catalog = open_catalog("local", warehouse=warehouse)
    keys = max(events // KEYS_SHARE // len(names), 1)
    for name in names:
        rows = catalog.load_table(f"shop.{name}").scan(branch="staging", columns=["id"]).to_arrow()
        found = rows.column("id").unique()
        if not len(rows) == len(found) == keys:
            raise SystemExit(f"{name}: {len(rows)} rows, {len(found)} keys, not {keys}")


if __name__ == "__main__":
    main()
