"""What the pages on changelogs, Spark and other engines show runs; option tables are the code's."""

import contextlib
import io
import re
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

from resolver import resolve
from tableformat import open_catalog
from tests.support.option_tables import markdown
from tests.support.spark import spark  # noqa: F401

DOCS = Path(__file__).resolve().parents[3] / "docs"


def snippets(name):
    return re.findall(r"```python\n(.*?)```", (DOCS / name).read_text(), re.DOTALL)


def run(code, names):
    """The snippet's output."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, names)
    return printed.getvalue()


def test_changelog_example_prints_what_the_page_shows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    [code] = snippets("changelog.md")
    text = (DOCS / "changelog.md").read_text()
    [shown] = re.findall(r"prints\n\n```\n(.*?)```", text, re.DOTALL)
    assert run(code, {}) == shown


def test_an_engine_of_ones_own_runs_as_it_stands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    [code] = snippets("row-level-engines.md")
    shown = run(code, {})
    assert shown == "1 [{'id': 2, 'status': 'new', 'amount': 22.0}]\n"


def test_computed_columns_print_what_the_page_shows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    [code] = snippets("computed-columns.md")
    text = (DOCS / "computed-columns.md").read_text()
    [shown] = re.findall(r"prints\n\n```\n(.*?)```", text, re.DOTALL)
    assert run(code, {}) == shown


@pytest.mark.spark
def test_spark_examples_run_as_they_stand(spark, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.chdir(tmp_path)
    schema = pa.schema(
        [
            ("id", pa.int64()),
            ("status", pa.string()),
            ("amount", pa.float64()),
            ("at", pa.timestamp("us", "UTC")),
        ]
    )
    table = open_catalog("local", warehouse="warehouse").create_table(
        "shop.orders", schema, primary_key=["id"]
    )
    moments = [datetime(2026, 1, 1, hour, tzinfo=UTC) for hour in (8, 9)]
    values = {"id": [1, 2], "status": ["new"] * 2, "amount": [5.0, 20.0], "at": moments}
    table.append(pa.table(values, schema))
    # Spark's processes were started elsewhere: relative folders are not theirs.
    warehouse = str(tmp_path / "warehouse")
    read, stream, per_hour, write = (
        code.replace('"warehouse")', f'"{warehouse}")')
        .replace('warehouse="warehouse"', f'warehouse="{warehouse}"')
        .replace('"checkpoints/', f'"{tmp_path}/checkpoints/')
        for code in snippets("spark.md")
    )
    names = {}
    assert re.search(r"\|\s*new\|\s*1\|", run(read, names))
    run(stream, names)
    run(per_hour, names)
    run(write, names)
    resolve(table)
    rows = table.scan().to_arrow().sort_by("id").to_pylist()
    assert [(each["id"], each["status"]) for each in rows] == [(1, "paid"), (2, "new")]


@pytest.mark.spark
def test_option_tables_are_those_of_the_code():
    from tableformat.spark.source_options import OPTION_MODELS

    text = (DOCS / "spark.md").read_text()
    for model in OPTION_MODELS:
        assert markdown(model) in text, model.owner
