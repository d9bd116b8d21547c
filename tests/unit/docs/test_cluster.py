"""docs/cluster.md names properties and defaults as the code has them, and its snippet parses."""

import ast
import re
from pathlib import Path

from resolver.engine import (
    SPARK_BYTES_MIN,
    SPARK_BYTES_MIN_DEFAULT,
    SPARK_ROWS_MIN,
    SPARK_ROWS_MIN_DEFAULT,
)
from resolver.index.depot import GARBAGE_AGE_MIN_MS, VERSIONS_KEPT
from resolver.shared_keeper import INDEX_CACHE, INDEX_LOCATION, WAREHOUSE_FOLDER

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "cluster.md").read_text()


def test_thresholds_are_the_ones_in_the_code():
    assert f"| `{SPARK_ROWS_MIN}` | {SPARK_ROWS_MIN_DEFAULT} |" in PAGE
    assert f"| `{SPARK_BYTES_MIN}` | {SPARK_BYTES_MIN_DEFAULT} |" in PAGE


def test_places_are_the_ones_in_the_code():
    assert f"| `{INDEX_LOCATION}` |" in PAGE
    assert f"`{WAREHOUSE_FOLDER}`" in PAGE
    assert f"| `{INDEX_CACHE}` |" in PAGE


def test_garbage_rules_are_the_ones_in_the_code():
    assert (VERSIONS_KEPT, GARBAGE_AGE_MIN_MS) == (2, 3_600_000)
    assert "the two newest versions are kept" in PAGE
    assert "removed after an hour" in PAGE


def test_snippet_calls_resolve_with_arguments_it_has():
    from inspect import signature

    from resolver import resolve

    snippet = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0]
    calls = [node for node in ast.walk(ast.parse(snippet)) if isinstance(node, ast.Call)]
    assert len(calls) == 3
    for call in calls:
        assert {keyword.arg for keyword in call.keywords} <= signature(resolve).parameters.keys()
