"""Many tables from one stream with all their maintenance in one process: `scripts/bench database`.

    scripts/bench database [--tables N] [--rate EVENTS_PER_S] [--minutes M] [--interval-s S]
                                                                                freshness and memory
    scripts/bench database --tables 200 --rate 0 [--minutes M] [--engine spark] quiet tables

A real broker on loopback; `icefold run` is a process of its own, with compaction and
expiry by their defaults. Events are Debezium JSON of about 330 bytes: inserts, updates and one
delete in twenty. With a rate, freshness is the time from when an event is handed to Kafka's client
to when a published snapshot of `main` says that it holds it. Without one, the process is left alone
after the first row of each table, then single tables change, one after the other. At the end DuckDB
reads every table, and a difference to what was sent ends with exit code 1. Memory is the process's
own and its children's (PSS).
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
from confluent_kafka import Producer
from rich.console import Console
from rich.table import Table as Grid

import tableformat as tf
from benchmarks.support.duckdb_reader import open_duckdb
from benchmarks.support.process_tree import CpuMeter, memory_bytes
from tableformat.cdc.many.positions import decode_offsets
from tableformat.spec.names import SOURCE_OFFSETS
from tests.support.kafka import CONNECTOR_JARS, Kafka, kafka, spark_environment

TICK_S = 0.1
POLL_S = 0.05
TABLE_OF_TABLES = "SELECT 1 FROM sqlite_master WHERE name = 'iceberg_tables'"
LOCATIONS = (
    "SELECT table_name, metadata_location FROM iceberg_tables WHERE table_namespace = 'shop'"
)
SAMPLE_S = 5.0
DELETED_SHARE = 20  # one in so many
GONE = -1
STEADY_FROM_MIN = 5.0  # memory is judged from here on
SINGLE_CHANGES = 20
MEMORY_MAX = {"local": 400, "spark": 1_000}  # MB, of quiet tables
END_S = 300.0
FIELDS = [
    {"field": "id", "type": "int64", "optional": False},
    {"field": "number", "type": "int64", "optional": True},
    {"field": "customer", "type": "string", "optional": True},
    {"field": "price", "type": "double", "optional": True},
]
SOURCE = (
    '{"version":"3.3.1","connector":"postgresql","name":"shop","ts_ms":1700000000000,'
    '"snapshot":"false","db":"shop","sequence":"[\\"1\\",\\"2\\"]","schema":"public","table":"t",'
    '"txId":1234,"lsn":123456789,"xmin":null}'
)


@dataclass
class Topic:
    """One table's events as they were sent.

    Attributes:
        held: By key, the number of its last event; GONE where it was deleted or never there.
        sent: How many events there have been.
        ticks: (time, events sent until then).
    """

    name: str
    held: npt.NDArray[np.int64]
    sent: int = 0
    ticks: list[tuple[float, int]] = field(default_factory=list)


@dataclass
class Database:
    """The tables' topics, and who sends to them."""

    broker: Kafka
    names: list[str]
    keys: int

    def __post_init__(self) -> None:
        empty = np.full(self.keys, GONE, np.int64)
        self.topics = [Topic(name, empty.copy()) for name in self.names]
        self.generator = np.random.default_rng(22)
        self.producer = Producer({
            "bootstrap.servers": self.broker.servers, "linger.ms": 5, "log_level": 2,
            "queue.buffering.max.messages": 1_000_000,
        })  # fmt: skip
        for name in self.names:
            self.broker.create_topic(f"shop.public.{name}")
        row = {"type": "struct", "fields": FIELDS, "optional": True}
        sides = [{**row, "field": "before"}, {**row, "field": "after"}]
        self._schema = json.dumps({"type": "struct", "fields": sides})
        self._key_schema = json.dumps({"type": "struct", "fields": FIELDS[:1]})

    def begin(self) -> None:
        """One row in each table, with its schema."""
        for topic in self.topics:
            self.send(topic, [0], [False])
        self.producer.flush()

    def send(self, topic: Topic, keys: list[int], are_deleted: list[bool]) -> None:
        """Events of one topic, in order; noted with the time when they have been handed over."""
        name = f"shop.public.{topic.name}"
        for key, is_deleted in zip(keys, are_deleted, strict=True):
            number = topic.sent
            row = f'{{"id":{key},"number":{number},"customer":"customer {key}","price":{number}.5}}'
            before, after, op = (row, "null", "d") if is_deleted else ("null", row, "u")
            value = (
                f'{{"before":{before},"after":{after},"source":{SOURCE},"op":"{op}",'
                '"ts_ms":1700000000001}'
            )
            of_key = f'{{"id":{key}}}'
            if number == 0:
                value = f'{{"schema":{self._schema},"payload":{value}}}'
                of_key = f'{{"schema":{self._key_schema},"payload":{of_key}}}'
            self.producer.produce(name, value, of_key)
            topic.held[key] = GONE if is_deleted else number
            topic.sent += 1
        self.producer.poll(0)
        topic.ticks.append((time.monotonic(), topic.sent))

    def tick(self, events: int) -> None:
        """So many events, spread over all topics."""
        share = events // len(self.topics)
        for topic in self.topics:
            keys = self.generator.integers(0, self.keys, share)
            deleted = self.generator.integers(0, DELETED_SHARE, share) == 0
            self.send(topic, keys.tolist(), deleted.tolist())

    def differences(self, warehouse: str, folder: Path) -> int:
        """Rows of all tables that DuckDB does not read as they were sent."""
        duck = open_duckdb(folder)
        found = 0
        catalog = tf.open_catalog("local", warehouse=warehouse)
        for topic in self.topics:
            location = catalog.load_table(f"shop.{topic.name}").metadata_location
            rows = duck.sql(f"SELECT id, number FROM iceberg_scan('{location}')").fetchnumpy()
            held = np.full(self.keys, GONE, np.int64)
            held[rows["id"]] = rows["number"]
            twice = len(rows["id"]) - len(np.unique(rows["id"]))
            found += int(np.count_nonzero(held != topic.held)) + twice
        return found


