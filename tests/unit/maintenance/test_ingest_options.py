"""`icefold ingest`: options that do not go together end with one line, before anything starts."""

import json

import pytest
from click.testing import CliRunner

from maintenance.cli.ingest import NOT_OF_REPLAY, ingest
from maintenance.cli.ingest_many import NAMES
from maintenance.cli.ingest_stream import OF_KAFKA
from maintenance.cli.ingest_words import spelled
from maintenance.cli.main import cli

KAFKA = ("--kafka", "localhost:9092", "--topic", "orders", "--checkpoint", "c")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ((), "name FILES, or --kafka with --topic"),
        (("--topics", "pg.*"), "--topics needs --kafka"),
        (("--into", "shop"), "--into needs --topics"),
        (("--resume", "a.b"), "--resume needs --topics"),
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
        (("a.jsonl", "--schema-registry", "http://r"), "--schema-registry needs --kafka"),
        ((*KAFKA, "--registry-option", "timeout=1"), "needs --schema-registry"),
        ((*KAFKA, "--replay-dead-letters"), "--replay-dead-letters and --kafka exclude"),
    ],
)
def test_options_that_miss_another_are_named(tmp_path, words, line):
    result = CliRunner().invoke(cli, ["--warehouse", str(tmp_path), "ingest", "a.b", *words])
    assert result.exit_code == 2
    assert line in result.stderr.splitlines()[-1]


MANY = ("--kafka", "127.0.0.1:1", "--topics", "pg.*", "--into", "shop")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ((), "name TABLE and FILES, or --kafka with --topics and --into"),
        (MANY[:4], "--topics needs --into"),
        (("a.b", *MANY), "TABLE and --topics exclude each other"),
        ((*MANY, "--topic", "t"), "--topic and --topics exclude each other"),
        ((*MANY, "--checkpoint", "c"), "the tables know how far they are: no --checkpoint"),
        ((*MANY, "--starting-offsets", "latest"), "a table begins where its topic does"),
        ((*MANY, "--interval-s", "2"), "--interval-s needs --follow"),
        ((*MANY, "--dry-run", "--follow"), "--dry-run reads and stops"),
        ((*MANY, "--cut", "transaction", "--engine", "spark"), "--cut transaction needs --engine"),
        ((*MANY, "--replay-dead-letters"), "--replay-dead-letters and --topics exclude"),
        ((*MANY, "--metrics-port", "9"), "--metrics-port needs --follow"),
    ],
)
def test_words_of_a_stream_into_many_tables_that_do_not_fit_are_named(tmp_path, words, line):
    result = CliRunner().invoke(cli, ["--warehouse", str(tmp_path), "ingest", *words])
    assert result.exit_code == 2
    assert line in result.stderr.splitlines()[-1]


def test_wrong_options_of_many_tables_are_one_line_before_kafka_is_asked(tmp_path):
    file = tmp_path / "tables.yaml"
    file.write_text("tables:\n  orders:\n    sequnce: source.lsn\n")
    run = CliRunner().invoke
    words = ["--warehouse", str(tmp_path), "ingest", *MANY]
    result = run(cli, [*words, "--tables", str(file)])
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert f"invalid-input: {file}:3: unknown option 'sequnce'" in result.stderr
    result = run(cli, [*words, "--format", "upsert"])
    assert "format 'upsert' reads typed columns, a message has none" in result.stderr
    result = run(cli, [*words, "-o", "shards=0"])
    assert "wrong value of option 'shards'" in result.stderr


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
    first = shell(*words)
    put("2", 2)
    put("3", 3)
    second = shell(*words)
    assert (first.stderr, second.stderr, second.exit_code) == ("", "", 0)
    told = [json.loads(each.stdout) for each in (first, second)]
    assert [(each["events"], each["commits"]) for each in told] == [(1, 1), (2, 2)]
    status = json.loads(shell("status", "--json").stdout)[0]
    assert status["backlog_rows"] == 3


def test_credentials_of_a_registry_show_nowhere(tmp_path):
    where = ["--warehouse", str(tmp_path), "ingest", *MANY]
    down = "http://127.0.0.1:1"
    fast = ("--registry-option", "max.retries=0")
    for words, line in [
        (("--schema-registry", down, *fast), "registry does not answer"),
        (("--schema-registry", "http://me:hunter2@r"), "must hold no credentials"),
        (("--schema-registry", down, "--registry-option", "what=hunter2"), "refuses a setting"),
    ]:
        result = CliRunner().invoke(
            cli, [*where, *words], env={"ICEFOLD_REGISTRY_USER_INFO": "me:hunter2"}
        )
        assert result.exit_code != 0
        assert line in result.stderr.splitlines()[-1]
        assert "hunter2" not in result.output


@pytest.mark.parametrize("name", sorted({*NOT_OF_REPLAY, *NAMES, *OF_KAFKA}))
def test_words_that_are_refused_are_named_as_they_are_typed(name):
    [param] = [param for param in ingest.params if param.name == name]
    assert spelled(name) in (param.opts if name != "files" else ["FILES"])
