"""`icefold run`, a process of its own, while its catalog's server is gone or hangs."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pyarrow as pa
import pytest

import tableformat as tf
from tests.support.fault_proxy import Fault
from tests.support.faulty_histories import rest_world
from tests.support.kafka import kafka
from tests.support.stream_worlds import message

pytestmark = [pytest.mark.services, pytest.mark.slow, pytest.mark.interop]
TOPICS = ("outages.public.a", "outages.public.b")


@pytest.fixture
def world(tmp_path):
    made = rest_world(tmp_path)
    yield made
    made.proxy.refuse_connections()


@pytest.fixture
def running(world, tmp_path):
    """Starts the command; what it said is in the file."""
    log, started = tmp_path / "log", []
    code = "from maintenance.cli.start import main; main()"
    words = ["run", "--topics", "outages.public.*", "--into", "s", "--kafka", kafka().servers]

    def start():
        with log.open("ab") as output:
            argv = [sys.executable, "-c", code, *world.options(clean=False), *words]
            started.append(subprocess.Popen(argv, stdout=output, stderr=output))
        return started[-1], log

    yield start
    for process in started:
        process.kill()
        process.wait()


def send(held, key, value):
    for topic in TOPICS:
        kafka().send(topic, [message("c", {"id": key, "note": value})])
    held[key] = value


def wait_for(world, process, held):
    deadline = time.monotonic() + 90
    catalog = tf.open_catalog("clean", type="rest", uri=world.upstream, warehouse=world.warehouse)
    while True:
        try:
            shown = [
                {
                    row["id"]: row["note"]
                    for row in catalog.load_table(f"s.{name}").scan().to_arrow().to_pylist()
                }
                for name in "ab"
            ]
        except tf.NotFoundError:
            shown = []
        if shown == [held, held]:
            return
        assert process.poll() is None, "it has ended"
        assert time.monotonic() < deadline, shown
        time.sleep(0.5)


@pytest.mark.timeout(400)
def test_outages_of_the_catalog_are_told_once_and_cost_no_event(world, running):
    for topic in TOPICS:
        kafka().create_topic(topic)
    held = {}
    send(held, 1, "x")
    process, log = running()
    wait_for(world, process, held)

    world.proxy.refuse_connections()
    send(held, 2, "x")
    time.sleep(6)
    world.proxy.listen()
    wait_for(world, process, held)
    told = log.read_text()
    assert told.count("the stream waits, and tries again") == 1, told
    assert told.count("cannot be maintained") <= 1, told
    assert "Traceback" not in told

    world.proxy.faults[:] = [Fault("hang", delay_s=60, times=1_000)]
    send(held, 3, "x")
    time.sleep(3)
    process.send_signal(signal.SIGTERM)
    time.sleep(1)
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) in (0, 3), log.read_text()
    world.proxy.faults.clear()
    process, _ = running()
    wait_for(world, process, held)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0, log.read_text()


def test_maintenance_that_looks_at_a_table_in_vain_ends_at_once(world, tmp_path):
    catalog = tf.open_catalog("clean", type="rest", uri=world.upstream, warehouse=world.warehouse)
    for name in "ab":
        catalog.create_table(f"s.{name}", pa.schema([("id", pa.int64())]), primary_key=["id"])
    code = "from maintenance.cli.start import main; main()"
    argv = [sys.executable, "-c", code, *world.options(clean=False), "maintain", "s.*"]
    log = tmp_path / "log"
    with log.open("wb") as output:
        process = subprocess.Popen([*argv, "--every", "1s"], stdout=output, stderr=output)
    try:
        deadline = time.monotonic() + 30
        while b"watching" not in log.read_bytes():
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        hangs = Fault("hang", "GET", "/tables/[ab]", delay_s=100, times=1_000)
        world.proxy.faults[:] = [hangs]
        while hangs.used < 2:
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
    finally:
        process.kill()
        process.wait()
