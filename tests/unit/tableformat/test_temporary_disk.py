"""What does not fit into memory where there is no room on disk either: one error, nothing left."""

from __future__ import annotations

import resource
import tempfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from tableformat.changelog.buckets import ADDED, ChangeBuckets
from tableformat.errors import StoreUnavailableError
from tableformat.store import bucket_files
from tableformat.store.bucket_files import BucketOutput
from tableformat.temporary_disk import temporary_path
from tableformat.write.ordering import Ordering, SortColumn, ordered

ROWS = pa.record_batch({"id": range(5_000), "v": ["x" * 20] * 5_000})


def spill_changes() -> None:
    with ChangeBuckets(ROWS.schema, [("id",)], buffer_bytes=1_000) as buckets:
        buckets.add(ADDED, ROWS)
        list(buckets.pairs())


def sort() -> None:
    order = Ordering(columns=[SortColumn(path=("v",))])
    batches = [ROWS] * 3
    rows = ordered(order, iter(batches), lambda _: iter(batches), rows=15_000, memory_bytes=1_000)
    assert sum(batch.num_rows for batch in rows) == 15_000


def put_an_object() -> None:
    output = BucketOutput(lambda _data, _size: None)
    try:
        for _ in range(100):
            output.write(b"x" * 10_000)
    finally:
        output.abort()


SPILLS = [spill_changes, sort, put_an_object]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(bucket_files, "_SPOOL_BYTES", 1_000)
    return tmp_path


@pytest.mark.parametrize("spill", SPILLS)
def test_disk_without_room_is_told_and_no_file_is_left(
    spill: Callable[[], None], folder: Path
) -> None:
    spill()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, before[1]))
    try:
        with pytest.raises(StoreUnavailableError, match="temporary folder cannot be used: File"):
            spill()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(folder.iterdir()) == []
    spill()


@pytest.mark.parametrize("spill", [*SPILLS, lambda: temporary_path("x")])
def test_folder_that_is_not_there_is_told(
    spill: Callable[[], None], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(folder / "none"))
    with pytest.raises(StoreUnavailableError, match=r"No such file .*; folder=.*none; make room"):
        spill()
