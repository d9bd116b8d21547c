"""docs/postgresql.md: its commands, as they are written, in order."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.debezium import new_connect
from tests.support.kafka import CONNECTOR_JARS
from tests.support.pipeline import ROOT, Pipeline

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.xdist_group("pipeline")]
PAGE = (ROOT / "docs" / "postgresql.md").read_text()
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "kafka-jars").symlink_to(CONNECTOR_JARS)
    program = tmp_path / "bin" / "icefold"
    program.parent.mkdir()
    program.write_text(
        f"#!{sys.executable}\nfrom maintenance.cli.start import main\nmain()\n", encoding="utf-8"
    )
    program.chmod(0o755)
    return tmp_path


def extensions_in(home: Path) -> None:
    """DuckDB's extensions where INSTALL would put them: they come as wheels here."""
    code = (
        "import duckdb\nfrom duckdb_extensions import import_extension\n"
        "c = duckdb.connect()\n[import_extension(n, con=c) for n in ('avro', 'iceberg')]"
    )
    run([sys.executable, "-c", code], home)


def run(command: list[str], folder: Path) -> str:
    path = f"{folder / 'bin'}:{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "PYTHONPATH": str(ROOT), "HOME": str(folder)}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_commands_of_the_page_run_as_written(pipeline: Pipeline, folder: Path) -> None:
    extensions_in(folder)
    pipeline.sql("CREATE DATABASE shop")
    shop = pipeline.in_database("shop")
    connect = None
    expected = None
    try:
        for language, text in BLOCKS:
            if language == "sql":
                shop.sql(text)
            elif language == "properties":
                settings = dict(line.split("=", 1) for line in text.splitlines())
                settings["database.port"] = str(pipeline.database.port)
                connect, _ = new_connect(pipeline.servers, [settings])
                connect.start()
            elif language == "sh":
                shop.await_slots(["icefold"])
                run(["sh", "-ec", text.replace("localhost:9092", pipeline.servers)], folder)
            elif language == "python":
                printed = run([sys.executable, "-c", text], folder)
            else:
                expected = text
    finally:
        if connect is not None:
            connect.kill()
    assert printed == expected


def test_linked_pages_exist() -> None:
    for target in re.findall(r"\]\(([^):#]+)", PAGE):
        assert (ROOT / "docs" / target).exists(), target
