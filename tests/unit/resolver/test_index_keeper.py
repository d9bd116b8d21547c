"""When an index follows a table and when it is built afresh; what it finds is right either way."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest

import tableformat as tf
from maintenance import compact
from resolver import index_keeper, resolve
from resolver.index_keeper import index_folder
from tableformat.codec.avro import manifest_notes, manifest_store
from tableformat.errors import InvalidInputError


def rows(start: int, stop: int, value: str) -> pa.Table:
    count = stop - start
    return pa.table({"id": pa.array(range(start, stop), pa.int64()), "value": [value] * count})


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tf.Table:
    monkeypatch.setattr(index_keeper, "FOLLOWED_ROWS_MIN", 10)
    catalog = tf.open_catalog("local", warehouse=str(tmp_path))
    table = catalog.create_table("shop.orders", rows(0, 1, "").schema, primary_key=["id"])
    for part in range(10):
        table.append(rows(part * 100, part * 100 + 100, "old"))
    table.stage(upserts=rows(0, 1, "staged"))
    assert resolve(table).index == "built"
    return table


@pytest.mark.parametrize(("appended", "how"), [(100, "followed"), (600, "built")])
def test_index_is_built_afresh_when_that_is_less_work(
    table: tf.Table, appended: int, how: str
) -> None:
    table.append(rows(1000, 1000 + appended, "new"))
    table.stage(upserts=rows(1000, 1001, "staged"), deletes=rows(5, 6, ""))
    report = resolve(table)
    assert report.index == how
    assert report.deleted_rows == 2


def test_index_is_built_afresh_after_a_compaction_of_the_whole_table(table: tf.Table) -> None:
    assert compact(table).changed
    table.stage(upserts=rows(7, 8, "staged"), deletes=rows(5, 6, ""))
    report = resolve(table)
    assert report.index == "built"
    assert report.deleted_rows == 2
    ids = table.scan("value = 'staged'").to_arrow()["id"].to_pylist()
    assert sorted(ids) == [0, 7]


def test_next_process_reads_manifests_that_name_what_a_batch_touches(
    table: tf.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest_notes, "UNNOTED_FILES_MAX", 0)
    monkeypatch.setattr(manifest_notes, "UNNOTED_SHARE_MAX", 0)
    table.stage(upserts=rows(150, 151, "staged"))
    resolve(table)
    read: list[str] = []
    real = manifest_store._read
    monkeypatch.setattr(
        manifest_store, "_read", lambda store, each: read.append(each.content) or real(store, each)
    )
    again = tf.open_catalog("local", warehouse=str(tmp_path)).load_table("shop.orders")
    again.stage(upserts=rows(160, 161, "staged"), deletes=rows(850, 851, ""))
    read.clear()
    assert resolve(again).deleted_rows == 2
    assert 0 < len(read) < 8, "of more than ten"
    assert again.scan("value = 'old'").to_arrow().num_rows == 996
    again.stage(upserts=rows(170, 171, "staged"))
    assert resolve(again, rebuild_index=True).index == "built", "the folder is an index's alone"


@pytest.mark.parametrize("form", ["file://{}", "file:{}", "{}"])
def test_index_of_a_local_warehouse_is_in_it_however_the_warehouse_is_written(
    table: tf.Table, tmp_path: Path, form: str
) -> None:
    catalog = tf.open_catalog("local", warehouse=str(tmp_path))
    written = {**catalog.environment.catalog.properties, "warehouse": form.format(tmp_path)}
    environment = replace(
        catalog.environment, catalog=SimpleNamespace(properties=written, name="local")
    )
    folder = index_keeper.index_folder(environment, table.state, "main")
    assert folder.is_relative_to(tmp_path / ".icefold")


def test_cache_of_a_user_without_a_home_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 7)  # a container that names only a number
    with pytest.raises(tf.InvalidInputError, match="no such home folder"):
        index_keeper.user_cache()
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert index_keeper.user_cache() == Path("/somewhere/icefold")


def test_address_of_a_bucket_is_no_folder_of_a_local_index(tmp_path: Path) -> None:
    """`s3://bucket/index` made a folder called `s3:` where the command was called."""
    catalog = tf.open_catalog(
        "local", warehouse=str(tmp_path / "w"), **{"index-directory": "s3://bucket/index"}
    )
    schema = pa.schema([("id", pa.int64())])
    table = catalog.create_table("a.b", schema, primary_key=["id"])
    with pytest.raises(InvalidInputError, match="a folder of this machine; key=index-directory"):
        index_folder(table.environment, table.state, "main")
    elsewhere = {"index-directory": (tmp_path / "index").as_uri()}
    catalog = tf.open_catalog("local", warehouse=str(tmp_path / "w"), **elsewhere)
    folder = index_folder(catalog.environment, table.state, "main")
    assert folder.is_relative_to(tmp_path / "index")
