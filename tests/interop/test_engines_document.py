"""The snippets of docs/engines.md give the rows of the README's table, as they stand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import tableformat as tf
from resolver import resolve
from tests.support.interop_engines import (
    canonical_rows,
    check_rows,
    expected_rows,
    new_duckdb_connection,
)
from tests.support.interop_java_tables import plain_rows
from tests.support.java_iceberg import ICEBERG, JARS, SPARK, JavaIceberg
from tests.support.trino import TRINO

pytestmark = pytest.mark.interop

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = (ROOT / "docs" / "engines.md").read_text()
README = (ROOT / "README.md").read_text()
EXPECTED = [(1, "new", 10.0), (2, "paid", 20.0)]
COLUMNS = ("id", "status", "amount")


def snippets(text: str) -> dict[str, str]:
    """The first Python block below each heading."""
    sections = re.split(r"^## ", text, flags=re.MULTILINE)
    found = (
        (part.split("\n")[0], re.search(r"```python\n(.*?)```", part, re.S)) for part in sections
    )
    return {heading.lstrip("# "): match[1] for heading, match in found if match}


SNIPPETS = snippets(DOCUMENT)
[OPEN] = [code for heading, code in SNIPPETS.items() if heading.startswith("Reading")]
IN_PROCESS = ["DuckDB", "DataFusion", "polars", "PyIceberg"]


@pytest.fixture
def warehouse(tmp_path) -> Path:
    """The README's table."""
    example = re.search(r"```python\n(.*?)```", README, re.S)
    assert example is not None
    _run(example[1], tmp_path)
    return tmp_path / "warehouse"


def _run(code: str, folder: Path) -> str:
    code = f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n{code}"
    environment = {**os.environ, "HOME": str(folder)}  # DuckDB puts its extensions there
    command = [sys.executable, "-W", "error::ResourceWarning", "-c", code]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def _of_this_table(code: str, warehouse: Path) -> str:
    assert "/data/warehouse" in code or "location" in code
    return code.replace("/data/warehouse", str(warehouse))


@pytest.mark.parametrize("engine", IN_PROCESS)
def test_snippet_reads_the_table(engine, warehouse, tmp_path) -> None:
    code = _of_this_table(OPEN + SNIPPETS[engine], warehouse)
    printed = _run(
        code + f"\nprint(sorted(tuple(r[n] for n in {COLUMNS}) for r in rows))", tmp_path
    )
    assert printed.strip() == str(EXPECTED)


def test_every_snippet_is_run() -> None:
    assert next(iter(SNIPPETS.values())) == OPEN
    assert set(SNIPPETS) - {"Reading icefold's tables with other engines"} == {
        "Spark with Apache Iceberg's runtime",
        *IN_PROCESS,
    }


def test_versions_are_those_tested() -> None:
    assert f"Apache Iceberg {ICEBERG} on Spark {SPARK}" in DOCUMENT
    assert ",".join(JARS) in DOCUMENT
    assert f"Trino {TRINO}" in DOCUMENT
    groups = (ROOT / "pyproject.toml").read_text()
    for pinned, named in (
        ("duckdb==1.5.5", "DuckDB 1.5.5"),
        ("datafusion==54.1.0", "DataFusion 54.1"),
        ("pyiceberg-core==0.11.0", "pyiceberg-core 0.11"),
    ):
        assert f'"{pinned}"' in groups
        assert named in DOCUMENT


@pytest.mark.spark
def test_spark_opens_the_local_catalog_and_both_write_to_it(warehouse, java: JavaIceberg) -> None:
    code = SNIPPETS["Spark with Apache Iceberg's runtime"]
    found = java.request("run", code=_of_this_table(code, warehouse))
    assert sorted(tuple(row[name] for name in COLUMNS) for row in found) == EXPECTED
    for mode in ("delete", "update", "merge"):
        java.sql(
            f"ALTER TABLE local.shop.orders SET TBLPROPERTIES ('write.{mode}.mode'='merge-on-read')"
        )
    java.sql("INSERT INTO local.shop.orders VALUES (7, 'java', 7.0), (8, 'java', 8.0)")
    java.sql("DELETE FROM local.shop.orders WHERE id = 1")

    catalog = tf.open_catalog("local", warehouse=str(warehouse))
    orders = catalog.load_table("shop.orders")
    changed = pa.table({"id": [7, 9], "status": ["ours", "ours"], "amount": [0.5, None]})
    orders.stage(upserts=changed, deletes=pa.table({"id": [2]}))
    resolve(orders)
    catalog.create_table("shop.later", changed.schema, primary_key=["id"])

    expected = [(7, "ours", 0.5), (8, "java", 8.0), (9, "ours", None)]
    assert plain_rows(orders.scan().to_arrow()) == expected
    assert plain_rows(java.query("SELECT * FROM local.shop.orders")) == expected
    assert plain_rows(java.query("SHOW TABLES IN local.shop").select(["tableName"])) == [
        ("later",),
        ("orders",),
    ]


def test_duckdb_reads_per_file_vectors_with_default_settings(case_named) -> None:
    case = case_named("per_file_dvs")
    query = f"SELECT * FROM iceberg_scan('{case.location}')"
    found = new_duckdb_connection().execute(query).to_arrow_table()
    check_rows(expected_rows(case), canonical_rows(found, case.schema))
