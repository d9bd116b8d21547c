"""A scheduler whose process was stopped, and sent signals meanwhile, takes turns afterwards."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import tableformat as tf
from maintenance.scheduler import Scheduler
from tests.support.crash_child import started

STANDS_STILL_S = 0.7  # longer than a turn of the scheduler may wait


def maintain(warehouse: str) -> None:
    """In a child: until SIGTERM."""
    scheduler = Scheduler(tf.open_catalog("local", warehouse=warehouse), ["shop.*"])
    signal.signal(signal.SIGTERM, lambda *_: scheduler.stop())
    signal.signal(signal.SIGUSR1, lambda *_: None)
    Path(warehouse, "ready").touch()
    scheduler.run()


def test_scheduler_that_stood_still_and_was_sent_signals_still_stops(tmp_path) -> None:
    child = started(maintain, str(tmp_path))
    assert child.pid is not None
    try:
        deadline = time.monotonic() + 60
        while not Path(tmp_path, "ready").exists():
            assert time.monotonic() < deadline
            time.sleep(0.1)
        for _ in range(4):
            os.kill(child.pid, signal.SIGSTOP)
            time.sleep(STANDS_STILL_S)
            os.kill(child.pid, signal.SIGUSR1)
            os.kill(child.pid, signal.SIGCONT)
            time.sleep(STANDS_STILL_S)
        os.kill(child.pid, signal.SIGTERM)
        child.join(30)
        assert child.exitcode == 0
    finally:
        child.kill()
        child.join()
