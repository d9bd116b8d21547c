"""`icefold table` and `icefold ref`: what they change, what they refuse, what they say."""

from __future__ import annotations

import csv
import datetime as dt
import io
import json

import pyarrow as pa
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner
from pyiceberg.catalog.sql import SqlCatalog

import tableformat as tf
from maintenance.cli.main import cli
from tableformat.commit.creation import KEPT_HISTORY

SCHEMA = pa.schema([("id", pa.int64()), ("part", pa.string()), ("n", pa.int32())])


@pytest.fixture
def warehouse(tmp_path):
    return tmp_path / "w"


@pytest.fixture
def table(warehouse):
    catalog = tf.open_catalog("local", warehouse=str(warehouse))
    made = catalog.create_table("shop.orders", SCHEMA, primary_key=["id"])
    made.append(pa.table({"id": [1, 2], "part": ["a", "a"], "n": [1, None]}, schema=SCHEMA))
    return made


@pytest.fixture
def run(warehouse):
    return lambda *words: CliRunner().invoke(cli, ["--warehouse", str(warehouse), *words])


@pytest.fixture
def ok(run):
    def call(*words: str) -> str:
        result = run(*words)
        assert result.exit_code == 0, result.stderr
        return result.stdout

    return call


@pytest.fixture
def refused(run, table):
    def call(*words: str) -> str:
        before = table.refresh().metadata_location
        result = run(*words)
        assert result.exit_code == 1
        assert result.stderr.count("\n") == 1
        assert table.refresh().metadata_location == before
        return result.stderr

    return call


def test_nested_columns_can_be_declared_and_written(ok, warehouse) -> None:
    ok("table", "create", "a.b", "--column", "id:long!", "--column", "tags:array<string>",
       "--column", "at:struct<x: double, y: double NOT NULL>", "--column", "c:map<string,int>",
       "--primary-key", "id")  # fmt: skip
    table = tf.open_catalog("local", warehouse=str(warehouse)).load_table("a.b")
    row = {"id": 1, "tags": ["x", None], "at": {"x": None, "y": 1.0}, "c": [("k", 1)]}
    table.append(pa.Table.from_pylist([row], schema=table.scan().arrow_schema()))
    assert table.scan().to_arrow().to_pylist() == [row]


def test_nested_and_binary_values_are_json_and_base64_in_every_output(ok, warehouse) -> None:
    ok("table", "create", "a.b", "--column", "id:long!", "--column", "tags:array<binary>",
       "--column", "at:struct<x: double, day: date>", "--column", "raw:binary",
       "--primary-key", "id")  # fmt: skip
    table = tf.open_catalog("local", warehouse=str(warehouse)).load_table("a.b")
    at = {"x": None, "day": dt.date(2024, 2, 29)}
    row = {"id": 1, "tags": [b"\0\xff", None], "at": at, "raw": b"\xff"}
    table.append(pa.Table.from_pylist([row], schema=table.scan().arrow_schema()))
    expected = {
        "id": 1, "tags": ["AP8=", None], "at": {"x": None, "day": "2024-02-29"}, "raw": "/w==",
    }  # fmt: skip
    for words in (["scan", "a.b"], ["lookup", "a.b", "id=1"]):
        [found] = csv.DictReader(io.StringIO(ok(*words, "--format", "csv")))
        assert found.pop("id") == "1"
        assert found.pop("raw") == "/w=="
        assert {name: json.loads(cell) for name, cell in found.items()} == {
            "tags": expected["tags"], "at": expected["at"],
        }  # fmt: skip
    assert json.loads(ok("scan", "a.b", "--format", "json")) == expected
    [looked_up] = json.loads(ok("lookup", "a.b", "id=1", "--format", "json"))["rows"]
    assert looked_up == expected


def test_numbers_that_json_has_not_are_texts_that_ingest_reads_back(
    ok, warehouse, tmp_path
) -> None:
    ok("table", "create", "a.b", "--column", "id:long!", "--column", "x:double",
       "--column", "l:list<float>",
       "--primary-key", "id")  # fmt: skip
    row = {"id": 1, "x": "NaN", "l": ["-Infinity", 1.5, "Infinity"]}
    events = tmp_path / "events.jsonl"
    events.write_text(json.dumps({"op": "+I", "data": row}))
    ok("ingest", "a.b", str(events), "--format", "changelog-json")
    ok("resolve", "a.b")
    outputs = [
        ok("scan", "a.b", "--json"),
        json.dumps(json.loads(ok("lookup", "a.b", "id=1", "--json"))["rows"][0]),
    ]
    for text in outputs:
        assert json.loads(text, parse_constant=pytest.fail) == row
    [found] = csv.DictReader(io.StringIO(ok("scan", "a.b", "--format", "csv")))
    assert json.loads(found["l"], parse_constant=pytest.fail) == row["l"]


