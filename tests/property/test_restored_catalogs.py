"""A catalog that an operator restores from backups, while handles, index and files know more.

The model is a dict of rows and the list of staged changes; a backup keeps both beside the pointer.
Nothing expires: a backup whose files are gone cannot be restored.
"""

from __future__ import annotations

import random
import sqlite3
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

import tableformat as tf
from maintenance import (
    CompactOptions,
    RewriteVectorsOptions,
    compact,
    rewrite_manifests,
    rewrite_vectors,
)
from resolver import resolve
from resolver.index_check import verify
from tests.support.foreign_tool import ForeignTool

SCHEMA = pa.schema([("id", pa.int64()), ("amount", pa.int64())])
KEYS = range(30)
STEPS = 40
WEIGHTS = {
    "stage": 6, "publish": 4, "publish_some": 1, "delete": 1, "update": 1, "merge_files": 1,
    "merge_manifests": 1, "merge_vectors": 0.5, "forward": 0.7, "drop": 0.5, "reopen": 1,
    "upsert_elsewhere": 1.5, "append_elsewhere": 1, "compact_elsewhere": 0.5, "convert": 1,
    "back_up": 2, "restore": 2, "register": 1,
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
        self.foreign = ForeignTool(self.warehouse, "t", "rows")
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

    def update(self) -> None:
        key, mode = self.rng.choice(KEYS), self.rng.choice(["merge-on-read", "copy-on-write"])
        self.number += 1
        self.table.refresh().update({"amount": str(self.number)}, f"id = {key}", mode=mode)
        if key in self.rows:
            self.rows = self.rows | {key: self.number}

    def upsert_elsewhere(self) -> None:
        """Another tool, with equality deletes on main."""
        self.number += 1
        keys = self.rng.sample(KEYS, 3)
        new = {key: self.number * 1_000 + key for key in keys[:2]}
        files = [*self.foreign.data_files([*new.items()]), *self.foreign.key_deletes(keys)]
        self.foreign.commit("main", "overwrite", add=files)
        self.rows = {key: row for key, row in self.rows.items() if key not in keys} | new

    def append_elsewhere(self) -> None:
        self.number += 1
        self.foreign.append([(1_000 + self.number, self.number)])
        self.rows = self.rows | {1_000 + self.number: self.number}

    def compact_elsewhere(self) -> None:
        self.foreign.rewrite(keep_row_ids=self.rng.random() < 0.5)

    def convert(self) -> None:
        resolve(self.table.refresh(), staging="main")

    def forward(self) -> None:
        """Main becomes staging, where it still can."""
        refs, foreign = self.table.refresh().state.metadata.refs, self.foreign.table()
        if self.staged and "staging" in refs:
            history = foreign.ancestors(refs["staging"].snapshot_id)
            if refs["main"].snapshot_id in [each["snapshot-id"] for each in history]:
                self.table.refs.fast_forward("main", to="staging")
                self.take(len(self.staged))

    def drop(self) -> None:
        if not self.staged and self.table.refresh().state.head("staging") is not None:
            self.table.refs.drop("staging")

    def merge_vectors(self) -> None:
        rewrite_vectors(self.table.refresh(), RewriteVectorsOptions(rewrite_all=True))

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

    def register(self) -> None:
        """The table's entry is lost, and made anew for an older metadata file."""
        if not self.backups:
            return
        backup = self.rng.choice(self.backups)
        catalog = SqlCatalog("local", uri=f"sqlite:///{self.warehouse}/icefold.db")
        catalog.drop_table("t.rows")
        catalog.register_table("t.rows", backup.pointer)
        catalog.close()
        self.rows, self.staged = backup.rows, list(backup.staged)

    def check(self) -> None:
        rows = self.table.refresh().scan().to_arrow().to_pylist()
        assert sorted((row["id"], row["amount"]) for row in rows) == sorted(self.rows.items())
        key = self.rng.choice(KEYS)
        found = [row["amount"] for row in self.table.lookup({"id": key}).to_pylist()]
        assert found == ([self.rows[key]] if key in self.rows else [])


def as_table(rows: dict[int, int]) -> pa.Table:
    return pa.table({"id": list(rows), "amount": list(rows.values())}, schema=SCHEMA)


@pytest.mark.slow
@pytest.mark.parametrize("shared_index", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_table_goes_on_from_what_a_restored_catalog_shows(
    tmp_path: Path, seed: int, shared_index: bool
) -> None:
    history = History(tmp_path, seed, shared_index=shared_index)
    steps = history.rng.choices(list(WEIGHTS), list(WEIGHTS.values()), k=STEPS)
    for step in ["back_up", *steps, "register"]:
        getattr(history, step)()
        history.check()
    history.stage()
    history.publish()
    history.check()
    assert verify(history.table).report.is_sound
