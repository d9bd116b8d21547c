"""What each operation reads of a table of so many data files: manifests, entries, requests, memory.

    scripts/bench plans [--files 1000 30000 300000] [--rows 20] [--operations cycle status ...]

A few hundred data files are real and in the index; the others are planted: manifests name them,
with deletion vectors for every second one, and the index knows their names, but nobody may read
them. Batches change rows of the real files, which stand in the oldest manifest. Counts, no timing:
processor time is that of the operation's own process, so it holds on a busy machine, too. A row is
one operation: the first of a process that has just started, or one that did the same before.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

import tableformat as tf
from benchmarks.commit import CountingStore
from maintenance import ExpireOptions, ExpiryPolicy, compact, expire, remove_orphans
from maintenance.run_history import Ledger
from maintenance.status import read_status
from maintenance.table_figures import figures_of
from resolver import resolve
from resolver.index.base import IndexChanges
from resolver.index.open import open_index
from resolver.index_keeper import TargetHead, index_folder, indexed_file
from resolver.target import live_files
from tableformat.backend import open_backend
from tableformat.catalog.keyed import real_catalog
from tableformat.codec.avro import manifest_entries
from tableformat.commit.changeset import Changeset, CommitKind, Validation
from tableformat.commit.engine import commit
from tableformat.environment import Environment
from tableformat.paths import data_file_locations
from tableformat.spec.data_file import DataFile, FileContent
from tableformat.table_catalog import TableCatalog
from tableformat.write.data_files import write_data_files

SCHEMA = pa.schema([("id", pa.int64()), ("value", pa.int64())])
NAME = "plans.t"
REAL_FILES = 200
ROWS_PER_FILE = 10
FILES_PER_COMMIT = 50_000
ASIDE = "aside"  # takes what nobody may read
VECTORS_PER_MANIFEST = 1000
TARGET_SIZE = "commit.manifest.target-size-bytes"
EXPIRE = ExpireOptions(policy=ExpiryPolicy(max_snapshot_age_ms=0, min_snapshots_to_keep=1))
NAMES = ("cycle", "idle cycle", "status", "triggers", "compact plan", "commit", "expire", "orphans")


class Meter:
    """Counts of one process between two looks."""

    def __init__(self, store: CountingStore) -> None:
        self.store = store
        self.entries = 0
        inherit = manifest_entries._inherit

        def counted(*arguments: Any) -> Any:
            self.entries += 1
            return inherit(*arguments)

        manifest_entries._inherit = counted

    @contextmanager
    def measured(self) -> Iterator[dict[str, float]]:
        """Fills the figures when the block ends."""
        found: dict[str, float] = {}
        self.store.counts, self.entries = Counter(), 0
        cpu = time.process_time()
        yield found
        counts = self.store.counts
        found["cpu s"] = round(time.process_time() - cpu, 3)
        found["manifests"] = counts["manifests"]
        found["lists"] = counts["lists"]
        found["entries"] = self.entries
        found["requests"] = sum(counts[each] for each in ("get", "put", "open", "list"))
        found["read MB"] = round(counts["bytes read"] / 1e6, 2)


class ManifestStore(CountingStore):
    """Says of each read what kind of object it was of."""

    def get(self, location: str, **options: Any) -> bytes:
        if location.endswith(".avro"):
            is_list = location.rpartition("/")[2].startswith("snap-")
            self.counts["lists" if is_list else "manifests"] += 1
        return super().get(location, **options)

    def open_input(self, location: str) -> Any:
        self.counts["open"] += 1
        return self.inner.open_input(location)

    def list_prefix(self, prefix: str) -> Any:
        self.counts["list"] += 1
        return self.inner.list_prefix(prefix)


def opened(warehouse: Path) -> tuple[tf.Table, ManifestStore]:
    """The table through a store that counts."""
    backend = open_backend("local", {"warehouse": str(warehouse)})
    store = ManifestStore(backend.store)
    real_catalog(backend.catalog)._store = store  # type: ignore[attr-defined]
    environment = Environment(backend.catalog, store, backend.runtime)  # type: ignore[arg-type]
    return TableCatalog(environment).load_table(NAME), store


def plant(warehouse: Path, files: int) -> None:
    """A table of so many data files, with an index at its head."""
    table = tf.open_catalog("local", warehouse=str(warehouse)).create_table(
        NAME, SCHEMA, primary_key=["id"]
    )
    environment, metadata = table.environment, table.state.metadata
    real = [
        file
        for number in range(REAL_FILES)
        for file in write_data_files(
            environment.store,
            pa.table(
                {
                    "id": range(number * ROWS_PER_FILE, (number + 1) * ROWS_PER_FILE),
                    "value": [0] * ROWS_PER_FILE,
                }
            ),
            schema=table.schema(),
            spec=table.spec(),
            properties=metadata.properties,
            location_for=data_file_locations(metadata, environment.runtime.ids),
        )
    ]
    commit(environment, table.identifier,
           Changeset(kind=CommitKind.APPEND, added_data_files=tuple(real)))  # fmt: skip
    stage_and_resolve(table, 1)
    table.refresh()
    folder = metadata.location + "/data"
    planted = [planted_file(folder, real[0], number) for number in range(files - REAL_FILES)]
    for start in range(0, len(planted), FILES_PER_COMMIT):
        part = tuple(planted[start : start + FILES_PER_COMMIT])
        commit(environment, table.identifier,
               Changeset(kind=CommitKind.APPEND, added_data_files=part))  # fmt: skip
    table.refresh().set_properties({TARGET_SIZE: str(VECTORS_PER_MANIFEST * 256)})
    vectors = [planted_vector(folder, file) for file in planted[::2]]
    for start in range(0, len(vectors), FILES_PER_COMMIT):
        head = table.refresh().state.head_id("main")
        change = Changeset(
            kind=CommitKind.ROW_DELTA,
            added_delete_files=tuple(vectors[start : start + FILES_PER_COMMIT]),
            validation=Validation(starting_snapshot_id=head),
        )
        commit(environment, table.identifier, change)
    table.refresh().set_properties({TARGET_SIZE: str(8 << 20)})
    tell_index(table.refresh(), planted)


def planted_file(folder: str, like: DataFile, number: int) -> DataFile:
    low = (10_000 + number * ROWS_PER_FILE).to_bytes(8, "little")
    return like.with_(
        file_path=f"{folder}/{uuid.uuid4()}.parquet",
        record_count=1000,
        file_size_in_bytes=20_000 + number % 977,
        lower_bounds={1: low, 2: bytes(8)},
        upper_bounds={1: low, 2: low},
    )


def planted_vector(folder: str, file: DataFile) -> DataFile:
    return DataFile(
        content=FileContent.POSITION_DELETES,
        file_path=f"{folder}/{uuid.uuid4()}.puffin",
        file_format="PUFFIN",
        spec_id=file.spec_id,
        partition=(),
        record_count=5,
        file_size_in_bytes=400,
        referenced_data_file=file.file_path,
        content_offset=4,
        content_size_in_bytes=60,
    )


def tell_index(table: tf.Table, planted: list[DataFile]) -> None:
    """Bring the index to the head: it learns the names of the planted files, and no rows."""
    environment, state = table.environment, table.state
    live = live_files(environment, state.head("main"))
    wanted = TargetHead.of(environment, state, "main", live).wanted
    folder = index_folder(environment, state, "main")
    index = open_index(folder, wanted, runtime=environment.runtime).index
    assert index is not None
    prepared = index.prepare(IndexChanges(added_files=tuple(map(indexed_file, planted))))
    index.apply(prepared, wanted)
    index.close()
    stage_and_resolve(table, 1)  # staging follows, too


def stage_rows(table: tf.Table, rows: int) -> None:
    ids = random.sample(range(REAL_FILES * ROWS_PER_FILE), rows)
    table.refresh().stage(upserts=pa.table({"id": ids, "value": [1] * rows}))


def stage_and_resolve(table: tf.Table, rows: int) -> None:
    stage_rows(table, rows)
    resolve(table)


def cycle(table: tf.Table, rows: int) -> None:
    report = resolve(table)
    assert report.index == "current", report.index
    assert report.deleted_rows == rows


def append_one(table: tf.Table) -> None:
    like = planted_file(table.state.metadata.location + "/data", _LIKE, 0)
    commit(table.environment, table.identifier,
           Changeset(kind=CommitKind.APPEND, branch=ASIDE, added_data_files=(like,)))  # fmt: skip


_LIKE = DataFile(
    content=FileContent.DATA,
    file_path="",
    file_format="PARQUET",
    spec_id=0,
    partition=(),
    record_count=0,
    file_size_in_bytes=0,
    column_sizes={1: 50, 2: 50},
    value_counts={1: 1000, 2: 1000},
    null_value_counts={1: 0, 2: 0},
)


def operations(table: tf.Table, rows: int) -> dict[str, tuple[Callable[[], Any], ...]]:
    """What is done before, uncounted, and what is counted."""
    nothing = lambda: None  # noqa: E731
    return {
        "cycle": (lambda: stage_rows(table, rows), lambda: cycle(table, rows)),
        "idle cycle": (nothing, lambda: resolve(table)),
        "status": (nothing, lambda: read_status(table)),
        "triggers": (
            nothing,
            lambda: figures_of(table.refresh().state, Ledger(), staging="staging", target="main"),
        ),
        "compact plan": (nothing, lambda: compact(table, dry_run=True)),
        "commit": (nothing, lambda: append_one(table)),
        "expire": (lambda: stage_and_resolve(table, 1), lambda: expire(table, EXPIRE)),
        "orphans": (nothing, lambda: remove_orphans(table, dry_run=True)),
    }


def child(warehouse: Path, name: str, rows: int) -> None:
    """One operation in this process: once fresh, then twice more; prints figures as JSON."""
    table, store = opened(warehouse)
    before, counted = operations(table, rows)[name]
    meter = Meter(store)
    if name == "cycle":  # staged by another process
        other = tf.open_catalog("local", warehouse=str(warehouse)).load_table(NAME)
        stage_rows(other, rows)
        table.refresh()
    found = []
    for turn in range(3):
        if turn or name != "cycle":
            before()
        with meter.measured() as figures:
            counted()
        figures["peak MiB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        found.append(figures)
    print(json.dumps({"fresh": found[0], "warm": found[2]}))


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench plans", description=__doc__.split("\n")[0])
    parser.add_argument("--files", type=int, nargs="+", default=[1_000, 30_000, 300_000])
    parser.add_argument("--rows", type=int, default=20)
    parser.add_argument("--operations", nargs="+", default=list(NAMES), choices=NAMES)
    parser.add_argument("--warehouses", type=Path, help="keep the tables here, and use them again")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(Path(options.child[0]), options.child[1], options.rows)
        return
    folder = options.warehouses or Path(tempfile.mkdtemp(prefix="icefold-plans-"))
    try:
        for files in options.files:
            measure(folder / str(files), files, options)
    finally:
        if options.warehouses is None:
            shutil.rmtree(folder, ignore_errors=True)


def measure(warehouse: Path, files: int, options: argparse.Namespace) -> None:
    if not warehouse.exists():
        plant(warehouse, files)
    for name in options.operations:
        words = ["--child", str(warehouse), name, "--rows", str(options.rows)]
        ran = subprocess.run(
            [sys.executable, "-m", "benchmarks.plans", *words], stdout=subprocess.PIPE, check=True
        )
        for when, figures in json.loads(ran.stdout.splitlines()[-1]).items():
            text = ", ".join(f"{value} {what}" for what, value in figures.items())
            print(f"{files:,} files, {name}, {when}: {text}", flush=True)


if __name__ == "__main__":
    main()
