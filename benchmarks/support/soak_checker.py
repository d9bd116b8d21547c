"""The checker of a soak, a process of its own that reads with DuckDB only.

1. Every published snapshot equals the model at its staging marker: counts and sums of all rows,
   and row by row every so often.
2. After each run of a task that deletes or rewrites: every file that the current metadata reaches
   exists with its recorded size.
3. Every few seconds: how much there is of everything.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import duckdb
import numpy as np

from benchmarks.support.duckdb_reader import open_duckdb
from benchmarks.support.soak_model import SUMS_SQL, Stream

MARKER = "equality-convert-staging-snapshot"
ROW_BY_ROW_EVERY = 25
SAMPLE_S = 2.0
DELETING = ("compact", "rewrite-vectors", "expire", "rewrite-manifests", "remove-orphans")


class Checker:
    def __init__(self, folder: Path, table_folder: Path, pointer: Any, stream: Stream) -> None:
        self.folder = folder
        self.table_folder = table_folder
        self.pointer = pointer
        self.model = stream.model()
        self.duck = open_duckdb(folder / "duckdb-extensions")
        self.duck.execute("SET threads=1")
        self.staged: dict[int, int] = {}
        self.runs: list[dict[str, Any]] = []
        self.staged_log = LogTail(folder / "staged.log")
        self.run_log = LogTail(folder / "runs.jsonl")
        self.last_checked = 0  # sequence number
        self.last_id = 0
        self.checked = self.checked_row_by_row = self.skipped = 0
        self.reached: dict[str, list[tuple[str, int]]] = {}
        self.problems: list[str] = []
        self.samples: list[dict[str, float]] = []
        self.reach_checks = 0
        self.freshness: dict[int, int] = {}

    def step(self) -> bool:
        """One round; whether anything was new."""
        self._read_logs()
        metadata = self._metadata()
        fresh = [
            each
            for each in _history(metadata, "main")
            if each["sequence-number"] > self.last_checked
        ]
        if (
            fresh
            and self.last_checked
            and fresh[0].get("parent-snapshot-id")
            not in {
                self.last_id,
                None,
            }
        ):
            self.skipped += 1
        for snapshot in fresh:
            self._check_snapshot(snapshot)
            self.last_checked = snapshot["sequence-number"]
            self.last_id = snapshot["snapshot-id"]
        return bool(fresh)

    def reach(self) -> None:
        """Every file that current metadata needs is there."""
        missing = self._missing()
        # Expiry may have run in between: only what newer metadata still needs is missed.
        if missing:
            missing &= self._missing()
        self.reach_checks += 1
        self.problems += [f"missing: {path}" for path in sorted(missing)[:5]]

    def sample(self) -> None:
        metadata = self._metadata()
        head = _history(metadata, "main")[-1]
        manifests = self._rows("SELECT manifest_path FROM read_avro(?)", head["manifest-list"])
        summary = head["summary"]
        files = [p for p in self.table_folder.rglob("*") if p.is_file()]
        self.samples.append(
            {
                "at_s": time.time(),
                "data_files": int(summary.get("total-data-files", 0)),
                "dvs": int(summary.get("total-delete-files", 0)),
                "dv_share": int(summary.get("total-position-deletes", 0))
                / max(int(summary["total-records"]), 1),
                "manifests": len(manifests),
                "snapshots": len(metadata["snapshots"]),
                "metadata_json_kb": Path(_path(self.location)).stat().st_size / 1e3,
                "metadata_mb": _size(p for p in files if p.parent.name == "metadata") / 1e6,
                "table_mb": _size(files) / 1e6,
                "objects": len(files),
            }
        )

    def _read_logs(self) -> None:
        self._read_staged()
        for line in self.run_log.new_lines():
            run = json.loads(line)
            self.runs.append(run)
            if run["task"] in DELETING and run["outcome"] == "done":
                self.reach()

    def _read_staged(self) -> None:
        for line in self.staged_log.new_lines():
            snapshot_id, number = line.split()
            self.staged[int(snapshot_id)] = int(number)

    def _metadata(self) -> dict[str, Any]:
        for _ in range(20):
            self.location = self.pointer()
            try:
                found: dict[str, Any] = json.loads(Path(_path(self.location)).read_bytes())
                return found
            except FileNotFoundError:  # replaced and deleted in between
                time.sleep(0.02)
        self.problems.append(f"metadata is gone: {self.location}")
        raise RuntimeError(self.location)

    def _check_snapshot(self, snapshot: dict[str, Any]) -> None:
        summary = snapshot["summary"]
        marker = summary.get(MARKER)
        if marker is not None:
            begin = time.monotonic()
            while int(marker) not in self.staged and time.monotonic() < begin + 10:
                time.sleep(0.02)  # committed, and the writer's line is on its way
                self._read_staged()
            self.model.advance(self.staged[int(marker)])
        oldest = summary.get("icefold.cycle-oldest-staged-ms")
        if oldest is not None:
            self.freshness[snapshot["snapshot-id"]] = snapshot["timestamp-ms"] - int(oldest)
        scan = f"iceberg_scan('{self.location}', snapshot_from_id={snapshot['snapshot-id']})"
        try:
            found = self.duck.execute(f"SELECT {SUMS_SQL} FROM {scan}").fetchone()
            self.checked += 1
            if found != self.model.sums():
                self._problem(snapshot, f"sums {found}, expected {self.model.sums()}")
            if self.checked % ROW_BY_ROW_EVERY == 0:
                self.compare_rows(scan, snapshot)
        except duckdb.Error as error:
            if any(each["snapshot-id"] == snapshot["snapshot-id"]
                   for each in self._metadata()["snapshots"]):  # fmt: skip
                self._problem(snapshot, str(error)[:300])
            else:
                self.skipped += 1

    def compare_rows(self, scan: str, snapshot: dict[str, Any]) -> None:
        found = self.duck.execute(f"SELECT id, value FROM {scan} ORDER BY id").fetchnumpy()
        ids, values = self.model.rows()
        self.checked_row_by_row += 1
        if not (np.array_equal(found["id"], ids) and np.array_equal(found["value"], values)):
            self._problem(snapshot, "rows differ")

    def _problem(self, snapshot: dict[str, Any], text: str) -> None:
        operation = snapshot["summary"].get("operation")
        self.problems.append(f"snapshot {snapshot['snapshot-id']} ({operation}): {text}")

    def _missing(self) -> set[str]:
        metadata = self._metadata()
        missing = set()
        for snapshot in metadata["snapshots"]:
            for path, size in self._reached_by(snapshot, missing):
                file = Path(path)
                if not file.exists() or (size and file.stat().st_size != size):
                    missing.add(path)
        return missing

    def _reached_by(self, snapshot: dict[str, Any], missing: set[str]) -> list[tuple[str, int]]:
        lists = _path(snapshot["manifest-list"])
        found: list[tuple[str, int]] = [(lists, 0)]
        try:
            manifests = self._rows(
                "SELECT manifest_path, manifest_length FROM read_avro(?)", lists, key=lists
            )
            for path, length in manifests:
                found.append((path, length))
                found += self._rows(
                    "SELECT data_file.file_path, data_file.file_size_in_bytes FROM read_avro(?) "
                    "WHERE status < 2", path, key=path
                )  # fmt: skip
        except duckdb.Error as error:
            missing.add(f"{lists} ({str(error)[:120]})")
        return found

    def _rows(self, sql: str, location: str, *, key: str | None = None) -> list[tuple[str, int]]:
        """Rows of an Avro file, paths as local ones; such files never change."""
        if key is not None and key in self.reached:
            return self.reached[key]
        rows = self.duck.execute(sql, [_path(location)]).fetchall()
        found = [(_path(row[0]), row[1] if len(row) > 1 else 0) for row in rows]
        if key is not None:
            self.reached[key] = found
        return found


def _history(metadata: dict[str, Any], branch: str) -> list[dict[str, Any]]:
    by_id = {each["snapshot-id"]: each for each in metadata["snapshots"]}
    chain = []
    current = metadata["refs"][branch]["snapshot-id"]
    while current in by_id:
        chain.append(by_id[current])
        current = by_id[current].get("parent-snapshot-id")
    return chain[::-1]


def _path(location: str) -> str:
    return unquote(location.removeprefix("file://"))


class LogTail:
    """The lines that a growing file has got since the last look; whole ones only."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offset = 0

    def new_lines(self) -> list[str]:
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            file.seek(self.offset)
            data, _, _ = file.read().rpartition(b"\n")
        if not data:
            return []
        self.offset += len(data) + 1
        return data.decode().splitlines()


def _size(paths: Any) -> int:
    total = 0
    for path in paths:
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue
    return total
