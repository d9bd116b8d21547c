"""docs/upgrade.md: its snippet runs on a v2 table of another writer, its commands exist."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog as StockCatalog
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

from maintenance.cli.main import cli
from tests.unit.docs.test_readme import run_snippet

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "upgrade.md").read_text()


@pytest.mark.slow
def test_snippet_runs_on_a_table_of_another_writer(tmp_path):
    warehouse = tmp_path / "warehouse"
    warehouse.mkdir()
    uri = f"sqlite:///{warehouse}/icefold.db"
    stock = StockCatalog("local", uri=uri, warehouse=warehouse.as_uri())
    stock.create_namespace("shop")
    schema = Schema(
        NestedField(1, "id", LongType(), required=True), NestedField(2, "note", StringType())
    )
    table = stock.create_table(("shop", "orders"), schema, properties={"format-version": "2"})
    rows = pa.schema([pa.field("id", pa.int64(), False), pa.field("note", pa.string())])
    table.append(pa.table({"id": [1, 2], "note": ["a", "b"]}, schema=rows))
    stock.engine.dispose()
    [code] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    result = run_snippet(code, tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout == "2\n3\n('id',)\n2\n"


def test_commands_exist():
    named = set(re.findall(r"`icefold ([a-z-]+) ", PAGE))
    assert named
    assert named <= set(cli.commands)
