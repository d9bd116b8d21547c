"""Bugs other projects had with deletion vectors: group D of docs/guarantees.md.

Rows are read from the files' bytes without the product's code and compared with a dict.
"""

from __future__ import annotations

import errno
import json
import os
import struct
import zlib
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from pyroaring import BitMap64

import tableformat as tf
from resolver import resolve
from resolver.index_check import verify
from tableformat.codec.puffin.deletion_vector import decode_deletion_vector
from tableformat.codec.puffin.dv_file import DeletionVector, write_deletion_vectors
from tableformat.errors import (
    CommitConflictError,
    CorruptDataError,
    FencedError,
    InvalidInputError,
    StoreUnavailableError,
)
from tableformat.scan.reader import BATCH_ROWS
from tests.support.interruptions import interrupt, other_process
from tests.support.raw_rows import raw_rows
from tests.support.row_model import (
    Model,
    assert_history_holds,
    assert_holds,
    head_id,
    listed,
    live_files,
    scanned_rows,
)
from tests.support.staged_tables import BASE, SCHEMA, StagedTable, keys


def vectors(table):
    return [file for file in live_files(table) if file.offset is not None]


def puffins(table):
    return {location for location in listed(table) if location.endswith(".puffin")}


# -- R47 -----------------------------------------------------------------------------------------


RUNS = [
    range(1),
    range(5, 9),
    range(BATCH_ROWS - 3, BATCH_ROWS - 1),
    range(BATCH_ROWS, BATCH_ROWS + 2),
    range(BATCH_ROWS + 90, BATCH_ROWS + 100),
]


@pytest.mark.parametrize("shift", [0, -1], ids=["up to an edge", "across it"])
def test_r47_run_of_deleted_rows_takes_no_neighbour_with_it(tmp_path, shift):
    """Runs at the ends of the file, of a batch and of a 16-bit container."""
    count = BATCH_ROWS + 100
    staged = StagedTable(tmp_path)
    table = staged.table
    columns = {"id": range(count), "region": ["eu"] * count, "note": ["x"] * count}
    table.append(pa.table(columns, schema=SCHEMA))
    before = head_id(table)
    gone = {key + (shift if key >= 9 else 0) for run in RUNS for key in run}
    left = Counter(key for key in range(count) if key not in gone)
    table.stage(deletes=keys(*sorted(gone)))
    resolve(table)
    assert raw_rows(table, ["id"]) == Counter({(key,): 1 for key in left})
    assert ids_of(table) == left
    table.refs.rollback(snapshot_id=before)
    ranges = [(run.start, run.stop) if run.start < 9 else (run.start + shift, run.stop + shift)
              for run in RUNS]  # fmt: skip
    table.delete(" OR ".join(f"id >= {start} AND id < {stop}" for start, stop in ranges))
    assert ids_of(table) == left
    table.refs.rollback(snapshot_id=before)
    table.stage(deletes=keys(count))
    resolve(table)  # the index learns which rows are back; the staged deletes are published again
    assert ids_of(table) == left
    assert verify(table).report.is_sound


def ids_of(table):
    return Counter(table.scan(columns=["id"]).to_arrow()["id"].to_pylist())


# -- R48 -----------------------------------------------------------------------------------------

