"""UPDATEs of Apache Iceberg's Java beside a busy resolver: how many fail, and with what.

    scripts/bench foreign_updates [--seconds S] [--pauses P,P,...] [--peers NAME,...]
                                  [--layouts NAME,...] [--isolation serializable|snapshot]

One table. A peer changes rows with small keys, over and over; Java updates one row with a large key
after the other, and each of its statements that fails is counted and not repeated: no row is ever
changed by both. The peers:

- `resolver`: stages 200 upserts, resolves them, pauses.
- `java`: another Spark session updates a range of 200 rows, pauses; a failed statement is lost.
  This is Iceberg's own behaviour, without icefold.

The layouts:

- `clustered`: each file has a range of keys, so the peer's files are not the statements' files.
- `spread`: each file has keys of both.
- `partitioned`: by a column that tells small keys from large ones; statements name their partition.
"""

from __future__ import annotations

import argparse
import itertools
import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
from rich.console import Console
from rich.table import Table as Grid

import tableformat as tf
from resolver import resolve
from tests.support.java_iceberg import (
    JavaIceberg,
    JavaIcebergError,
    Missing,
    start_java_iceberg,
)

FILES = 8
ROWS_PER_FILE = 2500
ROWS = FILES * ROWS_PER_FILE
CHANGED_ROWS = 200
NAME = "bench.rows"
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("half", pa.string(), nullable=False),
        pa.field("v", pa.string()),
    ]
)
OPERATIONS = ("delete", "update", "merge")
REASONS = (
    "Found new conflicting delete files",
    "Found conflicting files that can contain records",
    "Found concurrently added DV",
)


@dataclass
class Outcome:
    """One setting."""

    failures: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    publishes: int = 0
    peer_tries: int = 0

    @property
    def failed(self) -> int:
        return self.failures.total()


@dataclass(frozen=True)
class Setting:
    peer: str
    layout: str
    pause_s: float


