"""docs/tutorials: pasted block by block into an empty folder, with icefold from its wheel."""

from __future__ import annotations

import doctest
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.wheel import ROOT, install_wheel

TUTORIALS = ROOT / "docs" / "tutorials"
BLOCK = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)
MARK = "@@ block"
# What each kind of block is pasted into; a `text` block is what the one before it prints.
PASTED = {
    "sh": "{}",
    "python": "python - <<'END OF BLOCK'\n{}END OF BLOCK\n",
    "sql": "psql -q -v ON_ERROR_STOP=1 <<'END OF BLOCK'\n{}END OF BLOCK\n",
}
SAME = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    return install_wheel(tmp_path_factory.mktemp("environment") / "venv")


def paste(page: str, folder: Path, programs: Path, **environment: str) -> int:
    """Run the blocks in order, in one shell; compare what they print. How many were compared."""
    blocks = BLOCK.findall((TUTORIALS / page).read_text())
    assert {kind for kind, _ in blocks} <= {*PASTED, "text"}
    pasted = [PASTED[kind].format(text) for kind, text in blocks if kind != "text"]
    script = "set -e\n" + "".join(f"echo {MARK}\n{text}" for text in pasted)
    done = subprocess.run(
        ["bash"],
        input=script,
        cwd=folder,
        env={
            "PATH": f"{programs}:{os.defpath}",
            "HOME": str(folder),
            "COLUMNS": "120",
            "SPARK_SUBMIT_OPTS": os.environ["SPARK_SUBMIT_OPTS"],
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=1700,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    printed = iter(done.stdout.split(f"{MARK}\n")[1:])
    last, compared = "", 0
    for kind, text in blocks:
        if kind != "text":
            last = next(printed)
            continue
        compared += 1
        assert doctest.OutputChecker().check_output(text, last, SAME), f"{text}\nis not\n{last}"
    return compared


@pytest.mark.slow
@pytest.mark.xdist_group("wheel")
@pytest.mark.timeout(1800)
def test_incident_is_found_and_rolled_back(tmp_path, programs):
    assert paste("incident.md", tmp_path, programs) == 4


@pytest.mark.slow
@pytest.mark.interop
@pytest.mark.timeout(1800)
def test_table_of_flink_is_taken_over(tmp_path, programs):
    assert paste("flink.md", tmp_path, programs) == 4


@pytest.mark.slow
@pytest.mark.services
@pytest.mark.xdist_group("wheel")
@pytest.mark.timeout(1800)
def test_changes_of_postgresql_arrive(tmp_path, programs):
    from tests.support.postgres import PASSWORD, USER, postgres_server

    server = postgres_server()
    if shutil.which("psql") is None:
        pytest.skip("psql is not installed")
    access = {"PGHOST": "127.0.0.1", "PGPORT": str(server.port), "PGUSER": USER}
    access |= {"PGPASSWORD": PASSWORD, "PGDATABASE": "tutorial"}
    made = {**os.environ, **access, "PGDATABASE": "postgres"}
    subprocess.run(["psql", "-qc", "CREATE DATABASE tutorial"], env=made, check=True)
    assert paste("postgresql.md", tmp_path, programs, **access) == 4


@pytest.mark.parametrize("page", sorted(TUTORIALS.glob("*.md")), ids=lambda page: page.stem)
def test_every_tutorial_is_pasted_by_a_test(page):
    assert f'paste("{page.name}"' in Path(__file__).read_text()
