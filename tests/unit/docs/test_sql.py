"""The page on SQL is run as it stands."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "sql.md").read_text()
[SNIPPET] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.slow
def test_sql_example_runs_as_it_stands(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", SNIPPET],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"], "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    statements, upserted = done.stdout.strip().splitlines()
    deleted, rows = statements.split(" ", 1)
    assert deleted == "1"
    found = sorted((row["id"], row["status"]) for row in ast.literal_eval(rows))
    assert found == [(2, "paid"), (3, "paid")]
    counts = ast.literal_eval(upserted)
    assert (counts["updated_rows"], counts["inserted_rows"]) == (1, 1)
