"""`icefold ingest --kafka` against a real broker, as a person types it."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from urllib.request import urlopen

import pyarrow as pa
import pytest
from confluent_kafka import KafkaException

import tableformat as tf
from tableformat.spec.names import BATCH_ID, QUERY_ID
from tests.support.change_events import envelope
from tests.support.kafka import kafka, spark_environment
from tests.support.ports import free_port
from tests.support.stream_worlds import message

pytestmark = [pytest.mark.interop, pytest.mark.slow]
ROOT = Path(__file__).resolve().parents[2]
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("note", pa.string())])


class Shell:
    """`icefold ingest` into one table; every call is a process of its own."""

    def __init__(self, folder, broker):
        self.folder, self.broker = folder, broker
        self.checkpoint = folder / "checkpoint"
        self.warehouse = str(folder / "warehouse")
        catalog = tf.open_catalog("local", warehouse=self.warehouse)
        self.table = catalog.create_table("shop.orders", SCHEMA, primary_key=["id"])

    def start(self, topic, *words):
        source = ["--kafka", self.broker.servers, "--topic", topic]
        source += ["--connector-jar", str(self.broker.connector)]
        return subprocess.Popen(
            [
                *(sys.executable, "-c", "from maintenance.cli.start import main; main()"),
                *("--warehouse", self.warehouse, "ingest", "shop.orders", "--json"),
                *(*source, "--checkpoint", str(self.checkpoint), *words),
            ],
            cwd=ROOT,
            env=spark_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def ok(self, *words):
        return self.finish(self.start(*words))

    def finish(self, process, lines=""):
        out, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
        assert lines in err if lines else err == ""
        return json.loads(out)

    def state(self):
        rows = self.table.scan(branch="staging").to_arrow().to_pylist()
        assert len({row["id"] for row in rows}) == len(rows), "a key has two rows"
        return {row["id"]: row["note"] for row in rows}

    def batches(self):
        snapshots = self.table.refresh().state.metadata.snapshots
        found = [s.summary.additional_properties for s in snapshots]
        return [(s[QUERY_ID], int(s[BATCH_ID])) for s in found]


@pytest.fixture(scope="module")
def broker():
    return kafka()


@pytest.fixture
def shell(tmp_path, broker):
    return Shell(tmp_path, broker)


def upsert(key, note, op="c"):
    return json.dumps({"id": key}), envelope(op, after={"id": key, "note": note})


def deletion(key):
    """What Debezium sends for a delete: the event, then a tombstone for Kafka's log compaction."""
    message_key = json.dumps({"id": key})
    return [(message_key, envelope("d", before={"id": key, "note": None})), (message_key, None)]


def test_topic_is_staged_once_whatever_happens_to_the_process(shell):
    topic = shell.broker.create_topic("orders", partitions=3)
    shell.broker.send(topic, [upsert(key, "new") for key in range(50)])
    shell.broker.send(topic, [*deletion(7), upsert(8, "paid", "u")])
    first = shell.ok(topic, "--batch-events", "20")
    assert (first["events"], first["changes"]) == (53, 52)  # the tombstone is no change
    assert first["commits"] >= 3
    expected = dict.fromkeys(range(50), "new") | {8: "paid"}
    del expected[7]
    assert shell.state() == expected

    follow = ("--follow", "--interval-s", "0.1", "--batch-events", "25")
    process = shell.start(topic, *follow)
    for part in range(3):
        keys = range(part * 30, part * 30 + 60)
        shell.broker.send(topic, [upsert(key, f"{part}", "u") for key in keys])
        expected |= dict.fromkeys(keys, f"{part}")
        if part == 0:
            wait_for(lambda: len(shell.batches()) >= first["commits"] + 2, process)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()

    port = free_port()
    process = shell.start(topic, *follow, "--metrics-port", str(port))
    shell.broker.send(topic, [upsert(7, "again"), *deletion(9)])
    expected[7] = "again"
    expected.pop(9)
    wait_for(lambda: shell.state() == expected, process)
    backlog = 'icefold_ingest_backlog_events{partition="%d",table="shop.orders",topic="orders"} 0.0'
    wait_for(lambda: all(backlog % number in scrape(port) for number in range(3)), process)
    dead = 'icefold_ingest_dead_letters_total{table="shop.orders"} 0.0'
    wait_for(lambda: dead in scrape(port), process)
    process.send_signal(signal.SIGTERM)
    shell.finish(process, "INFO shop.orders: ")
    assert shell.state() == expected
    numbers = [number for _, number in shell.batches()]
    assert numbers == list(range(len(numbers))), "a batch is missing or was written twice"
    assert len({query for query, _ in shell.batches()}) == 1


