"""What notebooks show: escaped, small, and read from metadata alone."""

from __future__ import annotations

import dataclasses
from xml.etree import ElementTree as ET

import pyarrow as pa
import pytest

import tableformat as tf
from maintenance import ExpireReport
from resolver import ResolveReport, resolve
from tableformat.html_text import rows_html
from tableformat.inspect.snapshot_list import SHOWN_MAX, SnapshotList

HOSTILE = "<script>alert('1')</script>&\u202e"


@pytest.fixture
def orders(tmp_path):
    catalog = tf.open_catalog("local", warehouse=str(tmp_path / "warehouse"))
    table = catalog.create_table(
        "shop.orders", pa.schema([("id", pa.int64()), ("note", pa.string())]), primary_key=["id"]
    )
    table.append(pa.table({"id": [1, 2], "note": ["a", "b"]}))
    table.stage(deletes=pa.table({"id": [1]}))
    return table


def cells(shown):
    """The texts of a table that is well formed."""
    root = ET.fromstring(shown._repr_html_() if hasattr(shown, "_repr_html_") else shown)
    assert root.tag == "table"
    return [text for text in root.itertext() if text]


def test_texts_of_others_are_escaped():
    shown = rows_html(HOSTILE, (HOSTILE,), [(HOSTILE, HOSTILE)])
    assert "<script" not in shown
    assert cells(shown) == ["<script>alert('1')</script>&\ufffd"] * 4


def test_table_shows_its_columns(orders):
    found = cells(orders)
    assert found[0].startswith("shop.orders, key id; snapshot ")
    assert found[1:] == ["column", "type", "id", "long", "required", "note", "string"]


def test_scan_shows_what_it_would_read_and_reads_nothing(orders):
    scan = orders.scan(filter="id > 1", columns=["id"], limit=5)
    head = orders.current_snapshot().snapshot_id
    (data,) = orders.scan().plan.tasks
    orders.environment.store.delete([data.entry.data_file.file_path])
    found = cells(scan)
    assert found[0] == "scan of shop.orders"
    assert str(head) in found[2]
    assert found[3:] == ["columns", "id", "filter", "id > 1", "limit", "5"]


def test_snapshots_are_a_list_that_shows_the_newest_first(orders):
    resolve(orders)
    orders.refresh()
    snapshots = orders.snapshots()
    assert snapshots == list(orders.state.metadata.snapshots)
    found = cells(snapshots)
    assert found[0] == "3 snapshots"
    ids = [text for text in found if text in {str(each.snapshot_id) for each in snapshots}]
    assert ids == [str(each.snapshot_id) for each in reversed(snapshots)]
    many = cells(SnapshotList(snapshots * 40))
    assert many[0] == "120 snapshots, the last 50"
    assert many.count(ids[0]) + many.count(ids[1]) + many.count(ids[2]) == SHOWN_MAX


def test_reports_show_every_field(orders):
    for report in (
        resolve(orders),
        ResolveReport(table=HOSTILE, target_snapshot_id=None, staging_snapshot_id=None),
        ExpireReport(task="expire", table=HOSTILE, dry_run=True, changed=False, duration_ms=1.0),
    ):
        found = cells(report)
        assert {field.name for field in dataclasses.fields(report)} <= set(found)
        assert "<script" not in report._repr_html_()
