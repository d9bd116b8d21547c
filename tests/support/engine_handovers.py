"""Histories of one stream that both engines take turns at, against a real broker.

A history is drawn from a seed: changes of a few topics are staged by the local engine and by
Spark's, in any order; most of these runs die before or after one of the commits of a batch, whose
other tables then lack it. Between runs and between commits topics come, grow, are made anew or lose
messages that nobody has read, tables stand aside, come back or are dropped. Every change is new and
is staged as such, so one that is staged twice is two rows. What is right is told by what was sent,
and read by DuckDB.
"""

from __future__ import annotations

import json
import logging
import os
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions
from pyspark.sql import SparkSession

import tableformat as tf
from tableformat.cdc.many import staging, stream_tables
from tableformat.cdc.many.kafka_consumer import KafkaConsumer
from tableformat.cdc.many.local_engine import Cut, LocalEngine, Pace
from tableformat.cdc.many.routing import Routing, TopicPattern
from tableformat.cdc.many.stream_tables import StreamSettings
from tableformat.cdc.many.table_options import StreamOptions
from tableformat.errors import InternalError, InvalidInputError, TableError
from tableformat.spark.kafka_source import KafkaSource
from tableformat.spark.many_tables import SparkEngine
from tableformat.spark.session import local_session
from tableformat.spec.names import BATCH_ID, BATCH_TABLES
from tests.support.interop_engines import duckdb_connection
from tests.support.kafka import Kafka, connector_path, kafka
from tests.support.spark_archive import spark_options
from tests.support.stream_worlds import Heard, message

NEW_KEYS = {"assume-new-keys": "true"}
ROUNDS = 4
FOLLOWS_S = 15.0
TELLS_GONE = ("deleted all before", "was deleted and made anew before batch")


class Died(Exception):
    """A process ends: what it would have committed after that is not committed."""


class Told(logging.Handler):
    """Tables of which it was said that Kafka has deleted what nobody knows, or nobody can stage."""

    def __init__(self) -> None:
        super().__init__()
        self.tables: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        is_told = any(words in str(record.msg) for words in TELLS_GONE)
        if is_told and isinstance(record.args, tuple):
            self.tables.add(str(record.args[0]))


