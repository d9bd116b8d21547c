"""Which engine is chosen, and where the index is then."""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa
import pytest

import resolver
import tableformat as tf
from resolver import resolve
from resolver.engine import SPARK_BYTES_MIN, SPARK_ROWS_MIN, Engine
from resolver.index_check import verify
from resolver.runner import LocalRunner
from resolver.spark_runner import SparkRunner, executor_cache
from tableformat.errors import InvalidInputError, UnsupportedError
from tests.support.s3_server import fresh_bucket, s3_properties
from tests.support.staged_tables import StagedTable

SCHEMA = pa.schema([("id", pa.int64()), ("note", pa.string())])


class OtherRunner(LocalRunner):
    name = "spark"


@pytest.fixture
def staged(tmp_path):
    staged = StagedTable(tmp_path)
    staged.table.append(staged.rows(*((i, "eu", "old") for i in range(50))))
    return staged


def choose(staged, changes, properties=None, *, whole_rows=False, **options):
    if properties:
        staged.table.set_properties(properties)
    metadata = staged.table.refresh().state.metadata
    target = staged.data_files(*((i, "eu", "old") for i in range(50)))
    engine = Engine(spark=OtherRunner(), **options)
    return engine.choose(
        metadata, changes=changes, target=lambda: target, whole_rows=whole_rows
    ).name


def test_small_backlog_stays_in_this_process(staged):
    assert choose(staged, staged.data_files((1, "eu", "new"))) == "local"


@pytest.mark.parametrize("name", [SPARK_ROWS_MIN, SPARK_BYTES_MIN])
def test_backlog_from_the_table_property_on_takes_spark(staged, name):
    files = staged.data_files((1, "eu", "new"), (2, "eu", "new"))
    size = 2 if name == SPARK_ROWS_MIN else files[0].file_size_in_bytes
    assert choose(staged, files, {name: str(size)}, whole_rows=True) == "spark"
    assert choose(staged, files, {name: str(size + 1)}, whole_rows=True) == "local"


def test_columns_that_are_not_read_are_not_counted(staged):
    """Wide rows are published by linking their files: only the keys are read."""
    [file] = staged.data_files(*((key, "eu", "x" * 1_000) for key in range(100)))
    [deletes] = staged.equality_deletes(staged.rows((1, "eu", "x")))
    size = file.column_sizes[1] + deletes.file_size_in_bytes
    assert size < file.file_size_in_bytes
    assert choose(staged, [file, deletes], {SPARK_BYTES_MIN: str(size)}) == "spark"
    assert choose(staged, [file, deletes], {SPARK_BYTES_MIN: str(size + 1)}) == "local"


def test_deletes_on_other_columns_count_the_files_they_are_joined_with(staged):
    rows = staged.rows((1, "eu", "x"))
    by_note = staged.equality_deletes(rows.select(["note"]), ["note"])
    by_key = staged.equality_deletes(rows.select(["id"]))
    assert choose(staged, by_note, {SPARK_ROWS_MIN: "51"}) == "spark"
    assert choose(staged, by_key) == "local"


@pytest.mark.parametrize("name", ["local", "spark"])
def test_named_engine_is_taken_whatever_the_size(staged, name):
    assert choose(staged, [], name=name) == name


@pytest.mark.parametrize("value", ["", "-1", "1.5", "many", "\u0661"])
def test_threshold_that_is_no_number_is_refused(staged, value):
    with pytest.raises(InvalidInputError, match=SPARK_ROWS_MIN):
        choose(staged, [], {SPARK_ROWS_MIN: value})


def test_index_is_built_on_spark_from_the_threshold_on():
    engine = Engine(spark=OtherRunner())
    assert engine.runner_for_rows(10, {SPARK_ROWS_MIN: "11"}).name == "local"
    assert engine.runner_for_rows(11, {SPARK_ROWS_MIN: "11"}).name == "spark"
    assert Engine().runner_for_rows(10**9, {}).name == "local"


def test_unknown_engine_is_refused(staged):
    with pytest.raises(InvalidInputError, match="use auto, local or spark"):
        resolve(staged.table, engine="flink")


