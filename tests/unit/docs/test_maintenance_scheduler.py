"""What docs/maintenance-scheduler.md says is what there is."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner

import tableformat as tf
from maintenance.cli.main import cli
from maintenance.ingest_watch import IngestWatch
from maintenance.metrics import SchedulerMetrics
from maintenance.scheduler import Scheduler
from maintenance.settings import settings_table

ROOT = Path(__file__).resolve().parents[3]
TEXT = (ROOT / "docs" / "maintenance-scheduler.md").read_text()


def test_settings_are_listed_as_they_are():
    assert settings_table() in TEXT


@pytest.mark.slow
def test_python_example_runs_as_it_stands(tmp_path):
    catalog = tf.open_catalog("local", warehouse=str(tmp_path / "warehouse"))
    schema = pa.schema([("id", pa.int64())])
    table = catalog.create_table("shop.orders", schema, primary_key=["id"])
    table.stage(upserts=pa.table({"id": [1, 2]}))
    (code,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": "/nowhere", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    assert ast.literal_eval(result.stdout) == [("shop.orders", "resolve", "done")]


def test_options_that_are_named_exist():
    options = set(re.findall(r"(--[a-z][a-z-]+)", TEXT))
    commands = ([], ["maintain"], ["status"], ["report"], ["ingest"], ["sql"])
    helps = [CliRunner().invoke(cli, [*words, "--help"]).output for words in commands]
    assert options
    assert all(any(option in text for text in helps) for option in options)


def test_metrics_that_are_named_exist(tmp_path):
    catalog = tf.open_catalog("local", warehouse=str(tmp_path / "warehouse"))
    metrics = SchedulerMetrics(catalog.environment.runtime.clock)
    metrics.watch(Scheduler(catalog, ["none.*"]))
    ingest = IngestWatch("a.b", catalog.environment.runtime.clock)
    registries = (metrics.registry, ingest.registry)
    known = {family.name for registry in registries for family in registry.collect()}
    named = set()
    for cell in re.findall(r"^\| (`icefold_.*?) \|", TEXT, re.MULTILINE):
        names = [name.partition("{")[0] for name in re.findall(r"`(.*?)`", cell)]
        prefix = "_".join(names[0].split("_")[:2])
        named |= {prefix + name if name.startswith("_") else name for name in names}
    assert len(named) > 15
    assert {name.removesuffix("_total") for name in named} <= known