def test_schema_evolves_and_rows_stay(ok, table) -> None:
    ok("table", "add-column", "shop.orders", "note:string", "--after", "id", "--doc", "free")
    ok("table", "add-column", "shop.orders", "at:struct<x:int>", "--first")
    ok("table", "add-column", "shop.orders", "at.y:long")
    ok("table", "rename-column", "shop.orders", "note", "remark")
    assert "widened n" in ok("table", "widen-column", "shop.orders", "n:long")
    ok("table", "drop-column", "shop.orders", "part", "--yes")
    schema = table.refresh().schema()
    assert [field.name for field in schema.fields] == ["at", "id", "remark", "n"]
    assert schema.find_field("remark").doc == "free"
    assert str(schema.find_field("n").field_type) == "long"
    assert table.scan().to_arrow().to_pylist() == [
        {"at": None, "id": 1, "remark": None, "n": 1},
        {"at": None, "id": 2, "remark": None, "n": None},
    ]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("add-column", "shop.orders", "id:int"), "id"),
        (("add-column", "shop.orders", "x:int!"), "cannot be required"),
        (("add-column", "shop.orders", "x:int", "--first", "--after", "id"), "exclude each other"),
        (("add-column", "shop.orders", "x:nope"), "is no type"),
        (("add-column", "shop.orders", "_row_id:long"), "row lineage"),
        (("rename-column", "shop.orders", "n", "_ROW_ID"), "row lineage"),
        (
            (
                "create",
                "shop.x",
                "--column",
                "a:int",
                "--column",
                "_row_id:int",
                "--primary-key",
                "a",
            ),
            "row lineage",
        ),
        (("add-column", "shop.orders", "x:int", "--after", "nope"), "nope"),
        (("widen-column", "shop.orders", "n:string"), "string"),
        (("widen-column", "shop.orders", "n"), "Iceberg type"),
        (("rename-column", "shop.orders", "nope", "x"), "nope"),
        (("rename-column", "shop.orders", "n", "id"), "id"),
        (("drop-column", "shop.orders", "id", "--yes"), "id"),
        (("set-key", "shop.orders", "nope"), "nope"),
        (("set-key", "shop.orders", "n"), "rows=1"),
        (("set-key", "shop.orders", "part"), "part='a'"),
        (("set-key", "shop.orders", "id,id"), "named twice"),
        (("set-properties", "shop.orders", "a=1", "--remove", "a"), "both set and removed"),
        (("computed", "shop.orders", "--add", "x:long"), "belong together"),
        (("computed", "shop.orders", "--add", "x:text", "--as", "id"), "text"),
        (("computed", "shop.orders", "--drop", "x"), "x"),
        (("computed", "shop.orders", "--stored"), "belong to --add"),
        (("computed", "shop.orders", "--add", "x:long", "--as", "id", "--backfill"), "backfill"),
        (("computed", "shop.orders", "--add", "x:long", "--as", "id", "--stored"), "has rows"),
    ],
)
def test_wrong_evolution_is_refused_in_one_line(refused, words, says) -> None:
    assert says in refused("table", *words)


def test_key_is_set_and_its_columns_become_required(ok, table) -> None:
    said = ok("table", "set-key", "shop.orders", "part,id")
    assert "part" in said
    assert set(table.refresh().primary_key) == {"id", "part"}
    assert table.schema().find_field("part").required
    rows = pa.table({"id": [1], "part": ["b"], "n": [5]}, schema=SCHEMA)
    table.stage(upserts=rows)
    ok("resolve", "shop.orders")
    assert table.scan().to_arrow().num_rows == 3


def test_key_that_is_not_unique_may_be_set_unread(ok, table) -> None:
    ok("table", "set-key", "shop.orders", "part", "--no-check")
    assert table.refresh().primary_key == ("part",)


def test_v3_table_is_not_upgraded(ok, table) -> None:
    before = table.refresh().metadata_location
    assert "is v3 already" in ok("table", "upgrade", "shop.orders")
    assert table.refresh().metadata_location == before


