"""A process that runs for weeks gives back what a task needed for a moment."""

from __future__ import annotations

from maintenance.run_history import Outcome, Run
from maintenance.settings import TaskName
from tableformat.memory import release_unused


def release_after(run: Run) -> None:
    """An observer of the scheduler: after a task that did something, but for the frequent one."""
    if run.task != TaskName.RESOLVE and run.outcome in {Outcome.DONE, Outcome.FAILED}:
        release_unused()
