"""icefold lookup, inspect and index, as a person types them."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from click.testing import CliRunner
from rich.cells import cell_len

import tableformat as tf
from maintenance.cli.main import cli

SCHEMA = pa.schema(
    [("id", pa.int64()), ("at", pa.timestamp("us", tz="UTC")), ("note", pa.string())]
)


@pytest.fixture
def run(tmp_path):
    warehouse = str(tmp_path / "warehouse")
    table = tf.open_catalog("local", warehouse=warehouse).create_table(
        "shop.rows", SCHEMA, primary_key=["id"]
    )
    hostile = ["plain", "\x1b[31mred\x07", "[bold]markup[/]", "two\nlines", None]
    table.append(pa.table([pa.array(range(5)), pa.array([0] * 5), hostile], schema=SCHEMA))

    def invoke(*words):
        return CliRunner().invoke(cli, ["--warehouse", warehouse, *words])

    return invoke


def test_lookup_prints_rows_and_how_they_were_found(run):
    found = run("lookup", "shop.rows", "id=1", "id=7", "--json")
    answer = json.loads(found.stdout)
    assert answer["source"] == "scan"
    assert "no index yet" in answer["reason"]
    assert answer["missing"] == [1]
    assert [row["id"] for row in answer["rows"]] == [1]
    assert "built" in run("index", "build", "shop.rows").stdout
    shown = run("lookup", "shop.rows", "id=0", "--columns", "note")
    assert "plain" in shown.stdout
    assert "1 row, found by the index\n" in shown.stderr


def test_secondary_indexes_from_declaration_to_drop(run):
    assert run("index", "list", "shop.rows").stderr == "no secondary indexes\n"
    assert run("index", "add", "shop.rows", "by_note", "note,at").exit_code == 0
    assert run("index", "list", "shop.rows").stdout == "by_note: at, note\n"
    assert "by_note: built" in run("index", "build", "shop.rows", "by_note").stdout
    assert "sound" in run("index", "verify", "shop.rows", "--index", "by_note").stdout
    key = ("at=1970-01-01T00:00:00", "--null", "note")
    found = json.loads(run("lookup", "shop.rows", *key, "--index", "by_note", "--json").stdout)
    assert (found["source"], [row["id"] for row in found["rows"]]) == ("index", [4])
    assert run("index", "drop", "shop.rows", "by_note").stdout == "dropped by_note\n"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["id"], "not COLUMN=VALUE"),
        ([], "no key was given"),
        (["id=three"], "does not fit its column"),
        (["id=1_0"], "does not fit its column"),
        (["id= 1"], "does not fit its column"),
        (["nope=1"], "no column 'nope'"),
        (["note=x"], "is no column of the key"),
        (["id=1", "--index", "nope"], "no index 'nope'"),
        (["at=1970-01-01T00:00:00.0000001"], "does not fit its column"),
    ],
)
def test_wrong_keys_end_with_one_line(run, words, text):
    result = run("lookup", "shop.rows", *words)
    assert result.exit_code == 1
    assert text in result.stderr
    assert result.stderr.count("\n") == 1


def test_nothing_in_the_data_reaches_the_terminal_as_control_or_markup(run):
    for words in (["lookup", "shop.rows", *(f"id={i}" for i in range(5))], ["scan", "shop.rows"]):
        shown = run(*words).stdout
        assert "\x1b" not in shown
        assert "\x07" not in shown
        assert "[bold]markup[/]" in shown
        assert r"two\nlines" in shown


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_grid_is_straight_in_every_encoding(tmp_path, encoding):
    warehouse = str(tmp_path / "w")
    table = tf.open_catalog("local", warehouse=warehouse).create_table(
        "shop.rows", SCHEMA, primary_key=["id"]
    )
    notes = ["plain", "zo\u00eb \u0142", "\u4e2d\u6587", "e\u0301\x07"]
    table.append(pa.table([range(4), [0] * 4, notes], schema=SCHEMA))
    words = ["--warehouse", warehouse, "scan", "shop.rows", "--columns", "id,note"]
    shown = CliRunner(charset=encoding).invoke(cli, words).stdout.splitlines()
    assert len({cell_len(line) for line in shown}) == 1, shown


def test_inspect_with_a_limit_beyond_every_count_prints_all(run):
    rows = run("inspect", "shop.rows", "files", "--csv").stdout
    assert run("inspect", "shop.rows", "files", "--csv", "--limit", str(10**20)).stdout == rows


def test_inspect_prints_views_in_three_forms(run):
    assert "ADDED" not in run("inspect", "shop.rows", "files").stdout
    [file] = json.loads(run("inspect", "shop.rows", "files", "--json").stdout)
    assert file["record_count"] == 5
    lines = run("inspect", "shop.rows", "snapshots", "--csv").stdout.splitlines()
    assert lines[0].startswith("committed_at,snapshot_id,parent_id")
    assert len(lines) == 2
    assert run("inspect", "shop.rows", "refs", "--limit", "0", "--json").stdout.strip() == "[]"
    refused = run("inspect", "shop.rows", "refs", "--branch", "main")
    assert (refused.exit_code, "takes no branch" in refused.stderr) == (1, True)
