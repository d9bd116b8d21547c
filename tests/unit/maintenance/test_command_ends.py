"""How commands end when their output cannot be written, or they are interrupted."""

from __future__ import annotations

import gzip
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest

import tableformat as tf
from tests.support.process_states import wait_until_idle

ROOT = Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.slow  # each starts processes
SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


@pytest.fixture
def warehouse(tmp_path):
    table = tf.open_catalog("local", warehouse=str(tmp_path / "w")).create_table(
        "a.b", SCHEMA, primary_key=["id"]
    )
    rows = 20_000
    table.append(pa.table({"id": range(rows), "v": ["x" * 20] * rows}, schema=SCHEMA))
    return tmp_path / "w"


def command(warehouse, *words: str) -> list[str]:
    script = "from maintenance.cli.start import main; main()"
    return [sys.executable, "-c", script, "--warehouse", str(warehouse), *words]


@pytest.mark.parametrize(
    "words",
    [
        ("scan", "a.b", "--format", "csv"),
        ("scan", "a.b", "--format", "json"),
        ("scan", "a.b"),
        ("table", "list"),
        ("table", "describe", "a.b"),
        ("status", "--json"),
        ("--help",),
        ("--version",),
    ],
    ids=" ".join,
)
def test_full_disk_is_one_line_and_a_failure(warehouse, words) -> None:
    with open("/dev/full", "w") as full:  # noqa: PTH123
        done = subprocess.run(
            command(warehouse, *words), stdout=full, stderr=subprocess.PIPE, text=True,
            env=ENVIRONMENT, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == "icefold: the output cannot be written: No space left on device\n"


@pytest.mark.parametrize("words", [("scan", "a.b"), ("status",), ("--help",)], ids=" ".join)
def test_closed_output_is_one_line_and_a_failure(warehouse, words) -> None:
    closed = shlex.join(command(warehouse, *words)) + " >&-"
    done = subprocess.run(
        closed, shell=True, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT, check=False
    )
    assert done.returncode == 1
    assert done.stderr == "icefold: the output cannot be written: Bad file descriptor\n"


def test_failure_that_cannot_be_told_keeps_its_status(warehouse) -> None:
    """A traceback, and with it another status, was all that was tried on a full standard error."""
    with open("/dev/full", "w") as full:  # noqa: PTH123
        process = subprocess.Popen(
            ingest(warehouse, "-"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=full,
            env=ENVIRONMENT,
        )  # fmt: skip
    with process:
        wait_until_idle(process.pid)
        process.terminate()
        assert process.wait(60) == 143


def test_no_file_of_a_table_is_opened_as_a_closed_standard_file(warehouse, tmp_path) -> None:
    events = tmp_path / "events.jsonl"
    events.write_text("".join(map(event, range(3))))
    for words in (ingest(warehouse, str(events)), command(warehouse, "resolve", "a.b")):
        closed = shlex.join(words) + " <&- >&- 2>&-"
        done = subprocess.run(closed, shell=True, env=ENVIRONMENT, check=False)
        assert done.returncode == 1, "done, but not told"
    table = tf.open_catalog("local", warehouse=str(warehouse)).load_table("a.b")
    assert table.scan("v = 'new'").to_arrow().num_rows == 3


def test_closed_input_is_one_line_and_stages_nothing(warehouse) -> None:
    closed = shlex.join(ingest(warehouse, "-")) + " <&-"
    done = subprocess.run(
        closed, shell=True, capture_output=True, text=True, env=ENVIRONMENT, check=False
    )
    assert done.returncode == 1
    assert done.stderr == (
        "icefold: invalid-input: cannot read events: Bad file descriptor; file=-\n"
    )


def test_reader_that_leaves_is_no_error(warehouse) -> None:
    with subprocess.Popen(
        command(warehouse, "scan", "a.b", "--format", "csv"), stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, env=ENVIRONMENT,
    ) as process:  # fmt: skip
        assert process.stdout.readline() == "id,v\n"
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait() == 0


def event(number: int) -> str:
    row = {"id": number, "v": "new"}
    return json.dumps({"before": None, "after": row, "op": "c", "source": {"lsn": number}}) + "\n"


def ingest(warehouse, *words: str) -> list[str]:
    return command(warehouse, "ingest", "a.b", *words)


def staged(warehouse) -> int:
    table = tf.open_catalog("local", warehouse=str(warehouse)).load_table("a.b")
    return table.scan("v = 'new'", branch="staging").to_arrow().num_rows


def test_events_come_from_standard_input_and_gzip(warehouse, tmp_path) -> None:
    lines = "".join(map(event, range(3))).encode()
    packed = tmp_path / "more.jsonl.gz"
    packed.write_bytes(gzip.compress("".join(map(event, range(3, 6))).encode()))
    subprocess.run(ingest(warehouse, "-"), input=lines, env=ENVIRONMENT, check=True)
    subprocess.run(ingest(warehouse, str(packed)), env=ENVIRONMENT, check=True)
    both = gzip.compress(event(6).encode()) + gzip.compress(event(7).encode())  # one after another
    subprocess.run(ingest(warehouse, "-"), input=both, env=ENVIRONMENT, check=True)
    assert staged(warehouse) == 8


@pytest.mark.parametrize("damage", [lambda data: data[:-9], lambda data: data[:20] + b"x" * 40])
def test_damaged_gzip_is_one_line_and_stages_nothing(warehouse, tmp_path, damage) -> None:
    packed = tmp_path / "more.jsonl.gz"
    packed.write_bytes(damage(gzip.compress("".join(map(event, range(30))).encode())))
    done = subprocess.run(
        ingest(warehouse, str(packed)), capture_output=True, text=True, env=ENVIRONMENT, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith("icefold: invalid-input: cannot read events")
    assert done.stderr.count("\n") == 1
    assert "more.jsonl.gz" in done.stderr


@pytest.fixture
def interruptible():
    """Children obey SIGINT, also where a shell started this process in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("more", [(), ("--json",)], ids=["text", "json"])
@pytest.mark.parametrize(
    ("number", "code", "word"),
    [
        (signal.SIGINT, 130, "interrupted"),
        (signal.SIGTERM, 143, "terminated"),
        (signal.SIGHUP, 129, "hung up"),
    ],
)
@pytest.mark.usefixtures("interruptible")
def test_interrupted_ingest_says_what_is_staged(warehouse, more, number, code, word) -> None:
    words = ingest(warehouse, "-", "--batch-events", "2", *more)
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=ENVIRONMENT,
    ) as process:  # fmt: skip
        process.stdin.write("".join(map(event, range(4))))
        process.stdin.flush()
        while not (warehouse / "a/b/metadata").is_dir() or len(snapshots(warehouse)) < 3:
            time.sleep(0.05)
        wait_until_idle(process.pid)  # it waits for more now
        process.send_signal(number)
        process.wait(120)  # while its input is open: nothing else ends it
        out, err = process.communicate()
    assert process.returncode == code
    assert err == f"icefold: {word}\n"
    if more:
        assert json.loads(out)["changes"] == 4
    else:
        assert out.startswith("4 events, 4 changes in 2 commits on staging")
    assert staged(warehouse) == 4


SIGNAL_MEETS_A_FINALIZER = """
import signal, sys, threading, weakref
import click
from maintenance.cli.context import GuardedGroup

@click.group(cls=GuardedGroup)
def group():
    pass

@group.command()
def wait():
    dead = threading.Event()
    weakref.finalize(dead, signal.raise_signal, int(sys.argv.pop()))
    del dead
    threading.Event().wait(60)

group(["wait"])
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.usefixtures("interruptible")
def test_signal_that_meets_a_finalizer_still_ends_the_command(number, code) -> None:
    """Seed 1012 of the faulty histories: a connection was closed, and Python printed the signal."""
    words = [sys.executable, "-c", SIGNAL_MEETS_A_FINALIZER, str(int(number))]
    done = subprocess.run(words, capture_output=True, text=True, env=ENVIRONMENT, check=False)
    assert done.returncode == code
    assert done.stderr in ("icefold: interrupted\n", "icefold: terminated\n")


SIGNAL_MEETS_PYDANTIC = """
import click, signal, sys
from pydantic import BaseModel, model_serializer
from maintenance.cli.context import GuardedGroup

class Part(BaseModel):
    @model_serializer
    def write(self):
        signal.raise_signal(int(sys.argv.pop()))
        return {}

@click.group(cls=GuardedGroup)
def group():
    pass

@group.command()
def write():
    Part().model_dump_json()

group(["write"])
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.usefixtures("interruptible")
def test_signal_that_becomes_another_error_still_ends_the_command(number, code) -> None:
    """pydantic makes a ValueError of it: a text that cannot be stored, we said."""
    words = [sys.executable, "-c", SIGNAL_MEETS_PYDANTIC, str(int(number))]
    done = subprocess.run(words, capture_output=True, text=True, env=ENVIRONMENT, check=False)
    assert done.stderr in ("icefold: interrupted\n", "icefold: terminated\n")
    assert done.returncode == code


def snapshots(warehouse) -> list:
    table = tf.open_catalog("local", warehouse=str(warehouse)).load_table("a.b")
    return table.state.metadata.snapshots


ARROW_HOLDS_A_PYTHON_FILE = """
import io, sys, threading, time
import pyarrow as pa, pyarrow.parquet as pq
from maintenance.cli.main import main

started = threading.Event()

class Stuck(io.BytesIO):
    def read(self, size=-1):
        if threading.current_thread() is not threading.main_thread():
            started.set()
            while True:  # until it wants the interpreter and there is none
                time.sleep(0.01)
        return super().read(size)

class LongEnd:
    def __del__(self):
        time.sleep(1)

written = pa.BufferOutputStream()
pq.write_table(pa.table({"n": range(1000)}), written)
stored = Stuck(written.getvalue().to_pybytes())
reader = pq.ParquetFile(stored, pre_buffer=True)
threading.Thread(target=reader.read, daemon=True).start()
assert started.wait(10)
long_end = LongEnd()
main()
"""


@pytest.mark.parametrize(
    ("words", "status"), [(("table", "list"), 0), (("scan", "a.none"), 1), (("nothing",), 2)]
)
def test_thread_of_arrow_does_not_change_how_a_command_ends(warehouse, words, status) -> None:
    """CI, November 2026: a `scan` printed all rows and aborted."""
    program = [sys.executable, "-c", ARROW_HOLDS_A_PYTHON_FILE, "--warehouse", str(warehouse)]
    done = subprocess.run(
        [*program, *words], capture_output=True, text=True, env=ENVIRONMENT, check=False
    )
    assert done.returncode == status, done.stderr


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_characters_that_the_output_lacks_are_escaped_for_people(warehouse, encoding) -> None:
    table = tf.open_catalog("local", warehouse=str(warehouse)).load_table("a.b")
    table.append(pa.table({"id": [-1], "v": ["żółć"]}, schema=SCHEMA))
    for words in (("scan", "a.b", "--filter", "id < 0"), ("lookup", "a.b", "id=-1"), ("status",)):
        done = encoded(warehouse, encoding, *words)
        assert done.returncode == 0, done.stderr
        assert b"Traceback" not in done.stderr
        assert rb"\u017c" in done.stdout or words == ("status",)
    done = encoded(warehouse, encoding, "status", "a.b")
    assert b" ####" in done.stdout, "the bars of the sizes"
    done = encoded(warehouse, encoding, "scan", "a.b", "--filter", "id < 0", "--json")
    assert json.loads(done.stdout) == {"id": -1, "v": "żółć"}


def test_csv_that_the_output_cannot_hold_is_one_line_and_a_failure(warehouse) -> None:
    table = tf.open_catalog("local", warehouse=str(warehouse)).load_table("a.b")
    table.append(pa.table({"id": [-1, -2], "v": ["é", "ż"]}, schema=SCHEMA))
    words = ("scan", "a.b", "--format", "csv", "--filter")
    assert encoded(warehouse, "latin-1", *words, "id = -1").stdout == b"id,v\n-1,\xe9\n"
    done = encoded(warehouse, "latin-1", *words, "id = -2")
    assert done.returncode == 1
    assert done.stderr.decode() == (
        "icefold: invalid-input: the output cannot be written: its encoding has no such character; "
        "character='\\u017c', encoding=latin-1; set PYTHONIOENCODING=utf-8, or print JSON, which "
        "escapes it\n"
    )


def encoded(warehouse, encoding: str, *words: str) -> subprocess.CompletedProcess[bytes]:
    environment = {**ENVIRONMENT, "PYTHONIOENCODING": encoding}
    return subprocess.run(
        command(warehouse, *words), capture_output=True, env=environment, check=False
    )