WRITES = {
    "resolve": resolve,
    "delete": lambda table: table.delete("id < 5"),
    "delete by copy": lambda table: table.delete("id < 5", mode="copy-on-write"),
    "update": lambda table: table.update({"note": "'new'"}, "id < 5"),
    "update by copy": lambda table: table.update({"note": "'new'"}, "id < 5", mode="copy-on-write"),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_r48_clean_up_of_a_failed_write_spares_the_data_file_it_deletes_from(staged, write):
    """The entry of a vector names two files: its own, and the data file that it is for."""
    staged.table.delete("id = 19")  # a vector that is merged and replaced
    staged.table.stage(upserts=staged.rows((1, "eu", "new")), deletes=keys(2))
    expected, before = Counter(BASE[:19]), listed(staged.table)
    written: set[str] = set()

    def fail() -> None:
        written.update(listed(staged.table) - before)
        raise FencedError("a newer holder has committed")

    interrupt(staged.table, "commit.before_swap", fail)
    with pytest.raises(FencedError):
        write(staged.table)
    assert any("/data/" in location for location in written)
    assert listed(staged.table) == before
    assert_holds(staged.table, expected)
    write(staged.table)
    assert raw_rows(staged.table) != expected


# -- R49 -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["fsync", "link"])
@pytest.mark.parametrize(
    ("suffix", "write"),
    [
        ("-dvs.puffin", "resolve"),
        ("-dvs.puffin", "delete"),
        (".parquet", "update"),
        (".parquet", "delete by copy"),
    ],
)
def test_r49_file_that_could_not_be_closed_is_never_committed(
    tmp_path, monkeypatch, suffix, write, step
):
    """On a real disk: the last bytes do not make it, or the file does not get its name."""
    catalog = tf.open_catalog("local", warehouse=str(tmp_path))
    table = catalog.create_table("t.rows", SCHEMA, primary_key=["id"])
    rows = pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in BASE], SCHEMA)
    table.append(rows)
    table.stage(deletes=keys(0, 1, 2, 3, 4))
    before = head_id(table)
    _fail_to_close(monkeypatch, suffix, step)
    with pytest.raises(StoreUnavailableError):
        WRITES[write](table)
    assert head_id(table) == before
    monkeypatch.undo()
    assert_holds(table, Counter(BASE))
    WRITES[write](table)
    assert {row for row in raw_rows(table) if row[2] == "base"} == set(BASE[5:])


def _fail_to_close(monkeypatch, suffix, step):
    link, fsync = os.link, os.fsync

    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    def failing_fsync(descriptor):
        name = str(Path(f"/proc/self/fd/{descriptor}").readlink())
        return fail() if f"{suffix}." in name else fsync(descriptor)

    def failing_link(source, target):
        return fail() if str(target).endswith(suffix) else link(source, target)

    monkeypatch.setattr(os, step, failing_fsync if step == "fsync" else failing_link)


# -- R50 -----------------------------------------------------------------------------------------


def test_r50_statement_and_resolver_never_bring_back_each_others_deleted_rows(staged):
    """Two ways to delete from one data file, each in the middle of the other."""
    table, model = staged.table, Model().upsert(*BASE)
    other = other_process(table)
    history = {head_id(table): model.rows}

    def note_down(*gone):
        history[head_id(table)] = model.drop(*gone).rows

    def resolve_beside() -> None:
        other.stage(deletes=keys(3, 4))
        resolve(other)
        note_down(3, 4)

    interrupt(table, "rowlevel.before_commit", resolve_beside)
    with pytest.raises(CommitConflictError):
        table.delete("id IN (5, 6)")
    table.delete("id IN (5, 6)")
    note_down(5, 6)

    def delete_beside() -> None:
        other.delete("id IN (7, 8)")
        note_down(7, 8)

    table.stage(deletes=keys(9, 10))
    interrupt(table, "resolve.after_dv_write", delete_beside)
    resolve(table)
    note_down(9, 10)
    table.delete("id = 11")
    note_down(11)
    assert len(vectors(table)) == 1
    assert_holds(table, model)
    assert len(history) == 6
    assert_history_holds(table, history)
    assert verify(table).report.is_sound


# -- R51 -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("branch", ["main", "staging"])
@pytest.mark.parametrize("has_vector", [True, False], ids=["beside a vector", "alone"])
def test_r51_v2_position_delete_on_a_v3_table_never_reports_success(staged, branch, has_vector):
    if has_vector:
        staged.table.delete("id = 0")
    before = staged.table.refresh().metadata_location
    [data] = [task.entry.data_file for task in staged.table.scan().plan.tasks]
    file = staged.position_deletes({data.file_path: [5]}, [data])
    with pytest.raises(InvalidInputError, match="vector"):
        staged.commit(branch=branch, deletes=[file])
    assert staged.table.refresh().metadata_location == before
    assert_holds(staged.table, Counter(BASE[has_vector:]))


# -- R54 -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("placement", ["packed", "per-file"])
def test_r54_delete_that_hits_no_row_leaves_no_puffin_file(staged, placement):
    table = staged.table.set_properties({"icefold.dv-placement": placement})
    table.delete("id = 999 OR note = 'nothing'")
    table.update({"note": "'x'"}, "id < 0")
    table.stage(deletes=keys(777, 888), upserts=staged.rows((30, "eu", "new")))
    resolve(table)
    nothing = [DeletionVector(task.entry.data_file, BitMap64()) for task in table.scan().plan.tasks]
    given = write_deletion_vectors(
        staged.environment.store,
        nothing,
        location_for=lambda: f"{table.state.metadata.location}/data/none-dvs.puffin",
        placement=placement,
    )
    assert (given, puffins(table), vectors(table)) == ([], set(), [])
    assert_holds(table, Counter([*BASE, (30, "eu", "new")]))


