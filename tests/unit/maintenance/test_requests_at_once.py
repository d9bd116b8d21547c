"""What reads many objects of a bucket asks for several at a time."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from click.testing import CliRunner

import tableformat as tf
from maintenance.cli.main import cli
from resolver import resolve
from tableformat.store import locations
from tests.support.slow_requests import SlowRequests

SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])
COMMITS = 12
COMMANDS = [
    ("adopt", "t.rows"),
    ("expire", "t.rows", "--older-than", "1ms", "--keep", "6"),
    ("index", "build", "t.rows", "--rebuild"),
    ("index", "verify", "t.rows"),
    ("inspect", "t.rows", "files"),
    ("lookup", "t.rows", "id=3"),
    ("orphans", "t.rows"),
    ("resolve", "t.rows"),
    ("rewrite-manifests", "t.rows"),
    ("status", "many.*"),
    ("cuts", "many"),
]


@pytest.fixture
def warehouse(tmp_path):
    folder = str(tmp_path / "warehouse")
    catalog = tf.open_catalog("local", warehouse=folder)
    apart = {"commit.manifest-merge.enabled": "false"}
    table = catalog.create_table("t.rows", SCHEMA, primary_key=["id"], properties=apart)
    table.append(rows(range(COMMITS)))
    resolve(table)
    for number in range(COMMITS):
        table.append(rows([100 + number]))
        table.stage(rows([number]))
    for number in range(COMMITS):
        many = catalog.create_table(f"many.t{number}", SCHEMA, primary_key=["id"])
        many.append(rows([number]))
    return folder


def rows(ids):
    return pa.table([list(ids), [str(number) for number in ids]], schema=SCHEMA)


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: "-".join(words[:2]))
def test_requests_of_a_command_do_not_wait_for_each_other(words, warehouse, monkeypatch):
    monkeypatch.setattr(locations, "is_in_bucket", lambda _: True)
    if words[:2] == ("index", "verify"):
        CliRunner().invoke(cli, ["--warehouse", warehouse, "index", "build", "t.rows"])
    requests = SlowRequests()
    requests.watch(monkeypatch)
    done = CliRunner().invoke(cli, ["--warehouse", warehouse, *words])
    assert done.exit_code == 0, done.output
    assert len(requests.spans) >= COMMITS
    assert requests.in_turn <= len(requests.spans) / 2 + 2, json.dumps(words)
