"""Latency and object requests of a commit, at commit 20 and at commit 2,000 of the same table.

SQLite and local files. One commit is what a resolver publishes in a small cycle: a new data file,
and deletion vectors for older files that replace the vectors these have. Files are descriptors
without bytes: the commit engine never opens them.

    scripts/bench commit [--commits N] [--vectors N] [--window N] [--expire-every N] [--writers N]

Prints the median over a window of commits around each mark, wall clock and processor time.
`--expire-every N` expires snapshots every N commits, keeping 100, as maintenance would; without it
the metadata file holds them all. `--writers N` takes turns between N writers that share nothing but
the table, so each has to read what the others wrote.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections import Counter
from typing import Any

from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.types import LongType, NestedField, StringType

from tableformat.catalog.open import open_backend
from tableformat.commit.changeset import Changeset, CommitKind, Validation
from tableformat.commit.engine import commit
from tableformat.commit.expire import apply_expiry
from tableformat.commit.expiry_plan import ExpiryPolicy
from tableformat.environment import Environment
from tableformat.spec.data_file import DataFile, EntryStatus, FileContent, ManifestEntry

IDENTIFIER = ("bench", "commits")
FIRST_MARK = 20
RATIO_MAX = 1.5


class CountingStore:
    """Counts requests and bytes of the store behind it."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.counts: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def get(self, location: str, **options: Any) -> bytes:
        data: bytes = self.inner.get(location, **options)
        self.counts.update({"get": 1, "bytes read": len(data)})
        return data

    def put(self, location: str, data: bytes) -> None:
        self.counts.update({"put": 1, "bytes written": len(data)})
        self.inner.put(location, data)

    def delete(self, locations: list[str]) -> None:
        self.counts.update({"delete": len(locations)})
        self.inner.delete(locations)


class Workload:
    """One table, one writer."""

    def __init__(self, environment: Environment, *, vectors: int) -> None:
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
            properties={},
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
    parser.add_argument("--window", type=int, default=50)
    parser.add_argument("--expire-every", type=int, default=0)
    parser.add_argument("--writers", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run(options, folder)


def open_counted(folder: str) -> Environment:
    """A writer with its own caches; reads and writes of its catalog are counted too."""
    opened = open_backend("local", {"warehouse": folder})
    store = CountingStore(opened.store)
    opened.catalog._store = store
    return Environment(opened.catalog, store, opened.runtime)


def run(options: argparse.Namespace, folder: str) -> None:
    writers = [open_counted(folder) for _ in range(options.writers)]
    workload = Workload(writers[0], vectors=options.vectors)
    latencies: list[float] = []
    cpu: list[float] = []
    counts: list[Counter[str]] = []
    for number in range(options.commits + options.window // 2):
        workload.environment = writers[number % len(writers)]
        store = workload.environment.store
        store.counts = Counter()
        latencies.append(workload.commit(number))
        counts.append(store.counts)
        cpu.append(workload.cpu_ms)
        if options.expire_every and (number + 1) % options.expire_every == 0:
            policy = ExpiryPolicy(max_snapshot_age_ms=0, min_snapshots_to_keep=100)
            apply_expiry(workload.environment, IDENTIFIER, policy)
    marks = {
        f"commit {FIRST_MARK}": slice(FIRST_MARK - 10, FIRST_MARK + 10),
        f"commit {options.commits}": slice(options.commits - options.window // 2, None),
    }
    medians = []
    for name, window in marks.items():
        medians.append(statistics.median(latencies[window]))
        print(f"{name}: median {medians[-1]:.1f} ms (CPU {statistics.median(cpu[window]):.1f}), "
              f"max {max(latencies[window]):.1f} ms")  # fmt: skip
        for kind in ("get", "put", "delete", "bytes read", "bytes written"):
            values = [each[kind] for each in counts[window]]
            mean = statistics.fmean(values)
            print(f"    {kind} per commit: mean {mean:.1f}, max {max(values)}")
    ordered = sorted(latencies)
    worst = max(range(len(latencies)), key=latencies.__getitem__)
    print(f"all: mean {statistics.fmean(latencies):.1f} ms, "
          f"99 % {ordered[int(len(ordered) * 0.99)]:.1f} ms, "
          f"max {latencies[worst]:.1f} ms (commit {worst})")  # fmt: skip
    ratio = medians[1] / medians[0]
    print(f"ratio of medians: {ratio:.2f} (goal: at most {RATIO_MAX})")


if __name__ == "__main__":
    main()