class Bench:
    """Both Spark sessions, and a fresh table for each setting."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self.options = options
        self.catalog = tf.open_catalog("local", warehouse=str(folder))
        self.folder = folder
        self.ours = _session(folder)
        self.other = _session(folder) if "java" in options.peers else None

    def close(self) -> None:
        for each in (self.ours, self.other):
            if each is not None:
                each.close()

    def run(self, setting: Setting) -> Outcome:
        self._create(setting)
        outcome, ended = Outcome(), threading.Event()
        rng = random.Random(7)
        peer = self._resolver(rng) if setting.peer == "resolver" else self._java_peer(rng)
        update = self._update(setting)
        for _ in range(3):  # warm up, alone: what one statement costs
            update()
        peer()
        with ThreadPoolExecutor(1) as pool:
            turning = pool.submit(self._turn, peer, setting.pause_s, outcome, ended)
            until = time.monotonic() + self.options.seconds
            try:
                while time.monotonic() < until and not turning.done():
                    began = time.monotonic()
                    try:
                        update()
                    except JavaIcebergError as error:
                        outcome.failures[_reason(error)] += 1
                    outcome.seconds.append(time.monotonic() - began)
            finally:
                ended.set()
            turning.result()
        return outcome

    def _create(self, setting: Setting) -> None:
        properties = {f"write.{each}.mode": "merge-on-read" for each in OPERATIONS}
        properties |= {
            f"write.{each}.isolation-level": self.options.isolation for each in OPERATIONS
        }
        if NAME in self.catalog.list_tables(NAME.partition(".")[0]):
            self.catalog.drop_table(NAME)
        self.table = self.catalog.create_table(
            NAME,
            SCHEMA,
            primary_key=["id"],
            partition_by=["half"] if setting.layout == "partitioned" else (),
            properties=properties,
        )
        for file in range(FILES):
            start = file * ROWS_PER_FILE
            keys = (
                range(file, ROWS, FILES)
                if setting.layout == "spread"
                else range(start, start + ROWS_PER_FILE)
            )
            self.table.append(_rows(keys, "base"))

    def _turn(
        self, peer: Callable[[], bool], pause_s: float, outcome: Outcome, ended: threading.Event
    ) -> None:
        while not ended.is_set():
            outcome.peer_tries += 1
            outcome.publishes += peer()
            ended.wait(pause_s)

    def _resolver(self, rng: random.Random) -> Callable[[], bool]:
        table, numbers = self.catalog.load_table(NAME), itertools.count()

        def cycle() -> bool:
            keys = rng.sample(range(ROWS // 2), CHANGED_ROWS)
            table.stage(upserts=_rows(keys, f"cycle {next(numbers)}"))
            resolve(table)
            return True

        return cycle

    def _java_peer(self, rng: random.Random) -> Callable[[], bool]:
        numbers = itertools.count()

        def statement() -> bool:
            first = rng.randrange(ROWS // 2 - CHANGED_ROWS)
            keys = f"id BETWEEN {first} AND {first + CHANGED_ROWS - 1}"
            change = f"SET v = 'cycle {next(numbers)}' WHERE half = 'small' AND {keys}"
            assert self.other is not None
            return _succeeds(self.other, change)

        return statement

    def _update(self, setting: Setting) -> Callable[[], None]:
        numbers, keys = itertools.count(), itertools.cycle(range(ROWS // 2, ROWS, 7))
        named = "half = 'large' AND " if setting.layout == "partitioned" else ""

        def statement() -> None:
            change = f"SET v = 'u{next(numbers)}' WHERE {named}id = {next(keys)}"
            self.ours.sql(f"UPDATE local.{NAME} {change}")

        return statement


def _session(folder: Path) -> JavaIceberg:
    started = start_java_iceberg()
    if isinstance(started, Missing):
        raise SystemExit(started.reason)
    settings = {
        "type": "jdbc",
        "uri": f"jdbc:sqlite:{folder}/icefold.db?busy_timeout=30000",
        "warehouse": folder.as_uri(),
        "jdbc.schema-version": "V1",
    }
    started.add_catalog("local", settings)
    return started


def _succeeds(java: JavaIceberg, change: str) -> bool:
    try:
        java.sql(f"UPDATE local.{NAME} {change}")
    except JavaIcebergError:
        return False
    return True


def _rows(keys: range | list[int], text: str) -> pa.Table:
    halves = ["small" if key < ROWS // 2 else "large" for key in keys]
    return pa.table([list(keys), halves, [text] * len(halves)], schema=SCHEMA)


def _reason(error: JavaIcebergError) -> str:
    text = str(error)
    known = next((reason for reason in REASONS if reason in text), None)
    named = (line for line in text.splitlines() if "Exception: " in line)
    return known or next(named, text)[:120]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--pauses", type=_numbers, default=[0.0, 1.0, 3.0])
    parser.add_argument("--peers", type=_words, default=["resolver", "java"])
    parser.add_argument("--layouts", type=_words, default=["clustered", "spread", "partitioned"])
    parser.add_argument("--isolation", choices=["serializable", "snapshot"], default="serializable")
    options = parser.parse_args()
    settings = [
        Setting(*each) for each in itertools.product(options.peers, options.layouts, options.pauses)
    ]
    grid = Grid(title=f"Java UPDATEs, {options.isolation}, {options.seconds:g} s each")
    for name in (
        "beside",
        "layout",
        "pause",
        "failed / tried",
        "median",
        "peer published / tried",
        "why",
    ):
        grid.add_column(name)
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), options)
        try:
            for setting in settings:
                outcome = bench.run(setting)
                grid.add_row(*_line(setting, outcome))
                print(" | ".join(_line(setting, outcome)), flush=True)
        finally:
            bench.close()
    Console(width=140).print(grid)


def _line(setting: Setting, outcome: Outcome) -> list[str]:
    ordered = sorted(outcome.seconds)
    return [
        setting.peer,
        setting.layout,
        f"{setting.pause_s:g} s",
        f"{outcome.failed} / {len(ordered)}",
        f"{ordered[len(ordered) // 2]:.2f} s",
        f"{outcome.publishes} / {outcome.peer_tries}",
        ", ".join(f"{reason} ({count})" for reason, count in outcome.failures.most_common(3)),
    ]


def _numbers(text: str) -> list[float]:
    return [float(each) for each in text.split(",")]


def _words(text: str) -> list[str]:
    return text.split(",")


if __name__ == "__main__":
    main()
