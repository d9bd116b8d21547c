"""One process, many threads on one table: whatever a read sees is one version.

Every commit gives both keys of some pairs the same version, so that a read that mixes two versions
shows a pair that differs. The interpreter is told to change threads as often as it can.
"""

from __future__ import annotations

import gc
import random
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import tableformat as tf
from maintenance import compact
from resolver import resolve
from tableformat.table_catalog import TableCatalog

PAIRS = 1_000
PUBLISHES = 15
SCHEMA = pa.schema([("id", pa.int64()), ("version", pa.int64())])
Act = Callable[[tf.Table, random.Random], None]


@pytest.fixture
def hasty() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.fixture
def catalog(tmp_path: Path) -> TableCatalog:
    catalog = tf.open_catalog("local", warehouse=str(tmp_path / "warehouse"))
    table = catalog.create_table("t.pairs", SCHEMA, primary_key=["id"])
    table.stage(upserts=pairs(range(PAIRS), 0))
    resolve(table)
    return catalog


def pairs(numbers: object, version: int) -> pa.Table:
    first = 2 * np.array(list(numbers), dtype=np.int64)  # type: ignore[call-overload]
    ids = np.concatenate([first, first + 1])
    return pa.table({"id": ids, "version": np.full(len(ids), version)}, schema=SCHEMA)


def versions(rows: pa.Table) -> dict[int, int]:
    """Version by key of whole pairs; each key once."""
    found = dict(zip(rows["id"].to_pylist(), rows["version"].to_pylist(), strict=True))
    assert len(found) == rows.num_rows
    assert {key: found[key ^ 1] for key in found} == found
    return found


@pytest.mark.slow
def test_readers_of_any_kind_beside_writers_see_whole_versions(
    catalog: TableCatalog, hasty: None
) -> None:
    published, ended, failures = [0], threading.Event(), []
    seen: dict[str, int] = {}
    own = catalog.load_table("t.pairs")
    shared = tf.Lookup(own.environment, own.identifier, cache_bytes=1 << 14)

    def write(table: tf.Table, rng: random.Random) -> None:
        version = published[0] + 1
        table.stage(upserts=pairs(rng.sample(range(PAIRS), rng.randrange(1, 200)), version))
        resolve(table)
        published[0] = version
        if version % 5 == 0:
            compact(table)
        if version == PUBLISHES:
            ended.set()

    def scan(table: tf.Table, _: random.Random) -> None:
        before = published[0]
        found = versions(table.scan().to_arrow())
        assert len(found) == 2 * PAIRS
        assert max(found.values()) >= before

    def look_up(_: tf.Table, rng: random.Random) -> None:
        wanted = rng.sample(range(PAIRS), rng.choice([1, 3, 700]))
        found = shared.find(pairs(wanted, 0).select(["id"]))
        assert len(versions(found.to_arrow())) == 2 * len(wanted)

    def leave(table: tf.Table, rng: random.Random) -> None:
        """Streams that nobody reads to their end: closed, dropped, or left to the collector."""
        assert table.scan(limit=rng.randrange(1, 50)).to_arrow().num_rows < 50
        left: list[object] = [table.scan().to_reader()]
        left[0].read_next_batch()  # type: ignore[attr-defined]
        if rng.random() < 0.5:
            left.append(left)
        if rng.random() < 0.2:
            gc.collect()

    def compare(table: tf.Table, _: random.Random) -> None:
        versions(table.changes(None, net=True).to_arrow())

    def repeat(act: Act, number: int) -> None:
        rng = random.Random(number)
        table = catalog.load_table("t.pairs")
        try:
            while not ended.is_set():
                act(table, rng)
                seen[act.__name__] = seen.get(act.__name__, 0) + 1
        except BaseException as error:
            failures.append(error)
            ended.set()

    acts: list[Act] = [write, scan, look_up, look_up, leave, compare]
    threads = [
        threading.Thread(target=repeat, args=(act, number), daemon=True)
        for number, act in enumerate(acts)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    shared.close()
    assert failures == []
    assert not [thread for thread in threads if thread.is_alive()]
    assert seen.keys() == {act.__name__ for act in acts}
