"""Staging as Flink's Iceberg sink writes it, checkpoint by checkpoint, against a dict.

Flink's delta writer keeps an index of what it inserted since the last checkpoint. A change of such
a key deletes the row by its position (a DV on v3, a position delete file before), a change of any
other key by an equality delete in the partition of the row. All of it is one commit.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator

import pyarrow as pa
import pytest

from resolver import resolve
from tableformat.codec.parquet.reader import read_data_file
from tableformat.commit import request
from tableformat.paths import data_file_locations
from tableformat.scan.position_deletes import POSITION_DELETE_SCHEMA
from tableformat.spec.data_file import DataFile, FileContent
from tableformat.write.data_files import write_data_files
from tests.support.staged_tables import Row, StagedTable

KEYS = 30


class FlinkWriter:
    """One sink task; `checkpoint` commits what it has written since the last one."""

    def __init__(self, staged: StagedTable, *, vectors: bool) -> None:
        self.staged, self.vectors = staged, vectors
        self.inserted: list[Row] = []
        self.replaced: set[str] = set()  # notes name versions
        self.current: dict[int, str] = {}
        self.keys: set[int] = set()
        self.number = 0

    def delete(self, key: int) -> None:
        if key in self.current:
            self.replaced.add(self.current.pop(key))
        else:
            self.keys.add(key)

    def upsert(self, key: int, region: str, note: str) -> None:
        self.delete(key)
        self.inserted.append((key, region, note))
        self.current[key] = note

    def checkpoint(self) -> None:
        staged = self.staged
        self.number += 1
        files = staged.data_files(*self.inserted) if self.inserted else []
        deletes: list[DataFile] = []
        if self.keys:
            keys = pa.table({"id": pa.array(sorted(self.keys), pa.int64())})
            spec = staged.table.refresh().spec()
            deletes += staged.equality_deletes(keys, spec=spec)
        gone = {
            file.file_path: [pos for note, pos in self._rows(file) if note in self.replaced]
            for file in files
        }
        gone = {path: positions for path, positions in gone.items() if positions}
        if gone:
            deletes += staged.vectors(gone, files) if self.vectors else self._position_files(gone)
        summary = {
            "flink.job-id": "job",
            "flink.operator-id": "sink",
            "flink.max-committed-checkpoint-id": str(self.number),
        }
        if files or deletes:
            staged.commit(data=files, deletes=deletes, summary=summary)
        self.inserted, self.replaced, self.current, self.keys = [], set(), {}, set()

    def _rows(self, file: DataFile) -> Iterator[tuple[str, int]]:
        metadata = self.staged.table.state.metadata
        for batch in read_data_file(
            self.staged.environment.store,
            file,
            schema=metadata.schema(),
            spec=metadata.specs()[file.spec_id],
            positions=True,
        ):
            yield from zip(
                batch.column("note").to_pylist(), batch.column("_pos").to_pylist(), strict=True
            )

    def _position_files(self, gone: dict[str, list[int]]) -> list[DataFile]:
        metadata = self.staged.table.refresh().state.metadata
        rows = pa.table(
            {
                "file_path": [path for path in sorted(gone) for _ in gone[path]],
                "pos": [position for path in sorted(gone) for position in gone[path]],
            }
        )
        files = write_data_files(
            self.staged.environment.store,
            rows,
            schema=POSITION_DELETE_SCHEMA,
            spec=self.staged.global_spec(),
            properties={},
            location_for=data_file_locations(metadata, self.staged.environment.runtime.ids),
        )
        return [file.with_(content=FileContent.POSITION_DELETES) for file in files]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("vectors", [True, False], ids=["vectors", "position files"])
def test_random_checkpoints_of_flink_equal_the_fold(
    tmp_path: object, seed: int, vectors: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not vectors:  # from before the table's upgrade to v3, where they may not be added any more
        monkeypatch.setattr(request, "_check_form", lambda *_, **__: None)
    rng = random.Random(seed)
    staged = StagedTable(tmp_path, partition_by=[] if not vectors else ["bucket(3, id)"])
    writer = FlinkWriter(staged, vectors=vectors)
    state: dict[int, tuple[str, str]] = {}
    for step in range(120):
        key = rng.randrange(KEYS)
        if rng.random() < 0.3:
            writer.delete(key)
            state.pop(key, None)
        else:
            state[key] = (rng.choice(["eu", "us"]), f"v{step}")
            writer.upsert(key, *state[key])
        if rng.random() < 0.15:
            writer.checkpoint()
            if rng.random() < 0.5:
                resolve(staged.table)
                assert staged.published() == Counter((k, *row) for k, row in state.items())
    writer.checkpoint()
    resolve(staged.table)
    assert staged.published() == Counter((k, *row) for k, row in state.items())
    summary = staged.table.state.head("main").summary.additional_properties
    assert summary["flink.max-committed-checkpoint-id"] == str(writer.number)
    plan = staged.table.scan().plan
    assert not any(task.equality_deletes or task.position_deletes for task in plan.tasks)
