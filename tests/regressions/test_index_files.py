"""Bugs other projects had with index files and large delete files: R83, R84 and R86 of group G."""

from __future__ import annotations

import fcntl
import io
import random
import shutil
import signal
import subprocess
import sys
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from resolver import resolve
from resolver.index_check import verify
from resolver.index_keeper import index_folder
from tableformat.errors import (
    StoreUnavailableError,
)
from tableformat.spec.data_file import DataFile, FileContent
from tests.support.interruptions import fail_with, interrupt
from tests.support.row_model import Model, assert_holds, head_id, scanned_rows
from tests.support.staged_tables import BASE, keys

# -- R83 -----------------------------------------------------------------------------------------


def shard_behind(folder, older):
    """Keys are at an older state than the dictionary, as column families were."""
    [new], [old] = (each.glob("gen-*/runs") for each in (folder, older))
    shutil.rmtree(new)
    shutil.copytree(old, new)


def dictionary_behind(folder, older):
    [new], [old] = (each.glob("gen-*/files") for each in (folder, older))
    shutil.rmtree(new)
    shutil.copytree(old, new)


def hole_in_the_manifest(folder, _older):
    for path in folder.glob("gen-*/files/MANIFEST-*"):
        path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])


def hole_in_the_log(folder, _older):
    for path in folder.glob("gen-*/*/*.log"):
        path.write_bytes(b"\0" * 100)


def nothing(_folder, _older):
    """A log that is valid must not be rejected either."""


@pytest.mark.parametrize(
    "crash",
    [shard_behind, dictionary_behind, hole_in_the_manifest, hole_in_the_log, nothing],
    ids=lambda each: each.__name__,
)
def test_r83_index_after_a_crash_never_forgets_a_key(staged, tmp_path, crash):
    table, model = staged.table, Model().upsert(*BASE)
    resolve_one(staged, model, 100)
    folder = index_folder(table.environment, table.state, "main")
    shutil.copytree(folder, tmp_path / "older")
    resolve_one(staged, model, 101)
    crash(folder, tmp_path / "older")
    table.stage(deletes=keys(100, 101, 3))
    how = resolve(table).index
    # A dictionary without its last change is behind, and its runs may still be there.
    behind = {dictionary_behind, hole_in_the_manifest, hole_in_the_log}
    assert how == {nothing: "current"}.get(crash, how if crash in behind else "built")
    assert_holds(table, model.drop(100, 101, 3))
    assert verify(table).report.is_sound


def resolve_one(staged, model, key):
    staged.table.stage(upserts=staged.rows((key, "us", "new"), (1, "us", f"{key}")))
    model.upsert((key, "us", "new"), (1, "us", f"{key}"))
    return resolve(staged.table)


def test_r83_full_disk_never_stops_the_cycles_nor_loses_a_key(staged):
    """Cycles that cannot write the index publish; the first one that can catches up."""
    table, model = staged.table, Model().upsert(*BASE)
    resolve_one(staged, model, 100)
    error = StoreUnavailableError("No space left on device")
    for key in (101, 102, 103):
        interrupt(table, "resolve.after_prepare", fail_with(error))
        assert resolve_one(staged, model, key).staged_snapshots == 1
        assert_holds(table, model)
    table.stage(deletes=keys(100, 101, 102, 103))
    assert resolve(table).index == "followed"
    assert_holds(table, model.drop(100, 101, 102, 103))
    assert verify(table).report.is_sound


# -- R84 -----------------------------------------------------------------------------------------

HOLDER = """
import fcntl, sys, time
held = [open(path, "r+") for path in sys.argv[1:]]
for file in held:
    fcntl.flock(file, fcntl.LOCK_EX)
    fcntl.lockf(file, fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(600)
"""


def test_r84_lock_files_of_a_killed_process_never_keep_the_next_one_out(staged):
    table, model = staged.table, Model().upsert(*BASE)
    resolve_one(staged, model, 100)
    folder = index_folder(table.environment, table.state, "main")
    locks = [str(path) for path in folder.rglob("LOCK")]
    assert len(locks) == 2  # the folder's own, and the dictionary's
    table.stage(deletes=keys(100))
    before = head_id(table)
    holder = subprocess.Popen(
        [sys.executable, "-S", "-c", HOLDER, *locks], stdout=subprocess.PIPE, text=True
    )
    with holder:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(StoreUnavailableError, match="in use"):
            resolve(table)
        assert head_id(table) == before
        holder.send_signal(signal.SIGKILL)
    assert resolve(table).index == "current"
    assert_holds(table, model.drop(100))


