"""Latency and object requests of a commit, at commit 20 and at commit 2,000 of the same table.

SQLite and local files. One commit is what a resolver publishes in a small cycle: a new data file,
and deletion vectors for older files that replace the vectors these have. Files are descriptors
without bytes: the commit engine never opens them.

    scripts/bench commit [--commits N] [--vectors N] [--turns N] [--expire-every N] [--writers N]
                         [--codec none] [--put-ms N]

The machine's own speed changes within seconds, so both marks are measured in turns, at the end:
commits 10 to 30 of a new table, as many after commit 2,000 of the old one, and again. Prints the
median over all of them, wall clock and processor time, and the ratio of each turn.
`--expire-every N` expires snapshots every N commits, keeping 100, as maintenance would; without it
the metadata file holds them all, in gzip as tables of streams have it. `--writers N` takes turns
between N writers that share nothing but the table, so each has to read what the others wrote.
`--put-ms N` makes every put wait, as an object store's does.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.types import LongType, NestedField, StringType

from tableformat.backend import open_backend
from tableformat.catalog.keyed import real_catalog
from tableformat.commit.changeset import Changeset, CommitKind, Validation
from tableformat.commit.engine import commit
from tableformat.commit.expire import apply_expiry
from tableformat.commit.expiry_plan import ExpiryPolicy
from tableformat.environment import Environment
from tableformat.spec.data_file import DataFile, EntryStatus, FileContent, ManifestEntry
from tableformat.spec.metadata_json import COMPRESSION_CODEC

IDENTIFIER = ("bench", "commits")
FIRST_MARK = 20
HALF_WINDOW = 10
RATIO_MAX = 1.3


class CountingStore:
    """Counts requests and bytes of the store behind it."""

    def __init__(self, inner: Any, put_ms: float) -> None:
        self.inner = inner
        self.put_ms = put_ms
        self.counts: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def get(self, location: str, **options: Any) -> bytes:
        data: bytes = self.inner.get(location, **options)
        self.counts.update({"get": 1, "bytes read": len(data)})
        return data

    def put(self, location: str, data: bytes) -> None:
        self.counts.update({"put": 1, "bytes written": len(data)})
        time.sleep(self.put_ms / 1e3)
        self.inner.put(location, data)

    def delete(self, locations: list[str]) -> None:
        self.counts.update({"delete": len(locations)})
        self.inner.delete(locations)


class Workload:
    """One table, one writer."""

    def __init__(self, environment: Environment, *, vectors: int, codec: str) -> None:
        self.environment = environment
        self.vectors = vectors
        self.random = random.Random(7)  # the same run every time
        catalog = environment.catalog
        catalog.create_namespace(IDENTIFIER[:-1])
        self.state = catalog.create_table(
            IDENTIFIER,
            schema=Schema(
                NestedField(1, "id", LongType(), required=True),
                NestedField(2, "note", StringType(), required=False),
            ),
            partition_spec=UNPARTITIONED_PARTITION_SPEC,
            sort_order=UNSORTED_SORT_ORDER,
            location=None,
            properties={COMPRESSION_CODEC: codec},
        )
        self.location = self.state.metadata.location
        self.head: int | None = None
        self.cpu_ms = 0.0
        self.data_files: list[str] = []
        self.vector_of: dict[str, ManifestEntry] = {}

    def commit(self, number: int) -> float:
        """Milliseconds of one commit."""
        data = self._data_file(number)
        old = self.random.sample(self.data_files, min(self.vectors, len(self.data_files)))
        new = {path: self._vector(path, number, place) for place, path in enumerate(old)}
        removed = tuple(self.vector_of[path] for path in old if path in self.vector_of)
        changeset = Changeset(
            kind=CommitKind.ROW_DELTA,
            added_data_files=(data,),
            added_delete_files=tuple(new.values()),
            removed_entries=removed,
            validation=Validation(starting_snapshot_id=self.head),
        )
        started, cpu = time.perf_counter(), time.process_time()
        result = commit(self.environment, IDENTIFIER, changeset)
        elapsed_ms = (time.perf_counter() - started) * 1e3
        self.cpu_ms = (time.process_time() - cpu) * 1e3
        self.head = result.snapshot.snapshot_id
        self.state = result.state
        self.data_files.append(data.file_path)
        for path, vector in new.items():
            self.vector_of[path] = ManifestEntry(
                status=EntryStatus.ADDED,
                snapshot_id=self.head,
                sequence_number=result.snapshot.sequence_number,
                file_sequence_number=result.snapshot.sequence_number,
                data_file=vector,
            )
        return elapsed_ms

    def _data_file(self, number: int) -> DataFile:
        return DataFile(
            content=FileContent.DATA,
            file_path=f"{self.location}/data/{number:08d}.parquet",
            file_format="PARQUET",
            spec_id=0,
            partition=(),
            record_count=1000,
            file_size_in_bytes=20_000,
            column_sizes={1: 8000, 2: 12_000},
            value_counts={1: 1000, 2: 1000},
            null_value_counts={1: 0, 2: 10},
            lower_bounds={1: number.to_bytes(8, "little"), 2: b"aaaa"},
            upper_bounds={1: (number + 1000).to_bytes(8, "little"), 2: b"zzzz"},
        )

    def _vector(self, path: str, number: int, place: int) -> DataFile:
        return DataFile(
            content=FileContent.POSITION_DELETES,
            file_path=f"{self.location}/data/{number:08d}.puffin",
            file_format="PUFFIN",
            spec_id=0,
            partition=(),
            record_count=5,
            file_size_in_bytes=400,
            referenced_data_file=path,
            content_offset=4 + place * 60,
            content_size_in_bytes=60,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--commits", type=int, default=2000)
    parser.add_argument("--vectors", type=int, default=4)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--expire-every", type=int, default=0)
    parser.add_argument("--writers", type=int, default=1)
    parser.add_argument("--put-ms", type=float, default=0)
    parser.add_argument("--codec", choices=["gzip", "none"], default="gzip")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run(options, folder)


@dataclass
class Measured:
    """Commits of one mark."""

    latency_ms: list[float] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)
    counts: list[Counter[str]] = field(default_factory=list)


class Run:
    """One table in a folder, changed by some writers in turns."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self.writers = [open_counted(str(folder), options.put_ms) for _ in range(options.writers)]
        self.workload = Workload(self.writers[0], vectors=options.vectors, codec=options.codec)
        self.expire_every = options.expire_every
        self.number = 0

    def commits(self, count: int) -> Measured:
        measured = Measured()
        for _ in range(count):
            self.workload.environment = self.writers[self.number % len(self.writers)]
            store = self.workload.environment.store
            store.counts = Counter()
            measured.latency_ms.append(self.workload.commit(self.number))
            measured.cpu_ms.append(self.workload.cpu_ms)
            measured.counts.append(store.counts)
            self.number += 1
            if self.expire_every and self.number % self.expire_every == 0:
                policy = ExpiryPolicy(max_snapshot_age_ms=0, min_snapshots_to_keep=100)
                apply_expiry(self.workload.environment, IDENTIFIER, policy, fence=None)
        return measured


