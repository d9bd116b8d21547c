"""Processes that run statements on the same few rows, beside a resolver and a compaction (G10).

Each writes down what it did and when. The checker of histories holds that against the table.
"""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

import pyarrow as pa

import tableformat as tf
from maintenance.tasks.compact import compact
from maintenance.tasks.options import CompactOptions
from resolver import resolve
from tableformat.errors import CommitConflictError
from tests.support import rowlevel_histories as histories
from tests.support.crash_child import open_table, started
from tests.support.goals import goal
from tests.support.rowlevel_histories import (
    NAME,
    SCHEMA,
    Change,
    Landed,
    as_table,
    check_history,
)

KEYS = 20
PROCESSES = 4
STATEMENTS = 30  # of each process


def drawn(rng: random.Random) -> tuple[str, list]:
    """A kind of statement by its builder's name, and arguments: what can be written down."""
    low = rng.randrange(KEYS)
    match rng.randrange(5):
        case 0:
            return "delete_ids", [low, low + 1]
        case 1 | 2:
            return "add_to_ids", [low, low + rng.randrange(1, 4), rng.randrange(1, 50)]
        case 3:
            return "delete_rich", [rng.randrange(100, 300)]
    return "move_poor", [rng.randrange(30), rng.choice(["EU", "US"])]


def change_of(name: str, arguments: list) -> Change:
    change: Change = getattr(histories, name)(*arguments)
    return change


def run_statements(warehouse: str, seed: int, log: str) -> None:
    """In a process of its own: one line per statement that said it had committed."""
    rng = random.Random(seed)
    table = open_table(warehouse, NAME)
    with Path(log).open("w") as lines:
        for _ in range(STATEMENTS):
            name, arguments = drawn(rng)
            mode = rng.choice(["merge-on-read", "copy-on-write"])
            began = time.monotonic()
            try:
                result = change_of(name, arguments).run(table.refresh(), mode=mode)
            except CommitConflictError:
                continue
            if result.snapshot is not None:
                line = {
                    "snapshot": result.snapshot.snapshot_id,
                    "read": result.context.target.snapshot_id,
                    "change": [name, arguments],
                    "began": began,
                    "ended": time.monotonic(),
                }
                lines.write(json.dumps(line) + "\n")


def publish(table: tf.Table, rng: random.Random) -> tuple[list[int], Landed]:
    key = rng.randrange(KEYS)
    rows = {key: ("US", rng.randrange(90))}
    gone = (key + 1) % KEYS
    keys = pa.table({"id": pa.array([gone], pa.int64())})
    table.stage(upserts=as_table(rows), deletes=keys)
    began = time.monotonic()
    report = resolve(table, engine="local")
    assert report.target_snapshot_id is not None
    writes = {**rows, gone: None}
    return [report.target_snapshot_id], Landed("publish", None, writes=writes, began=began)


def rewrite(table: tf.Table, rng: random.Random) -> tuple[list[int], Landed]:
    began = time.monotonic()
    report = compact(table, CompactOptions(rewrite_all=True))
    return list(report.commits), Landed("compaction", None, began=began)


def read_log(path: Path) -> dict[int, Landed]:
    """What landed."""
    landed = {}
    for text in path.read_text().splitlines():
        line = json.loads(text)
        landed[line["snapshot"]] = Landed(
            "statement",
            line["read"],
            change_of(*line["change"]),
            began=line["began"],
            ended=line["ended"],
        )
    return landed


def test_statements_of_four_processes_are_a_serial_history(tmp_path) -> None:
    warehouse = str(tmp_path / "warehouse")
    catalog = tf.open_catalog("local", warehouse=warehouse)
    properties = {f"write.{each}.isolation-level": "serializable" for each in ("delete", "update")}
    properties |= {"commit.retry.num-retries": "1000", "commit.retry.min-wait-ms": "1"}
    table = catalog.create_table(NAME, SCHEMA, primary_key=["id"], properties=properties)
    base = {key: ("EU", 10 * key) for key in range(KEYS)}
    first = table.append(as_table(base)).snapshot.snapshot_id
    landed = {first: Landed("base", None, writes=base)}
    logs = [tmp_path / f"{number}.log" for number in range(PROCESSES)]
    children = [started(run_statements, warehouse, seed, str(log)) for seed, log in enumerate(logs)]
    rng, beside = random.Random(9), 0
    while any(child.is_alive() for child in children):
        snapshots, event = (publish if rng.random() < 0.7 else rewrite)(table, rng)
        beside += len(snapshots)
        event.ended = time.monotonic()
        landed |= dict.fromkeys(snapshots, event)
    assert [child.exitcode for child in children] == [0] * PROCESSES
    for log in logs:
        landed |= read_log(log)
    check_history(table.environment, landed, isolation="serializable")
    assert len(landed) - beside > PROCESSES * 2
    assert beside
    goal("G10", real=PROCESSES * STATEMENTS)
