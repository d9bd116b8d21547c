"""The `maintain` process of a soak: the library's scheduler with short intervals."""

from __future__ import annotations

import json
import os
import resource
import signal
from pathlib import Path
from typing import Any

import tableformat as tf
from maintenance.logs import logging_to_stderr
from maintenance.run_history import Run
from maintenance.runners import RUNNERS, TaskCall, TaskResult, plain_facts
from maintenance.scheduler import Scheduler, SchedulerOptions
from maintenance.settings import TaskName
from maintenance.tasks.options import RemoveOrphansOptions
from maintenance.tasks.remove_orphans import remove_orphans

ORPHAN_AGE_MS = 60_000  # far beyond the longest commit of a soak's writer
SETTINGS: dict[str, float] = {
    "compact.interval-ms": 20_000,
    "compact.min-interval-ms": 15_000,
    "compact.dv-share": 0.1,
    "rewrite-vectors.interval-ms": 45_000,
    "rewrite-vectors.min-interval-ms": 30_000,
    "expire.interval-ms": 15_000,
    "expire.min-interval-ms": 10_000,
    "rewrite-manifests.interval-ms": 60_000,
    "rewrite-manifests.min-interval-ms": 30_000,
    "remove-orphans.interval-ms": 45_000,
    "remove-orphans.min-interval-ms": 30_000,
}


def maintain(folder: Path, table_name: str) -> None:
    """Maintain until SIGTERM; a line per run in `runs.jsonl`."""
    catalog = tf.open_catalog("local", warehouse=str(folder / "warehouse"))
    with logging_to_stderr("text", level=30), (folder / "runs.jsonl").open("a", buffering=1) as log:

        def observe(run: Run) -> None:
            log.write(json.dumps(run.to_dict() | {"rss_mb": resident_mb(os.getpid())}) + "\n")

        runners = {**RUNNERS, TaskName.REMOVE_ORPHANS: _remove_orphans}
        options = SchedulerOptions(overrides=SETTINGS)
        scheduler = Scheduler(catalog, [table_name], options, runners=runners, observers=[observe])
        signal.signal(signal.SIGTERM, lambda *_: scheduler.stop())
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        end = scheduler.run()
        used: Any = resource.getrusage(resource.RUSAGE_SELF)
        facts = {"cpu_s": used.ru_utime + used.ru_stime, "peak_mb": used.ru_maxrss / 1024}
        (folder / "maintain.json").write_text(json.dumps(facts | {"abandoned": end.abandoned}))


def _remove_orphans(call: TaskCall) -> TaskResult:
    options = RemoveOrphansOptions(
        branch=call.target, older_than_ms=ORPHAN_AGE_MS, older_than_min_ms=ORPHAN_AGE_MS
    )
    report = remove_orphans(
        call.table, options, lock=call.lock, lock_timeout_ms=call.lock_timeout_ms
    )
    return TaskResult(
        changed=report.changed, text=report.describe(), facts=plain_facts(report.to_dict())
    )


def resident_mb(pid: int) -> float:
    """Resident memory of a process (Linux)."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return round(pages * resource.getpagesize() / 1e6, 1)
