"""Processes that commit to three branches of one table, on SQLite and PostgreSQL."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.types import LongType, NestedField

from tableformat.backend import open_backend
from tests.support.commit_worker import BRANCHES, IDENTIFIER
from tests.support.postgres import postgres_server
from tests.support.table_checker import check_table, read_metadata

ROOT = Path(__file__).parents[2]


def commit_from_processes(name, properties, *, processes, commits):
    environment = open_backend(name, properties)
    environment.catalog.create_namespace(IDENTIFIER[:-1])
    environment.catalog.create_table(
        IDENTIFIER,
        schema=Schema(NestedField(1, "id", LongType(), required=True)),
        partition_spec=UNPARTITIONED_PARTITION_SPEC,
        sort_order=UNSORTED_SORT_ORDER,
        location=None,
        properties={"commit.manifest.min-count-to-merge": "20"},
    )
    workers = []
    for number in range(processes):
        orders = {
            "catalog": name, "properties": properties, "number": number, "commits": commits
        }  # fmt: skip
        command = [sys.executable, "-m", "tests.support.commit_worker", json.dumps(orders)]
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        workers.append(
            subprocess.Popen(
                command,
                cwd=ROOT,
                env=env,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    lines = []
    try:
        for worker in workers:
            output, errors = worker.communicate()
            assert worker.returncode == 0, errors[-3000:]
            lines += [json.loads(line) for line in output.splitlines()]
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()
    assert len(lines) == processes * commits
    check_outcome(environment, lines)


def check_outcome(environment, lines):
    read = environment.store.get
    location = environment.catalog.load_table(IDENTIFIER).metadata_location
    metadata = read_metadata(read, location)
    checked = check_table(read, location)  # sequence numbers, row id ranges, manifests, vectors
    acknowledged = Counter(line["snapshot_id"] for line in lines)
    assert set(acknowledged.values()) == {1}
    assert acknowledged.keys() == checked.keys()
    for line in lines:
        snapshot = checked[line["snapshot_id"]].snapshot
        for key in ("sequence_number", "first_row_id", "added_rows"):
            assert snapshot[key.replace("_", "-")] == line[key]
    for branch in BRANCHES:
        on_branch = [line for line in lines if line["branch"] == branch]
        chain = history(metadata, branch)
        assert {line["snapshot_id"] for line in on_branch} <= set(chain)
        by_id = {line["snapshot_id"]: line for line in lines}
        expected: set[str] = set()
        for snapshot_id in reversed(chain):  # a branch was forked from main: main's lines too
            line = by_id[snapshot_id]
            expected -= set(line["removed"])
            expected |= set(line["added"])
        head = checked[metadata["refs"][branch]["snapshot-id"]]
        assert head.names() == Counter(expected)
        for file in head.live:
            assert read(file.path), file.path


def history(metadata, branch):
    parents = {s["snapshot-id"]: s.get("parent-snapshot-id") for s in metadata["snapshots"]}
    chain, current = [], metadata["refs"][branch]["snapshot-id"]
    while current is not None:
        chain.append(current)
        current = parents[current]
    return chain


def test_a_few_processes_lose_and_repeat_nothing_on_sqlite(tmp_path):
    commit_from_processes("local", {"warehouse": f"{tmp_path}/wh"}, processes=3, commits=12)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("backend", ["sqlite", "postgres"])
def test_eight_processes_lose_and_repeat_nothing(tmp_path, backend):
    if backend == "sqlite":
        name, properties = "local", {"warehouse": f"{tmp_path}/wh"}
    else:
        name = "shared"
        properties = {
            "type": "sql",
            "uri": postgres_server().url(),
            "warehouse": f"file://{tmp_path}/wh",
        }
    commit_from_processes(name, properties, processes=8, commits=200)
