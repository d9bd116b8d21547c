"""Commands that read write nothing: proven on a file system that refuses every write.

The warehouse is mounted read-only in a mount namespace of its own, which also stops root; where the
kernel does not give one to this user, and the user is not root, the folder's modes do.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner

import tableformat as tf
from maintenance.cli.main import cli
from resolver import resolve

ROOT = Path(__file__).resolve().parents[3]
SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])
READS = [
    ["table", "list"],
    ["table", "describe", "a.b"],
    ["status"],
    ["status", "a.b"],
    ["scan", "a.b", "--format", "csv"],
    ["scan", "a.b", "--branch", "staging", "--format", "csv"],
    ["lookup", "a.b", "id=2", "--format", "csv"],
    ["lookup", "a.b", "id=2", "--format", "json"],
    ["changes", "a.b", "--format", "count"],
    ["inspect", "a.b", "snapshots"],
    ["ref", "list", "a.b"],
    ["index", "list", "a.b"],
    ["lock", "show", "a.b"],
    ["table", "sequence", "a.b"],
]
WRITES = [
    ["sql", "--no-spark", "DELETE FROM a.b WHERE id = 2"],
    ["table", "create", "a.c", "--column", "id:long", "--primary-key", "id"],
    ["table", "add-column", "a.b", "x:int"],
    ["ref", "create-tag", "a.b", "t"],
    ["resolve", "a.b"],
]
DRIVER = """
import json, sys
from click.testing import CliRunner
from maintenance.cli.main import cli
answers = []
for words in json.load(sys.stdin):
    result = CliRunner().invoke(cli, ["--warehouse", sys.argv[1], *words])
    answers.append([result.exit_code, result.stdout, result.stderr, repr(result.exception)])
print(json.dumps(answers))
"""
MOUNT = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && shift 0 && exec "$@"'


@pytest.fixture
def warehouse(tmp_path):
    folder = tmp_path / "w"
    table = tf.open_catalog("local", warehouse=str(folder)).create_table(
        "a.b", SCHEMA, primary_key=["id"]
    )
    table.stage(upserts=pa.table({"id": [1, 2], "v": ["x", "y"]}, schema=SCHEMA))
    resolve(table, engine="local")
    table.stage(upserts=pa.table({"id": [3], "v": ["z"]}, schema=SCHEMA))
    return folder


def has_mount_namespaces() -> bool:
    command = ["unshare", "-rm", "sh", "-c", "mount --bind /tmp /tmp"]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def run_without_writes(warehouse: Path, commands: list[list[str]]) -> list[list]:
    command = [sys.executable, "-c", DRIVER, str(warehouse)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    if has_mount_namespaces():
        command = ["unshare", "-rm", "sh", "-c", MOUNT, str(warehouse), *command]
        return _answers(command, commands, environment)
    if os.geteuid() == 0:
        pytest.skip("root may write whatever the modes say, and unshare gives no mount namespace")
    folders = [warehouse, *(path for path in warehouse.rglob("*") if path.is_dir())]
    files = [path for path in warehouse.rglob("*") if path.is_file()]
    for path in (*files, *folders):
        path.chmod(0o444 if path.is_file() else 0o555)
    try:
        return _answers(command, commands, environment)
    finally:
        for path in folders:
            path.chmod(0o755)


def _answers(command, commands, environment) -> list[list]:
    text = json.dumps(commands)
    done = subprocess.run(
        command, input=text, capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def tree(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    return {
        str(path.relative_to(folder)): (
            (path.stat().st_mtime_ns, path.stat().st_size, path.read_bytes())
            if path.is_file()
            else (0, 0, b"")
        )
        for path in folder.rglob("*")
    }


@pytest.mark.slow
def test_a_read_only_warehouse_is_read_as_ever(warehouse) -> None:
    expected = [CliRunner().invoke(cli, ["--warehouse", str(warehouse), *w]) for w in READS]
    answers = run_without_writes(warehouse, READS)
    for words, before, (code, out, err, error) in zip(READS, expected, answers, strict=True):
        assert (code, error) == (0, "None"), (words, err)
        if words[0] != "status":  # it holds ages
            assert out == before.stdout, words
    by_words = {" ".join(words): answer[1] for words, answer in zip(READS, answers, strict=True)}
    assert by_words["scan a.b --format csv"] == "id,v\n1,x\n2,y\n"
    assert by_words["scan a.b --branch staging --format csv"].count("\n") == 4
    assert by_words["changes a.b --format count"] == "2\n"
    assert json.loads(by_words["lookup a.b id=2 --format json"])["source"] == "index"
    assert "free (last fence token 1)" in by_words["lock show a.b"]


@pytest.mark.slow
def test_a_log_that_a_killed_writer_left_is_read_through(warehouse) -> None:
    """The last commit is in SQLite's log, not in the database yet."""
    text = (
        "import os, sys, pyarrow as pa, tableformat as tf\n"
        "table = tf.open_catalog('local', warehouse=sys.argv[1]).load_table('a.b')\n"
        "table.append(pa.table({'id': pa.array([9]), 'v': ['killed']}))\n"
        "os._exit(9)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", text, str(warehouse)], env=environment, check=False)
    assert (warehouse / "icefold.db-wal").stat().st_size > 0
    [(code, out, err, _)] = run_without_writes(warehouse, [["scan", "a.b", "--format", "csv"]])
    assert code == 0, err
    assert "9,killed" in out


@pytest.mark.slow
def test_writing_to_a_read_only_warehouse_is_one_line(warehouse) -> None:
    for words, (code, _, err, error) in zip(
        WRITES, run_without_writes(warehouse, WRITES), strict=True
    ):
        assert code == 1, words
        assert error == "SystemExit(1)", words
        assert err.count("\n") == 1, words


@pytest.mark.slow
def test_reading_a_writable_warehouse_leaves_every_byte_as_it_was(warehouse) -> None:
    """In a process of its own, which has closed its files at the end."""
    before = tree(warehouse)
    command = [sys.executable, "-c", DRIVER, str(warehouse)]
    answers = _answers(command, READS, {**os.environ, "PYTHONPATH": str(ROOT)})
    assert all(answer[0] == 0 for answer in answers)
    assert tree(warehouse) == before


@pytest.mark.parametrize("words", [*READS, *(w for w in WRITES if w[:2] != ["table", "create"])])
def test_a_warehouse_that_is_not_there_is_told_and_not_made(tmp_path, words) -> None:
    result = CliRunner().invoke(cli, ["--warehouse", str(tmp_path / "typo"), *words])
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1
    assert "there is no catalog at" in result.stderr
    assert "typo" in result.stderr
    assert not list(tmp_path.iterdir())
