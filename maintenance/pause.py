"""The pause after a publish, told to others: they may run their row-level statements in it.

Any publish adds delete files, which other engines' statements take for conflicts if they began
before. Nobody is locked out: it is a time at which to try.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime

from maintenance.run_history import Ledger, Outcome, Run
from maintenance.settings import MaintainConfig, TaskName
from maintenance.table_figures import Figures
from maintenance.triggers import CLOCK_AHEAD_MS, next_publish_ms

NEXT_PUBLISH = "next_publish_ms"  # a fact of runs


def announce_pause(run: Run, config: MaintainConfig) -> Run:
    """The run of a cycle that published, with the time before which the next does not start."""
    pause_ms = config.min_interval_ms(TaskName.RESOLVE)
    if run.task != TaskName.RESOLVE or run.outcome != Outcome.DONE or not pause_ms:
        return run
    at_ms = run.ended_ms + int(pause_ms)
    return replace(
        run,
        text=f"{run.text}; next publish not before {time_text(at_ms)}",
        facts={**run.facts, NEXT_PUBLISH: at_ms},
    )


def announced_ms(
    figures: Figures, ledger: Ledger, config: MaintainConfig, *, now_ms: int
) -> int | None:
    """Wall-clock time before which no cycle starts; None: it may start now.

    By the table's own setting, or as a scheduler on this machine has said with its last publish.
    """
    said = [next_publish_ms(figures, ledger, config, now_ms=now_ms)]
    # What a clock that was ahead has said would be waited for until then.
    runs = [each for each in ledger.runs if not _is_ahead(each.get("began_ms"), now_ms)]
    facts = [each["facts"] for each in runs if isinstance(each.get("facts"), Mapping)]
    said += [each[NEXT_PUBLISH] for each in facts if isinstance(each.get(NEXT_PUBLISH), int)]
    return max((each for each in said if each is not None and each > now_ms), default=None)


def _is_ahead(began_ms: object, now_ms: int) -> bool:
    return not isinstance(began_ms, int) or began_ms > now_ms + CLOCK_AHEAD_MS


def time_text(at_ms: int) -> str:
    """`2026-11-20T12:00:00.123Z`."""
    at = datetime.fromtimestamp(at_ms / 1e3, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
