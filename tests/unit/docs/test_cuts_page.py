"""The snippets of docs/cuts.md run as they stand, on a bank of two tables."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

import tableformat as tf
from maintenance.cli.main import cli
from tests.support.bank import Bank

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "cuts.md").read_text()


@pytest.mark.slow
def test_cuts_page(tmp_path, monkeypatch, capsys):
    extensions = pytest.importorskip("duckdb_extensions")
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect() as connection:
        for name in ("avro", "iceberg"):
            extensions.import_extension(name, con=connection)
    monkeypatch.chdir(tmp_path)
    bank = Bank(["bank.a", "bank.b"])
    tables = bank.create(tf.open_catalog("local", warehouse=str(tmp_path / "warehouse")))
    bank.stage(tables, bank.transfer(random.Random(1)))
    published = CliRunner().invoke(cli, ["resolve", "bank.*", "--cut"])
    assert published.stdout.startswith("cut bank/0: published 2 tables\n")
    code = "\n".join(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL))
    found: dict[str, object] = {}
    exec(code.replace("/data/warehouse", str(tmp_path / "warehouse")), found)
    assert capsys.readouterr().out.startswith(f"bank/0 {bank.total} ")
    assert found["a"] == sum(bank.states[1]["bank.a"].values())
    listed = CliRunner().invoke(cli, ["cuts", "bank", "--json"])
    assert '"cut": "bank/0"' in listed.stdout
    people = CliRunner().invoke(cli, ["cuts", "bank"])
    assert "bank.a, bank.b" in people.stdout
    refused = CliRunner().invoke(cli, ["resolve", "bank.a", "bank.b"])
    assert "published together with --cut only" in refused.stderr
    refused = CliRunner().invoke(cli, ["resolve", "bank.*", "--cut", "--rebuild-index"])
    assert "run resolve without --cut" in refused.stderr