def test_spark_without_pyspark_says_what_to_install(staged, monkeypatch):
    staged.table.stage(upserts=staged.rows((1, "eu", "new")))
    monkeypatch.delitem(sys.modules, "resolver.spark_runner")
    monkeypatch.delattr(resolver, "spark_runner")
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(UnsupportedError, match=r"pip install 'icefold\[spark\]'"):
        resolve(staged.table, engine="spark")
    assert resolve(staged.table, engine="auto").engine == "local"


def test_store_inside_this_process_cannot_be_reached_by_executors(staged):
    with pytest.raises(UnsupportedError, match="engine='local'"):
        SparkRunner(object(), staged.environment.store)


def test_executor_keeps_copies_where_the_operator_says(tmp_path):
    assert executor_cache(str(tmp_path), "x") == tmp_path / "x"


# -- the index in shared storage, without Spark ---------------------------------------------------


def table_in(folder: Path, **properties: str):
    catalog = tf.open_catalog("local", warehouse=str(folder / "warehouse"), **properties)
    try:
        return catalog.create_table("t.rows", SCHEMA, primary_key=["id"])
    except tf.AlreadyExistsError:
        return catalog.load_table("t.rows")


def rows(*pairs):
    return pa.Table.from_pylist([{"id": i, "note": note} for i, note in pairs], SCHEMA)


def test_catalog_property_puts_the_index_into_shared_storage(tmp_path, monkeypatch):
    location = f"file://{tmp_path}/warehouse/indexes"
    for number, machine in enumerate(["a", "b", "a"]):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / machine))
        table = table_in(tmp_path, **{"index-location": location})
        table.stage(upserts=rows((1, f"v{number}"), (number + 10, "new")))
        report = resolve(table)
        assert report.index == ("built" if number == 0 else "current")
        check = verify(table)
        assert check.report.is_sound
        assert check.folder.startswith(location)
    assert table.scan(filter="id = 1").to_arrow().to_pylist() == [{"id": 1, "note": "v2"}]
    assert not (tmp_path / "warehouse" / ".icefold" / "index").exists()


def test_index_directory_and_index_location_exclude_each_other(tmp_path):
    table = table_in(tmp_path)
    table.stage(upserts=rows((1, "a")))
    with pytest.raises(InvalidInputError, match="not in both"):
        resolve(table, index_directory=tmp_path, index_location=str(tmp_path))


def test_index_location_outside_the_allowed_places_is_refused(tmp_path):
    table = table_in(tmp_path)
    table.stage(upserts=rows((1, "a")))
    with pytest.raises(InvalidInputError, match="allowed"):
        resolve(table, index_location=f"file://{tmp_path}/elsewhere")
    assert not (tmp_path / "elsewhere").exists()


def test_damaged_shared_index_is_built_again_within_the_cycle(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a"))
    location = f"{tmp_path}/warehouse/indexes"
    table = table_in(tmp_path)
    table.append(rows(*((i, "old") for i in range(100))))
    table.stage(upserts=rows((1, "new")))
    assert resolve(table, index_location=location).index == "built"
    for path in Path(location).rglob("files/*.run"):
        path.write_bytes(b"rot")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "b"))
    table.stage(upserts=rows((2, "newer")))
    assert resolve(table, index_location=location).index == "built"
    found = {row["id"]: row["note"] for row in table.scan().to_arrow().to_pylist()}
    assert found == dict.fromkeys(range(100), "old") | {1: "new", 2: "newer"}
    assert verify(table, index_location=location).report.is_sound


def test_index_in_s3_is_used_by_machines_that_share_nothing_else(tmp_path, monkeypatch):
    warehouse = f"s3://{fresh_bucket()}/warehouse"
    expected = {}
    for number, machine in enumerate(["a", "b", "a"]):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / machine))
        catalog = tf.open_catalog(
            "lake",
            type="sql",
            uri=f"sqlite:///{tmp_path}/catalog.db",
            warehouse=warehouse,
            **{"index-location": f"{warehouse}/indexes"},
            **s3_properties(),
        )
        if number == 0:
            catalog.create_table("t.rows", SCHEMA, primary_key=["id"])
        table = catalog.load_table("t.rows")
        table.stage(upserts=rows((1, f"v{number}"), (number + 10, "new")))
        expected |= {1: f"v{number}", number + 10: "new"}
        assert resolve(table).index == ("built" if number == 0 else "current")
        found = {row["id"]: row["note"] for row in table.scan().to_arrow().to_pylist()}
        assert found == expected
    assert verify(table).report.is_sound
