"""The commands as a person types them: what they print, and how they end."""

import json
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import tableformat as tf
from lock import LeaseLostError
from maintenance.cli.main import cli
from maintenance.tasks.compact import compact
from maintenance.tasks.options import CompactOptions
from resolver.maintenance_lock import maintenance_lock, task_lock_name

ROOT = Path(__file__).resolve().parents[3]
CREATE = [
    "table", "create", "shop.orders", "--column", "id:long!", "--column", "status:string",
    "--column", "price:decimal(10, 2)", "--primary-key", "id",
]  # fmt: skip
EVENTS = [
    {"before": None, "after": {"id": 1, "status": "new", "price": "1.50"}, "op": "c"},
    {"before": None, "after": {"id": 2, "status": "new", "price": None}, "op": "c"},
    {"before": {"id": 1}, "after": {"id": 1, "status": "paid", "price": "1.50"}, "op": "u"},
    {"before": {"id": 2}, "after": None, "op": "d"},
]


class Shell:
    """`icefold` against one warehouse, ended as for a user: exit code, output, one error line."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.warehouse = str(folder / "warehouse")

    def run(self, *words: str) -> Result:
        return CliRunner().invoke(cli, ["--warehouse", self.warehouse, *words])

    def ok(self, *words: str) -> str:
        result = self.run(*words)
        assert result.exit_code == 0, result.stderr
        return result.stdout


@pytest.fixture
def shell(tmp_path):
    (tmp_path / "events.jsonl").write_text(
        "".join(
            json.dumps({**event, "source": {"lsn": i}, "ts_ms": i}) + "\n"
            for i, event in enumerate(EVENTS)
        )
    )
    return Shell(tmp_path)


@pytest.fixture
def orders(shell):
    shell.ok(*CREATE)
    return shell


def ingest(shell, *more):
    return shell.ok(
        "ingest", "shop.orders", str(shell.folder / "events.jsonl"), "-o", "decimals=text", *more
    )


def test_main_path_from_create_to_scan(orders):
    assert "4 events, 4 changes in 1 commit on staging; 0 bad records\n" in ingest(
        orders, "--batch-events", "10"
    )
    status = json.loads(orders.ok("status", "--json"))[0]
    assert (status["backlog_snapshots"], status["backlog_rows"]) == (1, 1)
    assert "published 1 staged snapshot as" in orders.ok("resolve", "shop.orders")
    rows = [
        json.loads(line)
        for line in orders.ok("scan", "shop.orders", "--format", "json").splitlines()
    ]
    assert rows == [{"id": 1, "status": "paid", "price": "1.50"}]
    assert orders.ok("scan", "shop.orders", "--format", "csv") == "id,status,price\n1,paid,1.50\n"
    assert "sound" in orders.ok("index", "verify", "shop.orders")
    assert "free (last fence token 1)" in orders.ok("lock", "show", "shop.orders")


def test_lock_show_names_a_compaction_that_does_not_hold_the_lock(orders):
    ingest(orders)
    orders.ok("resolve", "shop.orders")
    catalog = tf.open_catalog("local", warehouse=str(orders.folder / "warehouse"))
    table = catalog.load_table("shop.orders")
    with closing(maintenance_lock(table.environment)) as manager:
        with manager.hold(task_lock_name(table.state, "compact"), task="compact shop.orders"):
            text = orders.ok("lock", "show", "shop.orders")
            found = json.loads(orders.ok("lock", "show", "shop.orders", "--json"))
        assert "compaction: held by compact shop.orders" in text
        assert text.startswith("free")
        assert (found["holder"], found["compaction"]["token"]) == (None, 1)
        assert "compaction" not in orders.ok("lock", "show", "shop.orders")


@pytest.mark.parametrize("words", [[], ["--compaction"]])
def test_lock_break_ends_a_compaction_that_rewrites_by_its_own_lease(orders, words):
    ingest(orders)
    orders.ok("resolve", "shop.orders")
    catalog = tf.open_catalog("local", warehouse=str(orders.folder / "warehouse"))
    table = catalog.load_table("shop.orders")
    head, said = table.state.head_id("main"), list[str]()
    points = table.environment.runtime.fail_points.armed
    points["compact.after_write"] = lambda _: said.append(
        orders.ok("lock", "break", "shop.orders", *words, "--yes")
    )
    options = CompactOptions(rewrite_all=True)
    if words:
        with pytest.raises(LeaseLostError, match="ended by someone else"):
            compact(table, options)
        assert said[0].startswith("ended: held by compact shop.orders")
        assert table.refresh().state.head_id("main") == head
    else:
        assert compact(table, options).commits
        assert said == ["nobody held it\n"]
    points.clear()
    assert compact(table, options).commits  # the locks are free again


def test_ingest_twice_under_one_query_id_writes_once(orders):
    ingest(orders, "--query-id", "q")
    assert "; 0 bad records, 1 batch was there already\n" in ingest(orders, "--query-id", "q")
    assert json.loads(orders.ok("status", "--json"))[0]["backlog_snapshots"] == 1


def test_ingest_counts_what_it_skips(orders):
    (orders.folder / "events.jsonl").write_text('\n{"op": "m"}\n{"op": "m"}\n')
    assert ingest(orders) == (
        "3 events, 0 changes in 0 commits on staging; "
        "0 bad records, 2 skipped (message), 1 skipped (tombstone)\n"
    )
    found = json.loads(ingest(orders, "--json", "--batch-events", "2"))
    assert found == {
        "events": 3,
        "changes": 0,
        "commits": 0,
        "bad_records": 0,
        "skipped": {"tombstone": 1, "message": 2},
        "repeated": 0,
        "truncated": 0,
    }


def test_resolve_in_batches_keeps_the_rest_waiting(orders):
    ingest(orders, "--batch-events", "1")
    report = json.loads(orders.ok("resolve", "shop.orders", "--limit", "3", "--json"))
    assert report["staged_snapshots"] == 3
    assert json.loads(orders.ok("status", "--json"))[0]["backlog_snapshots"] == 1


def test_table_that_was_never_staged_on_has_nothing_to_resolve(orders):
    assert "nothing to resolve" in orders.ok("resolve", "shop.orders")


def test_nothing_to_resolve_is_success(orders):
    ingest(orders)
    orders.ok("resolve", "shop.orders")
    assert "nothing to resolve" in orders.ok("resolve", "shop.orders")


BAD = {
    "unknown table": (["scan", "shop.nope"], "table does not exist"),
    "misspelt table": (["scan", "shop.ordrs"], "did you mean shop.orders?"),
    "misspelt pattern": (["resolve", "shp.*", "--cut"], "no table has such a name"),
    "status of a misspelt pattern": (["status", "shp.*"], "no table has such a name"),
    "cuts of a misspelt namespace": (["cuts", "shp"], "did you mean shop?"),
    "tables of a misspelt namespace": (["table", "list", "shp"], "no such namespace"),
    "unknown column": (["scan", "shop.orders", "--columns", "nope"], "nope"),
    "unknown filter column": (["scan", "shop.orders", "--filter", "nope > 1"], "nope"),
    "broken filter": (["scan", "shop.orders", "--filter", "id >"], "filter"),
    "unknown branch": (["scan", "shop.orders", "--branch", "nope"], "nope"),
    "branch and snapshot": (
        ["scan", "shop.orders", "--branch", "main", "--snapshot-id", "1"],
        "not both",
    ),
    "unknown snapshot": (["scan", "shop.orders", "--snapshot-id", "1"], "no snapshot 1"),
    "float key": (["table", "create", "a.b", "--column", "x:float", "--primary-key", "x"], "float"),
    "duplicate key": (
        ["table", "create", "a.b", "--column", "x:int", "--primary-key", "x,x"],
        "twice",
    ),
    "unknown key": (
        ["table", "create", "a.b", "--column", "x:int", "--primary-key", "y"],
        "unknown column",
    ),
    "unknown type": (
        ["table", "create", "a.b", "--column", "x:blob", "--primary-key", "x"],
        "Iceberg type",
    ),
    "bad name": (
        ["table", "create", "orders", "--column", "x:int", "--primary-key", "x"],
        "table name",
    ),
    "path as name": (
        ["table", "create", "a.../../b", "--column", "x:int", "--primary-key", "x"],
        "table name",
    ),
    "bad transform": (
        [
            "table",
            "create",
            "a.b",
            "--column",
            "x:int",
            "--primary-key",
            "x",
            "--partition-by",
            "month(x)",
        ],
        "transform",
    ),
    "existing table": (CREATE, "exists"),
    "unknown staging": (["resolve", "shop.orders", "--staging", "nope"], "no staging branch"),
    "staging is the target": (
        ["ingest", "shop.orders", "EVENTS", "--branch", "main"],
        "published branch",
    ),
    "resolve into the default staging": (
        ["resolve", "shop.orders", "--target", "staging"],
        "is no target",
    ),
    "cut into the default staging": (
        ["resolve", "shop.*", "--cut", "--target", "staging"],
        "is no target",
    ),
    "maintain into the default staging": (
        ["maintain", "shop.orders", "--once", "--target", "staging"],
        "is no target",
    ),
    "malformed event": (["ingest", "shop.orders", "BROKEN"], "bad record"),
    "missing file": (["ingest", "shop.orders", "nope.jsonl"], "cannot read"),
    "unknown option": (
        ["ingest", "shop.orders", "EVENTS", "-o", "nope=1"],
        "unknown option 'nope'",
    ),
    "no index": (["index", "verify", "shop.orders"], "no usable index"),
    "unknown catalog": (["--catalog", "nope", "table", "list"], "nope"),
}


@pytest.mark.parametrize(("words", "text"), BAD.values(), ids=BAD.keys())
def test_bad_input_ends_in_one_line_and_writes_nothing(orders, words, text):
    (orders.folder / "broken.jsonl").write_text('{"op": "c", "after": {"id": "x"}\n')
    files = {"EVENTS": orders.folder / "events.jsonl", "BROKEN": orders.folder / "broken.jsonl"}
    before = sorted(Path(orders.warehouse).rglob("*.parquet"))
    snapshots = json.loads(orders.ok("table", "describe", "shop.orders", "--json"))["snapshots"]
    result = orders.run(*(str(files.get(word, word)) for word in words))
    assert result.exit_code == 1
    message = result.stderr
    assert len(message.splitlines()) == 1
    assert text in message
    assert sorted(Path(orders.warehouse).rglob("*.parquet")) == before
    assert (
        json.loads(orders.ok("table", "describe", "shop.orders", "--json"))["snapshots"]
        == snapshots
    )


def test_drop_asks_only_about_a_table_that_is_there(orders):
    result = orders.run("table", "drop", "shop.ordrs")
    assert result.exit_code == 1
    assert not result.stdout
    assert "did you mean shop.orders?" in result.stderr
    assert "Remove shop.orders" in orders.run("table", "drop", "shop.orders").stdout
    assert orders.ok("table", "list") == "shop.orders\n"
    orders.ok("table", "drop", "shop.orders", "--yes")
    assert not orders.ok("table", "list", "shop")


def test_table_whose_metadata_are_lost_can_be_dropped(orders):
    for file in Path(orders.warehouse).rglob("*.metadata.json"):
        file.unlink()
    orders.ok("table", "drop", "shop.orders", "--yes")


@pytest.mark.parametrize(
    "words",
    [
        ["scan"],
        ["resolve", "shop.orders", "--limit", "0"],
        ["resolve", "shop.*"],
        ["-p", "nope", "table", "list"],
        ["nope"],
    ],
    ids=[
        "no table",
        "zero limit",
        "pattern without cut",
        "property without value",
        "unknown command",
    ],
)
def test_usage_errors_exit_with_2(shell, words):
    assert shell.run(*words).exit_code == 2


def test_help_lists_every_option_of_every_format(shell):
    listed = shell.ok("ingest", "--list-options")
    for text in ("debezium-json", "changelog-json", "upsert", "append", "on-bad-record"):
        assert text in listed


@pytest.mark.slow
def test_console_script_runs_in_a_process_of_its_own(tmp_path):
    code = "from maintenance.cli.start import main; main()"
    result = subprocess.run(
        [sys.executable, "-c", code, "--warehouse", str(tmp_path / "w"), "scan", "a.b"],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert result.returncode == 1
    place = tmp_path / "w" / "icefold.db"
    assert result.stderr.startswith(f"icefold: not-found: there is no catalog at {place}; ")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("size", ["9" * 5000, "9" * 19, "0", "-1"])
def test_impossible_size_is_refused(orders, size):
    result = orders.run("compact", "shop.orders", "--target-size", size)
    assert result.exit_code == 2
    assert "is not a size" in result.stderr


@pytest.mark.parametrize("column", ["a:fixed[", "a:decimal(1", "a:fixed[x]", "a:list<", "a:"])
def test_impossible_column_type_is_refused_in_one_line(shell, column):
    result = shell.run("table", "create", "a.b", "--column", column, "--primary-key", "a")
    assert result.exit_code == 1
    assert result.stderr.startswith("icefold: invalid-input: not an Iceberg type")


@pytest.mark.parametrize("width", ["9" * 5000, "9" * 10])
def test_impossible_width_of_a_transform_is_refused_in_one_line(shell, width):
    partition = ("--partition-by", f"bucket({width}, id)")
    result = shell.run(*CREATE, *partition)
    assert result.exit_code == 1
    assert "not a partition transform" in result.stderr


def test_report_in_a_file_whose_name_is_no_text_is_written_and_said(orders, monkeypatch):
    monkeypatch.chdir(orders.folder)
    assert orders.ok("report", "shop.orders", "-o", "r\udcff.html").startswith("wrote r")
    assert (orders.folder / "r\udcff.html").exists()


@pytest.mark.parametrize(
    "words",
    [
        ["scan", "shop.orders", "--branch"],
        ["scan", "shop.orders", "--tag"],
        ["inspect", "shop.orders", "files", "--branch"],
        ["lookup", "shop.orders", "id=1", "--branch"],
        ["changes", "shop.orders", "--branch"],
        ["changes", "shop.orders", "--to"],
        ["sql", "UPDATE shop.orders SET status = 'lost'", "--branch"],
        ["compact", "shop.orders", "--branch"],
        ["resolve", "shop.orders", "--target"],
        ["load", "shop.orders", "--from"],
    ],
    ids=" ".join,
)
def test_empty_name_is_refused_and_not_taken_for_the_default(orders, words):
    """An unset variable of a script is one."""
    ingest(orders)
    orders.ok("resolve", "shop.orders")
    before = orders.ok("inspect", "shop.orders", "snapshots", "--json")
    result = orders.run(*words, "")
    assert (result.exit_code, result.stdout) == (1, "")
    assert len(result.stderr.splitlines()) == 1
    assert orders.ok("inspect", "shop.orders", "snapshots", "--json") == before


@pytest.mark.parametrize("columns", ["0", "1"])
def test_terminal_without_room_is_shown_something(orders, monkeypatch, columns):
    """Rich takes COLUMNS=0 at its word; what a container or a cron job is started with says so."""
    monkeypatch.setenv("COLUMNS", columns)
    assert "orders" in orders.ok("status", "shop.orders")


def test_limit_beyond_what_arrow_counts_is_no_limit(orders):
    ingest(orders)
    orders.ok("resolve", "shop.orders")
    many = str(1 << 80)
    assert orders.ok("scan", "shop.orders", "--limit", many, "--format", "count") == "1\n"
    assert len(json.loads(orders.ok("inspect", "shop.orders", "files", "--limit", many, "--json")))


def test_names_of_others_give_a_terminal_no_orders(orders):
    ingest(orders)
    orders.ok("resolve", "shop.orders")
    name, shown = "a\x1b[2J\r\nb", r"a\x1b[2J\r\nb"
    assert f"created tag {shown}: " in orders.ok("ref", "create-tag", "shop.orders", name)
    assert orders.ok("ref", "drop", "shop.orders", name) == f"dropped {shown}\n"
    said = orders.ok("table", "add-column", "shop.orders", f"{name}:string")
    assert said.count("\n") == 1
    assert shown in said
    said = orders.ok("table", "set-properties", "shop.orders", f"{name}={name}")
    assert f"{shown}={shown}\n" in said


@pytest.mark.parametrize(
    "error",
    [
        ConnectionRefusedError(111, "Connection refused"),
        OSError(28, "Error writing bytes to file. Detail: [errno 28] No space left on device"),
        FileNotFoundError(2, "No such file or directory", "/tmp/x"),
    ],
)
def test_failure_of_something_else_is_not_told_as_an_output_that_cannot_be_written(
    orders, monkeypatch, error
):
    def fail(*_):
        raise error

    monkeypatch.setattr(tf.TableCatalog, "list_tables", fail)
    result = orders.run("table", "list")
    assert result.exception is error
    assert "output" not in result.stderr
