"""Open files: a cut of many tables has ten of each index open at a time."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

import tableformat as tf
from tests.support.bank import Bank, balances_of

TABLES, FEW = 30, 150
NAMES = tuple(f"bank.t{number}" for number in range(TABLES))
ICEFOLD = Path(sys.executable).with_name("icefold")


def _few() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (FEW, hard))


@pytest.mark.parametrize("allowed", [FEW, 4 * FEW, 12_000])
def test_process_takes_as_many_as_it_may_have(allowed: int) -> None:
    hard = min(allowed, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    tell = (
        "import resource\n"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, ({FEW}, {hard}))\n"
        "from maintenance.cli.start import allow_open_files\n"
        "allow_open_files()\n"
        "print(*resource.getrlimit(resource.RLIMIT_NOFILE))\n"
    )
    told = subprocess.run([sys.executable, "-c", tell], capture_output=True, text=True, check=True)
    assert told.stdout.split() == [str(min(hard, 10_240)), str(hard)]


def test_more_than_allowed_to_begin_with_are_published_together(tmp_path: Path) -> None:
    warehouse = str(tmp_path)
    bank = Bank(NAMES)
    tables = bank.create(tf.open_catalog("local", warehouse=warehouse))
    bank.states.append(bank.states[-1])
    bank.batches.append({name: {1: 7} for name in NAMES})
    bank.stage(tables, 0)
    command = [str(ICEFOLD), "--warehouse", warehouse, "maintain", "bank.*", "--once"]
    done = subprocess.run(command, capture_output=True, text=True, preexec_fn=_few)
    assert done.returncode == 0, done.stderr
    assert [balances_of(table.refresh())[1] for table in tables.values()] == [7] * TABLES
