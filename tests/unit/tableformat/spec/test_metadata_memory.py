"""What a process keeps of each commit to a table: little, and nothing once it has expired (I27)."""

from __future__ import annotations

import gc
import json
import tracemalloc
from collections.abc import Iterator
from itertools import pairwise
from random import Random
from statistics import median

import pytest
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.update import AddSnapshotUpdate, RemoveSnapshotsUpdate, SetSnapshotRefUpdate

from tableformat.spec.metadata_json import COMPRESSION_CODEC, encode_metadata_file
from tableformat.spec.metadata_update import apply_updates
from tests.support.table_metadata import metadata_of

COMMITS = 200
LOCATION = "memory://warehouse/t/metadata/1.gz.metadata.json"
BRANCHES = ("staging", "main")


@pytest.fixture
def tracing() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


class SnapshotLog:
    """A table of a stream into ten tables: its metadata alone, two branches in turns."""

    def __init__(self, codec: str) -> None:
        self.metadata = metadata_of(0, properties={COMPRESSION_CODEC: codec})
        self.random = Random(7)

    def commit(self, count: int) -> None:
        for number in range(count):
            branch, metadata = BRANCHES[number % 2], self.metadata
            head = metadata.refs.get(branch)
            name = f"snap-{self.random.getrandbits(62)}-1-{self.random.getrandbits(128):032x}.avro"
            snapshot = Snapshot(
                snapshot_id=self.random.getrandbits(62),
                parent_snapshot_id=None if head is None else head.snapshot_id,
                sequence_number=metadata.last_sequence_number + 1,
                timestamp_ms=metadata.last_updated_ms + 500,
                manifest_list=f"s3://warehouse/shop/t/metadata/{name}",
                summary=Summary(Operation.APPEND, **self._properties()),
                schema_id=0,
                first_row_id=metadata.next_row_id,
                added_rows=500,
            )
            self._apply(
                AddSnapshotUpdate(snapshot=snapshot),
                SetSnapshotRefUpdate(
                    ref_name=branch, type="branch", snapshot_id=snapshot.snapshot_id
                ),
            )

    def _properties(self) -> dict[str, str]:
        """1.2 kB, of which 0.1 differ from commit to commit."""
        offsets = {f"pg.public.table_{n}": {"0": self.random.getrandbits(20)} for n in range(10)}
        names = [f"shop.table_{number}" for number in range(10)]
        counts = {f"added-count-{n}": str(self.random.getrandbits(20)) for n in range(16)}
        return {"offsets": json.dumps(offsets), "tables": json.dumps(names), **counts}

    def expire(self, keep: int) -> None:
        gone = [each.snapshot_id for each in self.metadata.snapshots[:-keep]]
        self._apply(RemoveSnapshotsUpdate(snapshot_ids=gone))

    def _apply(self, *updates: object) -> None:
        now_ms = self.metadata.last_updated_ms + 500
        self.metadata = apply_updates(self.metadata, updates, base_location=LOCATION, now_ms=now_ms)
        encode_metadata_file(self.metadata, location=LOCATION)
        assert self.metadata.snapshot_by_id(0) is None  # looks are by an index, which is kept, too


def used_bytes() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


@pytest.mark.usefixtures("tracing")
@pytest.mark.parametrize(("codec", "bytes_max"), [("gzip", 2_500), ("none", 4_000)])
def test_commit_is_kept_once_and_small(codec, bytes_max) -> None:
    log = SnapshotLog(codec)
    log.commit(100)  # what is there once
    before = used_bytes()
    log.commit(COMMITS)
    assert (used_bytes() - before) / COMMITS < bytes_max


@pytest.mark.usefixtures("tracing")
@pytest.mark.parametrize("codec", ["gzip", "none"])
def test_nothing_is_kept_of_expired_commits(codec) -> None:
    log = SnapshotLog(codec)
    used = []
    for _ in range(9):
        log.commit(50)
        log.expire(50)
        used.append(used_bytes())
    grown = [after - before for before, after in pairwise(used[3:])]
    assert median(grown) / 50 < 200, used  # what other threads of the process do comes once
