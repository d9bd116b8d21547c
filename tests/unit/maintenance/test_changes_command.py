"""`icefold changes` and time travel of `icefold scan`, as a person types them."""

import json

import pyarrow as pa
import pytest
from click.testing import CliRunner

from maintenance.cli.main import cli
from resolver import resolve
from tableformat import open_catalog

SCHEMA = pa.schema([("id", pa.int64()), ("status", pa.string())])


class Shop:
    def __init__(self, folder):
        self.warehouse = str(folder)
        self.table = open_catalog("local", warehouse=self.warehouse).create_table(
            "shop.orders", SCHEMA, primary_key=["id"]
        )
        self.table.append(self.rows((1, "new"), (2, "new"), (3, "new")))
        self.start = self.head()
        gone = pa.table({"id": pa.array([3], pa.int64())})
        self.table.stage(self.rows((2, "paid"), (4, "new")), gone)
        resolve(self.table)

    def rows(self, *rows):
        return pa.Table.from_pylist([dict(zip(SCHEMA.names, r, strict=True)) for r in rows], SCHEMA)

    def head(self):
        return self.table.refresh().state.head("main")

    def run(self, *words):
        return CliRunner().invoke(cli, ["--warehouse", self.warehouse, *words])


@pytest.fixture
def shop(tmp_path):
    return Shop(tmp_path / "warehouse")


def lines(result):
    assert result.exit_code == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_changes_since_a_snapshot_are_printed_as_json_lines(shop):
    start = str(shop.start.snapshot_id)
    found = lines(shop.run("changes", "shop.orders", "--from", start, "--json"))
    assert {(row["_change_type"], row["id"], row["status"]) for row in found} == {
        ("-D", 3, "new"),
        ("-U", 2, "new"),
        ("+U", 2, "paid"),
        ("+I", 4, "new"),
    }
    assert {row["_commit_snapshot_id"] for row in found} == {shop.head().snapshot_id}


def test_options_narrow_the_changes(shop):
    words = ["changes", "shop.orders", "--from", str(shop.start.snapshot_id), "--to", "main"]
    more = ["--columns", "status", "--filter", "id = 2", "--net", "--format", "csv"]
    result = shop.run(*words, *more)
    assert [line.split(",")[:2] for line in result.stdout.splitlines()] == [
        ["status", "_change_type"],
        ["new", "-U"],
        ["paid", "+U"],
    ]
    assert shop.run(*words, "--format", "count").stdout == "4\n"
    assert "paid" in shop.run(*words).stdout


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--from", "17"], "no snapshot 17"),
        (["--from", "nope"], "no branch or tag 'nope'"),
        (["--to", "main", "--branch", "main"], "not both"),
        (["--columns", "nope"], "no column 'nope'"),
    ],
)
def test_bad_input_ends_in_one_line(shop, words, text):
    result = shop.run("changes", "shop.orders", *words)
    assert result.exit_code == 1
    assert text in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_scan_reads_what_the_branch_held_at_a_time(shop):
    words = ["scan", "shop.orders", "--format", "count", "--as-of"]
    assert shop.run(*words, "2100-01-01").stdout == "3\n"
    assert "no snapshot is that old" in shop.run(*words, "2000-01-01T00:00:00+02:00").stderr
    wrong = shop.run(*words, "yesterday")
    assert (wrong.exit_code, len(wrong.stderr.splitlines())) == (1, 1)
    assert "2026-01-31T12:00:00" in wrong.stderr


def test_preview_of_no_rows_shows_none(shop):
    result = shop.run("scan", "shop.orders", "--limit", "0")
    assert result.exit_code == 0
    assert "paid" not in result.stdout