def test_bad_message_is_one_line_with_its_position(shell):
    topic = shell.broker.create_topic("bad")
    shell.broker.send(topic, [upsert(1, "good"), (None, "{no json")])
    process = shell.start(topic)
    out, err = process.communicate(timeout=300)
    assert (process.returncode, out) == (1, "")
    assert len(err.splitlines()) == 1, err
    assert err.startswith("icefold: invalid-input: bad record: not a JSON object")
    assert "position=bad-0@1" in err


@pytest.mark.parametrize("count", [2, 5])
def test_topic_made_anew_is_refused_on_the_checkpoint_of_the_one_before(shell, count):
    """Also where its offsets have passed those that were read: nothing else tells then."""
    topic = shell.broker.create_topic(f"again-{count}")
    shell.broker.send(topic, [upsert(key, "old") for key in range(3)])
    assert shell.ok(topic)["events"] == 3
    shell.broker.delete_topic(topic)
    shell.broker.create_topic(topic)
    shell.broker.send(topic, [upsert(key, "new") for key in range(count)])
    out, err = (process := shell.start(topic)).communicate(timeout=300)
    assert (process.returncode, out, err.count("\n")) == (1, "", 1), err
    assert f"Kafka topic '{topic}' was deleted and made anew" in err
    assert shell.state() == dict.fromkeys(range(3), "old")
    shell.checkpoint = shell.folder / "anew"
    assert shell.ok(topic)["events"] == count
    shell.broker.send(topic, [upsert(9, "later")])
    assert shell.ok(topic)["events"] == 1


IN_ONE_SESSION = """
import json, sys
import tableformat as tf
from pathlib import Path
from tableformat.errors import TableError
from tableformat.spark.kafka_source import KafkaSource, check_kafka, connector_class_path
from tableformat.spark.kafka_source import kafka_events
from tableformat.spark.session import local_session

jars, warehouse, checkpoint, servers = sys.argv[1:]
path = connector_class_path([Path(jars)])
spark = local_session("kafka", cores=1, conf={"spark.driver.extraClassPath": path})
sources = {
    "no topic": KafkaSource(servers=servers, topic="flatened"),
    "no broker": KafkaSource(
        servers="127.0.0.1:1", topic="x", settings={"default.api.timeout.ms": "1500"}
    ),
    "no such protocol": KafkaSource(
        servers=servers, topic="x", settings={"kafka.security.protocol": "nonsense"}
    ),
    "no address": KafkaSource(servers="nowhere", topic="x"),
    "not to be set": KafkaSource(
        servers=servers, topic="flattened", settings={"key.deserializer": "x"}
    ),
}
answers = {}
for name, source in sources.items():
    try:
        check_kafka(spark, source)
        kafka_events(spark, source)
        answers[name] = "no error"
    except TableError as error:
        answers[name] = f"{error.kind.value}: {error}"
table = tf.open_catalog("local", warehouse=warehouse).load_table("shop.orders")
query = table.write_stream(
    kafka_events(spark, KafkaSource(servers=servers, topic="flattened")),
    checkpoint=checkpoint,
    options={"layout": "flattened"},
    trigger={"availableNow": True},
)
query.awaitTermination()
print(json.dumps(answers))
"""