def pyiceberg_table(warehouse, version):
    """A table as PyIceberg makes it: partitioned, no key, two appends, a delete that rewrites."""
    warehouse.mkdir()
    stock = SqlCatalog(
        "local", uri=f"sqlite:///{warehouse}/icefold.db", warehouse=warehouse.as_uri()
    )
    stock.create_namespace("shop")
    table = stock.create_table(
        ("shop", "orders"), SCHEMA, properties={"format-version": str(version)}
    )
    with table.update_spec() as spec:
        spec.add_identity("part")
    for part in ("a", "b"):
        ids = range(10) if part == "a" else range(10, 20)
        rows = [{"id": key, "part": part, "n": None if key % 3 else key} for key in ids]
        table.append(pa.Table.from_pylist(rows, SCHEMA))
    table.delete("id = 4 or id = 15")
    stock.engine.dispose()


@pytest.mark.parametrize("version", [1, 2])
def test_table_of_pyiceberg_is_upgraded_and_takes_changes(ok, run, warehouse, version) -> None:
    pyiceberg_table(warehouse, version)
    refused = run("resolve", "shop.orders")
    assert refused.exit_code == 1
    says = {1: "cannot commit to a v1 table", 2: "cannot resolve a table without a primary key"}
    assert says[version] in refused.stderr
    table = tf.open_catalog("local", warehouse=str(warehouse)).load_table("shop.orders")
    before, files = table.scan().to_arrow().sort_by("id"), set(warehouse.rglob("*.parquet"))

    said = ok("table", "upgrade", "shop.orders")
    assert said == f"upgraded shop.orders from v{version} to v3; its rows are unchanged\n"
    assert "is v3 already" in ok("table", "upgrade", "shop.orders")
    assert table.refresh().state.metadata.format_version == 3
    assert table.scan().to_arrow().sort_by("id") == before
    assert set(warehouse.rglob("*.parquet")) == files

    ok("table", "set-key", "shop.orders", "id")
    changed = pa.table({"id": [3, 99], "part": ["b", "b"], "n": [-3, -99]}, schema=SCHEMA)
    table.refresh().stage(upserts=changed, deletes=pa.table({"id": [11]}))
    ok("resolve", "shop.orders")
    found = table.refresh().scan().to_arrow()
    assert set(found["id"].to_pylist()) == {*range(20), 99} - {4, 11, 15}
    assert {r["id"]: r["n"] for r in found.to_pylist()}[3] == -3
    row_ids = table.scan(columns=["_row_id"]).to_arrow()["_row_id"]
    assert row_ids.null_count == 0
    assert len(row_ids.unique()) == len(found)
    assert ok("scan", "shop.orders", "--format", "csv").count("\n") == len(found) + 1


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("icefold.publsh=rewrite", "did you mean icefold.publish?"),
        ("icefold.publish=rewrte", "use link or rewrite"),
        ("icefold.sql.check-primary-key=maybe", "neither true nor false"),
        ("icefold.maintain.resolve.age=1000", "did you mean icefold.maintain.resolve.age-ms?"),
        ("icefold.maintain.resolve.age-ms=1s", "the default is 1000"),
        ("icefold.resolve.spark-rows-min=many", "not an integer"),
        ("icefold.expire.max-snapshots-to-keep=0", "at least 1"),
        ("write.parquet.compression-codec=zstandard", "unknown Parquet codec"),
        ("write.parquet.compression-level=99", "zstd has levels"),
        ("write.delete.parquet.page-size-bytes=0", "not an integer of at least 1"),
        ("write.target-file-size-bytes=512MB", "not an integer of at least 1"),
        ("write.format.default=orc", "cannot write orc files"),
        ("write.metadata.metrics.default=some", "unknown metrics mode"),
        ("write.metadata.metrics.column.id=truncate(0)", "unknown metrics mode"),
        ("write.merge.mode=merge", "use merge-on-read or copy-on-write"),
        ("write.update.isolation-level=none", "use serializable or snapshot"),
        ("write.delete.granularity=row", "use partition or file"),
        ("commit.retry.num-retries=often", "not an integer of at least 0"),
        ("commit.manifest-merge.enabled=sometimes", "neither true nor false"),
        ("history.expire.max-snapshot-age-ms=5d", "not an integer of at least 0"),
    ],
)
@pytest.mark.parametrize("command", ["create", "set-properties"])
def test_properties_that_would_do_nothing_or_harm_are_refused(
    run, table, given, says, command
) -> None:
    made = ("create", "shop.new", "--column", "id:long", "--primary-key", "id", "--table-property")
    words = {"create": made, "set-properties": ("set-properties", "shop.orders")}[command]
    before = table.properties
    done = run("table", *words, given)
    assert (done.exit_code, done.stdout) == (1, "")
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert table.refresh().properties == before
    assert "shop.new" not in run("table", "list").stdout


