"""README's snippets are run as they stand, its commands exist."""

import ast
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
README = (ROOT / "README.md").read_text()
SNIPPETS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
EVENT = (
    '{"before":null,"after":{"id":9,"status":"new","amount":1.5},"op":"c",'
    '"source":{"lsn":1},"ts_ms":1}\n'
)


def run_snippet(code, folder, path=os.environ["PATH"]):
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={
            "PYTHONPATH": str(ROOT),
            "PATH": path,
            "HOME": str(folder),
            "SPARK_SUBMIT_OPTS": os.environ["SPARK_SUBMIT_OPTS"],
        },
        capture_output=True,
        text=True,
        timeout=240,
    )


@pytest.mark.slow
def test_python_example_runs_as_it_stands(tmp_path):
    result = run_snippet(SNIPPETS[0], tmp_path, path="/nowhere")  # so there is no Java either
    assert result.returncode == 0, result.stderr
    rows = ast.literal_eval(result.stdout.splitlines()[-1])
    assert sorted((row["id"], row["status"]) for row in rows) == [(1, "new"), (2, "paid")]


@pytest.mark.spark
def test_spark_example_runs_as_it_stands(tmp_path):
    assert run_snippet(SNIPPETS[0], tmp_path).returncode == 0
    (tmp_path / "events").mkdir()
    (tmp_path / "events" / "1.jsonl").write_text(EVENT)
    result = run_snippet(SNIPPETS[1], tmp_path)
    assert result.returncode == 0, result.stderr
    assert re.search(r"\|\s*9\|\s*new\|\s*1\.5\|", result.stdout)


@pytest.mark.parametrize("path", re.findall(r"\]\(([^):]+)\)", README))
def test_linked_pages_exist(path):
    assert (ROOT / path).exists()


@pytest.mark.parametrize("name", ["demo", "test", "check", "bench", "setup"])
def test_scripts_are_executable(name):
    assert (ROOT / "scripts" / name).stat().st_mode & 0o111


def test_extras_are_those_of_the_package():
    [named] = re.findall(r"pip install .*'\.\[(.+)\]'", README)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert sorted(named.split(",")) == sorted(project["optional-dependencies"])


def test_examples_are_short():
    python, spark = (len(code.strip().splitlines()) for code in SNIPPETS)
    assert python <= 12
    assert spark <= 12
