"""A cluster whose executors are killed, and a driver that is: the table is what a dict says.

One run of `cluster_driver` in a process of its own, since a process has one Spark only.
"""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

import tableformat as tf
from resolver import resolve
from resolver.cursor import marker_of
from resolver.index_check import verify
from resolver.shared_keeper import default_root
from tableformat.commit.branch_history import ancestors
from tests.support.cluster_driver import ON_CLUSTER, SCHEMA
from tests.support.crash_child import waiting_lock
from tests.support.spark_cluster import ROOT

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cluster")
    command = [sys.executable, "-m", "tests.support.cluster_driver", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500)
    assert done.returncode == -signal.SIGKILL, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def report(folder):
    return json.loads((folder / "report.json").read_text())


def opened_by_executors(folder: Path) -> dict[str, Counter]:
    """Index files by verb: (executor, object) -> how often."""
    found = {"read": Counter(), "write": Counter(), "put": Counter()}
    for line in (folder / "trace").read_text().splitlines():
        verb, location, place, _ = line.split(" ")
        if "/shared-index/" in location and Path(place).parent.name.startswith("app-"):
            found[verb][Path(place).name, location] += 1
    return found


def test_cycles_with_killed_executors_equal_the_local_engine_and_a_dict(report):
    """The driver has compared after every cycle; it got this far."""
    assert report["how"] == ["built", "current", "current", "followed", *["current"] * 5]


def test_every_killed_executor_was_replaced(report):
    assert len(report["executors"]) == 5


def test_shards_were_taken_by_different_executors(folder):
    writers = {executor for executor, _ in opened_by_executors(folder)["write"]}
    assert len(writers) >= 3
    readers = {executor for executor, _ in opened_by_executors(folder)["read"]}
    assert readers - {"0", "1"}, "no replacement has fetched a shard"


def test_executors_write_the_vectors_of_large_batches(folder):
    lines = (folder / "trace").read_text().splitlines()
    by_executor = Counter(
        Path(place).parent.name.startswith("app-")
        for verb, location, place, _ in (line.split(" ") for line in lines)
        if verb == "put" and location.endswith("-dvs.puffin")
    )
    assert by_executor[True] >= 7
    assert by_executor[False] == 2, "the small batch, and the one with deletes on another column"


def test_an_executor_fetches_only_what_it_misses(folder):
    traffic = opened_by_executors(folder)
    assert set(traffic["read"].values()) == {1}
    assert not traffic["read"].keys() & traffic["write"].keys()


def test_driver_killed_between_publish_and_apply_is_followed(folder, report, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "another-machine"))
    catalog = tf.open_catalog("local", warehouse=str(folder / "warehouse"))
    table = catalog.load_table(ON_CLUSTER)
    table.stage(upserts=pa.table({"id": [5], "note": ["after"]}, schema=SCHEMA))
    root = default_root(table.environment)
    result = resolve(table, engine="local", index_location=root, lock=waiting_lock(table, 10_000))
    assert (result.index, result.staged_snapshots, result.deleted_rows) == ("followed", 1, 1)
    found = table.refresh().scan().to_arrow().to_pydict()
    expected = dict(report["model_after"]) | {5: "after"}
    assert sorted(zip(*found.values(), strict=True)) == sorted(expected.items())

    head = table.state.head("main")
    markers = [marker_of(each) for each in ancestors(table.state.metadata, head.snapshot_id)]
    # A commit of others repeats the marker; no other marker comes twice.
    published = [marker for marker, _ in itertools.groupby(markers) if marker is not None]
    assert len(published) == len(set(published)) == report["staged"] + 2

    check = verify(table, index_location=root)
    assert check.snapshot_id == head.snapshot_id
    assert check.report.is_sound
    assert check.report.live_rows == len(expected)