def test_truncate_is_applied_where_the_topic_has_one_partition(shell):
    events = [upsert(1, "old"), (None, envelope("t")), upsert(2, "new")]
    wide = shell.broker.create_topic("wide", partitions=2)
    shell.broker.send(wide, events)
    refused = shell.start(wide, "-o", "on-truncate=apply")
    _, err = refused.communicate(timeout=300)
    assert (refused.returncode, err.count("\n")) == (1, 1)
    assert "on-truncate=apply needs a topic of one partition" in err
    shell.checkpoint = shell.folder / "one"
    shell.broker.send(shell.broker.create_topic("one"), events)
    assert shell.ok("one", "-o", "on-truncate=apply")["truncated"] == 1
    assert shell.state() == {2: "new"}


def test_flattened_tombstones_and_everything_that_is_refused(shell):
    topic = shell.broker.create_topic("flattened")
    row = [(f'{{"id": {key}}}', json.dumps({"id": key, "note": "new"})) for key in (1, 2, 3)]
    shell.broker.send(topic, [*row, ('{"id": 2}', None)])
    words = [str(shell.broker.connector), shell.warehouse, str(shell.folder / "checkpoint")]
    done = subprocess.run(
        [sys.executable, "-c", IN_ONE_SESSION, *words, shell.broker.servers],
        cwd=ROOT,
        env=spark_environment(),
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    assert answers["no topic"].startswith("not-found: there is no Kafka topic 'flatened'")
    assert "did you mean 'flattened'?" in answers["no topic"]
    assert answers["no broker"].startswith("unavailable: no Kafka broker answers")
    assert answers["no such protocol"].startswith("invalid-input: Kafka refuses a setting")
    assert answers["no address"].startswith("invalid-input: Kafka refuses a setting")
    assert answers["not to be set"].startswith("invalid-input: Spark refuses a Kafka setting")
    assert shell.state() == {1: "new", 3: "new"}


class ManyShell:
    """`icefold ingest --topics` into one namespace; every call is a process of its own."""

    def __init__(self, folder, broker):
        self.folder, self.broker = folder, broker
        self.warehouse = str(folder / "warehouse")

    def start(self, *words, command="ingest"):
        source = ["--kafka", self.broker.servers, "--topics", "many.public.*", "--into", "shop"]
        source += ["--connector-jar", str(self.broker.connector)]
        return subprocess.Popen(
            [
                *(sys.executable, "-c", "from maintenance.cli.start import main; main()"),
                *("--warehouse", self.warehouse, command, *source, "--json", *words),
            ],
            cwd=ROOT,
            env=spark_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def finish(self, process, code=0):
        out, err = process.communicate(timeout=400)
        assert process.returncode == code, err
        return json.loads(out)

    def state(self, name, branch="staging"):
        catalog = tf.open_catalog("local", warehouse=self.warehouse)
        try:
            scan = catalog.load_table(f"shop.{name}").scan(branch=branch)
        except tf.NotFoundError:
            return {}  # not made, or not staged on
        rows = scan.to_arrow().to_pylist()
        assert len({row["id"] for row in rows}) == len(rows), "a row was staged twice"
        return {row["id"]: row["note"] for row in rows}

    def batches(self, name):
        catalog = tf.open_catalog("local", warehouse=self.warehouse)
        snapshots = catalog.load_table(f"shop.{name}").state.metadata.snapshots
        return [int(s.summary.additional_properties[BATCH_ID]) for s in snapshots]


def test_many_topics_are_staged_once_by_either_engine_whatever_happens(tmp_path, broker):
    """Made, killed with -9 as it runs, taken over by Spark, and back; every change is new."""
    shell = ManyShell(tmp_path, broker)
    sent = {}
    new_keys = ("-o", "assume-new-keys=true")  # what is staged twice is two rows

    def send(name, count):
        rows = sent.setdefault(name, {})
        keys = range(len(rows), len(rows) + count)
        rows |= dict.fromkeys(keys, "new")
        changes = [message("c", {"id": key, "note": "new"}) for key in keys]
        broker.send(f"many.public.{name}", changes)

    for name, partitions in (("orders", 3), ("lines", 1)):
        broker.create_topic(f"many.public.{name}", partitions=partitions)
        send(name, 40)
    local = (*new_keys, "--engine", "local", "--follow", "--interval-s", "0.1")
    process = shell.start(*local, "--batch-events", "25")
    wait_for(lambda: shell.state("orders") == sent["orders"], process)
    for _ in range(3):
        send("orders", 30)
        send("lines", 5)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()

    port = free_port()
    process = shell.start(*local, "--metrics-port", str(port))
    broker.create_topic("many.public.late")
    send("late", 3)
    wait_for(lambda: all(shell.state(name) == rows for name, rows in sent.items()), process)
    told = 'icefold_ingest_backlog_events{partition="0",table="shop.late",topic="many.public.late"}'
    wait_for(lambda: f"{told} 0.0" in scrape(port), process)
    process.send_signal(signal.SIGTERM)
    assert set(shell.finish(process)["tables"]) >= {"shop.late"}

    send("orders", 7)
    send("lines", 2)
    answer = shell.finish(shell.start(*new_keys, "--engine", "spark"))
    assert (answer["events"], answer["commits"]) == (9, 2)
    send("late", 4)
    broker.send("many.public.lines", [(None, "{no json")])
    answer = shell.finish(shell.start(*new_keys, "--engine", "auto"), code=3)
    assert answer["events"] == 4
    assert "many.public.lines-0@" in answer["set_aside"]["shop.lines"]
    assert all(shell.state(name) == rows for name, rows in sent.items())
    for name in sent:
        numbers = shell.batches(name)
        assert numbers == sorted(set(numbers)), "a batch came twice"

    taken_up = ("--resume", "shop.lines", "-o", "on-bad-record=dead-letter", "--allow-dead-letters")
    words = (*new_keys, *taken_up, "--engine", "spark", "--interval-s", "1")
    process = shell.start(*words, command="run")
    send("late", 5)
    send("lines", 3)
    wait_for(lambda: all(shell.state(name, "main") == rows for name, rows in sent.items()), process)
    process.send_signal(signal.SIGTERM)
    answer = shell.finish(process)
    assert (answer["events"], answer["bad_records"], answer["set_aside"]) == (9, 1, {})


def test_topic_made_anew_is_noticed_by_the_engine_that_has_not_read_it(tmp_path, broker):
    """As many messages as before: their offsets alone tell nothing."""
    shell, topics = ManyShell(tmp_path, broker), ("many.public.orders", "many.public.lines")
    for topic in topics:
        with suppress(KafkaException):
            broker.delete_topic(topic)  # another test's
        broker.create_topic(topic, partitions=2)
        broker.send(topic, [message("c", {"id": key, "note": "old"}) for key in range(9)])
    words = ("-o", "assume-new-keys=true", "--engine")
    assert shell.finish(shell.start(*words, "local"))["set_aside"] == {}
    broker.delete_topic(topics[0])
    broker.create_topic(topics[0], partitions=1)
    broker.send(topics[0], [message("c", {"id": key, "note": "new"}) for key in range(9)])
    answer = shell.finish(shell.start(*words, "spark"), code=3)
    assert "was deleted and made anew" in answer["set_aside"]["shop.orders"]
    assert shell.state("orders") == dict.fromkeys(range(9), "old")
    tf.open_catalog("local", warehouse=shell.warehouse).drop_table("shop.orders")
    # The newest batch names the table, which lacks it, and ends behind what the topic has by now.
    assert shell.finish(shell.start(*words, "spark"))["set_aside"] == {}
    assert shell.state("orders") == dict.fromkeys(range(9), "new")
    broker.send(topics[0], [message("c", {"id": 9, "note": "new"})])
    assert shell.finish(shell.start(*words, "local"))["events"] == 1
    assert shell.state("orders") == dict.fromkeys(range(10), "new")
    assert shell.state("lines") == dict.fromkeys(range(9), "old")


def scrape(port):
    try:
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            return answer.read().decode()
    except OSError:  # not yet, or the machine is busy
        return ""


def wait_for(condition, process, seconds=240):
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.2)
