"""Copies of an index folder put back at any time (I19, G17): rows and lookups are those of a dict.

Between the copy and its return `main` is rolled back or set elsewhere, its snapshots expire, files
are compacted, other indexes are built, the table is dropped and made again under its name. A copy
comes back beside nothing, over what is there, into the folder of another index, and in the middle
of a cycle.
"""

from __future__ import annotations

import random
import shutil
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest

import tableformat as tf
from maintenance.tasks.compact import compact
from maintenance.tasks.expire import expire
from maintenance.tasks.options import CompactOptions, ExpireOptions
from resolver import resolve
from resolver.index import shard_map
from resolver.index_check import verify
from resolver.index_keeper import index_folder
from tableformat.commit.expiry_plan import ExpiryPolicy
from tableformat.errors import TableError
from tests.crash.test_index_faults import SCHEMA, as_table
from tests.support.goals import goal

NAME, KEYS, BY_AMOUNT = "t.rows", 24, "by_amount"
SHORT = ExpiryPolicy(max_snapshot_age_ms=0, min_snapshots_to_keep=1)
POINTS = [
    "resolve.after_match", "catalog.before_swap", "catalog.after_swap", "resolve.after_publish",
    "index.prepare.written", "resolve.after_prepare", "index.apply.before", "index.apply.after",
]  # fmt: skip


class History:
    """A table, its rows, and copies of its index folders."""

    def __init__(
        self, folder: Path, seed: int, properties: dict[str, str], *, shared: bool
    ) -> None:
        self.folder, self.rng, self.properties = folder, random.Random(seed), properties
        self.warehouse = str(folder / "warehouse")
        self.shared = folder / "warehouse/indexes" if shared else None
        where = {"index-location": f"file://{self.shared}"} if shared else {}
        self.catalog = tf.open_catalog("local", warehouse=self.warehouse, **where)
        self.copies: list[Path] = []
        self.serial = 0
        self.make()

    def make(self) -> None:
        location = f"file://{self.warehouse}/t/rows"
        self.table = self.catalog.create_table(
            NAME, SCHEMA, primary_key=["id"], location=location, properties=self.properties
        )
        self.table.add_index(BY_AMOUNT, ["amount"])
        self.rows = {key: key for key in range(KEYS - 4)}
        self.table.append(as_table(self.rows))
        self.heads: list[int] = []
        self.note_head()

    def make_again(self) -> None:
        self.catalog.drop_table(NAME)
        self.make()

    def note_head(self) -> None:
        """Where `main` may be set to: all staged changes since are published again."""
        head = self.table.refresh().state.head("main")
        assert head is not None
        self.heads.append(head.snapshot_id)

    @property
    def indexes(self) -> list[Path]:
        if self.shared is not None:
            return [self.shared]
        main = index_folder(self.table.environment, self.table.refresh().state, "main")
        return [main, main.with_name(f"{main.name}@{BY_AMOUNT}")]

    def save(self) -> None:
        for index in self.indexes:
            if index.exists():
                self.copies.append(self.folder / f"copy-{len(self.copies)}")
                shutil.copytree(index, self.copies[-1])

    def put_back(self) -> None:
        if not self.copies:
            return
        index = self.rng.choice(self.indexes)
        if self.rng.random() < 0.6:
            shutil.rmtree(index, ignore_errors=True)
        shutil.copytree(self.rng.choice(self.copies), index, dirs_exist_ok=True)
        goal("G17", corruptions=1)

    def stage(self) -> None:
        self.serial += 1
        upserts = {self.rng.randrange(KEYS): KEYS * self.serial + n for n in range(2)}
        gone = {self.rng.randrange(KEYS)} - upserts.keys()
        keys = pa.table({"id": pa.array(list(gone), pa.int64())})
        self.table.refresh().stage(upserts=as_table(upserts), deletes=keys)
        self.rows = {key: row for key, row in self.rows.items() if key not in gone} | upserts

    def resolve(self) -> str:
        report = resolve(self.table.refresh())
        self.note_head()
        return report.index

    def put_back_in_a_cycle(self) -> None:
        points, wanted = self.table.environment.runtime.fail_points, self.rng.choice(POINTS)

        def hit(name: str) -> None:
            if name == wanted:
                points.observer = None
                self.put_back()

        self.stage()
        points.observer = hit
        with suppress(TableError):  # before the publish: that cycle is over
            self.resolve()
        points.observer = None

    def move_main(self) -> None:
        table = self.table.refresh()
        kept = [each for each in self.heads if table.state.metadata.snapshot_by_id(each)]
        head = table.state.head("main")
        assert head is not None
        table.refs.replace("main", to=self.rng.choice(kept), expected_head=head.snapshot_id)

    def expire(self) -> None:
        expire(self.table.refresh(), ExpireOptions(policy=SHORT))

    def compact(self) -> None:
        compact(self.table.refresh(), CompactOptions(rewrite_all=True))
        self.note_head()

    def look_up(self) -> None:
        table = self.catalog.load_table(NAME)
        rows = counted(table.scan().to_arrow().to_pylist())
        assert counted(table.lookup({"id": list(range(KEYS))}).to_pylist()) == rows
        amounts = sorted({amount for _, amount in rows} | {0, 1})
        assert counted(table.lookup({"amount": amounts}, index=BY_AMOUNT).to_pylist()) == rows

    def check(self) -> None:
        index = self.resolve()
        found = counted(self.catalog.load_table(NAME).scan().to_arrow().to_pylist())
        assert found == Counter(self.rows.items())
        if index != "unused" and self.shared is None:
            assert verify(self.table.refresh()).report.is_sound


def counted(rows: list[dict[str, int]]) -> Counter[tuple[int, int]]:
    return Counter((row["id"], row["amount"]) for row in rows)


@pytest.mark.slow
@pytest.mark.parametrize("shared", [False, True], ids=["local", "shared"])
@pytest.mark.parametrize(
    "properties",
    [{}, {"icefold.publish": "rewrite"}, {"format-version": "2"}],
    ids=["v3", "rewrite", "v2"],
)
@pytest.mark.parametrize("seed", range(2))
def test_copies_of_an_index_that_come_back_cost_no_row_and_no_deletion(
    tmp_path, monkeypatch, properties, shared, seed
):
    monkeypatch.setattr(shard_map, "ROWS_PER_SHARD_MIN", 4)
    monkeypatch.setattr(shard_map, "ROWS_PER_SHARD_MAX", 4)
    history = History(tmp_path, seed, properties, shared=shared)
    steps = [
        history.save, history.put_back, history.put_back, history.put_back_in_a_cycle,
        history.move_main, history.expire, history.compact, history.look_up,
    ]  # fmt: skip
    for _ in range(30):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / history.rng.choice(["one", "two"])))
        step = history.make_again if history.rng.random() < 0.03 else history.rng.choice(steps)
        step()
        if history.rng.random() < 0.5:
            history.stage()
            history.check()
    history.stage()
    history.check()
    history.look_up()
