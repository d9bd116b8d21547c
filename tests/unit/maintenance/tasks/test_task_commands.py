"""The tasks' commands, as a person types them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner

import tableformat as tf
from maintenance.cli.main import cli
from resolver import resolve
from tests.support.another_tool import another_tool

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])
COMMANDS = [
    "compact", "expire", "orphans", "rewrite-manifests", "rewrite-vectors", "drop-dead-deletes",
]  # fmt: skip


def rows(*keys):
    return pa.table({"id": pa.array(keys, pa.int64()), "v": [str(key) for key in keys]})


@pytest.fixture
def warehouse(tmp_path):
    return str(tmp_path / "warehouse")


@pytest.fixture
def table(warehouse):
    table = tf.open_catalog("local", warehouse=warehouse).create_table(
        "t.rows", SCHEMA, primary_key=["id"]
    )
    for step in range(6):
        table.append(rows(step, 10 + step))
    table.stage(deletes=pa.table({"id": pa.array([3], pa.int64())}))
    resolve(table)
    return table


@pytest.fixture
def run(warehouse):
    def invoke(*arguments):
        return CliRunner().invoke(cli, ["--warehouse", warehouse, *arguments])

    return invoke


@pytest.mark.parametrize("command", COMMANDS)
def test_dry_run_prints_a_line_and_json_and_changes_nothing(table, run, command):
    before = table.refresh().metadata_location
    line = run(command, "t.rows", "--dry-run")
    assert line.exit_code == 0, line.output
    assert line.stdout.startswith("t.rows: ")
    report = json.loads(run(command, "t.rows", "--dry-run", "--json").stdout)
    assert report["dry_run"] is True
    assert report["table"] == "t.rows"
    assert table.refresh().metadata_location == before


@pytest.mark.parametrize("command", COMMANDS)
def test_unknown_table_is_one_line_on_stderr(table, run, command):
    result = run(command, "t.nope")
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1
    assert "nope" in result.stderr


def test_compact_rewrites_and_says_so(table, run):
    result = run("compact", "t.rows", "--sort-by", "id desc", "--strategy", "sort", "--max-bytes",
                 "1GB", "--target-size", "64MiB", "--filter", "id >= 0")  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "compact: 6 files" in result.stdout
    keys = table.scan().to_arrow()["id"].to_pylist()
    assert keys == sorted(keys, reverse=True)
    assert len(keys) == 11
    assert "nothing to do" in run("compact", "t.rows").stdout


def test_wrong_arguments_are_refused(table, run):
    for arguments in (
        ("--target-size", "big"), ("--dv-share", "0"), ("--strategy", "magic"),
        ("--min-files", "0"), ("--filter", "nope = 1"), ("--branch", "staging"),
    ):  # fmt: skip
        result = run("compact", "t.rows", *arguments)
        assert result.exit_code != 0, arguments
        assert "Traceback" not in result.output


def test_orphans_lists_by_default_and_deletes_when_told(table, run):
    orphan = Path(table.state.metadata.location.removeprefix("file://")) / "data" / "left.parquet"
    orphan.write_text("x")
    os.utime(orphan, (1, 1))
    listed = run("orphans", "t.rows")
    assert "left.parquet" in listed.stdout
    assert "--delete" in listed.stdout
    assert orphan.exists()
    assert run("orphans", "t.rows", "--older-than", "5m", "--delete").exit_code == 1
    assert "deleted 1 of" in run("orphans", "t.rows", "--delete").stdout
    assert not orphan.exists()


def test_expire_and_metadata_commands_work(table, run):
    assert run("compact", "t.rows").exit_code == 0
    before = len(table.refresh().state.metadata.snapshots)
    report = json.loads(run("expire", "t.rows", "--older-than", "1ms", "--keep", "1",
                            "--json").stdout)  # fmt: skip
    assert len(table.refresh().state.metadata.snapshots) < before
    assert report["changed"] is True
    assert report["manifest_lists"] >= 6
    for command in ("rewrite-manifests", "rewrite-vectors"):
        assert run(command, "t.rows", "--rewrite-all").exit_code == 0
    assert run("drop-dead-deletes", "t.rows").exit_code == 0
    assert table.scan().to_arrow().num_rows == 11


def test_expire_keeps_a_branch_that_is_named_and_refuses_an_unknown_one(table, run):
    table.refs.create_branch("connect")
    for key in (50, 51, 52):
        with another_tool(table.environment):
            table.append(rows(key), branch="connect")
    options = ("expire", "t.rows", "--older-than", "1ms", "--keep", "1", "--dry-run", "--json")
    plain = json.loads(run(*options).stdout)
    named = json.loads(run(*options, "--staging", "connect:main").stdout)
    assert (plain["protected_snapshots"], named["protected_snapshots"]) == (0, 2)
    for wrong in ("conect", "connect:mian"):
        result = run(*options, "--staging", wrong)
        assert result.exit_code == 1
        assert "there is no such branch" in result.stderr
