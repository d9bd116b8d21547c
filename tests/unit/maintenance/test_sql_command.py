"""`icefold sql`."""

import json

import pyarrow as pa
import pytest
from click.testing import CliRunner

from maintenance.cli.main import cli
from tableformat import open_catalog


@pytest.fixture
def orders(tmp_path):
    catalog = open_catalog("local", warehouse=str(tmp_path))
    schema = pa.schema([("id", pa.int64()), ("amount", pa.int64())])
    table = catalog.create_table("shop.orders", schema, primary_key=["id"])
    table.append(pa.table({"id": range(10), "amount": range(10)}))
    return table


def run(tmp_path, *arguments):
    return CliRunner().invoke(cli, ["--warehouse", str(tmp_path), "sql", *arguments])


def test_statement_runs_and_says_what_it_did(tmp_path, orders) -> None:
    done = run(tmp_path, "DELETE FROM shop.orders WHERE id < 3")
    assert done.exit_code == 0, done.output
    assert done.output.startswith("3 rows deleted; snapshot ")
    assert orders.scan().to_arrow().num_rows == 7


def test_json_gives_counts_and_pinned_snapshots(tmp_path, orders) -> None:
    head = orders.state.head("main").snapshot_id
    done = run(
        tmp_path, "--json", "--mode", "copy-on-write",
        "UPDATE shop.orders SET amount = amount + 1 WHERE id = 4",
    )  # fmt: skip
    answer = json.loads(done.output)
    assert answer["updated_rows"] == 1
    assert answer["mode"] == "copy-on-write"
    assert answer["tables"] == {"shop.orders": head}


def test_statement_without_effect_says_so(tmp_path, orders) -> None:
    assert run(tmp_path, "DELETE FROM shop.orders WHERE id = 99").output == "nothing to change\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["DELETE FROM shop.nope"], "not-found: there is no table shop.nope"),
        (["SELECT 1"], "not a row-level statement"),
        (["--no-spark", "DELETE FROM shop.orders WHERE id % 2 = 0"], "needs Spark"),
        (["--branch", "nope", "DELETE FROM shop.orders"], "no branch 'nope'"),
    ],
)
def test_wrong_call_ends_with_one_line(tmp_path, orders, monkeypatch, arguments, message) -> None:
    monkeypatch.setattr("tableformat.rowlevel.execute._active_session", lambda: None)
    done = run(tmp_path, *arguments)
    assert done.exit_code == 1
    assert message in done.output
    assert len(done.output.strip().splitlines()) == 1
