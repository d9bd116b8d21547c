"""examples/airflow and examples/dagster, run by these programs in environments of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest

import tableformat as tf
from resolver.maintenance_lock import hold_maintenance, maintenance_lock

ROOT = Path(__file__).resolve().parents[2]
GROUPS = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
EXAMPLES = ROOT / "examples"

pytestmark = [pytest.mark.long, pytest.mark.interop, pytest.mark.timeout(1800)]


def run(folder: Path, *words: str | Path, fails: bool = False) -> str:
    """A command that finds `icefold` on its path, with the warehouse in its environment."""
    program = folder / "bin" / "icefold"
    program.parent.mkdir(exist_ok=True)
    program.write_text(
        f"#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -c "
        "'from maintenance.cli.start import main; main()' \"$@\"\n"
    )
    program.chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {
        "PATH": f"{program.parent}:{os.environ['PATH']}",
        "ICEFOLD_WAREHOUSE": str(folder / "warehouse"),
        "AIRFLOW_HOME": str(folder / "airflow"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(EXAMPLES / "airflow"),
        "DAGSTER_HOME": str(folder),
        "DAGSTER_DISABLE_TELEMETRY": "yes",
    }
    done = subprocess.run(
        [str(word) for word in words],
        cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=900,
    )  # fmt: skip
    text = done.stdout + done.stderr
    assert (done.returncode != 0) == fails, text[-5000:]
    return text


def programs(tmp_path_factory: pytest.TempPathFactory, group: str) -> Path:
    folder = tmp_path_factory.mktemp(group)
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    install = [folder / "bin" / "pip", "install", "-q", *GROUPS[group]]
    subprocess.run([str(word) for word in install], check=True, timeout=1500)
    return folder / "bin"


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return programs(tmp_path_factory, "airflow") / "airflow"


@pytest.fixture(scope="module")
def dagster(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return programs(tmp_path_factory, "dagster") / "dagster"


@pytest.fixture
def orders(tmp_path: Path) -> tf.Table:
    catalog = tf.open_catalog("local", warehouse=str(tmp_path / "warehouse"))
    table = catalog.create_table("shop.orders", pa.schema([("id", pa.int64())]), primary_key=["id"])
    table.stage(upserts=pa.table({"id": [1, 2]}))
    return table


def published(orders: tf.Table) -> list[int]:
    return sorted(orders.refresh().scan().to_arrow()["id"].to_pylist())


def test_airflow_runs_the_dag(airflow: Path, orders: tf.Table, tmp_path: Path) -> None:
    run(tmp_path, airflow, "db", "migrate")
    text = run(tmp_path, airflow, "dags", "test", "icefold")
    assert "state=success" in text
    assert published(orders) == [1, 2]


def test_airflow_skips_where_another_process_has_the_lock(
    airflow: Path, orders: tf.Table, tmp_path: Path
) -> None:
    run(tmp_path, airflow, "db", "migrate")
    with (
        closing(maintenance_lock(orders.environment)) as manager,
        hold_maintenance(orders.state, manager, task="test", branch="main", timeout_ms=10_000),
    ):
        text = run(tmp_path, airflow, "tasks", "test", "icefold", "maintain")
    assert "skipped" in text.lower()
    assert published(orders) == []


def test_dagster_runs_the_job(dagster: Path, orders: tf.Table, tmp_path: Path) -> None:
    job = EXAMPLES / "dagster" / "icefold_job.py"
    text = run(tmp_path, dagster, "job", "execute", "-f", job, "-j", "keep_clean")
    assert "RUN_SUCCESS" in text
    assert published(orders) == [1, 2]


def test_dagster_knows_the_schedule(dagster: Path, tmp_path: Path) -> None:
    job = EXAMPLES / "dagster" / "icefold_job.py"
    run(tmp_path, dagster, "definitions", "validate", "-f", job)
