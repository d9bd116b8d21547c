"""Debezium's incremental snapshots: reads between changes, folded as a dict folds them."""

from __future__ import annotations

import json
import random

import pyarrow as pa
import pytest

from resolver import resolve
from tests.support.memory_tables import memory_catalog

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("note", pa.string())])


def event(op, key, before, after, snapshot):
    row = {"id": key, "note": after}
    return json.dumps({
        "op": op, "before": None if before is None else {"id": key, "note": before},
        "after": None if op == "d" else row, "source": {"snapshot": snapshot}, "ts_ms": 1,
    })  # fmt: skip


def history(drawn):
    """A source's table under changes, read chunk by chunk; what is read of a key is its row then.

    A chunk may come again: the connector was started anew. First come the reads of a whole snapshot
    that began the stream, of some keys.
    """
    rows = {key: f"first {key}" for key in range(30)}
    snapshot = {key: rows[key] for key in range(12)}
    events = [event("r", key, None, note, "true") for key, note in snapshot.items()]
    for key in range(0, 40, 5):
        for _ in range(drawn.randint(1, 2)):
            for read in sorted(k for k in rows if key <= k < key + 5):
                if read in rows:  # Debezium leaves out what changes while it reads
                    events.append(event("r", read, None, rows[read], "incremental"))
                if drawn.random() < 0.7:
                    events.append(change(drawn, rows))
    events.extend(change(drawn, rows) for _ in range(10))
    return events, rows


def change(drawn, rows):
    key = drawn.randrange(45)
    before = rows.get(key)
    if before is None:
        rows[key] = f"made {drawn.random()}"
        return event("c", key, None, rows[key], "false")
    if drawn.random() < 0.4:
        del rows[key]
        return event("d", key, before, None, "false")
    rows[key] = f"changed {drawn.random()}"
    return event("u", key, before, rows[key], "false")


@pytest.mark.slow
@pytest.mark.parametrize("assume_new_keys", ["false", "true"])
@pytest.mark.parametrize("seed", range(4))
def test_interleaved_reads_and_changes_end_as_the_source_did(tmp_path, seed, assume_new_keys):
    drawn = random.Random(seed)
    events, rows = history(drawn)
    catalog = memory_catalog(str(tmp_path))
    table = catalog.create_table("shop.orders", SCHEMA, primary_key=["id"])
    at = 0
    while at < len(events):
        end = at + drawn.randint(1, 40)
        table.write_changes(
            pa.table({"value": events[at:end]}), format_name="debezium-json",
            options={"assume-new-keys": assume_new_keys},
        )  # fmt: skip
        at = end
        if drawn.random() < 0.5:
            resolve(table)
    resolve(table)
    found = table.refresh().scan().to_arrow().to_pylist()
    assert sorted((row["id"], row["note"]) for row in found) == sorted(rows.items())