# -- R55 -----------------------------------------------------------------------------------------

MAGIC = bytes.fromhex("d1d33964")


def blob_of(vector: bytes) -> bytes:
    """A whole blob, with a length and a checksum that are right."""
    body = MAGIC + vector
    return struct.pack(">i", len(body)) + body + struct.pack(">I", zlib.crc32(body))


def puffin_of(blob: bytes, path: str, size: int) -> bytes:
    """A Puffin file of `size` bytes around one blob of two positions, made by hand."""
    entry = {
        "type": "deletion-vector-v1", "fields": [2147483645], "snapshot-id": -1,
        "sequence-number": -1, "offset": 4, "length": len(blob),
        "properties": {"referenced-data-file": path, "cardinality": "2"},
    }  # fmt: skip
    room = size - len(blob) - 20  # three times PFA1, the length, the flags
    footer = json.dumps({"blobs": [entry]}, separators=(",", ":")).encode().ljust(room)
    tail = struct.pack("<i4s4s", len(footer), bytes(4), b"PFA1")
    return b"PFA1" + blob + b"PFA1" + footer + tail


def undamaged(blob: bytes) -> bytes:
    return blob


def other_rows(blob: bytes) -> bytes:
    """The last position flipped from 5 to 7: the same cardinality, another row."""
    damaged = bytearray(blob)
    assert damaged[-6] == 5
    damaged[-6] = 7
    return bytes(damaged)


def other_checksum(blob: bytes) -> bytes:
    return blob[:-1] + bytes([blob[-1] ^ 1])


def endless_count(blob: bytes) -> bytes:
    return blob_of(struct.pack("<q", 2**31 - 1) + blob[16:-4])


def far_key(blob: bytes) -> bytes:
    return blob_of(blob[8:16] + struct.pack("<I", 1 << 22) + blob[20:-4])


@pytest.mark.parametrize("is_framed", [True, False], ids=["in Puffin", "bare"])
@pytest.mark.parametrize(
    "damage",
    [undamaged, other_rows, other_checksum, endless_count, far_key],
    ids=lambda each: each.__name__,
)
def test_r55_damaged_vector_never_decides_which_rows_are_read(staged, damage, is_framed):
    """The file keeps its size, and all of it that is not damaged is right."""
    table, store = staged.table, staged.environment.store
    table.delete("id IN (1, 5)")
    [vector] = vectors(table)
    original = store.get(vector.path)
    blob = damage(original[vector.offset : vector.offset + vector.size])
    size = len(original)
    framed = puffin_of(blob, vector.referenced, size) if is_framed else blob.ljust(size, b"\0")
    assert len(framed) == size
    table.stage(deletes=keys(6))
    before = table.refresh().metadata_location
    _replace(store, vector.path, framed)
    if is_framed and damage is undamaged:
        assert scanned_rows(table) == Counter(row for row in BASE if row[0] not in {1, 5})
    else:
        for use in (scanned_rows, resolve, lambda table: table.delete("id = 7")):
            with pytest.raises(CorruptDataError, match=vector.path):
                use(table)
        assert table.refresh().metadata_location == before
    _replace(store, vector.path, original)
    resolve(table)
    assert_holds(table, Counter(row for row in BASE if row[0] not in {1, 5, 6}))


def _replace(store, location, data):
    store.delete([location])
    store.put(location, data)


def test_r55_far_key_never_costs_memory_for_the_keys_before_it():
    """32 bytes with key 2**22: others built four million bitmaps from them."""
    position = (1 << 22) << 32
    vector = BitMap64([position]).serialize()
    found = decode_deletion_vector(blob_of(vector), location="x")
    assert list(found) == [position]
    assert len(found.serialize()) == len(vector) < 40
    for count in (2, 2**22, 2**31 - 1, 2**32, -1):
        damaged = struct.pack("<q", count) + vector[8:]
        with pytest.raises(CorruptDataError):
            decode_deletion_vector(blob_of(damaged), location="x")