def test_computed_columns_are_declared_shown_and_dropped(ok, run, table) -> None:
    assert "has no computed columns" in run("table", "computed", "shop.orders").stderr
    said = ok("table", "computed", "shop.orders", "--add", "twice:long", "--as", "id * 2")
    assert said == "twice long = id * 2\n"
    assert json.loads(ok("table", "computed", "shop.orders", "--json")) == {
        "twice": {"type": "long", "expression": "id * 2", "stored": False}
    }
    assert "twice long = id * 2" in ok("table", "describe", "shop.orders")
    assert ok("scan", "shop.orders", "--columns", "twice", "--format", "csv") == "twice\n2\n4\n"
    assert ok("table", "computed", "shop.orders", "--drop", "twice") == ""


def test_stored_columns_are_declared_filled_and_checked(ok, refused, table) -> None:
    words = ("--add", "twice:long", "--as", "id * 2", "--stored", "--backfill")
    said = ok("table", "computed", "shop.orders", *words)
    assert said == "twice long = id * 2 (stored)\n"
    assert ok("scan", "shop.orders", "--columns", "twice", "--format", "csv") == "twice\n2\n4\n"
    said = ok("table", "computed", "shop.orders", "--check")
    assert said == "twice: 0 rows hold another value than the expression's\n"
    declared = {k: v for k, v in table.refresh().properties.items() if ".computed." in k}
    ok("table", "computed", "shop.orders", "--drop", "twice")
    ok("sql", "UPDATE shop.orders SET twice = 5 WHERE id = 1")
    table.refresh().set_properties(declared)
    assert json.loads(ok("table", "computed", "shop.orders", "--json"))["twice"]["stored"]
    assert "columns=twice" in refused("table", "computed", "shop.orders", "--check")
    ok("sql", "UPDATE shop.orders SET twice = DEFAULT")
    assert json.loads(ok("table", "computed", "shop.orders", "--check", "--json")) == {"twice": 0}


def test_properties_are_set_shown_and_removed(ok, run, table) -> None:
    command = ("table", "set-properties", "shop.orders")
    assert ok(*command) == "".join(
        f"{name}={KEPT_HISTORY[name]}\n" for name in sorted(KEPT_HISTORY)
    )
    run(*command, *(word for name in KEPT_HISTORY for word in ("--remove", name)))
    assert "has no properties" in run(*command).stderr
    assert ok("table", "set-properties", "shop.orders", "a=1", "b=2") == "a=1\nb=2\n"
    assert ok("table", "set-properties", "shop.orders", "--remove", "a") == "b=2\n"


def test_branches_and_tags_are_made_moved_and_dropped(ok, run, table) -> None:
    first = table.state.head("main").snapshot_id
    ok("ref", "create-tag", "shop.orders", "day1")
    ok("ref", "create-branch", "shop.orders", "audit")
    more = pa.table({"id": [3], "part": ["c"], "n": [3]}, schema=SCHEMA)
    second = table.append(more, branch="audit").snapshot.snapshot_id
    listed = json.loads(ok("ref", "list", "shop.orders", "--format", "json"))
    assert {(one["name"], one["type"], one["snapshot_id"]) for one in listed} == {
        ("audit", "branch", second), ("day1", "tag", first), ("main", "branch", first),
    }  # fmt: skip
    assert str(second) in ok("ref", "fast-forward", "shop.orders", "main", "audit")
    assert table.scan().to_arrow().num_rows == 3
    assert str(first) in ok("ref", "rollback-to-snapshot", "shop.orders", str(first))
    assert table.scan().to_arrow().num_rows == 2
    ok("ref", "cherrypick-snapshot", "shop.orders", str(second))
    assert table.scan().to_arrow().num_rows == 3
    ok("ref", "drop", "shop.orders", "day1")
    assert "day1" not in ok("ref", "list", "shop.orders")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("create-tag", "shop.orders", "main"), "main"),
        (("create-tag", "shop.orders", "t", "--snapshot-id", "5"), "5"),
        (("drop", "shop.orders", "nope"), "nope"),
        (("drop", "shop.orders", "main"), "main"),
        (("rollback-to-snapshot", "shop.orders", "5"), "5"),
        (("fast-forward", "shop.orders", "main", "nope"), "nope"),
        (("cherrypick-snapshot", "shop.orders", "5"), "5"),
    ],
)
def test_wrong_ref_is_refused_in_one_line(refused, words, says) -> None:
    assert says in refused("ref", *words)