@dataclass
class Watch:
    """What `main` of each table is seen to hold, and when.

    It asks the catalog's database, and takes one snapshot out of a metadata file without decoding
    the others, since the process that is measured shares the cores with it.
    """

    warehouse: str
    topics: list[Topic]
    has_ended: Callable[[], bool] = lambda: False  # nothing more will come
    seen: dict[str, list[tuple[float, int]]] = field(default_factory=dict)
    _read: dict[str, str] = field(default_factory=dict)

    def look(self) -> None:
        """Note what is on `main` of all tables now."""
        for name, location in self._locations().items():
            if self._read.get(name) != location:
                self._read[name] = location
                held = _events_on_main(_metadata(location), name)
                if held > self.held(name):
                    self.seen.setdefault(name, []).append((time.monotonic(), held))

    def held(self, name: str) -> int:
        """Events of a topic that were seen last."""
        return self.seen[name][-1][1] if name in self.seen else 0

    def _locations(self) -> dict[str, str]:
        database = Path(self.warehouse) / "icefold.db"
        if not database.exists():
            return {}
        with closing(sqlite3.connect(database, timeout=60)) as connection:
            if not connection.execute(TABLE_OF_TABLES).fetchall():
                return {}
            return dict(connection.execute(LOCATIONS).fetchall())

    def wait(self, topics: list[Topic]) -> None:
        """Until `main` holds all that was sent to these."""
        deadline = time.monotonic() + END_S
        for topic in topics:
            while self.held(topic.name) < topic.sent:
                self.look()
                if time.monotonic() > deadline or self.has_ended():
                    raise SystemExit(f"{topic.name}: not all on main within {END_S:g} s")
                time.sleep(POLL_S / 5)

    def freshness(self, topic: Topic) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """When ticks ended, and how long they took to be seen."""
        seen = self.seen[topic.name]
        ends = np.array([held for _, held in seen])
        times = np.array([at for at, _ in seen])
        at = np.array([each for each, _ in topic.ticks])
        count = np.array([each for _, each in topic.ticks])
        return at, times[np.searchsorted(ends, count)] - at


