"""A billion keys: the index alone, held against the bars for one machine of two cores.

    scripts/bench billion [--keys N] [--string-keys] [--sustain-minutes M] [--folder FOLDER]

Keys are computed on the fly (int64 ids in an order that looks random, or strings of 16 hexadecimal
digits) and go through the index's own build; there are no data files, so reading and writing those,
the comparison and the commit are not in the figures. A cycle is what a cycle does with the index:
look up the keys, write the change, make it visible. Each stage is a process of its own, so that its
memory is its own. *Cold* drops the index's files from the page cache before each repeat, *warm* has
read them. Wall clock, medians, the slowest in parentheses. The bars are for 1,000,000,000 int64
keys on an idle machine; with other numbers they are printed and not judged.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.index import size_bytes
from benchmarks.support.numbered_keys import KeyRange
from benchmarks.support.process_memory import PeakMemory
from resolver.index.base import Entries, IndexChanges, IndexedFile
from resolver.index.build import BuildProgress, build_index
from resolver.index.local import LocalIndex
from resolver.index.open import open_index
from tableformat.runtime import Runtime

BILLION = 1_000_000_000
BUDGET_BYTES = 45e9
# Spilled rows and runs are there together before the build ends: (int64, strings), seen by it.
BYTES_PER_KEY = (28, 53)
SMALL, LARGE = 10_000, 1_000_000
ARRIVING_PER_S = 20_000
STAGES = ("build", "cycles", "first", "sustain")
MIB, GIB = 1 << 20, 1 << 30

Ids = npt.NDArray[np.int64]


@dataclass
class Table:
    """Prints its rows as they come."""

    is_judged: bool

    def row(self, what: str, value: str, bar: str = "", is_met: bool | None = None) -> None:
        """One figure, and the bar for it."""
        judged = "" if is_met is None or not self.is_judged else "met" if is_met else "MISSED"
        print(f"{what:54}{value:>30}  {bar:>16}  {judged}".rstrip(), flush=True)


@dataclass
class Cycles:
    """Upserts of one open index, each batch of them with rows in a new data file."""

    index: LocalIndex
    keys: KeyRange
    number: int = 0
    generator: np.random.Generator = field(default_factory=lambda: np.random.default_rng(24))

    def random(self, count: int) -> Ids:
        """Ids of that many upserts; of a key that comes twice, one row is left."""
        return np.unique(self.generator.integers(0, self.keys.rows, count))

    def recent(self, count: int) -> Ids:
        """Ids that come one after the other, the newest of the table."""
        return np.arange(self.keys.rows - count, self.keys.rows)

    def run(self, ids: Ids) -> float:
        """Seconds of a cycle.

        Raises:
            ValueError: The index does not find every key once.
        """
        keys = self.keys.keys(ids)
        self.number += 1
        file = IndexedFile(file_path=f"cycle-{self.number}", spec_id=0)
        rows = np.zeros(len(ids), dtype=np.int64), np.arange(len(ids), dtype=np.int64)
        changes = IndexChanges(
            added_files=(file,), removed_keys=(keys,), put=(Entries(keys, *rows),)
        )
        started = time.perf_counter()
        found = self.index.lookup(keys)
        prepared = self.index.prepare(changes)
        self.index.apply(
            prepared,
            self.index.binding.at(snapshot_id=self.number, sequence_number=self.number),
        )
        seconds = time.perf_counter() - started
        if not np.array_equal(found.key_ordinal, np.arange(len(ids))):
            raise ValueError("the index does not find every key once")
        return seconds

    def check(self, ids: Ids) -> None:
        """See that the newest cycle's rows are those that are found.

        Raises:
            ValueError: They are not.
        """
        found = self.index.lookup(self.keys.keys(ids))
        paths = {file.file_path for file in found.files.values()}
        if paths != {f"cycle-{self.number}"} or found.position.tolist() != [*range(len(ids))]:
            raise ValueError("the index finds other rows than the last cycle wrote")


def files_of(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def chill(folder: Path) -> None:
    """Drop a folder's files from the page cache."""
    os.sync()  # what is not on disk stays
    for path in files_of(folder):
        with suppress(FileNotFoundError), path.open("rb") as file:  # the dictionary compacts
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def warm(folder: Path) -> None:
    """Read a folder's files into the page cache, as far as they fit."""
    for path in files_of(folder):
        with suppress(FileNotFoundError), path.open("rb", buffering=0) as file:
            while file.read(8 * MIB):
                pass


