"""Scans in DuckDB, polars and pandas: every type, nothing held, one line without the library."""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
import uuid
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import tableformat as tf
from tableformat.errors import CorruptDataError, NotFoundError, UnsupportedError
from tests.support.memory_tables import memory_catalog
from tests.support.staged_tables import StagedTable, keys

UUIDS = pa.ExtensionArray.from_storage(
    pa.uuid(), pa.array([uuid.UUID(int=5).bytes, None], pa.binary(16))
)
NANO = 1_700_000_000_123_456_789
COLUMNS: dict[str, pa.Array] = {
    "id": pa.array([1, 2]),
    "exact": pa.array([2**60 + 1, None]),
    "price": pa.array([Decimal("12345678901234567890.12"), None], pa.decimal128(38, 2)),
    "day": pa.array([dt.date(2024, 2, 29), None]),
    "clock": pa.array([dt.time(1, 2, 3, 4), None], pa.time64("us")),
    "local": pa.array([1, None], pa.timestamp("us")),
    "instant": pa.array([1, None], pa.timestamp("us", tz="UTC")),
    "nano": pa.array([NANO, None], pa.timestamp("ns")),
    "nano_instant": pa.array([NANO, None], pa.timestamp("ns", tz="UTC")),
    "unique": UUIDS,
    "fixed": pa.array([b"abc", None], pa.binary(3)),
    "bytes": pa.array([b"", None]),
    "point": pa.array([{"x": 1, "y": "z"}, None]),
    "tags": pa.array([["a", None], None]),
    "counts": pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int64())),
    "moments": pa.array([[NANO], None], pa.list_(pa.timestamp("ns", tz="UTC"))),
}


@pytest.fixture(scope="module")
def scan():
    rows = pa.table(COLUMNS)
    table = memory_catalog().create_table("t.rows", rows.schema, primary_key=["id"])
    table.append(rows)
    return table.scan()


def test_streams_may_be_read_more_than_once(scan):
    assert pa.table(scan).equals(scan.to_arrow())
    assert scan.to_reader().read_all().equals(pa.table(scan))


def test_rows_are_counted_as_they_are_read(tmp_path):
    staged = StagedTable(tmp_path, partition_by=["region"])
    table = staged.table
    table.append(staged.rows(*((i, "eu" if i % 2 else "us", "n") for i in range(10))))
    table.delete("id = 3")
    table.stage(upserts=staged.rows((1, "eu", "x"), (20, "us", "x")), deletes=keys(4))
    for where in (None, "region = 'eu'", "id < 4", "region = 'eu' and id < 4", "id < 0"):
        for options in ({}, {"branch": "staging"}, {"columns": ["note"]}, {"limit": 3}):
            scan = table.scan(where, **options)
            assert scan.count() == scan.to_arrow().num_rows, (where, options)


def test_files_that_metadata_counts_are_not_read(tmp_path):
    staged = StagedTable(tmp_path, partition_by=["region"])
    staged.table.append(staged.rows(*((i, "eu" if i % 2 else "us", "n") for i in range(10))))
    staged.table.delete("id = 3")
    paths = [task.entry.data_file.file_path for task in staged.tasks()]
    staged.environment.store.delete(paths)
    assert staged.table.scan().count() == 9
    assert staged.table.scan("region = 'eu'").count() == 4
    with pytest.raises(NotFoundError):
        staged.table.scan("id < 4").count()


def test_duckdb_has_every_value(scan):
    duckdb = pytest.importorskip("duckdb")
    con = scan.to_duckdb()
    found = con.sql("SELECT id FROM rows WHERE exact = 1152921504606846977").fetchall()
    assert len(found) == 1
    types = {name: kind for name, kind, *_ in con.sql("DESCRIBE rows").fetchall()}
    assert types["price"] == "DECIMAL(38,2)"
    assert types["unique"] == "UUID"
    assert types["nano"] == types["nano_instant"] == "TIMESTAMP_NS"
    assert types["moments"] == "TIMESTAMP_NS[]"
    query = "SELECT epoch_ns(nano), epoch_ns(nano_instant), epoch_ns(moments[1]), * FROM rows"
    first, *_ = con.sql(f"{query} ORDER BY id").fetchall()
    assert first[:3] == (NANO, NANO, NANO)
    assert first[3 + 2] == Decimal("12345678901234567890.12")
    assert first[3 + 9] == uuid.UUID(int=5)
    mine = duckdb.connect()
    assert scan.to_duckdb(mine, view="mine") is mine
    assert mine.sql("SELECT tags, counts, point FROM mine ORDER BY id").fetchall() == [
        (["a", None], {"k": 1}, {"x": 1, "y": "z"}),
        (None, None, None),
    ]