def test_r84_second_opener_in_the_same_process_never_harms_the_first(staged):
    table, model = staged.table, Model().upsert(*BASE)
    resolve_one(staged, model, 100)
    table.stage(deletes=keys(100))
    folder = index_folder(table.environment, table.state, "main")
    with (folder / "LOCK").open("r+") as first:
        fcntl.flock(first, fcntl.LOCK_EX)
        with pytest.raises(StoreUnavailableError, match="in use"):
            resolve(table)
    resolve(table)
    assert_holds(table, model.drop(100))


def test_r84_unfinished_files_never_keep_the_index_from_opening(staged):
    """What a crash leaves behind: a prepared change, a build, an SST that was being written."""
    table, model = staged.table, Model().upsert(*BASE)
    resolve_one(staged, model, 100)
    folder = index_folder(table.environment, table.state, "main")
    [generation] = folder.glob("gen-*")
    for place in (generation / "pending" / "x", folder / "build" / "shard-0000"):
        place.mkdir(parents=True)
        (place / "0.sst").write_bytes(b"half an")
    shutil.copytree(generation, folder / "gen-unfinished")
    (generation / "files" / "999999.sst").write_bytes(b"half an SST")
    (generation / "runs" / "x-0000.run").write_bytes(b"half a run")
    table.stage(deletes=keys(100))
    assert resolve(table).index == "current"
    assert_holds(table, model.drop(100))
    assert sorted(path.name for path in folder.glob("gen-*")) == [generation.name]
    assert verify(table).report.is_sound


# -- R86 -----------------------------------------------------------------------------------------

PAYLOAD_BYTES = 1024
DELETED = 20_000


class CountingFile(io.BytesIO):
    """Counts the bytes that are read."""

    read_bytes = 0

    def read(self, size=-1):
        data = super().read(size)
        CountingFile.read_bytes += len(data)
        return data


@pytest.mark.parametrize("use", ["scan", "resolve"])
def test_r86_equality_delete_file_is_never_loaded_whole(staged, monkeypatch, use):
    """Whole rows, as some writers give them: the key is two per cent of the file."""
    table, store = staged.table, staged.environment.store
    fields = [
        pa.field("id", pa.int64(), False, {"PARQUET:field_id": "1"}),
        pa.field("note", pa.binary(), True, {"PARQUET:field_id": "3"}),
    ]
    source = random.Random(86)
    columns = [range(5, 5 + DELETED), [source.randbytes(PAYLOAD_BYTES) for _ in range(DELETED)]]
    sink = pa.BufferOutputStream()
    pq.write_table(
        pa.table(columns, schema=pa.schema(fields)), sink, row_group_size=2000, compression="none"
    )
    data = sink.getvalue().to_pybytes()
    location = f"{table.state.metadata.location}/data/wide-eq-deletes.parquet"
    store.put(location, data)
    file = DataFile(
        content=FileContent.EQUALITY_DELETES,
        file_path=location,
        file_format="PARQUET",
        spec_id=0,
        partition=(),
        record_count=DELETED,
        file_size_in_bytes=len(data),
        equality_ids=(1,),
    )
    staged.commit(deletes=[file])
    table.refresh()
    opened = store.open_input

    def open_input(place):
        return pa.PythonFile(CountingFile(data), "r") if place == location else opened(place)

    monkeypatch.setattr(store, "open_input", open_input)
    monkeypatch.setattr(CountingFile, "read_bytes", 0)
    pool = pa.proxy_memory_pool(pa.default_memory_pool())
    before = pa.default_memory_pool()
    pa.set_memory_pool(pool)
    try:
        if use == "scan":
            assert scanned_rows(table, branch="staging") == Counter(BASE[:5])
        else:
            resolve(table)
    finally:
        pa.set_memory_pool(before)
    if use == "resolve":
        assert_holds(table, Counter(BASE[:5]))
    assert 0 < CountingFile.read_bytes < len(data) / 20
    assert 0 < pool.max_memory() < len(data) / 4
