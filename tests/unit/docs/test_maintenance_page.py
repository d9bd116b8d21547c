"""docs/maintenance.md: its snippet runs as it stands, its commands and options exist."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from maintenance.cli.main import cli

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "maintenance.md").read_text()


@pytest.mark.slow
def test_snippet_runs_as_it_stands(tmp_path):
    code = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0]
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": "/nowhere", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert "compact (dry run): 6 files" in lines[0]
    assert lines[1:] == ["6 -> 1", "0"]


def test_every_command_and_option_exists():
    commands = set(re.findall(r"`icefold ([a-z-]+) TABLE`", PAGE))
    assert len(commands) == 6
    known = {
        option
        for name in commands
        for parameter in cli.commands[name].params
        for option in (*parameter.opts, *parameter.secondary_opts)
    }
    assert set(re.findall(r"`(--[a-z-]+)", PAGE)) <= known
