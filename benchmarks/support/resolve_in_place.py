"""Equality deletes that a writer left on `main`, resolved in place: v2 beside v3."""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.table import Table as Grid

import tableformat as tf
from benchmarks.support.peers import folder_bytes
from benchmarks.support.resolve_tables import LOAD_ROWS, SCHEMA, TABLE, rows_of
from resolver import resolve
from tableformat.commit.changeset import Changeset, CommitKind
from tableformat.commit.engine import commit
from tableformat.paths import equality_delete_locations
from tableformat.write.equality_deletes import write_equality_deletes

BAR = 1.5
VERSIONS = (3, 2)


def bench_in_place(console: Console, rows: int, deletes: int, repeat: int) -> float:
    """Rounds on a table of each version in turn, each of `deletes` keys that still have a row.

    Returns:
        The median CPU time of v2, as a multiple of that of v3.
    """
    if deletes * repeat >= rows:
        repeat = max(1, (rows - 1) // deletes)
    grid = Grid(
        "format", "s", "CPU s", "MB", "delete files", "x of v3 (CPU)",
        title=f"in place, {deletes:,} equality deletes on {rows:,} rows, {repeat} times",
    )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="icefold-bench-") as temporary:
        tables = {v: _Written(Path(temporary) / f"v{v}", rows, v) for v in VERSIONS}
        keys = np.random.default_rng(1).permutation(rows - 1)[: deletes * repeat] + 1
        runs: dict[int, list[tuple[float, float, float]]] = {v: [] for v in VERSIONS}
        for batch in np.split(keys, repeat):
            for version, table in tables.items():
                runs[version].append(table.round(batch))
        medians = {
            v: [statistics.median(one) for one in zip(*runs[v], strict=True)] for v in VERSIONS
        }
        for version, (seconds, cpu, size) in medians.items():
            files = tables[version].table.inspect.delete_files().num_rows
            times = cpu / medians[3][1]
            grid.add_row(
                f"v{version}", f"{seconds:.2f}", f"{cpu:.2f}", f"{size / 1e6:.2f}",
                str(files), f"{times:.2f}",
            )  # fmt: skip
    console.print(grid)
    found = medians[2][1] / medians[3][1]
    console.print(f"v2 takes {found:.2f} times the CPU of v3; bar: at most {BAR}")
    return found


class _Written:
    """A table of one version, its index built by a first cycle."""

    def __init__(self, warehouse: Path, rows: int, version: int) -> None:
        catalog = tf.open_catalog("local", warehouse=str(warehouse))
        self.warehouse = warehouse
        self.table = catalog.create_table(
            TABLE, SCHEMA, primary_key=["id"], properties={"format-version": str(version)}
        )
        for start in range(0, rows, LOAD_ROWS):
            self.table.append(rows_of(np.arange(start, min(start + LOAD_ROWS, rows)), seed=start))
        self.round(np.array([0]))

    def round(self, keys: np.ndarray) -> tuple[float, float, float]:
        """Commit equality deletes to `main`; wall and CPU seconds and bytes of the cycle."""
        state, environment = self.table.refresh().state, self.table.environment
        files = write_equality_deletes(
            environment.store,
            pa.table({"id": pa.array(keys, pa.int64())}),
            schema=state.metadata.schema(),
            equality_ids=[1],
            spec=state.metadata.spec(),
            properties={},
            location_for=equality_delete_locations(state.metadata, environment.runtime.ids),
        )
        change = Changeset(kind=CommitKind.ROW_DELTA, added_delete_files=tuple(files))
        commit(environment, self.table.identifier, change)
        before = folder_bytes(self.warehouse / "bench")
        begin, cpu = time.perf_counter(), time.process_time()
        report = resolve(self.table, staging="main", target="main")
        seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
        assert report.deleted_rows == len(keys), (report.deleted_rows, len(keys))
        return seconds, cpu, folder_bytes(self.warehouse / "bench") - before
