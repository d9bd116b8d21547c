"""`icefold load`, `ingest`, `resolve` and tasks are killed at their fail points, and run again.

Between the runs people do what people do: other options, longer or compressed files, two commands
at once, another writer. Every state of `main` is one of the events' fold in a dict; at the end it
is the last one, and each bad record is in the dead-letter table once.
"""

from __future__ import annotations

import gzip
import os
import random
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
import pytest

import tableformat as tf
from tableformat.errors import NotFoundError
from tests.support.change_events import ORDERS, create_orders, envelope, order
from tests.support.crash_child import open_table
from tests.support.goals import goal
from tests.support.killed_commands import Commands, Ended

ORDERS_TABLE, ROWS_TABLE = "shop.orders", "shop.rows"
OTHERS = 100  # keys from here on are of another writer
TOLD = ("another process of this query", "has ended the load", "a load of other files")
POINTS_MAX = 45  # that a command of these passes, about


def rows_of(commands: Commands, name: str, column: str) -> dict[int, str]:
    table = open_table(commands.warehouse, name)
    if table.state.head("main") is None:
        return {}
    found = table.scan().to_arrow()
    keys = found["id"].to_pylist()
    assert len(set(keys)) == len(keys), "a key has two rows"
    return dict(zip(keys, found[column].to_pylist(), strict=True))