def _metadata(location: str) -> str:
    data = Path(location.removeprefix("file://")).read_bytes()
    return (gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data).decode()


def _events_on_main(metadata: str, name: str) -> int:
    """How many events of a topic the head of `main` holds, by its summary."""
    main = re.search(r'"main": ?\{[^}]*?"snapshot-id": ?(\d+)', metadata)
    if main is None:
        return 0
    for found in re.finditer(rf'\{{"snapshot-id": ?{main[1]}\b', metadata):
        snapshot = json.JSONDecoder().raw_decode(metadata, found.start())[0]
        if "summary" in snapshot:
            offsets = decode_offsets(snapshot["summary"].get(SOURCE_OFFSETS, "{}"))
            return offsets.get((f"shop.public.{name}", 0), 0)
    return 0


@contextmanager
def running(
    broker: Kafka, warehouse: str, log: Path, *, interval_s: float, engine: str
) -> Iterator[subprocess.Popen[bytes]]:
    """`icefold run` over all topics, which has to end well."""
    icefold = str(Path(sys.executable).with_name("icefold"))
    command = [icefold, "--warehouse", warehouse, "run", "--kafka", broker.servers,
               "--topics", "shop.public.*", "--into", "shop", "--engine", engine,
               "--interval-s", f"{interval_s:g}",
               "--connector-jar", str(CONNECTOR_JARS)]  # fmt: skip
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, env=spark_environment())
    try:
        yield process
        process.send_signal(signal.SIGTERM)
        if process.wait(END_S) != 0:
            raise SystemExit(f"icefold run ended with {process.returncode}")
    finally:
        if process.poll():
            print(log.read_text()[-2_000:])
        process.kill()


@contextmanager
def beside(work: Callable[[], object], every_s: float) -> Iterator[None]:
    """Do something again and again in a thread."""
    ended = threading.Event()

    def repeat() -> None:
        while not ended.wait(every_s):
            work()

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def steady(database: Database, watch: Watch, process: int, rate: int, minutes: float) -> None:
    """A constant rate; prints freshness, memory and CPU by the minute."""
    samples: list[tuple[float, float, float]] = []
    begin, cpu = time.monotonic(), CpuMeter(process)

    def sample() -> None:
        at = (time.monotonic() - begin) / 60
        samples.append((at, memory_bytes(process) / 1e6, cpu.read()))

    with beside(watch.look, POLL_S), beside(sample, SAMPLE_S):
        for number in range(int(minutes * 60 / TICK_S)):
            time.sleep(max(0.0, begin + number * TICK_S - time.monotonic()))
            database.tick(int(rate * TICK_S))
        database.producer.flush()
        sent_s = time.monotonic() - begin
    watch.wait(database.topics)
    parts = [watch.freshness(topic) for topic in database.topics]
    at = (np.concatenate([part[0] for part in parts]) - begin) / 60
    taken = np.concatenate([part[1] for part in parts])
    held = np.array(samples)
    grid = Grid("minute", "p50 s", "p99 s", "max s", "MB", "CPU",
                title=f"{rate:,} events/s into {len(database.topics)} tables")  # fmt: skip
    for low in np.arange(0, minutes, max(minutes / 15, 1.0)):
        high = low + max(minutes / 15, 1.0)
        mine, those = (
            taken[(at >= low) & (at < high)],
            held[(held[:, 0] >= low) & (held[:, 0] < high)],
        )
        if len(mine) and len(those) > 1:
            share = (those[-1, 2] - those[0, 2]) / (those[-1, 0] - those[0, 0]) / 60
            figures = (*np.percentile(mine, [50, 99]), mine.max())
            grid.add_row(f"{low:.0f}-{high:.0f}", *(f"{each:.2f}" for each in figures),
                         f"{those[:, 1].mean():,.0f}", f"{share:.0%}")  # fmt: skip
    out = Console()
    out.print(grid)
    sent = sum(topic.sent for topic in database.topics)
    late = at >= (begun_min := min(1.0, minutes / 2))
    p50, p99 = np.percentile(taken[late], [50, 99])
    out.print(f"sent {sent:,} events in {sent_s:.0f} s: {sent / sent_s:,.0f}/s")
    out.print(
        f"freshness after {begun_min:g} minutes: p50 {p50:.2f} s (bar 1), p99 {p99:.2f} s (bar 2.5)"
    )
    flat = held[held[:, 0] >= STEADY_FROM_MIN]
    if len(flat) > 10:
        slope = np.polyfit(flat[:, 0], flat[:, 1], 1)[0]
        out.print(f"memory from minute {STEADY_FROM_MIN:g}: {slope:+.2f} MB a minute (bar 1)")


