"""The snippets of docs/readers.md and docs/lookup.md run as they stand, on the README's table."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tableformat.table_inspect import VIEWS

ROOT = Path(__file__).resolve().parents[3]
README = (ROOT / "README.md").read_text()
READERS = (ROOT / "docs" / "readers.md").read_text()
LOOKUP = (ROOT / "docs" / "lookup.md").read_text()


def snippets(text: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def run(code: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code.replace("/data/warehouse", str(folder / "warehouse"))],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.fixture
def folder(tmp_path):
    run(snippets(README)[0], tmp_path)
    return tmp_path


@pytest.mark.slow
def test_readers_page(folder) -> None:
    pytest.importorskip("duckdb")
    pytest.importorskip("polars")
    code = "\n".join(snippets(READERS))
    check = "\nprint(total, largest, len(frame), files.num_rows > 0, waiting)"
    assert run(code + check, folder).strip() == "30.0 20.0 2 True 0"
    for view in VIEWS:
        assert f"`{view}`" in READERS


@pytest.mark.slow
def test_lookup_page(folder) -> None:
    first, own, secondary, *_ = snippets(LOOKUP)
    printed = run(first + own + secondary + "\nprint(found.source, len(found))", folder)
    assert printed.splitlines()[0].endswith("[2]")
    assert printed.splitlines()[-2:] == ["index None", "index 1"]


@pytest.mark.spark
def test_lookup_page_on_spark(folder) -> None:
    first, *_, join, stream = snippets(LOOKUP)
    spark = "from tableformat.spark.session import local_session\nspark = local_session('docs')\n"
    shown = "\nprint(sorted(tuple(row) for row in joined.collect()))"
    # Spark's processes were started elsewhere: relative folders are not theirs.
    stream = re.sub(r'"(arrivals|enriched|checkpoints/)', rf'"{folder}/\1', stream)
    (folder / "arrivals").mkdir()
    (folder / "arrivals" / "1.json").write_text('{"event": 3, "order_id": 2}\n')
    stream += f"\nprint([tuple(row) for row in spark.read.parquet('{folder}/enriched').collect()])"
    printed = run(first + spark + join + shown + "\n" + stream, folder).splitlines()
    assert printed[-2:] == ["[(1, 2, 'paid', 20.0), (2, 99, None, None)]", "[(3, 2, 'paid')]"]


@pytest.mark.parametrize("text", [READERS, LOOKUP])
def test_linked_pages_exist(text) -> None:
    for name in re.findall(r"\]\(([^):#]+)", text):
        assert (ROOT / "docs" / name).exists()