class History:
    """Files of events that grow, the states they lead to, and commands over them."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.rng = folder, random.Random(seed)
        self.commands = Commands(folder)
        create_orders(tf.open_catalog("local", warehouse=self.commands.warehouse))
        self.paths: list[Path] = []
        self.lines: Counter[str] = Counter()
        self.bad: list[str] = []
        self.model: dict[int, str] = {}
        self.states: list[dict[int, str]] = [{}]
        self.others: dict[int, str] = {}
        self.serial = 0

    def grow(self) -> None:
        rng = self.rng
        if not self.paths or self.paths[-1].suffix == ".gz" or rng.random() < 0.25:
            self.paths.append(self.folder / f"{len(self.paths)}.jsonl")
        with self.paths[-1].open("a") as file:
            for _ in range(rng.randint(0, 6)):
                file.write(f"{self.event()}\n")

    def event(self) -> str:
        self.serial += 1
        name, key, drawn = self.paths[-1].stem, self.rng.randrange(15), self.rng.random()
        self.lines[name] += 1
        if drawn < 0.2:
            self.bad.append(f"{name}:{self.lines[name]}")
            return "{bad"
        row, note = order(key, note=str(self.serial)), str(self.serial)
        if drawn < 0.4 and key in self.model:
            del self.model[key]
            text = envelope("d", before=row)
        else:
            self.model[key] = note
            text = envelope("c", after=row)
        self.states.append(dict(self.model))
        return text

    def compress(self) -> None:
        last = self.paths[-1]
        if last.suffix != ".gz":
            self.paths[-1] = last.with_suffix(".jsonl.gz")
            self.paths[-1].write_bytes(gzip.compress(last.read_bytes()))

    def stage_other(self) -> None:
        self.serial += 1
        row = order(OTHERS + self.rng.randrange(5), note=str(self.serial))
        table = open_table(self.commands.warehouse, ORDERS_TABLE)
        table.stage(upserts=pa.Table.from_pylist([row], ORDERS))
        self.others[row["id"]] = row["note"]

    def ingest(self) -> list[str]:
        """The command with its options and files in any order."""
        size = str(self.rng.choice([1, 2, 3, 5, 9, 1000]))
        options = [
            ["--query-id", "q"], ["--batch-events", size], ["-o", "on-bad-record=dead-letter"],
            ["--allow-dead-letters"],
        ]  # fmt: skip
        self.rng.shuffle(options)
        words = [word for option in options for word in option]
        files = [str(path) for path in self.paths]
        first, last = self.rng.choice([(words, files), (files, words)])
        return ["ingest", ORDERS_TABLE, *first, *last]

    def task(self) -> list[str]:
        return self.rng.choice(
            [
                ["resolve", ORDERS_TABLE], ["resolve", ORDERS_TABLE],
                ["compact", ORDERS_TABLE, "--rewrite-all"],
                ["expire", ORDERS_TABLE, "--older-than", "1ms"],
                ["orphans", ORDERS_TABLE, "--delete", "--older-than", "1h"],
            ]
        )  # fmt: skip

    def roll_back(self) -> None:
        table = open_table(self.commands.warehouse, ORDERS_TABLE)
        head = table.state.head("main")
        if head is not None and table.state.metadata.snapshot_by_id(head.parent_snapshot_id or 0):
            words = ["ref", "rollback-to-snapshot", ORDERS_TABLE, head.parent_snapshot_id]
            assert self.commands.run(*words).code == 0

    def make_old(self) -> None:
        """Orphan removal takes what was left behind."""
        for path in Path(self.commands.warehouse, "shop").rglob("*"):
            if path.is_file():
                os.utime(path, (1e9, 1e9))

    def killed(self, words: list[str]) -> None:
        check_told(self.commands.run(*words, kill_at=self.rng.randint(1, POINTS_MAX)))

    def at_once(self) -> None:
        pair = [self.ingest(), self.rng.choice([self.ingest(), self.task()])]
        points = [self.rng.choice([None, self.rng.randint(1, POINTS_MAX)]) for _ in pair]
        running = [self.commands.start(*w, kill_at=at) for w, at in zip(pair, points, strict=True)]
        for each in running:
            check_told(each.end())

    def check(self, *, is_done: bool = False) -> None:
        found = rows_of(self.commands, ORDERS_TABLE, "note")
        mine = {key: note for key, note in found.items() if key < OTHERS}
        assert mine in self.states
        if is_done:
            assert found == self.model | self.others

    def letters(self) -> list[str]:
        catalog = tf.open_catalog("local", warehouse=self.commands.warehouse)
        try:
            found = catalog.load_table(f"{ORDERS_TABLE}_dead_letter").scan().to_arrow()
        except NotFoundError:
            return []
        return [
            each.replace(".jsonl", "").replace(".gz", "") for each in found["position"].to_pylist()
        ]


def check_told(ended: Ended) -> None:
    goal("G4", kills=ended.is_killed)
    known = ended.code == 0 or ended.is_killed or any(told in ended.err for told in TOLD)
    assert known, f"{ended}\n{ended.err}"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_commands_of_a_stream_of_files_killed_anywhere_lead_to_the_fold(tmp_path, seed):
    history = History(tmp_path, seed)
    for _ in range(12):
        history.grow()
        drawn = history.rng.random()
        if drawn < 0.4:
            history.killed(history.ingest())
        elif drawn < 0.6:
            history.make_old()
            history.killed(history.task())
        elif drawn < 0.75:
            history.at_once()
        else:
            history.rng.choice([history.compress, history.stage_other, history.roll_back])()
        history.check()
    for words in (history.ingest(), ["resolve", ORDERS_TABLE]):
        ended = history.commands.run(*words)
        assert ended.code == 0, f"{ended}\n{ended.err}"
    history.check(is_done=True)
    assert sorted(history.letters()) == sorted(history.bad)


LOADED = pa.table({"id": pa.array(range(14), pa.int64()), "v": [f"loaded {n}" for n in range(14)]})


@pytest.fixture(params=["parquet", "csv"])
def files(tmp_path, request):
    """Files of a load, in three pieces or more, by the words that name them."""
    folder = tmp_path / "files"
    folder.mkdir()
    for number, first in enumerate(range(0, 14, 7)):
        path, part = folder / f"{number}.{request.param}", LOADED.slice(first, 7)
        if request.param == "parquet":
            pq.write_table(part, path, row_group_size=3)
        else:
            pc.write_csv(part, path)
    return [str(folder), f"{folder}/*.{request.param}", f"{folder}/?.{request.param}"]


@pytest.mark.slow
@pytest.mark.parametrize("start", range(3))
def test_load_killed_at_any_step_and_run_again_loads_each_row_once(tmp_path, files, start):
    """Beside changes that are staged meanwhile and tries to publish them."""
    rng = random.Random(start)
    kill_at = start + 1
    while True:
        commands = Commands(tmp_path / str(kill_at), piece_bytes=1)
        load = ["load", ROWS_TABLE, "--key", "id", "--from", rng.choice(files)]
        first = commands.run(*load, kill_at=kill_at)
        check_told(first)
        if not first.is_killed:
            assert kill_at > 10
            return
        other = ["load", "--json", "--from", rng.choice(files), "--key", "id", ROWS_TABLE]
        changed: dict[int, str] = {}
        try:
            table = open_table(commands.warehouse, ROWS_TABLE)
        except (NotFoundError, tf.InvalidInputError):  # killed before there was a catalog or table
            pass
        else:
            if table.state.head("main") is not None:
                table.stage(upserts=pa.table({"id": pa.array([3], pa.int64()), "v": ["changed"]}))
                changed[3] = "changed"
                for task in (["resolve"], ["expire", "--older-than", "1ms"], ["compact"]):
                    check_told(commands.run(*task[:1], ROWS_TABLE, *task[1:], kill_at=None))
        pair = [commands.start(*words) for words in (load, other)]
        for each in pair:
            check_told(each.end())
        last = commands.run(*other)
        done = commands.run("resolve", ROWS_TABLE)
        assert (last.code, done.code) == (0, 0), f"{last}\n{done}"
        want = dict(zip(LOADED["id"].to_pylist(), LOADED["v"].to_pylist(), strict=True)) | changed
        assert rows_of(commands, ROWS_TABLE, "v") == want
        kill_at += 3
