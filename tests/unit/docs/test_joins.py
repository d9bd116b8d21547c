"""docs/joins.md: its example runs and prints what it says, and its file is the same definition."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tableformat.join.definition import JoinDefinition, JoinStep, parse_definition
from tests.unit.docs.test_readme import run_snippet

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "joins.md").read_text()
[SNIPPET] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
[TOML] = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.slow
def test_example_prints_what_the_page_says(tmp_path):
    [printed] = re.findall(r"prints\n\n```\n(.*?)```", PAGE, re.DOTALL)
    result = run_snippet(SNIPPET, tmp_path, path="/nowhere")
    assert result.returncode == 0, result.stderr
    assert result.stdout == printed


def test_file_is_the_definition_of_the_example():
    names: dict[str, object] = {}
    start = SNIPPET.index("definition =")
    exec(SNIPPET[start : SNIPPET.index("\n}\n") + 2], names)
    assert parse_definition(tomllib.loads(TOML)) == parse_definition(names["definition"])


def test_every_key_is_told():
    models = (JoinDefinition, JoinStep)
    keys = {str(field.alias) for model in models for field in model.model_fields.values()}
    rows = [line for line in PAGE.splitlines() if line.startswith("| `")]
    told = {name for row in rows for name in re.findall(r"`([\w-]+)`", row)}
    assert keys - {"table"} <= told
