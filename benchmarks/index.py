"""Primary-key index: build from Parquet, size, lookups, changes, opening.

Local files. The rows are written as data files of a table with icefold's own writer and read back
with its own reader (page checksums verified), as a rebuild does it.

    scripts/bench index [--rows N] [--key id|random|uuid|text] [--text-bytes N] [--file-rows N]
        [--repeat N] [--threads N]

`id` is a random permutation of 0..N-1, `random` are random 64-bit integers, `uuid` 16 random bytes,
`text` 20 to `--text-bytes` characters, of all lengths.
Times are wall clock, medians of `--repeat` runs with other keys each; processor time follows in
parentheses, since other work on the machine does not disturb it.
"""

from __future__ import annotations

import argparse
import gc
import resource
import statistics
import string
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.types import IcebergType, LongType, NestedField, StringType, UUIDType

from resolver.index.base import Entries, IndexBinding, IndexChanges, IndexedFile
from resolver.index.build import BuildOptions, SourceFile, build_index
from resolver.index.local import LocalIndex
from resolver.index.open import open_index
from resolver.keys import EncodedKeys, KeySchema, encode_keys
from tableformat.codec.parquet.reader import read_data_file
from tableformat.runtime import Runtime
from tableformat.store.arrow_store import ArrowObjectStore
from tableformat.store.locations import AllowedLocations
from tableformat.write.data_files import write_data_files

BATCHES = (10_000, 1_000_000)


@dataclass(frozen=True)
class Times:
    """Medians in milliseconds."""

    wall_ms: float
    cpu_ms: float

    def __str__(self) -> str:
        return f"{self.wall_ms:10,.1f} ms ({self.cpu_ms:,.1f})"


def timed(run: Callable[[int], object], repeat: int) -> Times:
    wall, cpu = [], []
    for number in range(repeat):
        gc.collect()
        started, started_cpu = time.perf_counter(), time.process_time()
        run(number)
        cpu.append((time.process_time() - started_cpu) * 1e3)
        wall.append((time.perf_counter() - started) * 1e3)
    return Times(statistics.median(wall), statistics.median(cpu))


class Table:
    """Generated keys, and their data files."""

    def __init__(
        self, folder: Path, *, rows: int, kind: str, text_bytes: int, file_rows: int
    ) -> None:
        self.rows = rows
        self.file_rows = file_rows
        self.generator = np.random.default_rng(17)
        types: dict[str, IcebergType] = {"uuid": UUIDType(), "text": StringType()}
        key_type = types.get(kind, LongType())
        self.ends = self._texts(text_bytes - 19) if kind == "text" else None
        self.schema = Schema(
            NestedField(1, "id", key_type, required=True),
            NestedField(2, "note", StringType(), required=False),
        )
        self.key = KeySchema.of(self.schema, [1])
        if kind == "id":
            self.words = self.generator.permutation(rows).reshape(-1, 1)
        else:
            width = 2 if kind == "uuid" else 1
            self.words = self.generator.integers(-(2**63), 2**63 - 1, (rows, width))
        self.store = ArrowObjectStore({}, AllowedLocations([f"file://{folder}"]))
        self.key_only = self.schema.select("id")
        self.sources = [self._write(folder, start) for start in range(0, rows, file_rows)]

    def column(self, words: np.ndarray) -> pa.Array:
        if self.ends is not None:
            numbers = pa.array(words[:, 0] % 10**18 + 10**18).cast(pa.string())
            return pc.binary_join_element_wise(
                numbers, self.ends.take(pa.array(words[:, 0] % len(self.ends))), ""
            )
        if words.shape[1] == 1:
            return pa.array(np.ascontiguousarray(words[:, 0]))
        data = pa.py_buffer(np.ascontiguousarray(words))
        return pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), len(words), [None, data])

    def _texts(self, length_max: int) -> pa.Array:
        lengths = self.generator.integers(1, length_max + 1, 4_096).tolist()
        letters = self.generator.choice([*string.ascii_lowercase], (len(lengths), length_max))
        return pa.array(["".join(row[:n]) for row, n in zip(letters, lengths, strict=True)])

    def some_keys(self, count: int) -> EncodedKeys:
        """Different keys of the table, in random order."""
        rows = self.generator.choice(self.rows, count, replace=False)
        return encode_keys([self.column(self.words[rows])], self.key)

    def absent_keys(self, count: int) -> EncodedKeys:
        words = self.generator.integers(2**61, 2**62, (count, self.words.shape[1]))
        return encode_keys([self.column(words)], self.key)

    def _write(self, folder: Path, start: int) -> SourceFile:
        words = self.words[start : start + self.file_rows]
        note = pa.array(np.arange(len(words)) % 1000).cast(pa.string())
        rows = pa.table({"id": self.column(words), "note": note})
        location = f"file://{folder}/data/{start}.parquet"
        (file,) = write_data_files(
            self.store,
            rows,
            schema=self.schema,
            spec=UNPARTITIONED_PARTITION_SPEC,
            properties={"write.target-file-size-bytes": str(1 << 40)},
            location_for=lambda _: location,
        )
        read: Callable[[], Iterator[pa.RecordBatch]] = partial(
            read_data_file,
            self.store,
            file,
            schema=self.key_only,
            spec=UNPARTITIONED_PARTITION_SPEC,
            positions=True,
        )
        return SourceFile(IndexedFile(file_path=location, spec_id=0), len(words), read)


