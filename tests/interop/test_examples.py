"""The examples that need no server, as their README says to run them."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import duckdb
import nbformat
import pytest
from nbclient import NotebookClient

import tableformat as tf

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"

pytestmark = [pytest.mark.slow, pytest.mark.interop]


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(folder: Path, *words: str | Path) -> str:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "HOME": str(folder)}
    done = subprocess.run(
        [str(word) for word in words],
        cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_table_of_flink_is_taken_over_with_the_rows_it_meant(tmp_path: Path) -> None:
    warehouse = tmp_path / "warehouse"
    meant = load(EXAMPLES / "flink-table" / "flink_like.py").make_table(warehouse)
    printed = run(tmp_path, sys.executable, EXAMPLES / "flink-table" / "take_over.py", warehouse)
    assert "12 equality delete files" in printed.splitlines()[0]
    assert printed.splitlines()[-1].endswith(" 0 equality delete files")
    orders = tf.open_catalog("local", warehouse=str(warehouse)).load_table("shop.orders")
    rows = orders.scan().to_arrow().to_pylist()
    assert {row["id"]: (row["status"], row["amount"]) for row in rows} == meant
    assert len(rows) == len(meant)
    assert orders.primary_key == ("id",)


def test_models_read_one_cut(tmp_path: Path) -> None:
    # The script, without the environment that it makes first.
    script = (EXAMPLES / "sql-models" / "run").read_text()
    script = script.replace("scripts/setup demo\n", "").replace(
        '"$(dirname "$0")/../.."', str(ROOT)
    )
    folder = tmp_path / "example"
    folder.mkdir()
    printed = run(tmp_path, "sh", "-c", script, "run", folder)
    assert re.search(r"orders_by_status: 2 rows\nshares: 2 rows", printed)
    models = EXAMPLES / "sql-models" / "run.py"
    warehouse, database = folder / "warehouse", folder / "models.duckdb"
    orders = tf.open_catalog("local", warehouse=str(warehouse)).load_table("shop.orders")
    cut = orders.current_snapshot()
    assert cut is not None
    with duckdb.connect(str(database)) as connection:
        assert connection.execute("FROM orders_by_status").fetchall() == [
            ("new", 1, 20.0), ("paid", 2, 40.0),
        ]  # fmt: skip
        assert connection.execute("FROM cut").fetchall() == [("shop.orders", cut.snapshot_id)]
    orders.delete("id = 2")
    run(tmp_path, sys.executable, models, warehouse, database, "cut-1")
    with duckdb.connect(str(database)) as connection:  # the tag is where it was
        assert connection.execute("SELECT sum(orders) FROM orders_by_status").fetchall() == [(3,)]
    run(tmp_path, sys.executable, models, warehouse, database)
    with duckdb.connect(str(database)) as connection:
        assert connection.execute("SELECT sum(orders) FROM orders_by_status").fetchall() == [(2,)]


@pytest.mark.services
def test_notebook_runs_and_shows_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    notebook = nbformat.read(EXAMPLES / "notebook" / "orders.ipynb", as_version=4)
    assert all(not cell.get("outputs") for cell in notebook.cells)  # kept without outputs
    client = NotebookClient(
        notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}},
    )  # fmt: skip
    client.execute()
    shown = [
        output.data for cell in notebook.cells for output in cell.get("outputs", ())
        if output.output_type == "execute_result"
    ]  # fmt: skip
    tables = [data["text/html"] for data in shown if "text/html" in data]
    assert len(tables) == 5
    assert all(table.startswith("<table>") for table in tables)
    assert "shop.orders, key id" in tables[0]
    counts = [data["text/plain"] for data in shown if "text/html" not in data]
    assert counts == ["300", "1000"]


def test_every_example_is_listed_and_has_its_files() -> None:
    text = (EXAMPLES / "README.md").read_text()
    linked = re.findall(r"\]\(([^)]+)\)", text)
    assert all((EXAMPLES / path).exists() for path in linked)
    folders = {each.name for each in EXAMPLES.iterdir() if each.is_dir()}
    assert folders == {path.partition("/")[0] for path in linked}
    for command in re.findall(r"`(examples/\S+/run)`", text):
        assert (ROOT / command).stat().st_mode & 0o111
