"""Both engines take turns at one stream; most runs die between the commits of a batch.

`python -m tests.support.engine_handovers FIRST COUNT` runs more seeds, and prints what they met.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.kafka import missing_kafka

pytestmark = [pytest.mark.services, pytest.mark.slow, pytest.mark.interop]
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("first", "count"), [(16, 1), pytest.param(1000, 60, marks=pytest.mark.long)]
)
@pytest.mark.timeout(7200)
def test_every_change_is_staged_once_whichever_engine_dies_and_takes_over(
    first: int, count: int
) -> None:
    missing = missing_kafka()
    if missing is not None:
        pytest.skip(missing)
    # A process of its own: this one's Java has no connector on its class path.
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.engine_handovers", str(first), str(count)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    assert f"done {first + count - 1} " in done.stdout