def size_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def report(what: str, value: object, note: str = "") -> None:
    print(f"{what:34}{value!s:>32}  {note}", flush=True)


def bench_build(folder: Path, table: Table, binding: IndexBinding, threads: int) -> LocalIndex:
    started, cpu = time.perf_counter(), time.process_time()
    index = build_index(
        folder,
        binding,
        table.key,
        table.sources,
        runtime=Runtime(),
        options=BuildOptions(threads=threads),
    )
    seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu
    times = Times(seconds * 1e3, cpu_seconds * 1e3)
    rate = (
        f"{table.rows / seconds / 1e6:.2f} M keys/s, {table.rows / cpu_seconds / 1e6:.2f} M/cpu-s"
    )
    report("build", times, f"{rate}, {index.shard_count} shards")
    report("size", f"{size_bytes(folder) / table.rows:.2f} bytes/key")
    return index


def bench_lookups(index: LocalIndex, table: Table, count: int, repeat: int, note: str) -> None:
    keys = [table.some_keys(count) for _ in range(repeat)]
    found = timed(lambda i: len(index.lookup(keys[i])), repeat)
    report(f"lookup {count:,} keys{note}", found)


def bench_change(
    index: LocalIndex, table: Table, binding: IndexBinding, count: int, repeat: int
) -> None:
    """An upsert cycle: the keys' rows go, one new row each comes."""
    keys = [table.some_keys(count) for _ in range(repeat)]
    rows = np.zeros(count, dtype=np.int32), np.arange(count, dtype=np.int64)
    prepared = []

    def prepare(number: int) -> None:
        prepared.append(
            index.prepare(
                IndexChanges(
                    added_files=(IndexedFile(file_path=f"{count}-{number}", spec_id=0),),
                    removed_keys=(keys[number],),
                    put=(Entries(keys[number], *rows),),
                )
            )
        )

    def apply(number: int) -> None:
        index.apply(prepared[number], binding.at(snapshot_id=number, sequence_number=number))

    preparing, applying = [], []
    for number in range(repeat):
        preparing.append(timed(partial(_ignoring, prepare, number), 1))
        applying.append(timed(partial(_ignoring, apply, number), 1))
    for what, times in (("prepare", preparing), ("apply", applying)):
        wall = statistics.median(t.wall_ms for t in times)
        report(f"{what} {count:,} upserts", Times(wall, statistics.median(t.cpu_ms for t in times)))


def _ignoring(run: Callable[[int], None], number: int, _: int) -> None:
    run(number)


def bench_scan(index: LocalIndex) -> None:
    entries = 0

    def scan(_: int) -> None:
        nonlocal entries
        entries = sum(map(len, index.entries()))

    times = timed(scan, 1)
    report("read all entries", times, f"{entries / times.wall_ms / 1e3:.2f} M/s")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=float, default=1e7)
    parser.add_argument("--key", choices=["id", "random", "uuid", "text"], default="id")
    parser.add_argument("--text-bytes", type=int, default=200)
    parser.add_argument("--file-rows", type=int, default=1_000_000)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    rows = int(options.rows)
    with tempfile.TemporaryDirectory(prefix="icefold-bench-") as name:
        folder = Path(name)
        (folder / "data").mkdir()
        table = Table(
            folder,
            rows=rows,
            kind=options.key,
            text_bytes=options.text_bytes,
            file_rows=options.file_rows,
        )
        print(f"{rows:,} rows, key {options.key}, {len(table.sources)} files", flush=True)
        binding = IndexBinding(
            table_uuid="bench",
            branch="main",
            key_fingerprint=table.key.fingerprint,
            snapshot_id=None,
            sequence_number=0,
        )
        before = peak_mib()
        bench_build(folder / "index", table, binding, options.threads).close()
        report("peak memory", f"{peak_mib():,.0f} MiB", f"{before:,.0f} MiB before the build")
        opening = timed(lambda _: _open(folder / "index", binding).close(), options.repeat)
        report("open and close", opening)
        with _open(folder / "index", binding) as index:
            bench_lookups(index, table, min(BATCHES[0], rows), 1, ", cache empty")
            for count in BATCHES:
                bench_lookups(index, table, min(count, rows), options.repeat, "")
            absent = table.absent_keys(BATCHES[1])
            report("lookup 1,000,000 absent keys", timed(lambda _: index.lookup(absent), 3))
            bench_scan(index)
            for count in BATCHES:
                bench_change(index, table, binding, min(count, rows), options.repeat)
            for count in BATCHES:
                bench_lookups(index, table, min(count, rows), options.repeat, " after changes")
        report("size after changes", f"{size_bytes(folder / 'index') / rows:.2f} bytes/key")
        report("peak memory", f"{peak_mib():,.0f} MiB")


def _open(folder: Path, binding: IndexBinding) -> LocalIndex:
    index = open_index(folder, binding, runtime=Runtime()).index
    assert index is not None
    return index


if __name__ == "__main__":
    main()
