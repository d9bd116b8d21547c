"""From event to visible on `main` under a steady load, and the memory of all processes meanwhile.

    scripts/bench freshness [--minutes M] [--rate EVENTS_PER_S] [--keys N] [--trigger-s S]
                            [--warm-up-s S] [--no-check]

1. This process writes order events as JSON files, four a second, each when its last event happens.
2. A Spark streaming job (processes of its own) stages them, a batch every second by default.
3. `icefold maintain` (another process) publishes them, compacts and expires, all by its defaults.
4. This process watches the head of `main`. An event's freshness is the time from when it happened
   to when a snapshot with it was seen there.

Freshness leaves out the warm-up, memory does not. At the end the rows of `main` are compared with
DuckDB's fold of all events, and a difference ends with exit code 1.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table as Grid

import tableformat as tf
from benchmarks.demo import open_duckdb
from benchmarks.orders import NAME, ROOT
from benchmarks.support.order_events import (
    KEY,
    PARTITION_BY,
    OrderEvents,
    OrderFold,
    orders_schema,
)
from benchmarks.support.process_tree import cpu_seconds, memory_bytes
from tableformat.spec.names import BATCH_ID

TICK_S = 0.25
DRAWN_TICKS = 120
POLL_S = 0.05
SAMPLE_S = 5.0
END_S = 300.0
ROWS_SHOWN = 10


@dataclass(frozen=True)
class Written:
    """A file of events: when its first event happened, and when it was there."""

    name: str
    begin_s: float
    end_s: float
    events: int


@dataclass(frozen=True)
class Sample:
    """Memory of the job and of `maintain`, in bytes, and their CPU seconds so far."""

    at_s: float
    job_bytes: int
    maintainer_bytes: int
    job_cpu_s: float
    maintainer_cpu_s: float


@dataclass
class Freshness:
    """One run."""

    folder: Path
    minutes: float
    rate: int
    keys: int
    trigger_s: float
    written: list[Written] = field(default_factory=list)
    published: list[tuple[float, int]] = field(default_factory=list)  # when seen, newest batch
    samples: list[Sample] = field(default_factory=list)

    def run(self) -> None:
        self.source = self.folder / "events"
        self.source.mkdir(parents=True)
        warehouse = str(self.folder / "warehouse")
        catalog = tf.open_catalog("local", warehouse=warehouse)
        self.table = catalog.create_table(
            NAME,
            orders_schema(),
            primary_key=KEY,
            partition_by=PARTITION_BY,
        )
        checkpoint = str(self.folder / "checkpoint")
        arguments = (warehouse, NAME, str(self.source), checkpoint, f"{self.trigger_s:g}")
        self.job = _child(sys.executable, "-m", "benchmarks.support.order_stream", *arguments)
        icefold = str(Path(sys.executable).with_name("icefold"))
        self.maintainer = _child(icefold, "--warehouse", warehouse, "maintain", NAME)
        self.ended = threading.Event()
        watchers = [threading.Thread(target=each) for each in (self._watch, self._sample)]
        try:
            self._wait_for_start()
            self.begin_s = time.monotonic()
            for each in watchers:
                each.start()
            self._produce()
            assert self.job.stdin is not None
            self.job.stdin.close()  # which tells it to finish
            _end_well(self.job)
            self._wait_for_last_batch()
            self.maintainer.terminate()
            _end_well(self.maintainer)
        finally:
            self.ended.set()
            for process in (self.job, self.maintainer):
                process.kill()
            for each in watchers:
                if each.is_alive():
                    each.join()

    def _wait_for_start(self) -> None:
        assert self.job.stdout is not None
        if not self.job.stdout.readline():
            raise SystemExit("the streaming job did not start")
        for process in (self.job, self.maintainer):  # they would stop when their pipe is full
            threading.Thread(target=_drain, args=(process,), daemon=True).start()

    def _wait_for_last_batch(self) -> None:
        last = max(self.batches().values())
        deadline = time.monotonic() + END_S
        while not self.published or self.published[-1][1] < last:
            if time.monotonic() > deadline:
                raise SystemExit(f"batch {last} was not published within {END_S:g} s")
            time.sleep(POLL_S)

    def _produce(self) -> None:
        for number, (drawn, events) in enumerate(self._drawn()):
            lines = drawn.json_lines(events)
            begin_s = self.begin_s + number * TICK_S
            time.sleep(max(0.0, begin_s + TICK_S - time.monotonic()))
            name = f"orders-{number:06d}.jsonl"
            hidden = self.source / f".{name}"  # Spark does not see it before it is whole
            hidden.write_bytes(lines)
            hidden.rename(self.source / name)
            self.written.append(Written(name, begin_s, begin_s + TICK_S, len(events)))
            if self.job.poll() is not None or self.maintainer.poll() is not None:
                raise SystemExit("the streaming job or `maintain` has ended")

    def _drawn(self) -> Iterator[tuple[OrderEvents, np.ndarray]]:
        """The events of each tick; drawn in large parts, so that most orders are seen again."""
        ticks = int(self.minutes * 60 / TICK_S)
        size = int(self.rate * TICK_S)

        def draw(begin: int) -> OrderEvents:
            count = min(DRAWN_TICKS, ticks - begin)
            return OrderEvents.draw(
                count * size, files=count, seed=begin, keys=self.keys, first_event=begin * size
            )

        with ThreadPoolExecutor(max_workers=1) as ahead:
            parts = [ahead.submit(draw, 0)]
            for begin in range(0, ticks, DRAWN_TICKS):
                if begin + DRAWN_TICKS < ticks:
                    parts.append(ahead.submit(draw, begin + DRAWN_TICKS))
                drawn = parts.pop(0).result()
                yield from ((drawn, events) for events in drawn.files)

    def _watch(self) -> None:
        """Note when which batch was first seen on `main`."""
        table = tf.open_catalog("local", warehouse=str(self.folder / "warehouse")).load_table(NAME)
        newest = -1
        while not self.ended.wait(POLL_S):
            head = table.refresh().state.head("main")
            if head is None or head.summary is None:
                continue
            batch = int(head.summary.additional_properties.get(BATCH_ID, -1))
            if batch > newest:
                newest = batch
                self.published.append((time.monotonic(), batch))

    def _sample(self) -> None:
        while not self.ended.wait(SAMPLE_S):
            job, maintainer = self.job.pid, self.maintainer.pid
            self.samples.append(
                Sample(
                    time.monotonic() - self.begin_s,
                    memory_bytes(job),
                    memory_bytes(maintainer),
                    cpu_seconds(job),
                    cpu_seconds(maintainer),
                )
            )

    def batches(self) -> dict[str, int]:
        """Micro-batch by file name, from the checkpoint of the file source."""
        found: dict[str, int] = {}
        for log in (self.folder / "checkpoint" / "sources" / "0").glob("[0-9]*"):
            for line in log.read_text().splitlines()[1:]:
                entry = json.loads(line)
                found[Path(entry["path"]).name] = int(entry["batchId"])
        return found

    def freshness_s(self) -> tuple[np.ndarray, np.ndarray]:
        """When events happened (seconds after the begin), and how long they took; one in fifty."""
        batches = self.batches()
        seen = np.array([batch for _, batch in self.published])
        happened, taken = [], []
        for each in self.written:
            place = int(np.searchsorted(seen, batches[each.name]))
            if place == len(seen):
                raise SystemExit(f"{each.name} was never seen on main")
            at = np.linspace(each.begin_s, each.end_s, max(each.events // 50, 1))
            happened.append(at - self.begin_s)
            taken.append(self.published[place][0] - at)
        return np.concatenate(happened), np.concatenate(taken)

    def differences(self) -> int:
        """Rows by which `main` differs from the fold of all events."""
        duck = open_duckdb(self.folder / "duckdb-extensions")
        fold = OrderFold(duck)
        fold.add(self.source / "*.jsonl")
        location = self.table.refresh().metadata_location
        return fold.differences(f"iceberg_scan('{location}')")


def _child(*command: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def _drain(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    for _ in process.stdout:
        pass


def _end_well(process: subprocess.Popen[str]) -> None:
    if process.wait(END_S) != 0:
        raise SystemExit(f"{process.args} ended with {process.returncode}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/bench freshness", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--rate", type=int, default=20_000, help="events per second")
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--trigger-s", type=float, default=1.0, help="a micro-batch so often")
    parser.add_argument("--warm-up-s", type=float, default=60.0)
    parser.add_argument("--no-check", action="store_true")
    given = parser.parse_args()
    if given.warm_up_s >= given.minutes * 60:
        parser.error("the warm-up takes all the time; give fewer --warm-up-s or more --minutes")
    with tempfile.TemporaryDirectory(prefix="icefold-freshness-") as folder:
        run = Freshness(Path(folder), given.minutes, given.rate, given.keys, given.trigger_s)
        run.run()
        differences = 0 if given.no_check else run.differences()
        _print(run, given.warm_up_s)
    if differences:
        print(f"DIFFERENT: {differences:,} rows differ from the fold")
    elif not given.no_check:
        print("main equals the fold of the events")
    return 1 if differences else 0


def _print(run: Freshness, warm_up_s: float) -> None:
    happened, taken = run.freshness_s()
    out = Console()
    title = f"{run.rate:,} events/s for {run.minutes:g} minutes"
    grid = Grid("minute", "fresh p50 s", "p99 s", "max s", title=title)
    for name in ("job MB", "maintain MB", "job CPU", "maintain CPU"):
        grid.add_column(name)
    total_s = run.minutes * 60
    edges = np.linspace(0, total_s, min(ROWS_SHOWN, max(int(run.minutes * 2), 1)) + 1)
    for begin, end in itertools.pairwise(edges):
        values = taken[(happened >= begin) & (happened < end)]
        fresh = [f"{value:.2f}" for value in (*np.percentile(values, [50, 99]), values.max())]
        held = [sample for sample in run.samples if begin <= sample.at_s < end]
        grid.add_row(f"{begin / 60:.1f}-{end / 60:.1f}", *fresh, *_held(held))
    out.print(grid)
    steady = taken[happened >= warm_up_s]
    middle, late = np.percentile(steady, [50, 99])
    per_batch = Counter(run.batches().values())
    out.print(f"freshness after {warm_up_s:g} s of warm-up: p50 {middle:.2f} s, p99 {late:.2f} s")
    out.print(
        f"{len(per_batch):,} batches of {len(run.written) / len(per_batch):.1f} files, "
        f"{len(run.published):,} published states seen"
    )
    for name, bytes_of in (("job", "job_bytes"), ("maintain", "maintainer_bytes")):
        out.print(f"memory of the {name}: {_growth(run.samples, bytes_of, warm_up_s)}")


def _held(samples: list[Sample]) -> list[str]:
    if len(samples) < 2:
        return []
    first, last = samples[0], samples[-1]
    seconds = last.at_s - first.at_s
    return [
        f"{np.mean([each.job_bytes for each in samples]) / 1e6:,.0f}",
        f"{np.mean([each.maintainer_bytes for each in samples]) / 1e6:,.0f}",
        f"{(last.job_cpu_s - first.job_cpu_s) / seconds:.0%}",
        f"{(last.maintainer_cpu_s - first.maintainer_cpu_s) / seconds:.0%}",
    ]


def _growth(samples: list[Sample], name: str, warm_up_s: float) -> str:
    """A straight line through the samples after the warm-up."""
    steady = [each for each in samples if each.at_s >= warm_up_s]
    if len(steady) < 3:
        return "too few samples"
    minutes = np.array([each.at_s / 60 for each in steady])
    held = np.array([getattr(each, name) / 1e6 for each in steady])
    slope = np.polyfit(minutes, held, 1)[0]
    return f"{held.min():,.0f} to {held.max():,.0f} MB, {slope:+.1f} MB a minute"


if __name__ == "__main__":
    sys.exit(main())
