"""What `maintain` remembers of a table between runs and processes: last runs, failures, waits.

A small JSON file beside the index. It is derived and local: lost or damaged it only means that
tasks count as never run, which costs a run that finds nothing to do.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from maintenance.settings import TaskName
from resolver.index_keeper import index_folder
from tableformat.catalog.base import TableState
from tableformat.environment import Environment

RUNS_MAX = 30  # of all tasks together: what `status` shows
TEXT_LENGTH_MAX = 500
FAILURES_MAX = 64
IDLE_RUNS_MAX = 5  # a task that finds nothing to do pauses up to 2^5 times as long


class Outcome(StrEnum):
    """How a run ended."""

    DONE = "done"
    NOTHING = "nothing"  # there was nothing to do
    BUSY = "busy"  # someone else holds the table's lock
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRecord:
    """The last run of one task on one table.

    Attributes:
        ended_ms: Wall clock; None: never run.
        snapshot_id: The target's head after it.
        failures: In a row.
        idle_runs: Runs in a row that found nothing to do.
        retry_ms: Not before this wall-clock time, after a failure.
        error: Of the last failure, while it lasts.
    """

    ended_ms: int | None = None
    snapshot_id: int | None = None
    failures: int = 0
    idle_runs: int = 0
    retry_ms: int = 0
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run.

    Attributes:
        reason: The trigger.
        text: One line of what was done, or the error.
        facts: Plain numbers of the task's report.
    """

    table: str
    task: TaskName
    outcome: Outcome
    began_ms: int
    duration_ms: float
    reason: str = ""
    text: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ended_ms(self) -> int:
        """Wall clock."""
        return self.began_ms + int(self.duration_ms)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        plain = {each.name: getattr(self, each.name) for each in fields(self)}
        plain |= {"task": self.task.value, "outcome": self.outcome.value, "facts": dict(self.facts)}
        return plain


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """What is remembered of one table. Immutable: `after` gives the next one."""

    records: Mapping[TaskName, TaskRecord] = field(default_factory=dict)
    runs: tuple[Mapping[str, Any], ...] = ()

    def record(self, task: TaskName) -> TaskRecord:
        """The last run of `task`."""
        return self.records.get(task, TaskRecord())

    def without_waits(self) -> Ledger:
        """The same, but that no failure makes a task wait."""
        records = {task: replace(record, retry_ms=0) for task, record in self.records.items()}
        return Ledger(records=records, runs=self.runs)

    def after(self, run: Run, *, snapshot_id: int | None, retry_ms: int) -> Ledger:
        """The ledger after `run`.

        Args:
            run: What happened.
            snapshot_id: The target's head.
            retry_ms: Wall-clock time before which a failed or refused task does not start again.
        """
        before = self.record(run.task)
        if run.outcome == Outcome.BUSY:
            record = replace(before, retry_ms=retry_ms)
        elif run.outcome == Outcome.FAILED:
            record = replace(
                before,
                failures=min(before.failures + 1, FAILURES_MAX),
                retry_ms=retry_ms,
                error=run.text[:TEXT_LENGTH_MAX],
            )
        else:
            is_idle = run.outcome == Outcome.NOTHING
            record = TaskRecord(
                ended_ms=run.ended_ms,
                snapshot_id=snapshot_id,
                idle_runs=min(before.idle_runs + 1, IDLE_RUNS_MAX) if is_idle else 0,
            )
        short = {**run.to_dict(), "text": run.text[:TEXT_LENGTH_MAX]}
        short.pop("table")
        return Ledger(
            records={**self.records, run.task: record}, runs=(*self.runs, short)[-RUNS_MAX:]
        )


def ledger_path(environment: Environment, state: TableState, target: str) -> Path:
    """Where a table's ledger is: beside the indexes, by table uuid."""
    folder = index_folder(environment, state, target)
    return folder.parent.parent / "ledgers" / f"{folder.parent.name}-{folder.name}.json"


def load_ledger(path: Path) -> Ledger:
    """Read a ledger; an empty one where there is none that can be read."""
    try:
        content = json.loads(path.read_bytes())
        records = {
            TaskName(name): TaskRecord(**record) for name, record in content["records"].items()
        }
        return Ledger(records=records, runs=tuple(map(dict, content["runs"]))[-RUNS_MAX:])
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return Ledger()


def save_ledger(path: Path, ledger: Ledger) -> None:
    """Replace a ledger. A disk that refuses it is no reason to stop maintaining."""
    content = {
        "records": {task.value: asdict(record) for task, record in ledger.records.items()},
        "runs": ledger.runs,
    }
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(content, default=str))
        temporary.replace(path)
    except OSError:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
