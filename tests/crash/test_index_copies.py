"""Copies of an index folder put back at any time (I19, G17): rows and lookups are those of a dict.

Between the copy and its return `main` is rolled back or set elsewhere, its snapshots expire, files
are compacted, other indexes are built, the table is dropped and made again under its name. A copy
comes back beside nothing, over what is there, into the folder of another index, and in the middle
of a cycle; whole, in part, or as `rsync` puts it back, which leaves the lock's file. In half of the
histories the process keeps its indexes open from cycle to cycle, while others use and rebuild them.
"""

from __future__ import annotations

import random
import shutil
from collections import Counter
from contextlib import nullcontext, suppress
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
from resolver.open_indexes import OpenIndexes
from tableformat.commit.expiry_plan import ExpiryPolicy
from tableformat.errors import TableError
from tableformat.runtime import SystemClock
from tests.crash.test_index_faults import SCHEMA, as_table
from tests.support.goals import goal
from tests.support.tidying import tidying

NAME, KEYS, BY_AMOUNT = "t.rows", 24, "by_amount"
SHORT = ExpiryPolicy(max_snapshot_age_ms=0, min_snapshots_to_keep=1)
POINTS = [
    "resolve.after_match", "catalog.before_swap", "catalog.after_swap", "resolve.after_publish",
    "index.prepare.written", "resolve.after_prepare", "index.apply.before", "index.apply.after",
]  # fmt: skip


class History:
    """A table, its rows, and copies of its index folders."""

    def __init__(
        self, folder: Path, seed: int, properties: dict[str, str], *, shared: bool, lives: bool
    ) -> None:
        self.folder, self.rng, self.properties = folder, random.Random(seed), properties
        self.warehouse = str(folder / "warehouse")
        self.shared = folder / "warehouse/indexes" if shared else None
        where = {"index-location": f"file://{self.shared}"} if shared else {}
        self.catalog = tf.open_catalog("local", warehouse=self.warehouse, **where)
        self.copies: list[Path] = []
        self.away: tuple[Path, Path] | None = None
        self.open = OpenIndexes(SystemClock()) if lives else None
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

    def put_back_beside_the_lock(self) -> None:
        """As `rsync` does: the lock's file stays. Or a part of a copy comes back."""
        part = self.rng.choice(["", "", "CURRENT", "files", "runs", ".log", "MANIFEST"])
        index = self.rng.choice(self.indexes)
        copy = self.rng.choice([*self.copies, index])
        for path in sorted(index.rglob("*")):
            if not part and path.is_file() and path.name != "LOCK":
                path.unlink()
        for path in sorted(copy.rglob("*")) if copy != index else ():
            name = str(path.relative_to(copy))
            if path.is_file() and part in name and path.name != "LOCK":
                (index / name).unlink(missing_ok=True)
                (index / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, index / name)
        goal("G17", corruptions=1)

    def move_away_or_back(self) -> None:
        """Meanwhile another may be built in its place, which goes when the first comes back."""
        if self.away is None:
            index = self.rng.choice(self.indexes)
            if index.exists():
                self.away = index, index.rename(self.folder / f"away-{self.serial}")
            return
        index, away = self.away
        self.away = None
        if index.exists():
            index.rename(self.folder / f"gone-{self.serial}")
        index.parent.mkdir(parents=True, exist_ok=True)
        away.rename(index)

    def resolve_elsewhere(self) -> None:
        """By another process, which is given the index that this one only keeps open."""
        givers = nullcontext() if self.open is None else tidying(self.open)
        with givers, suppress(TableError):  # one that was moved elsewhere is locked there
            resolve(self.table.refresh(), rebuild_index=self.rng.random() < 0.5)
        self.note_head()

    def stage(self) -> None:
        self.serial += 1
        upserts = {self.rng.randrange(KEYS): KEYS * self.serial + n for n in range(2)}
        gone = {self.rng.randrange(KEYS)} - upserts.keys()
        keys = pa.table({"id": pa.array(list(gone), pa.int64())})
        self.table.refresh().stage(upserts=as_table(upserts), deletes=keys)
        self.rows = {key: row for key, row in self.rows.items() if key not in gone} | upserts

    def resolve(self) -> str:
        report = resolve(self.table.refresh(), indexes=self.open)
        self.note_head()
        return report.index

    def put_back_in_a_cycle(self) -> None:
        points, wanted = self.table.environment.runtime.fail_points, self.rng.choice(POINTS)

        def hit(name: str) -> None:
            if name == wanted:
                points.observer = None
                self.rng.choice([self.put_back, self.put_back_beside_the_lock])()

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
        if index != "unused" and (self.open is None or self.rng.random() < 0.3):
            self.verify()

    def verify(self) -> None:
        """Indexes say what the snapshots hold that they are bound to; open ones are closed."""
        table = self.table.refresh()
        with nullcontext() if self.open is None else tidying(self.open):
            assert verify(table).report.is_sound
            with suppress(TableError):  # one that was put back follows when it is asked
                assert self.shared is not None or verify(table, name=BY_AMOUNT).report.is_sound


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
    history = History(tmp_path, seed, properties, shared=shared, lives=seed % 2 == 1)
    steps = [
        history.save, history.put_back, history.put_back, history.put_back_in_a_cycle,
        history.move_main, history.expire, history.compact, history.look_up,
        history.put_back_beside_the_lock, history.move_away_or_back, history.resolve_elsewhere,
    ]  # fmt: skip
    for _ in range(30):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / history.rng.choice(["one", "two"])))
        step = history.make_again if history.rng.random() < 0.03 else history.rng.choice(steps)
        step()
        if history.rng.random() < 0.5:
            history.stage()
            history.check()
    if history.open is not None:
        history.open.close()
    history.stage()
    history.check()
    history.look_up()