def test_polars_has_every_value_eager_and_lazy(scan):
    pl = pytest.importorskip("polars")
    frame = scan.to_polars()
    assert frame.schema["price"] == pl.Decimal(38, 2)
    assert frame["nano_instant"].cast(pl.Int64).to_list() == [NANO, None]
    assert frame["unique"].to_list() == [uuid.UUID(int=5).bytes, None]
    lazy = scan.to_polars(lazy=True)
    assert lazy.collect().equals(frame)
    assert lazy.filter(pl.col("exact").is_null()).select("id", "day").collect().rows() == [
        (2, None)
    ]
    assert lazy.head(1).select("id").collect().rows() == [(1,)]


def test_pandas_has_every_value(scan):
    pytest.importorskip("pandas")
    back = pa.Table.from_pandas(scan.to_pandas(), preserve_index=False)
    expected = scan.to_arrow()
    assert back.schema.types == expected.schema.types
    assert back.to_pylist() == expected.to_pylist()


@pytest.mark.parametrize(
    ("library", "call"),
    [
        ("duckdb", lambda scan: scan.to_duckdb()),
        ("polars", lambda scan: scan.to_polars()),
        ("polars", lambda scan: scan.to_polars(lazy=True)),
        ("pandas", lambda scan: scan.to_pandas()),
    ],
)
def test_a_missing_library_is_one_line_with_the_extra(scan, monkeypatch, library, call):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(UnsupportedError, match=rf"pip install 'icefold\[{library}\]'") as raised:
        call(scan)
    assert "\n" not in str(raised.value)


MEMORY = """
import resource, sys
import tableformat as tf
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
scan = tf.open_catalog("local", warehouse={warehouse!r}).load_table("t.big").scan()
{prepare}
before = peak()
{read}
print(peak() - before, rows)
"""
READS = {
    "batches": ("", "rows = sum(batch.num_rows for batch in scan.to_batches())"),
    "reader": ("", "rows = sum(batch.num_rows for batch in scan.to_reader())"),
    "duckdb": (
        "import duckdb; con = scan.to_duckdb(); con.sql('SET threads=1')\n"
        "con.sql('SET enable_progress_bar=false')\n"  # it is shown where a query takes long
        "con.sql('SELECT count(*) FROM big WHERE id < 0').fetchall()",
        "[(rows, _)] = con.sql('SELECT count(*), max(length(note)) FROM big').fetchall()",
    ),
    "polars": (
        "import polars as pl; lazy = scan.to_polars(lazy=True)",
        "rows = lazy.select(pl.len()).collect(engine='streaming').item()",
    ),
}
BIG_ROWS, BIG_FILES = 400_000, 4


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory):
    """About 320 MiB decoded, in files that compress well."""
    folder = str(tmp_path_factory.mktemp("warehouse"))
    schema = pa.schema([("id", pa.int64()), ("note", pa.string())])
    table = tf.open_catalog("local", warehouse=folder).create_table(
        "t.big", schema, primary_key=["id"]
    )
    for part in range(BIG_FILES):
        ids = np.arange(BIG_ROWS // BIG_FILES) + part * BIG_ROWS
        notes = pa.array(np.char.zfill(ids.astype(str), 800))
        table.append(pa.table([pa.array(ids), notes], schema=schema))
    return folder


@pytest.mark.slow
@pytest.mark.xdist_group("warehouse of exports")
@pytest.mark.parametrize("how", READS)
def test_reading_a_table_larger_than_the_bound_holds_little_of_it(warehouse, how):
    if how in ("duckdb", "polars"):
        pytest.importorskip(how)
    prepare, read = READS[how]
    code = MEMORY.format(warehouse=warehouse, prepare=prepare, read=read)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    grown_mib, rows = map(int, done.stdout.split())
    assert rows == BIG_ROWS
    assert grown_mib < 200


@pytest.mark.slow
@pytest.mark.xdist_group("warehouse of exports")
def test_damage_found_while_streaming_is_an_error_in_the_library(warehouse):
    pytest.importorskip("duckdb")
    table = tf.open_catalog("local", warehouse=warehouse).load_table("t.big")
    path = table.inspect.data_files()["file_path"][1].as_py().removeprefix("file://")
    with Path(path).open("r+b") as file:
        file.seek(2000)
        file.write(b"\xff" * 64)
    with pytest.raises(Exception, match="location="):
        table.scan().to_duckdb().sql("SELECT sum(length(note)) FROM big").fetchall()
    with pytest.raises(CorruptDataError):
        table.scan().to_arrow()
