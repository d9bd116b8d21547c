"""`spark-submit` of the command line, as docs/cluster.md shows it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyspark
import pytest

import tableformat as tf
from tableformat.spark.java import ensure_java

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[4]
PAGE = (ROOT / "docs" / "cluster.md").read_text()


def test_submitted_command_takes_the_session_for_a_large_backlog(tmp_path):
    schema = pa.schema([("id", pa.int64()), ("note", pa.string())])
    catalog = tf.open_catalog("local", warehouse=str(tmp_path / "warehouse"))
    table = catalog.create_table("t.rows", schema, primary_key=["id"])
    table.set_properties({"icefold.resolve.spark-rows-min": "1"})
    table.stage(upserts=pa.table({"id": [1], "note": ["a"]}, schema=schema))
    job = tmp_path / "icefold_job.py"
    job.write_text(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[1])
    home = Path(pyspark.__file__).parent
    submit = [home / "bin" / "spark-submit", "--master", "local[1]"]
    submit += ["--conf", "spark.ui.enabled=false", "--conf", "spark.driver.host=127.0.0.1", job]
    done = subprocess.run(
        [*submit, "--warehouse", tmp_path / "warehouse", "resolve", "t.rows", "--json"],
        env=os.environ
        | {
            "JAVA_HOME": str(ensure_java()),
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": str(ROOT),
        },
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout[done.stdout.index("{") :])
    assert (report["engine"], report["staged_snapshots"]) == ("spark", 1)
    assert table.refresh().scan().to_arrow().to_pylist() == [{"id": 1, "note": "a"}]
