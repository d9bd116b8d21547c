"""The page about the command line: its commands run as they are written, and it names all reads."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner

import tableformat as tf
from maintenance.cli.main import cli

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "command-line.md").read_text()
BLOCKS = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)


def words_of(block: str) -> list[list[str]]:
    lines = block.replace("\\\n", " ").splitlines()
    return [shlex.split(line, comments=True) for line in lines]


def test_commands_run_as_they_are_written(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for number, block in enumerate(BLOCKS[:2]):
        for program, *words in words_of(block):
            assert program == "icefold"
            result = CliRunner().invoke(cli, words)
            assert result.exit_code == 0, (words, result.stderr)
        if number == 0:
            orders = tf.open_catalog("local", warehouse="warehouse").load_table("shop.orders")
            row = {"id": 1, "tags": ["a"], "address": {"zip": "1", "city": None}}
            schema = orders.scan(columns=list(row)).arrow_schema()
            orders.append(pa.Table.from_pylist([row], schema=schema))
    orders.refresh()
    assert sorted(orders.state.metadata.refs) == ["audit", "before-migration", "main"]


def test_commands_named_on_the_page_exist() -> None:
    for words in re.findall(r"`((?:table|ref|lock|index) [a-z-]+|[a-z-]+)`", PAGE):
        command = cli
        for word in words.split():
            if word not in getattr(command, "commands", {}):
                break
            command = command.commands[word]
        else:
            continue
        assert words.split()[0] not in cli.commands or len(words.split()) == 1, words


@pytest.mark.slow
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_are_made_as_written(shell) -> None:
    assert f"_ICEFOLD_COMPLETE={shell}_source" in PAGE or f"{shell}_source" in PAGE
    script = "from maintenance.cli.start import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.argv = ['icefold']; {script}"],
        env={"_ICEFOLD_COMPLETE": f"{shell}_source", "PYTHONPATH": str(ROOT),
             "PATH": "/usr/bin:/bin"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if shell == "bash" and "bash" in done.stderr.lower():
        assert done.stdout  # an old bash is warned about, and served
    assert f"{shell}_complete" in done.stdout


def test_linked_pages_exist() -> None:
    for target in re.findall(r"\]\(([^):]+)\)", PAGE):
        assert (ROOT / "docs" / target).exists(), target
