"""`icefold load`: makes the table, tells what it did, does it once, ends with one line."""

import json
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from maintenance.cli.load import load
from maintenance.cli.main import cli

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "load.md").read_text()


def run(folder, *words):
    return CliRunner().invoke(cli, ["--warehouse", str(folder / "warehouse"), "load", *words])


def test_table_is_made_and_loaded_once(tmp_path):
    pq.write_table(pa.table({"id": [1, 2], "note": ["a", None]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"id": [3], "note": ["c"]}), tmp_path / "b.parquet")
    words = ("shop.orders", "--from", str(tmp_path / "*.parquet"))
    missing = run(tmp_path, *words)
    assert missing.exit_code == 1
    assert "there is no catalog" in missing.stderr
    first = run(tmp_path, *words, "--key", "id")
    assert first.output == "shop.orders: 3 rows loaded, 1 data file; 1 piece\n"
    again = run(tmp_path, *words, "--key", "id", "--json")
    assert json.loads(again.stdout) == {
        "rows": 0, "data_files": 0, "pieces": 0, "skipped_pieces": 1,
    }  # fmt: skip
    shown = CliRunner().invoke(
        cli,
        ["--warehouse", str(tmp_path / "warehouse"), "scan", "shop.orders", "--format", "count"],
    )
    assert shown.stdout.strip() == "3"


def test_words_that_do_not_go_together_and_nothing_to_abandon(tmp_path):
    assert "with --from, or end a load" in run(tmp_path, "a.b").stderr
    assert "with --from, or end a load" in run(tmp_path, "a.b", "--from", "x", "--abandon").stderr
    refused = run(tmp_path, "a.b", "--from", "jdbc:postgresql://me:hunter2@db/x")
    assert refused.exit_code == 1
    assert len(refused.stderr.splitlines()) == 1
    assert "hunter2" not in refused.stderr
    pq.write_table(pa.table({"id": [1]}), tmp_path / "a.parquet")
    run(tmp_path, "a.b", "--from", str(tmp_path / "a.parquet"), "--key", "id")
    assert run(tmp_path, "a.b", "--abandon").stdout == "there is no load to abandon\n"


def test_options_of_the_page_are_those_of_the_command():
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", PAGE))
    known = {name for param in load.params for name in param.opts}
    others = {"--kafka", "--topics", "--into", "--follow", "--cut"}
    assert named <= known | others
    assert {"--from", "--key", "--assume-new-keys", "--abandon"} <= named


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"id,v\n", "has no type"),
        (b"id,v\n,1\n", "has no type"),
        (b"id,id\n1,2\n", "must be distinct"),
        (b"id,v\n1,\xff\n", "not UTF-8"),
        (b"", "Empty CSV"),
        (b"id,v\n1\n", "Expected 2 columns"),
        (b"\x1f\x8b\x08\x00", "cannot be read"),
        (pa.schema([("id", pa.int64()), ("s", pa.struct([("a", pa.int8())] * 2))]), "a schema"),
    ],
)
def test_file_that_makes_no_table_is_one_line_and_leaves_none(tmp_path, content, said):
    file = tmp_path / ("a.csv" if isinstance(content, bytes) else "a.parquet")
    if isinstance(content, bytes):
        file.write_bytes(content)
    else:
        pq.write_table(content.empty_table(), file)
    refused = run(tmp_path, "a.b", "--from", str(file), "--key", "id")
    assert (refused.exit_code, len(refused.stderr.splitlines())) == (1, 1), refused.exception
    assert said in refused.stderr
    listed = CliRunner().invoke(cli, ["--warehouse", str(tmp_path / "warehouse"), "table", "list"])
    assert listed.stdout == ""
