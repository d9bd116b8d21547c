"""`icefold ingest`: options that do not go together end with one line, before anything starts."""

import json

import pytest
from click.testing import CliRunner

from maintenance.cli.main import cli

KAFKA = ("--kafka", "localhost:9092", "--topic", "orders", "--checkpoint", "c")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ((), "name FILES, or --kafka with --topic"),
        (("--kafka", "localhost:9092"), "--kafka needs --topic"),
        (("a.jsonl", "--topic", "orders"), "--topic needs --kafka"),
        (("a.jsonl", "--connector-jar", "x.jar"), "--connector-jar needs --kafka"),
        (("a.jsonl", "--starting-offsets", "latest"), "--starting-offsets needs --kafka"),
        (("a.jsonl", *KAFKA), "FILES and --kafka exclude each other"),
        (KAFKA[:-2], "--kafka and --follow need --checkpoint"),
        (("a.jsonl", "--follow"), "--kafka and --follow need --checkpoint"),
        (("a.jsonl", "--interval-s", "2"), "--interval-s needs --follow"),
        ((*KAFKA, "--query-id", "x"), "--query-id is for plain files"),
        (("a.jsonl", "--checkpoint", "c"), "FILES is one folder of JSON-lines files"),
        ((".", "--checkpoint", "c", "--batch-events", "5"), "committed file by file"),
        (("a.jsonl", "--metrics-port", "9"), "--metrics-port needs --follow"),
        (("a.jsonl", "--in-any-order"), "--in-any-order needs --replay-dead-letters"),
        (("a.jsonl", "--replay-dead-letters"), "--replay-dead-letters and FILES exclude"),
        ((*KAFKA, "--replay-dead-letters"), "--replay-dead-letters and --kafka exclude"),
    ],
)
def test_options_that_miss_another_are_named(tmp_path, words, line):
    result = CliRunner().invoke(cli, ["--warehouse", str(tmp_path), "ingest", "a.b", *words])
    assert result.exit_code == 2
    assert line in result.stderr.splitlines()[-1]


@pytest.fixture
def shell(tmp_path):
    def run(*words):
        return CliRunner().invoke(cli, ["--warehouse", str(tmp_path / "warehouse"), *words])

    create = ("table", "create", "a.b", "--column", "id:long!", "--primary-key", "id")
    assert run(*create).exit_code == 0
    return run


def test_typed_format_cannot_be_streamed(shell, tmp_path):
    result = shell("ingest", "a.b", *KAFKA, "--format", "upsert")
    assert result.exit_code == 1
    assert "format 'upsert' reads typed columns" in result.stderr
    assert not (tmp_path / "c").exists()


def test_missing_connector_is_one_line(shell):
    result = shell("ingest", "a.b", *KAFKA, "--connector-jar", "nowhere.jar")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "icefold: not-found: no such jar or folder; file=nowhere.jar\n"
    result = shell("ingest", "a.b", *KAFKA)
    assert result.stderr.startswith("icefold: unsupported: Spark has no Kafka connector; missing=")
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.spark
def test_folder_is_streamed_and_goes_on_where_it_stopped(spark, shell, tmp_path):
    events = tmp_path / "events"
    events.mkdir()

    def put(name, key):
        event = {"before": None, "after": {"id": key}, "op": "c", "ts_ms": 1}
        (events / name).write_text(json.dumps(event) + "\n")

    words = ("ingest", "a.b", str(events), "--checkpoint", str(tmp_path / "c"), "--json")
    put("1", 1)
    first = json.loads(shell(*words).stdout)
    put("2", 2)
    put("3", 3)
    second = json.loads(shell(*words).stdout)
    assert [(each["events"], each["commits"]) for each in (first, second)] == [(1, 1), (2, 2)]
    status = json.loads(shell("status", "--json").stdout)[0]
    assert status["backlog_rows"] == 3
