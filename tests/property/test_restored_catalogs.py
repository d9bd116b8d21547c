"""A catalog that an operator restores from backups, while handles, index and files know more.

The model is a dict of rows and the list of staged changes; a backup keeps both beside the pointer.
"""

from __future__ import annotations

import random
import sqlite3
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

import tableformat as tf
from maintenance import CompactOptions, compact, rewrite_manifests
from resolver import resolve
from resolver.index_check import verify

SCHEMA = pa.schema([("id", pa.int64()), ("amount", pa.int64())])
KEYS = range(30)
STEPS = 30
WEIGHTS = {
    "stage": 6, "publish": 4, "publish_some": 1, "delete": 1, "merge_files": 1,
    "merge_manifests": 1, "reopen": 1, "back_up": 2, "restore": 2,
}  # fmt: skip


@dataclass(frozen=True)
class Backup:
    """The catalog's pointer, and the rows and waiting changes of then."""

    pointer: str
    rows: dict[int, int]
    staged: list[tuple[dict[int, int], list[int]]]


class History:
    """One table under all that."""

    def __init__(self, folder: Path, seed: int, *, shared_index: bool) -> None:
        self.rng = random.Random(seed)
        self.number = 0
        self.warehouse = folder / "warehouse"
        self.properties = {"index-cache": str(folder / "cache")}
        if shared_index:
            self.properties["index-location"] = str(self.warehouse / "index")
        publish = {"icefold.publish": self.rng.choice(["link", "rewrite"])}
        made = self.catalog().create_table("t.rows", SCHEMA, primary_key=["id"], properties=publish)
        self.table = made
        self.rows = {key: key for key in KEYS[:20]}
        self.table.append(as_table(self.rows))
        self.staged: list[tuple[dict[int, int], list[int]]] = []
        self.backups: list[Backup] = []

    def catalog(self) -> tf.TableCatalog:
        return tf.open_catalog("local", warehouse=str(self.warehouse), **self.properties)

    def stage(self) -> None:
        self.number += 1
        keys = self.rng.sample(KEYS, 5)
        upserts = {key: self.number * 1_000 + key for key in keys[:3]}
        deletes = pa.table({"id": pa.array(keys[3:], pa.int64())})
        self.table.refresh().stage(upserts=as_table(upserts), deletes=deletes)
        self.staged.append((upserts, keys[3:]))

    def publish(self) -> None:
        resolve(self.table.refresh())
        self.take(len(self.staged))

    def publish_some(self) -> None:
        count = self.rng.randint(1, max(len(self.staged), 1))
        resolve(self.table.refresh(), limit=count)
        self.take(count)

    def take(self, count: int) -> None:
        for upserts, deletes in self.staged[:count]:
            gone = {*upserts, *deletes}
            left = {key: row for key, row in self.rows.items() if key not in gone}
            self.rows = left | upserts
        self.staged = self.staged[count:]

    def delete(self) -> None:
        key = self.rng.choice(KEYS)
        self.table.refresh().delete(f"id = {key}")
        self.rows = {each: row for each, row in self.rows.items() if each != key}

    def merge_files(self) -> None:
        compact(self.table.refresh(), CompactOptions(rewrite_all=True))

    def merge_manifests(self) -> None:
        rewrite_manifests(self.table.refresh())

    def reopen(self) -> None:
        self.table = self.catalog().load_table("t.rows")

    def back_up(self) -> None:
        pointer = self.table.refresh().metadata_location
        self.backups.append(Backup(pointer, self.rows, list(self.staged)))

    def restore(self) -> None:
        if not self.backups:
            return
        backup = self.rng.choice(self.backups)
        with sqlite3.connect(self.warehouse / "icefold.db") as database:
            database.execute("UPDATE iceberg_tables SET metadata_location = ?", (backup.pointer,))
        database.close()
        self.rows, self.staged = backup.rows, list(backup.staged)

    def check(self) -> None:
        rows = self.table.refresh().scan().to_arrow().to_pylist()
        assert sorted((row["id"], row["amount"]) for row in rows) == sorted(self.rows.items())


def as_table(rows: dict[int, int]) -> pa.Table:
    return pa.table({"id": list(rows), "amount": list(rows.values())}, schema=SCHEMA)


@pytest.mark.slow
@pytest.mark.parametrize("shared_index", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_table_goes_on_from_what_a_restored_catalog_shows(
    tmp_path: Path, seed: int, shared_index: bool
) -> None:
    history = History(tmp_path, seed, shared_index=shared_index)
    restored = 0
    for step in history.rng.choices(list(WEIGHTS), list(WEIGHTS.values()), k=STEPS):
        getattr(history, step)()
        history.check()
        restored += step == "restore" and bool(history.backups)
    assert restored
    history.stage()
    history.publish()
    history.check()
    assert verify(history.table).report.is_sound
