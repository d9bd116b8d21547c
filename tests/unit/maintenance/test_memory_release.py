"""Freed memory goes back to the system after tasks that take much of it."""

import ctypes
from pathlib import Path

import pytest

from maintenance import memory_release as memory
from maintenance.run_history import Outcome, Run
from maintenance.settings import TaskName
from tableformat.memory import release_unused

BLOCKS, BLOCK_BYTES = 100_000, 1_000


def run_of(task, outcome):
    return Run(
        table="t.rows",
        task=task,
        outcome=outcome,
        began_ms=0,
        duration_ms=1.0,
        reason="",
        text="",
        facts={},
    )


@pytest.mark.parametrize(
    ("task", "outcome", "releases"),
    [
        (TaskName.COMPACT, Outcome.DONE, True),
        (TaskName.EXPIRE, Outcome.FAILED, True),
        (TaskName.COMPACT, Outcome.NOTHING, False),
        (TaskName.RESOLVE, Outcome.DONE, False),
    ],
)
def test_memory_is_released_after_tasks_that_did_something(monkeypatch, task, outcome, releases):
    released = []
    monkeypatch.setattr(memory, "release_unused", lambda: released.append(1))
    memory.release_after(run_of(task, outcome))
    assert bool(released) == releases


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="glibc only")
def test_freed_blocks_below_one_that_is_held_go_back_to_the_system():
    blocks = [bytes(BLOCK_BYTES) for _ in range(BLOCKS)]
    held = blocks[:: BLOCKS // 100]
    del blocks
    before = resident_bytes()
    release_unused()
    assert before - resident_bytes() > BLOCKS * BLOCK_BYTES / 2
    assert len(held) == 100


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
