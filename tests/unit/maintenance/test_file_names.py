"""Files whose names are no UTF-8: Python has their bytes as lone surrogates, Arrow not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import tableformat as tf
from maintenance.cli.main import cli

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])
ODD = os.fsdecode(b"\xff")


@pytest.fixture
def table(tmp_path):
    catalog = tf.open_catalog("local", warehouse=str(tmp_path / "w"))
    return catalog.create_table("a.b", SCHEMA, primary_key=["id"])


def run(tmp_path: Path, *words: str):
    return CliRunner().invoke(cli, ["--warehouse", str(tmp_path / "w"), *words])


def test_json_lines_are_staged_from_any_name_and_bad_ones_say_where(table, tmp_path) -> None:
    events = tmp_path / f"{ODD}.jsonl"
    event = {"op": "c", "after": {"id": 1, "v": "x"}, "source": {"lsn": 1}}
    events.write_text(json.dumps(event))
    done = run(tmp_path, "ingest", "a.b", str(events))
    assert done.exit_code == 0, done.stderr
    assert table.scan(branch="staging").to_arrow().num_rows == 1
    events.write_text("no event")
    done = run(tmp_path, "ingest", "a.b", str(events))
    check_refused(done, r"position=\udcff.jsonl:1")


@pytest.mark.parametrize("named", [f"{ODD}.parquet", "*.parquet", ""])
def test_load_of_such_a_name_is_one_line(table, tmp_path, named) -> None:
    (tmp_path / "files").mkdir()
    pq.write_table(pa.table({"id": [1], "v": ["x"]}, SCHEMA), tmp_path / "plain")
    (tmp_path / "plain").rename(tmp_path / "files" / f"{ODD}.parquet")
    done = run(tmp_path, "load", "a.b", "--from", str(tmp_path / "files" / named))
    check_refused(done, "not UTF-8")
    assert table.scan().to_arrow().num_rows == 0


def test_parquet_events_of_such_a_name_are_one_line(table, tmp_path) -> None:
    pq.write_table(pa.table({"id": [1], "v": ["x"]}, SCHEMA), tmp_path / "plain")
    odd = (tmp_path / "plain").rename(tmp_path / f"{ODD}.parquet")
    check_refused(run(tmp_path, "ingest", "a.b", str(odd), "--format", "upsert"), "not UTF-8")


def test_checkpoint_of_such_a_name_is_one_line_before_spark_starts(table, tmp_path) -> None:
    (tmp_path / "events").mkdir()
    words = ("ingest", "a.b", str(tmp_path / "events"), "--checkpoint", str(tmp_path / ODD))
    check_refused(run(tmp_path, *words), "cannot read the path: it is not UTF-8")
    assert not (tmp_path / ODD).exists()


def check_refused(done, why: str) -> None:
    assert done.exit_code == 1, done.output
    assert isinstance(done.exception, SystemExit)
    assert done.stderr.startswith("icefold: invalid-input: ")
    assert why in done.stderr
    assert done.stderr.count("\n") == 1
