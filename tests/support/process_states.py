"""What another process is doing, by Linux's own account."""

from __future__ import annotations

import time
from pathlib import Path

LOOKS = 10  # a thread that wakes now and then is seen at work in one of them
LOOK_S = 0.05


def wait_until_idle(pid: int) -> None:
    """Until every thread of the process waits for something that does not come."""
    looks, before = 0, None
    while looks < LOOKS:
        time.sleep(LOOK_S)
        states, ticks = _threads(pid)
        looks = looks + 1 if states == {"S"} and ticks == before else 0
        before = ticks


def _threads(pid: int) -> tuple[set[str], int]:
    """Their states, and the clock ticks they have computed."""
    texts = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    fields = [text.rpartition(")")[2].split() for text in texts]
    return {each[0] for each in fields}, sum(int(each[11]) + int(each[12]) for each in fields)
