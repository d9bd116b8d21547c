"""The table of the resolve benchmark, and the batches that change it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import tableformat as tf
from benchmarks.support.counting_store import CountingStore
from benchmarks.support.peers import folder_bytes
from resolver import resolve
from resolver.index_keeper import index_folder

SCHEMA = pa.schema([("id", pa.int64()), ("a", pa.int64()), ("b", pa.float64()), ("s", pa.string())])
TABLE = "bench.rows"
LOAD_ROWS = 1_000_000
UNTIL_PUBLISHED = ("plan", "read", "index", "match", "write", "publish")


def rows_of(ids: np.ndarray, seed: int) -> pa.Table:
    """Rows of the given keys with random values."""
    draw = np.random.default_rng(seed)
    names = pa.array([f"name-{number:04d}" for number in range(1000)])
    return pa.table(
        {
            "id": ids,
            "a": draw.integers(0, 1_000_000, len(ids)),
            "b": draw.random(len(ids)),
            "s": names.take(pa.array(draw.integers(0, 1000, len(ids)))),
        },
        schema=SCHEMA,
    )


def batch_of(table_rows: int, size: int, seed: int) -> pa.Table:
    """`size` distinct existing keys in no order, with new values."""
    draw = np.random.default_rng(seed)
    if size * 4 > table_rows:
        ids = draw.choice(table_rows, size, replace=False)
    else:  # without a permutation of all keys
        ids = np.unique(draw.integers(0, table_rows, int(size * 1.3) + 10))
        draw.shuffle(ids)
    return rows_of(ids[:size], seed)


def open_table(warehouse: Path) -> tuple[tf.Table, CountingStore]:
    """The benchmark's table in `warehouse`, and the store that counts its requests."""
    catalog = tf.open_catalog("local", warehouse=str(warehouse))
    counted: Any = CountingStore(catalog.environment.store)
    catalog.environment = replace(catalog.environment, store=counted)
    return catalog.load_table(TABLE), counted


def create_table(warehouse: Path, rows: int) -> None:
    """A table of keys 0 to `rows` - 1 and one staged row, its index not built yet."""
    catalog = tf.open_catalog("local", warehouse=str(warehouse))
    table = catalog.create_table(TABLE, SCHEMA, primary_key=["id"])
    for start in range(0, rows, LOAD_ROWS):
        table.append(rows_of(np.arange(start, min(start + LOAD_ROWS, rows)), seed=start))
    table.stage(upserts=rows_of(np.array([0]), seed=0))


class Icefold:
    """One table of `rows` rows, its index built by the first resolve."""

    def __init__(self, warehouse: Path, rows: int, *, create: bool = True) -> None:
        self.rows = rows
        self.warehouse = warehouse
        if create:
            create_table(warehouse, rows)
        self.table, self.store = open_table(warehouse)
        begin = time.perf_counter()
        resolve(self.table)
        self.build_seconds = time.perf_counter() - begin
        self.index_bytes = folder_bytes(
            index_folder(self.table.environment, self.table.state, "main")
        )

    def run(self, size: int, seed: int, carried: Sequence[str] | None = None) -> dict[str, float]:
        """Stage and resolve one batch: seconds, the resolver's requests, bytes of both.

        `carried`: the only columns that the rows have, the others keep their values.
        """
        counts = self.store.counts
        before = folder_bytes(self.warehouse / "bench")
        begin = time.perf_counter()
        rows = batch_of(self.rows, size, seed)
        if carried is None:
            self.table.stage(upserts=rows)
        else:
            self.table.stage(upserts=rows.select(list(carried)), columns="partial")
        staged = time.perf_counter()
        counts.clear()
        report = resolve(self.table)
        done = time.perf_counter()
        assert report.deleted_rows == size, (report.deleted_rows, size)
        return {
            "stage": staged - begin,
            "published": sum(report.phases_ms[name] for name in UNTIL_PUBLISHED) / 1e3,
            "resolve": done - staged,
            "requests": sum(n for name, n in counts.items() if not name.startswith("bytes")),
            "bytes": folder_bytes(self.warehouse / "bench") - before,
            **{f"phase {name}": ms / 1e3 for name, ms in report.phases_ms.items()},
        }