def quiet(
    database: Database, watch: Watch, process: int, *, minutes: float, memory_max: int
) -> None:
    """What it costs to wait, and how long single changes take."""
    cpu = CpuMeter(process)
    before, started = cpu.read(), time.monotonic()
    with beside(cpu.read, SAMPLE_S / 10):
        time.sleep(minutes * 60)
    idle = (cpu.read() - before) / (time.monotonic() - started)
    held = memory_bytes(process) / 1e6
    taken = []
    for number in range(SINGLE_CHANGES):
        topic = database.topics[number * len(database.topics) // SINGLE_CHANGES]
        database.send(topic, [1 + number], [False])
        database.producer.flush()
        watch.wait([topic])
        taken.append(watch.seen[topic.name][-1][0] - topic.ticks[-1][0])
        time.sleep(1.0)
    after = memory_bytes(process) / 1e6
    count = len(database.topics)
    print(f"{count} quiet tables, {minutes:g} minutes: CPU {idle:.1%} of a core (bar 5 %)")
    print(
        f"memory: {held:,.0f} MB (bar {memory_max:,}), {after:,.0f} MB after {len(taken)} changes"
    )
    print(f"a change in one is on main after {np.median(taken):.2f} s ({max(taken):.2f}; bar 2)")


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/bench database", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--tables", type=int, default=10)
    parser.add_argument("--rate", type=int, default=20_000, help="events per second, of all tables")
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--interval-s", type=float, default=0.5, help="from batch to batch")
    parser.add_argument("--keys", type=int, default=100_000, help="of each table")
    parser.add_argument("--engine", choices=list(MEMORY_MAX), default="local")
    given = parser.parse_args()
    if given.tables < 1 or given.rate < 0 or given.keys < SINGLE_CHANGES + 1 or given.minutes <= 0:
        parser.error("--tables and --minutes are positive, --keys 21 or more, --rate not negative")
    names = [f"t{number}" for number in range(given.tables)]
    with tempfile.TemporaryDirectory(prefix="icefold-database-") as name:
        folder = Path(name)
        warehouse = str(folder / "warehouse")
        database = Database(kafka(), names, given.keys)
        watch = Watch(warehouse, database.topics)
        database.begin()
        log = folder / "log"
        with running(
            database.broker, warehouse, log, interval_s=given.interval_s, engine=given.engine
        ) as process:
            started = time.monotonic()
            watch.has_ended = lambda: process.poll() is not None
            watch.wait(database.topics)
            print(f"all tables made and published after {time.monotonic() - started:.1f} s")
            if given.rate:
                steady(database, watch, process.pid, given.rate, given.minutes)
            else:
                quiet(
                    database, watch, process.pid, minutes=given.minutes,
                    memory_max=MEMORY_MAX[given.engine],
                )  # fmt: skip
        differences = database.differences(warehouse, folder / "duckdb-extensions")
    print("main equals what was sent" if not differences else f"{differences:,} rows DIFFER")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
