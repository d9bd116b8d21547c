"""The page about change streams: its snippet runs, its option tables are those that validate."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tableformat.cdc.formats import BUILT_IN
from tableformat.cdc.sink import SinkOptions
from tests.support.option_tables import markdown
from tests.unit.docs.test_readme import run_snippet

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "change-streams.md").read_text()


@pytest.mark.slow
def test_snippets_run_as_they_stand(tmp_path):
    snippets = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    result = run_snippet("".join(snippets), tmp_path, path="/nowhere")
    assert result.returncode == 0, result.stderr
    whole, filled = result.stdout.splitlines()
    assert whole == "[{'id': 1, 'version': 7}, {'id': 2, 'version': 3}]"
    assert sorted(ast.literal_eval(filled), key=lambda row: row["id"]) == [
        {"id": 1, "amount": 3.0, "gone": None},
        {"id": 2, "amount": 2.0, "gone": None},
    ]


@pytest.mark.parametrize("name", ["sink", *BUILT_IN])
def test_option_table_is_the_one_that_validates(name):
    table = SinkOptions if name == "sink" else BUILT_IN[name].options
    assert markdown(table) in PAGE, f"the page should have:\n{markdown(table)}"


@pytest.mark.parametrize("factory", BUILT_IN.values(), ids=list(BUILT_IN))
def test_format_says_which_row_kinds_it_produces(factory):
    assert f"### `{factory.identifier}`" in PAGE
    assert f"Produces {factory.mode}." in PAGE


def test_linked_pages_exist():
    for target in re.findall(r"\]\(([^):#]+)", PAGE):
        assert (Path("docs") / target).exists(), target