class Handovers:
    """One seed."""

    def __init__(self, seed: int, spark: SparkSession, broker: Kafka, folder: Path) -> None:
        self.rng, self.spark, self.broker = random.Random(seed), spark, broker
        self.catalog = tf.open_catalog("local", warehouse=str(folder / f"w{seed}"))
        self.prefix = f"h{seed}"
        self.is_cut = self.rng.random() < 0.3
        self.sent: dict[str, int] = {}
        self.kafka: dict[str, list[int]] = {}  # what the topic holds
        self.partitions: dict[str, int] = {}
        self.may_lack: set[str] = set()
        self.unseen: dict[str, set[int]] = {}  # went with a topic that no batch had noted
        self.dropped: set[str] = set()
        self.untakable: str | None = None
        self.transactions = 0
        self.done: list[str] = []
        self.met = Counter[str]()
        self.lock = threading.RLock()
        self.dies_in: int | None = None
        self.is_dead = False
        self.told = Told()
        self.acts: list[Callable[[], None]] = []
        harm = [self.make_anew, self.delete_records, self.drop]
        self.harm = self.rng.sample(harm, self.rng.choice([0, 0, 1, 1, 3]))
        if self.is_cut:
            broker.create_topic(f"{self.prefix}.transaction")
        for name in "ab":
            self.create(name)
        self.send()

    def topic(self, name: str) -> str:
        return f"{self.prefix}.public.{name}"

    # -- the source --------------------------------------------------------------------------------

    def create(self, name: str) -> None:
        self.partitions[name] = self.rng.randint(1, 3)
        self.broker.create_topic(self.topic(name), partitions=self.partitions[name])
        self.sent.setdefault(name, 0)
        self.kafka[name] = []

    def send(self) -> None:
        """One transaction over some tables."""
        self.transactions += 1
        number, counts = f"{self.transactions}:{self.transactions * 7}", []
        self.tell(status="BEGIN", id=number)
        for name in self.rng.sample(sorted(self.sent), self.rng.randint(1, len(self.sent))):
            keys = range(self.sent[name], self.sent[name] + self.rng.choice([1, 3, 9]))
            self.sent[name] = keys.stop
            self.kafka[name] += keys
            self.broker.send(self.topic(name), [
                message("c", {"id": key, "note": "new"}, transaction=(number, order))
                for order, key in enumerate(keys, 1)
            ])  # fmt: skip
            counts.append({"data_collection": f"public.{name}", "event_count": len(keys)})
        self.tell(status="END", id=number, data_collections=counts)

    def tell(self, **boundary: Any) -> None:
        if self.is_cut:
            self.broker.send(f"{self.prefix}.transaction", [(None, json.dumps(boundary))])

    def come(self) -> None:
        """A topic that was not there."""
        if len(self.sent) < 4:
            self.create("abcd"[len(self.sent)])
            self.send()

    def grow(self) -> None:
        name = self.one()
        self.partitions[name] += 1
        client = AdminClient({"bootstrap.servers": self.broker.servers, "log_level": 2})
        wanted = [NewPartitions(self.topic(name), self.partitions[name])]
        client.create_partitions(wanted)[self.topic(name)].result()
        self.send()

    def make_anew(self) -> None:
        name = self.one()
        self.may_lack.add(name)
        if not self.is_noted(name):
            self.unseen.setdefault(name, set()).update(self.kafka[name])
        self.broker.delete_topic(self.topic(name))
        self.create(name)
        for _ in range(self.rng.randint(0, 4)):
            self.send()

    def delete_records(self) -> None:
        name = self.one()
        self.may_lack.add(name)
        client = AdminClient({"bootstrap.servers": self.broker.servers, "log_level": 2})
        places = [
            TopicPartition(self.topic(name), number, -1) for number in range(self.partitions[name])
        ]
        for each in client.delete_records(places).values():
            each.result()
        self.kafka[name] = []

    def is_noted(self, name: str) -> bool:
        """Whether a batch, on any table, says that it has messages of the topic."""
        return any(f"shop.{name}" in json.loads(s[BATCH_TABLES]) for s in self.said().values())

    def one(self) -> str:
        return self.rng.choice(sorted(self.sent))

    # -- tables ------------------------------------------------------------------------------------

    def drop(self) -> None:
        name = self.one()
        with suppress(tf.NotFoundError):
            self.catalog.drop_table(f"shop.{name}")
            self.dropped.add(name)

    def stand_aside(self) -> None:
        """With its next batch."""
        self.untakable = f"shop.{self.one()}"

    # -- the engines -------------------------------------------------------------------------------

    def settings(self) -> StreamSettings:
        return StreamSettings(
            query_id="kafka:shop",
            routing=Routing(namespace="shop", include=[TopicPattern.of(f"{self.prefix}.public.*")]),
            options=StreamOptions(namespace="shop", defaults=NEW_KEYS),
        )

    def local(self, resume: list[str], listener: Heard, follow: bool) -> dict[str, str]:
        source = KafkaConsumer(servers=self.broker.servers)
        engine = LocalEngine(
            environment=self.catalog.environment,
            source=source,
            settings=self.settings(),
            cut=Cut.TRANSACTION if self.is_cut and self.rng.random() < 0.7 else Cut.BATCH,
            pace=Pace(
                batch_events=self.rng.choice([2, 5, 100]), interval_ms=0, settle_ms=200,
                refresh_ms=self.rng.choice([100, 5_000]),
            ),
            listener=listener,
            resume_tables=resume,
        )  # fmt: skip
        try:
            engine.run(follow=follow, stop=self.until(follow, listener))
        finally:
            source.close()
        return dict(engine.aside)

    def on_spark(self, resume: list[str], listener: Heard, follow: bool) -> dict[str, str]:
        engine = SparkEngine(
            environment=self.catalog.environment,
            spark=self.spark,
            source=KafkaSource(
                servers=self.broker.servers, topic="", batch_events=self.rng.choice([4, 10, 100]),
            ),
            settings=self.settings(),
            interval_ms=200,
            listener=listener,
            resume_tables=resume,
        )  # fmt: skip
        engine.run(follow=follow, stop=self.until(follow, listener))
        return dict(listener.aside)

    def until(self, follow: bool, listener: Heard) -> Callable[[], bool]:
        """A process that follows is stopped after some batches, or when no more come."""
        batches = self.rng.randint(1, 4)
        end = time.monotonic() + FOLLOWS_S

        def stop() -> bool:
            is_over = len(listener.batches) >= batches or time.monotonic() > end
            return self.is_dead or (follow and is_over)

        return stop

    def run(self, engine: str, *, to_the_end: bool = False) -> dict[str, str]:
        """A process; which tables stand aside at its end."""
        listener, resume = Heard(), []
        for name in self.sent:
            with suppress(tf.NotFoundError):
                table = self.catalog.load_table(f"shop.{name}")
                why = table.properties.get("icefold.ingest.set-aside", "")
                if "made anew" not in why and "no longer has" not in why and why:
                    resume.append(table.name)
        follow = not to_the_end and self.rng.random() < 0.6
        self.is_dead = False
        self.dies_in = None if to_the_end or self.rng.random() < 0.2 else self.rng.randint(1, 8)
        acts = self.rng.choices(self.happenings(), k=self.rng.randint(0, 2))
        self.acts = [] if to_the_end else acts
        self.done.append(f"{engine} follow={follow} dies in {self.dies_in} resume {resume}")
        run = self.local if engine == "local" else self.on_spark
        try:
            aside = run(resume, listener, follow)
        except (Died, InternalError):
            if not self.is_dead:
                raise
            self.done.append(f"died: {listener.batches}")
            self.met[f"{engine} died" + (" in a batch" if self.is_torn() else "")] += 1
            return {}
        except TableError as error:
            self.done.append(f"{engine}: {type(error).__name__}: {error}")
            self.met[f"{engine}: {str(error)[:70]}"] += 1
            if to_the_end:
                raise
            return {}
        self.done.append(f"ended: {listener.batches} aside {aside}")
        self.met[f"{engine} ended"] += 1
        return aside

    def happenings(self) -> list[Callable[[], None]]:
        return [
            self.send, self.send, self.come, self.come, self.grow, self.stand_aside, *self.harm
        ]  # fmt: skip

    def act(self, act: Callable[[], None]) -> None:
        self.done.append(f"  {act.__name__}")
        act()
        self.done[-1] += f" {self.sent} aside {self.untakable}"

    def step(self) -> None:
        """One step nearer to the end of the process; it dies there, or others act."""
        with self.lock:
            if self.dies_in is not None:
                self.dies_in -= 1
                self.is_dead = self.is_dead or self.dies_in <= 0
            if self.is_dead:
                raise Died
            if self.acts:
                self.act(self.acts.pop())

    @contextmanager
    def hooked(self) -> Iterator[None]:
        """Each commit of a table is a step before and a step after it."""
        commit, prepared = staging._commit, stream_tables.StreamTables._prepared
        stream_tables.logger.addHandler(self.told)

        def committing(environment: Any, ready: Any, *, batch: Any, names: Any) -> Any:
            self.step()
            result = commit(environment, ready, batch=batch, names=names)
            self.step()
            return result

        def preparing(tables: Any, prepare: Any, table: Any, events: Any) -> Any:
            if table.name == self.untakable:
                self.untakable = None
                raise InvalidInputError("its options are wrong")
            return prepared(tables, prepare, table, events)

        staging._commit, stream_tables.StreamTables._prepared = committing, preparing
        try:
            yield
        finally:
            staging._commit, stream_tables.StreamTables._prepared = commit, prepared
            stream_tables.logger.removeHandler(self.told)

    def is_torn(self) -> bool:
        """Whether the newest batch is on some of its tables only."""
        held: dict[str, int] = {}
        named: list[str] = []
        for name, said in self.said().items():
            held[f"shop.{name}"] = int(said[BATCH_ID])
            if held[f"shop.{name}"] == max(held.values()):
                named = json.loads(said[BATCH_TABLES])
        newest = max(held.values(), default=-1)
        return any(held.get(name, -1) < newest for name in named)

    def said(self) -> dict[str, Mapping[str, str]]:
        """What the newest staged batch of each table says of itself."""
        found = {}
        for name in self.sent:
            with suppress(tf.NotFoundError):
                head = self.catalog.load_table(f"shop.{name}").state.head("staging")
                if head is not None:
                    found[name] = head.summary.additional_properties
        return found

    # -- what is there -----------------------------------------------------------------------------

    def shown(self, name: str) -> list[int]:
        try:
            state = self.catalog.load_table(f"shop.{name}").state
        except tf.NotFoundError:
            return []
        head = state.head("staging")
        if head is None:
            return []
        location = state.metadata_location.removeprefix("file://")
        query = f"SELECT id FROM iceberg_scan('{location}', snapshot_from_id = {head.snapshot_id})"
        return sorted(row[0] for row in duckdb_connection().execute(query).fetchall())

    def check(self) -> None:
        for engine in self.rng.sample(["local", "spark"], 2):
            try:
                aside = self.run(engine, to_the_end=True)
            except TableError as error:
                if engine == "spark" and self.may_lack and "no longer has messages" in str(error):
                    continue
                raise
        aside = self.run("local", to_the_end=True)
        for name, count in self.sent.items():
            shown, wanted = self.shown(name), list(range(count))
            reason = aside.get(f"shop.{name}")
            assert len(set(shown)) == len(shown), f"{name}: staged twice: {shown}"
            assert set(shown) <= set(wanted), f"{name}: never sent"
            if reason is None and name in self.dropped:
                lacks = set(self.kafka[name]) - set(shown)
                assert not lacks, f"{name} lacks {lacks}, which is in Kafka"
            elif reason is None:
                lacks = sorted(set(wanted) - set(shown) - self.unseen.get(name, set()))
                is_told = f"shop.{name}" in self.told.tables
                said = is_told and not set(lacks) & set(self.kafka[name])
                assert not lacks or said, f"{name} lacks {lacks}, and nobody says so"
            else:
                assert name in self.may_lack, reason
                assert "made anew" in reason or "no longer has" in reason, reason
                self.met["told: " + ("made anew" if "made anew" in reason else "gone")] += 1
                self.catalog.drop_table(f"shop.{name}")
                # A transaction whose events went with the topic waits until all partitions move on.
                self.is_cut = False
                healed = self.run(self.rng.choice(["local", "spark"]), to_the_end=True)
                assert f"shop.{name}" not in healed, healed
                assert self.shown(name) == self.kafka[name], f"{name}: dropped and made anew"

    def play(self, rounds: int) -> None:
        """All of it."""
        with self.hooked():
            self.run("local" if self.rng.random() < 0.5 else "spark", to_the_end=True)
            for _ in range(rounds):
                for _ in range(self.rng.randint(0, 2)):
                    self.act(self.rng.choice(self.happenings()))
                self.send()
                self.run(self.rng.choice(["local", "spark", "spark"]))
            self.untakable = None
            self.check()


def main() -> None:
    """`python -m tests.support.engine_handovers FIRST COUNT`: prints what is wrong, and exits 1."""
    first, count = int(sys.argv[1]), int(sys.argv[2])
    broker = kafka()
    os.environ |= spark_options(connector_path())
    conf = {"spark.driver.extraClassPath": connector_path(), "spark.sql.adaptive.enabled": "false"}
    spark = local_session("handovers", cores=2, conf=conf)
    spark.sparkContext.setLogLevel("OFF")
    met, failed = Counter[str](), 0
    with tempfile.TemporaryDirectory(prefix="icefold-handovers-") as name:
        for seed in range(first, first + count):
            one = Handovers(seed, spark, broker, Path(name))
            try:
                one.play(ROUNDS)
            except Exception as error:
                failed += 1
                print(f"===== seed {seed}: {type(error).__name__}: {error}", *one.done, sep="\n")
            met += one.met
            print("done", seed, dict(one.met), flush=True)
    print(*(f"{times} {each}" for each, times in met.most_common()), sep="\n")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
