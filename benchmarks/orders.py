"""Order events in micro-batches, the resolver beside, the job killed: every state is the fold.

    scripts/bench orders [--events N] [--batches N] [--kills N] [--seed N] [--before full|key]
                         [--keep FOLDER]

1. The seed draws `--events` order events (see `benchmarks.support.order_events`) in `--batches`
   files; a Spark streaming job stages one file per micro-batch, a second process resolves.
2. The job and its JVM are killed (SIGKILL) `--kills` times at instants drawn from the seed, and
   started again from the checkpoint.
3. Every published snapshot is read by DuckDB and compared with DuckDB's fold of the event files up
   to its marker. A difference, or a batch that is missing or there twice, ends with exit code 1.

The counts of the bar: `scripts/bench orders` and `scripts/bench orders --kills 30`.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as Grid

import tableformat as tf
from benchmarks.demo import open_duckdb
from benchmarks.support.order_events import (
    KEY,
    PARTITION_BY,
    Before,
    OrderEvents,
    OrderFold,
    orders_schema,
)
from resolver.cursor import marker_of
from tableformat.commit.branch_history import ancestors
from tableformat.spec.names import BATCH_ID, QUERY_ID, SOURCE_OFFSETS

NAME = "tpcc.orders"
ROOT = Path(__file__).resolve().parents[1]
# A life of the job ends after none, one or two commits; so that 30 lives fit into 40 batches.
COMMITS_OF_A_LIFE = (0, 0, 1, 1, 1, 2)
START_S, BATCH_S = 8.0, 1.0  # the delay after the start, or after a commit, is below that
SILENCE_S = 300.0


@dataclass(kw_only=True)
class OrderRun:
    """One run; `differences` is empty when every state was right."""

    folder: Path
    events: int = 2_000_000
    batches: int = 40
    kills: int = 0
    seed: int = 1
    before: Before = "key"
    killed: int = 0
    published: int = 0
    live_rows: int = 0
    repeated: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    differences: list[str] = field(default_factory=list)

    def run(self) -> OrderRun:
        begin = time.monotonic()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.source = self.folder / "events"
        drawn = OrderEvents.draw(self.events, files=self.batches, seed=self.seed)
        self.paths = drawn.write(self.source, before=self.before)
        for number, path in enumerate(self.paths):
            os.utime(path, (number, number))  # Spark takes files in the order of their times
        catalog = tf.open_catalog("local", warehouse=str(self.folder / "warehouse"))
        self.table = catalog.create_table(
            NAME, orders_schema(), primary_key=KEY, partition_by=PARTITION_BY
        )
        begin = self._lap("draw events", begin)
        self._stream_and_resolve()
        begin = self._lap("stage and publish", begin)
        self._compare()
        self._lap("compare", begin)
        return self

    def _lap(self, name: str, begin: float) -> float:
        end = time.monotonic()
        self.seconds[name] = end - begin
        return end

    def _stream_and_resolve(self) -> None:
        warehouse = str(self.folder / "warehouse")
        resolver = _child("order_resolver", warehouse, NAME, stdin=subprocess.PIPE)
        drain = threading.Thread(target=resolver.communicate, daemon=True)
        try:
            self._stream(warehouse)
        except BaseException:
            resolver.kill()
            raise
        finally:
            drain.start()  # closes its input, which tells it to finish
            drain.join(SILENCE_S)
        if resolver.returncode != 0:
            raise SystemExit(f"the resolver ended with {resolver.returncode}")

    def _stream(self, warehouse: str) -> None:
        draw = random.Random(self.seed)
        arguments = (warehouse, NAME, str(self.source), str(self.folder / "checkpoint"))
        while True:
            job = Job(_child("order_stream", *arguments))
            if self.killed == self.kills:
                self.repeated += job.finish()
                return
            commits = draw.choice(COMMITS_OF_A_LIFE)
            delay_s = draw.uniform(0, BATCH_S if commits else START_S)
            if not job.run_until(commits):
                raise SystemExit(f"all is staged after {self.killed} kills; take more batches")
            if job.wait_or_end(delay_s):
                raise SystemExit(f"all is staged after {self.killed} kills; take more batches")
            job.kill()
            self.killed += 1
            self.repeated += job.repeated

    def _compare(self) -> None:
        """Every published snapshot with the fold of the files up to its marker."""
        metadata = self.table.refresh().state.metadata
        chain = list(ancestors(metadata, self.table.state.head("main").snapshot_id))
        published = {snapshot.snapshot_id for snapshot in chain}
        staged = [
            snapshot.summary.additional_properties
            for snapshot in metadata.snapshots
            if snapshot.summary is not None and snapshot.snapshot_id not in published
        ]
        batches = Counter(int(properties[BATCH_ID]) for properties in staged)
        if batches != Counter(range(len(staged))):
            self.differences.append(f"committed batches are {sorted(batches.elements())}")
        if len({properties[QUERY_ID] for properties in staged}) != 1:
            self.differences.append("the query changed its id")
        by_file: dict[int, int] = {}
        for snapshot in chain:
            marker = metadata.snapshot_by_id(marker_of(snapshot))
            newest = _newest_file(marker.summary.additional_properties)
            if newest in by_file:
                self.differences.append(f"file {newest} was published twice")
            by_file[newest] = snapshot.snapshot_id
        self.published = len(by_file)
        if max(by_file, default=-1) != len(self.paths) - 1:
            self.differences.append("the last file was not published")
        self._compare_with_fold(by_file)

    def _compare_with_fold(self, by_file: dict[int, int]) -> None:
        duck = open_duckdb(self.folder / "duckdb-extensions")
        fold = OrderFold(duck)
        for number, path in enumerate(self.paths):
            fold.add(path)
            if number not in by_file:
                continue
            location = self.table.metadata_location
            found = fold.differences(
                f"iceberg_scan('{location}', snapshot_from_id={by_file[number]})"
            )
            if found:
                self.differences.append(f"file {number}: {found:,} rows differ from the fold")
            for task in self.table.scan(snapshot_id=by_file[number]).plan.tasks:
                if task.equality_deletes or task.position_deletes:
                    self.differences.append(
                        f"file {number}: {task.data_file.file_path} has deletes"
                    )
        rows = duck.execute("SELECT count(*) FROM orders_now").fetchone()
        assert rows is not None
        self.live_rows = int(rows[0])
        duck.close()


def _newest_file(properties: Mapping[str, str]) -> int:
    """The last file of a staged batch.

    Spark's file source notes a file before Spark notes the batch: killed in between, the next batch
    has that file and one more. So the batch's number does not tell, but the source's offset does.
    """
    return int(json.loads(properties[SOURCE_OFFSETS])[0]["logOffset"])


class Job:
    """The streaming job in a process group of its own."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.repeated = 0
        self._said: queue.Queue[dict[str, Any] | None] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def run_until(self, commits: int) -> bool:
        """Wait for the job to start, or for so many commits; False if it ended before."""
        if commits == 0:
            return True
        while commits:
            said = self._said.get(timeout=SILENCE_S)
            if said is None:
                self._check_end()
                return False
            commits -= self._count(said)
        return True

    def wait_or_end(self, delay_s: float) -> bool:
        """Wait; True if the job ended meanwhile."""
        try:
            self.process.wait(delay_s)
        except subprocess.TimeoutExpired:
            return False
        self._check_end()
        return True

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        while (said := self._said.get(timeout=SILENCE_S)) is not None:
            self._count(said)

    def finish(self) -> int:
        """Wait for the end; returns how many batches were there already."""
        while (said := self._said.get(timeout=SILENCE_S)) is not None:
            self._count(said)
        self._check_end()
        return self.repeated

    def _check_end(self) -> None:
        if self.process.wait(SILENCE_S) != 0:
            raise SystemExit(f"the streaming job ended with {self.process.returncode}")

    def _count(self, said: dict[str, Any]) -> int:
        self.repeated += bool(said.get("repeated"))
        return int("batch" in said)

    def _listen(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                if line.endswith("}\n"):  # a killed process may leave half a line
                    self._said.put(json.loads(line))
        self._said.put(None)


def _child(module: str, *arguments: str, stdin: int = subprocess.DEVNULL) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", f"benchmarks.support.{module}", *arguments],
        cwd=ROOT,
        stdin=stdin,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/bench orders", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--events", type=int, default=OrderRun.events)
    parser.add_argument("--batches", type=int, default=OrderRun.batches)
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--seed", type=int, default=OrderRun.seed)
    parser.add_argument("--before", choices=("full", "key"), default=OrderRun.before)
    parser.add_argument("--keep", type=Path, help="keep everything in this new folder")
    given = parser.parse_args()
    if given.keep is not None and given.keep.exists():
        parser.error(f"{given.keep} exists; name a new folder")
    folder = given.keep or Path(tempfile.mkdtemp(prefix="icefold-orders-"))
    try:
        run = OrderRun(
            folder=folder.resolve(),
            events=given.events,
            batches=given.batches,
            kills=given.kills,
            seed=given.seed,
            before=given.before,
        ).run()
    finally:
        if given.keep is None:
            shutil.rmtree(folder, ignore_errors=True)
    _print(run)
    return 1 if run.differences else 0


def _print(run: OrderRun) -> None:
    grid = Grid("", "", box=None, show_header=False)
    facts = {
        "events": run.events,
        "micro-batches": run.batches,
        "kills": run.killed,
        "batches found committed after a kill": run.repeated,
        "published snapshots compared (DuckDB)": run.published,
        "live rows at the end": run.live_rows,
    }
    for name, count in facts.items():
        grid.add_row(name, f"[bold]{count:,}")
    for name, seconds in run.seconds.items():
        grid.add_row(f"seconds: {name}", f"{seconds:.1f}")
    out = Console()
    out.print(grid)
    for difference in run.differences:
        out.print(f"[red]DIFFERENT[/red] {difference}")
    if not run.differences:
        out.print(
            f"[green]every published state equals the fold of the events[/green], seed {run.seed}"
        )


if __name__ == "__main__":
    sys.exit(main())