def run(options: argparse.Namespace, folder: str) -> None:
    old = Run(Path(folder) / "old", options)
    all_ms = old.commits(options.commits).latency_ms
    young, aged, ratios = Measured(), Measured(), []
    for turn in range(options.turns):
        new = Run(Path(folder) / f"new-{turn}", options)
        new.commits(FIRST_MARK - HALF_WINDOW)
        first, last = new.commits(2 * HALF_WINDOW), old.commits(2 * HALF_WINDOW)
        ratios.append(statistics.median(last.latency_ms) / statistics.median(first.latency_ms))
        for part, into in ((first, young), (last, aged)):
            into.latency_ms += part.latency_ms
            into.cpu_ms += part.cpu_ms
            into.counts += part.counts
    report(f"commit {FIRST_MARK}", young)
    report(f"commit {options.commits}", aged)
    ordered = sorted(all_ms)
    worst = max(range(len(all_ms)), key=all_ms.__getitem__)
    print(f"all {options.commits}: mean {statistics.fmean(all_ms):.1f} ms, "
          f"99 % {ordered[int(len(ordered) * 0.99)]:.1f} ms, "
          f"max {all_ms[worst]:.1f} ms (commit {worst})")  # fmt: skip
    ratio = statistics.median(aged.latency_ms) / statistics.median(young.latency_ms)
    cpu = statistics.median(aged.cpu_ms) / statistics.median(young.cpu_ms)
    print(f"ratio of medians: {ratio:.2f} (goal: at most {RATIO_MAX}), CPU {cpu:.2f}; "
          f"of the turns: {', '.join(f'{each:.2f}' for each in sorted(ratios))}")  # fmt: skip


def report(name: str, measured: Measured) -> None:
    print(f"{name}: median {statistics.median(measured.latency_ms):.1f} ms "
          f"(CPU {statistics.median(measured.cpu_ms):.1f}), "
          f"{min(measured.latency_ms):.1f} to {max(measured.latency_ms):.1f} ms")  # fmt: skip
    for kind in ("get", "put", "delete", "bytes read", "bytes written"):
        values = [each[kind] for each in measured.counts]
        print(f"    {kind} per commit: mean {statistics.fmean(values):.1f}, max {max(values)}")


def open_counted(folder: str, put_ms: float) -> Environment:
    """A writer with its own caches; reads and writes of its catalog are counted too."""
    opened = open_backend("local", {"warehouse": folder})
    store = CountingStore(opened.store, put_ms)
    real_catalog(opened.catalog)._store = store
    return Environment(opened.catalog, store, opened.runtime)


if __name__ == "__main__":
    main()
