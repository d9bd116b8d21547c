"""A table's folder is copied, and the copy registered: its paths lead to the original."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

import tableformat as tf
from maintenance import expire, remove_orphans
from tableformat.errors import InvalidInputError
from tests.support.reachable import reachable_locations

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.int64())])
ROWS = pa.table({"id": [1, 2], "v": [10, 20]}, schema=SCHEMA)


@pytest.fixture
def tables(tmp_path: Path) -> tuple[tf.Table, tf.Table]:
    """An original and its copy."""
    warehouse = tmp_path / "wh"
    catalog = tf.open_catalog("local", warehouse=str(warehouse))
    original = catalog.create_table("shop.orders", SCHEMA, primary_key=["id"])
    original.append(ROWS)
    shutil.copytree(warehouse / "shop/orders", warehouse / "shop/copy")
    newest = sorted((warehouse / "shop/copy/metadata").glob("*.metadata.json"))[-1]
    other = SqlCatalog("local", uri=f"sqlite:///{warehouse}/icefold.db", warehouse=str(warehouse))
    other.register_table("shop.copy", f"file://{newest}")
    other.engine.dispose()
    return catalog.load_table("shop.orders"), catalog.load_table("shop.copy")


def test_copy_of_a_table_is_read_and_neither_changed_nor_cleaned(
    tables: tuple[tf.Table, tf.Table],
) -> None:
    original, copy = tables
    folder = Path(original.location().removeprefix("file://"))
    before = {each for each in folder.rglob("*") if each.suffix != ".parquet"}
    assert copy.scan().to_arrow().num_rows == 2
    for change in (
        lambda: copy.append(ROWS),
        lambda: copy.stage(ROWS),
        lambda: expire(copy),
        lambda: remove_orphans(copy),
    ):
        with pytest.raises(InvalidInputError, match="looks like a copy"):
            change()
    assert {each for each in folder.rglob("*") if each.suffix != ".parquet"} == before
    store = original.environment.store
    assert all(store.size_bytes(each) for each in reachable_locations(store, original.state))


def test_copy_that_says_where_its_metadata_are_is_changed(
    tables: tuple[tf.Table, tf.Table],
) -> None:
    _, copy = tables
    place = copy.state.metadata_location.rpartition("/")[0]
    copy.set_properties({"write.metadata.path": place})
    copy.stage(ROWS)
    assert copy.state.metadata_location.startswith(f"{place}/")