LISTS = [
    ("table", "list"), ("status",), ("ref", "list", "shop.orders"),
    ("index", "list", "shop.orders"),
    ("scan", "shop.orders"), ("changes", "shop.orders"), ("lookup", "shop.orders", "id=1"),
    ("inspect", "shop.orders", "files"), ("table", "describe", "shop.orders"),
    ("lock", "show", "shop.orders"), ("expire", "shop.orders", "--dry-run"),
    ("compact", "shop.orders", "--dry-run"), ("table", "sequence", "shop.orders"),
]  # fmt: skip


@pytest.mark.parametrize("words", LISTS, ids=" ".join)
def test_format_is_one_option_everywhere(ok, table, words) -> None:
    table.add_index("by_part", ["part"])
    assert ok(*words) == ok(*words, "--format", "table") or words[0] in ("status", "expire")
    as_json = ok(*words, "--format", "json")
    assert ok(*words, "--json").count("\n") == as_json.count("\n")
    for line in [as_json] if as_json.startswith(("{\n", "[")) else as_json.splitlines():
        json.loads(line)
    rows = list(csv.reader(io.StringIO(ok(*words, "--format", "csv"))))
    assert len(rows) > 1
    assert len({len(row) for row in rows}) == 1


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("scan", "shop.orders"), "no rows"),
        (("scan", "shop.orders", "--format", "json"), "no rows"),
        (("changes", "shop.orders"), "no changes"),
        (("lookup", "shop.orders", "id=1"), "0 rows"),
        (("inspect", "shop.orders", "files"), "no rows"),
        (("ref", "list", "shop.orders"), "no branch yet"),
        (("index", "list", "shop.orders"), "no secondary indexes"),
    ],
)
def test_empty_result_says_so_on_standard_error(run, warehouse, words, says) -> None:
    catalog = tf.open_catalog("local", warehouse=str(warehouse))
    catalog.create_table("shop.orders", SCHEMA, primary_key=["id"])
    result = run(*words)
    assert result.exit_code == 0
    assert says in result.stderr
    assert "│" not in result.stdout


def complete(warehouse, args: list[str], incomplete: str) -> list[str]:
    words = ["--warehouse", str(warehouse), *args]
    found = ShellComplete(cli, {}, "icefold", "_ICEFOLD_COMPLETE").get_completions(
        words, incomplete
    )
    return [item.value for item in found]


@pytest.mark.parametrize(
    "args",
    [["scan"], ["status"], ["resolve"], ["lookup"], ["ref", "list"], ["table", "describe"],
     ["table", "add-column"], ["index", "build"], ["expire"], ["lock", "show"]],
    ids=" ".join,
)  # fmt: skip
def test_shell_completes_table_names(table, warehouse, args) -> None:
    assert complete(warehouse, args, "sh") == ["shop.orders"]
    assert complete(warehouse, args, "x") == []


def test_completion_without_a_catalog_is_silent_and_makes_nothing(tmp_path) -> None:
    assert complete(tmp_path / "typo", ["scan"], "") == []
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("width", ["30", "48", "60", "72", "200"])
def test_no_figure_is_cut_in_a_narrow_terminal(ok, table, warehouse, width, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", width)
    tf.open_catalog("local", warehouse=str(warehouse)).create_table(
        "shop.other", SCHEMA, primary_key=["id"]
    )
    table.stage(upserts=pa.table({"id": [3], "part": ["c"], "n": [3]}, schema=SCHEMA))
    ok("resolve", "shop.orders")
    for words in (("status",), ("status", "shop.orders"), ("ref", "list", "shop.orders")):
        text = ok(*words)
        assert "…" not in text
        assert all(len(line) <= int(width) for line in text.splitlines())
    assert "\x1b" not in text


@pytest.mark.parametrize(
    "words",
    [["add-column", "shop.orders", "ID:string"], ["rename-column", "shop.orders", "n", "Id"]],
)
def test_columns_that_differ_in_case_only_are_refused(run, table, words) -> None:
    before = table.refresh().metadata_location
    result = run("table", *words)
    assert (result.exit_code, len(result.stderr.splitlines())) == (1, 1)
    assert "must be distinct, also when case is ignored" in result.stderr
    assert table.refresh().metadata_location == before
