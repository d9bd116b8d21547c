"""Readers whose snapshot expires or whose table goes while they read (`scan.expired_snapshot`)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import tableformat as tf
from maintenance import compact, expire
from maintenance.tasks.options import CompactOptions, ExpireOptions
from tableformat.commit.expiry_plan import ExpiryPolicy
from tableformat.errors import NotFoundError, Retry
from tableformat.runtime import FailPoints, Runtime
from tests.support.memory_tables import memory_catalog

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])
NOW = ExpireOptions(policy=ExpiryPolicy(max_snapshot_age_ms=0, min_snapshots_to_keep=1))


def _table(catalog: tf.TableCatalog) -> tf.Table:
    table = catalog.create_table("shop.orders", SCHEMA, primary_key=["id"])
    for first in (0, 10):
        table.append(pa.table({"id": range(first, first + 10), "v": ["x"] * 10}, schema=SCHEMA))
    return table


def _expired(catalog: tf.TableCatalog) -> None:
    other = catalog.load_table("shop.orders")
    compact(other, CompactOptions(rewrite_all=True))
    expire(other, NOW)


@pytest.fixture
def catalog(tmp_path: Path) -> tf.TableCatalog:
    return tf.open_catalog("local", warehouse=str(tmp_path))


READS: dict[str, Callable[[tf.Table], Callable[[], object]]] = {
    "batches": lambda table: _batches(table.scan().to_batches()),
    "computed": lambda table: _batches(_computed(table).scan().to_batches()),
    "polars": lambda table: table.scan().to_polars(lazy=True).collect,
    "count": lambda table: table.scan("v = 'x'").count,
    "changes": lambda table: _batches(
        table.changes(from_snapshot=table.snapshots()[0].snapshot_id).to_batches()
    ),
}


def _batches(found: object) -> Callable[[], object]:
    return lambda: list(found)  # type: ignore[call-overload]


def _computed(table: tf.Table) -> tf.Table:
    return table.add_computed_column("w", "id + 1", "long")


@pytest.mark.parametrize("name", READS)
def test_a_reader_is_told_that_its_snapshot_has_expired(
    catalog: tf.TableCatalog, name: str
) -> None:
    table = _table(catalog)
    read = READS[name](table)
    _expired(catalog)
    with pytest.raises(NotFoundError, match=r"snapshot \d+ has expired while it was read") as found:
        read()
    assert found.value.retry == Retry.AFTER_REPLAN
    assert found.value.context["table"] == "shop.orders"
    assert found.value.context["location"].endswith(".parquet")
    assert table.refresh().scan().count() == 20


def test_a_statement_is_told_that_its_snapshot_has_expired() -> None:
    points = FailPoints()
    catalog = memory_catalog(runtime=Runtime(fail_points=points, side_by_side=False))
    table = _table(catalog)
    points.armed["rowlevel.after_plan"] = lambda _: (points.armed.clear(), _expired(catalog))
    with pytest.raises(NotFoundError, match=r"snapshot \d+ has expired while it was read"):
        table.delete("v = 'x' AND id = 3")
    assert table.delete("v = 'x' AND id = 3").deleted_rows == 1


@pytest.mark.parametrize("anew", [False, True])
def test_a_reader_is_told_that_its_table_was_dropped(
    catalog: tf.TableCatalog, tmp_path: Path, anew: bool
) -> None:
    batches = _table(catalog).scan().to_batches()
    catalog.drop_table("shop.orders")
    for each in tmp_path.rglob("*.parquet"):
        each.unlink()
    if anew:
        catalog.create_table("shop.orders", SCHEMA, primary_key=["id"])
    told = "the table was dropped and made anew while" if anew else "the table was dropped while"
    with pytest.raises(NotFoundError, match=told):
        list(batches)


def test_a_file_that_is_gone_of_a_snapshot_that_is_there_is_another_matter(
    catalog: tf.TableCatalog, tmp_path: Path
) -> None:
    batches = _table(catalog).scan().to_batches()
    for each in tmp_path.rglob("*.parquet"):
        each.unlink()
    with pytest.raises(NotFoundError, match="file does not exist") as found:
        list(batches)
    assert "expired" not in str(found.value)
    assert found.value.retry == Retry.NEVER