def read_from_disk_bytes() -> int:
    """What this process has read that was not in the page cache."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("read_bytes")))


def opened(folder: Path, keys: KeyRange) -> LocalIndex:
    result = open_index(folder, keys.binding, runtime=Runtime())
    if result.index is None:
        raise ValueError(f"the index cannot be opened: {result.detail}")
    return result.index


# -- stages --------------------------------------------------------------------------------------


def build(folder: Path, keys: KeyRange, table: Table, _: float) -> None:
    largest = 0

    def watch(progress: BuildProgress) -> None:
        nonlocal largest
        if progress.shards_done == progress.shards_total:  # spilled rows and all runs are there
            largest = size_bytes(folder)

    with PeakMemory() as memory:
        started = time.perf_counter()
        index = build_index(
            folder, keys.binding, keys.key, keys.sources(), runtime=Runtime(), progress=watch
        )
        seconds = time.perf_counter() - started
    shards = index.shard_count
    index.close()
    started = time.perf_counter()
    one_file = sum(len(batch) for batch in keys.sources()[0].read())
    making_s = (time.perf_counter() - started) * keys.rows / one_file
    rate, size = keys.rows / seconds, size_bytes(folder) / keys.rows
    size_max = 20 if keys.are_strings else 10
    table.row(f"build, {shards} shards", f"{seconds:,.1f} s")
    table.row("  keys per second", f"{rate / 1e6:.2f} M", ">= 2.5 M", rate >= 2.5e6)
    table.row("  of it making the keys, by one file", f"{making_s:,.1f} s of a thread")
    table.row("  size", f"{size:.2f} bytes/key", f"<= {size_max}", size <= size_max)
    table.row("  disk while it ran, at most", f"{largest / keys.rows:.1f} bytes/key")
    table.row("  memory, anonymous, at most", f"{memory.peak_bytes / MIB:,.0f} MiB")


def cycles(folder: Path, keys: KeyRange, table: Table, _: float) -> None:
    with PeakMemory() as memory, opened(folder, keys) as index:
        work = Cycles(index, keys)

        def measure(
            what: str, ids: Callable[[int], Ids], count: int, repeat: int, bar_s: float | None
        ) -> float:
            is_cold = what.endswith("cold")
            if not is_cold:
                warm(folder)
                work.run(ids(count))
            seconds, read = [], 0
            for _ in range(repeat):
                chosen = ids(count)
                if is_cold:
                    chill(folder)
                before = read_from_disk_bytes()
                seconds.append(work.run(chosen))
                read += read_from_disk_bytes() - before
            work.check(chosen)
            median = statistics.median(seconds)
            value = f"{median:.3f} s ({max(seconds):.3f})"
            bar = () if bar_s is None else (f"<= {bar_s} s", median <= bar_s)
            note = f", {read / repeat / MIB:,.0f} MiB from disk each" if is_cold else ""
            table.row(f"{count:,} {what}{note}", value, *bar)
            return median

        small, large = min(SMALL, keys.rows), min(LARGE, keys.rows // 2)
        random_s = measure("random upserts, warm", work.random, small, 7, 0.35)
        recent_s = {}
        if not keys.are_strings:
            recent_s[small] = measure("recent upserts, warm", work.recent, small, 7, None)
        measure("random upserts, cold", work.random, small, 3, 2)
        large_s = measure("random upserts, warm", work.random, large, 3, 15)
        if not keys.are_strings:
            recent_s[large] = measure("recent upserts, warm", work.recent, large, 3, None)
            for count, mine in ((small, random_s), (large, large_s)):
                ratio = mine / recent_s[count]
                table.row(f"  random / recent, {count:,}", f"{ratio:.1f}", ">= 2", ratio >= 2)
    peak = memory.peak_bytes
    table.row(
        "memory of the cycles, anonymous, at most",
        f"{peak / MIB:,.0f} MiB",
        "<= 1.5 GiB",
        peak <= 1.5 * GIB,
    )


def first(folder: Path, keys: KeyRange, table: Table, _: float) -> None:
    """From the start of the interpreter to the first row found."""
    for how, is_cold, bar_s in (("warm", False, None), ("cold", True, 3)):
        if is_cold:
            chill(folder)
        started = time.perf_counter()
        line = command("match", folder, keys)
        own = subprocess.run(line, check=True, capture_output=True, text=True).stdout
        seconds = time.perf_counter() - started
        bar = () if bar_s is None else (f"<= {bar_s} s", seconds <= bar_s)
        value = f"{seconds:.2f} s, {own} without imports"
        table.row(f"fresh process to its first match, {how}", value, *bar)


def match(folder: Path, keys: KeyRange, _: Table, __: float) -> None:
    """Print what opening and one lookup took."""
    started = time.perf_counter()
    with opened(folder, keys) as index:
        found = len(index.lookup(keys.keys(np.array([keys.rows // 3]))))
        if found != 1:
            raise ValueError("the key is not found")
        print(f"{time.perf_counter() - started:.2f} s", end="", flush=True)


def sustain(folder: Path, keys: KeyRange, table: Table, minutes: float) -> None:
    """Take what has arrived, cycle after cycle."""
    seconds: list[float] = []
    with PeakMemory() as memory, opened(folder, keys) as index:
        work, taken, behind_s = Cycles(index, keys), 0, 0.0
        generation = index.generation.name
        started = time.perf_counter()
        while (now_s := time.perf_counter() - started) < minutes * 60:
            arrived = int(now_s * ARRIVING_PER_S) - taken
            if arrived < 1:
                time.sleep(0.01)
                continue
            behind_s = max(behind_s, arrived / ARRIVING_PER_S)
            ids = work.random(arrived)
            seconds.append(work.run(ids))
            taken += arrived
        left_s = time.perf_counter() - started - taken / ARRIVING_PER_S
        elapsed_s = time.perf_counter() - started
        work.check(ids)
        rebuilds = int(index.generation.name != generation)
        shards = index.shard_count
    low, high = np.quantile(seconds, [0.5, 0.99])
    table.row(
        f"{ARRIVING_PER_S:,} random upserts/s, {elapsed_s / 60:.1f} min",
        f"{len(seconds):,} cycles, {taken / elapsed_s:,.0f}/s taken",
    )
    table.row("  behind at the end", f"{left_s:.2f} s", "kept up: <= 2 s", left_s <= 2)
    table.row("  behind, at most", f"{behind_s:.2f} s")
    table.row("  cycle, median", f"{low:.3f} s")
    table.row("  cycle, p99", f"{high:.3f} s ({max(seconds):.3f})", "<= 2 s", high <= 2)
    table.row("  rebuilds", f"{rebuilds}", "0", rebuilds == 0)
    table.row("  shards after it", f"{shards:,}")
    table.row("  size after it", f"{size_bytes(folder) / keys.rows:.2f} bytes/key")
    peak = memory.peak_bytes
    table.row(
        "  memory, anonymous, at most",
        f"{peak / MIB:,.0f} MiB",
        "<= 1.5 GiB",
        peak <= 1.5 * GIB,
    )


def command(stage: str, folder: Path, keys: KeyRange, minutes: float = 0) -> list[str]:
    line = [sys.executable, "-m", "benchmarks.billion", "--stage", stage, "--folder", str(folder)]
    line += ["--keys", str(keys.rows), "--sustain-minutes", str(minutes)]
    return [*line, "--string-keys"] if keys.are_strings else line


def check_disk(folder: Path, keys: KeyRange) -> None:
    """Say what is needed, and end where it is not there."""
    needed = keys.rows * BYTES_PER_KEY[keys.are_strings]
    free = shutil.disk_usage(folder).free
    print(
        f"{keys.rows:,} {'string' if keys.are_strings else 'int64'} keys: needs "
        f"{needed / 1e9:.1f} GB in {folder}, which has {free / 1e9:.1f} GB; "
        f"at most {BUDGET_BYTES / 1e9:.0f} GB are taken",
        flush=True,
    )
    if needed > min(free, BUDGET_BYTES):
        sys.exit("not enough disk; fewer --keys, or another --folder")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--keys", type=lambda text: int(float(text)), default=BILLION)
    parser.add_argument("--string-keys", action="store_true")
    parser.add_argument("--sustain-minutes", type=float, default=30, help="0: not")
    parser.add_argument("--folder", type=Path, help="where the index is for the time it takes")
    parser.add_argument("--stage", choices=[*STAGES, "match"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    keys = KeyRange(options.keys, options.string_keys)
    if options.stage:
        table = Table(is_judged=keys.rows >= BILLION)
        globals()[options.stage](options.folder, keys, table, options.sustain_minutes)
        return
    if options.folder is not None:
        options.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="icefold-bench-", dir=options.folder) as name:
        check_disk(Path(name), keys)
        for stage in STAGES:
            if stage != "sustain" or options.sustain_minutes:
                line = command(stage, Path(name) / "index", keys, options.sustain_minutes)
                subprocess.run(line, check=True)


if __name__ == "__main__":
    main()
