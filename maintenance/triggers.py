"""Which tasks of a table are due, and what the others wait for. A pure function.

A task is due when one of its triggers has reached its threshold, its pause since the last run is
over, and no failure makes it wait. A run that found nothing to do doubles the pause (up to 32
times), so that a share that stays above its threshold costs little.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field

from maintenance.run_history import Ledger, TaskRecord
from maintenance.settings import SETTINGS, Kind, MaintainConfig, Setting, TaskName
from maintenance.table_figures import Figures, Since
from resolver.number_text import bytes_text, count_text, span_text

PRIORITIES: Mapping[TaskName, int] = {
    TaskName.RESOLVE: 0,
    TaskName.DROP_DEAD_DELETES: 1,
    TaskName.COMPACT: 2,
    TaskName.REWRITE_VECTORS: 3,
    TaskName.EXPIRE: 3,
    TaskName.REWRITE_MANIFESTS: 4,
    TaskName.REMOVE_ORPHANS: 5,
}
AGING_MS = 60_000  # each minute that a due task waits is worth one priority: nothing starves
FOREVER_MS = float("inf")
BUSY_RETRY_MS = 2_000  # after a lease that others held
CLOCK_AHEAD_MS = 60_000  # of writers whose changes still wait as long as the setting says


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """A task that may start.

    Attributes:
        since_ms: Wall-clock time from which it is due, as far as that is known.
        reason: The trigger: `files 70 of 64`.
    """

    table: str
    task: TaskName
    since_ms: int
    reason: str

    def rank(self, now_ms: int) -> tuple[float, int]:
        """Smaller goes first."""
        waited = max(now_ms - self.since_ms, 0) // AGING_MS
        return PRIORITIES[self.task] - waited, self.since_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A task that may not start.

    Attributes:
        why: What its triggers wait for, one clause each; or the pause, or the failure.
        at_ms: When it may become due by time alone; None: only by commits.
    """

    task: TaskName
    why: str
    at_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePlan:
    """All tasks of one table."""

    due: tuple[Due, ...] = ()
    waiting: tuple[Waiting, ...] = ()

    @property
    def next_ms(self) -> float:
        """When to plan again if nothing is committed."""
        return min((w.at_ms for w in self.waiting if w.at_ms is not None), default=FOREVER_MS)


@dataclass(frozen=True, slots=True, kw_only=True)
class _View:
    """What a trigger sees."""

    figures: Figures
    since: Since
    record: TaskRecord
    now_ms: int

    def elapsed_ms(self) -> float:
        """Since the last run, or since the table began. A clock that went back counts as long."""
        start = self.figures.born_ms if self.record.ended_ms is None else self.record.ended_ms
        return self.now_ms - start if self.now_ms >= start else FOREVER_MS


Figure = Callable[[_View], float | None]  # None: there is nothing that the task could do


@dataclass(frozen=True, slots=True)
class _Trigger:
    setting: Setting
    figure: Figure


def _if_changed(view: _View) -> float | None:
    return view.elapsed_ms() if view.since.commits else None


def _if_any_to_forget(view: _View) -> float | None:
    """Also without a change: snapshots that were too young at the last run grow old."""
    return view.elapsed_ms() if view.since.commits or view.figures.snapshots > 1 else None


def _backlog_age(view: _View) -> float | None:
    """Staged so far in the future that waiting for it would stop publishing: a clock went back."""
    backlog = view.figures.backlog
    if backlog.oldest_ms is not None and backlog.oldest_ms > view.now_ms + CLOCK_AHEAD_MS:
        return FOREVER_MS if backlog.commits else None
    return backlog.lag_ms(view.now_ms) if backlog.commits else None


def _if_new_vectors(view: _View) -> float | None:
    since = view.since
    return view.elapsed_ms() if since.dvs or since.position_delete_files else None


def _dv_share(view: _View) -> float | None:
    # Without a change since the last run it would find what that one has left.
    return view.figures.dv_share_since(TaskName.COMPACT) if view.since.commits else None


_FIGURES: Mapping[str, Figure] = {
    "resolve.commits": lambda view: view.figures.backlog.commits,
    "resolve.deletes": lambda view: view.figures.backlog.deletes,
    "resolve.bytes": lambda view: view.figures.backlog.size_bytes,
    "resolve.age-ms": _backlog_age,
    "drop-dead-deletes.deletes": lambda view: view.figures.totals["equality_deletes"],
    "compact.commits": lambda view: view.since.commits,
    "compact.files": lambda view: view.since.files,
    "compact.bytes": lambda view: view.since.size_bytes,
    "compact.dv-share": _dv_share,
    "compact.interval-ms": _if_changed,
    "rewrite-vectors.dvs": lambda view: view.since.dvs,
    "rewrite-vectors.position-delete-files": lambda view: view.since.position_delete_files,
    "rewrite-vectors.interval-ms": _if_new_vectors,
    "expire.snapshots": lambda view: view.since.commits,
    "expire.interval-ms": _if_any_to_forget,
    "rewrite-manifests.commits": lambda view: view.since.commits,
    "rewrite-manifests.interval-ms": _if_changed,
    "remove-orphans.interval-ms": _View.elapsed_ms,
}
TRIGGERS: Mapping[TaskName, tuple[_Trigger, ...]] = {
    task: tuple(
        _Trigger(SETTINGS[name], figure)
        for name, figure in _FIGURES.items()
        if name.startswith(f"{task}.")
    )
    for task in TaskName
}


def plan_table(
    figures: Figures,
    ledger: Ledger,
    config: MaintainConfig,
    *,
    now_ms: int,
    tasks: Collection[TaskName] = tuple(TaskName),
) -> TablePlan:
    """What to do for one table at `now_ms` (wall clock).

    Args:
        figures: The table.
        ledger: Its last runs.
        config: Its settings.
        now_ms: The time.
        tasks: Tasks that this process does at all.
    """
    due: list[Due] = []
    waiting: list[Waiting] = []
    for task in TaskName:
        if task not in tasks or not config.is_enabled(task):
            continue
        found = _plan_task(task, _view(task, figures, ledger, now_ms), config)
        (due if isinstance(found, Due) else waiting).append(found)  # type: ignore[arg-type]
    due.sort(key=lambda each: each.rank(now_ms))
    return TablePlan(due=tuple(due), waiting=tuple(waiting))


def _plan_task(task: TaskName, view: _View, config: MaintainConfig) -> Due | Waiting:
    problem = view.figures.backlog.problem
    if task == TaskName.RESOLVE and problem is not None:
        return Waiting(task=task, why=problem, at_ms=None)
    checks = list(_check(TRIGGERS[task], view, config))
    fired = [check for check in checks if check.is_reached]
    held = _held_until(task, view, config)
    if not fired:
        times = [max(check.at_ms, held.at_ms) for check in checks if check.at_ms < FOREVER_MS]
        why = "; ".join(check.text for check in checks) or "nothing to do"
        return Waiting(task=task, why=why, at_ms=int(min(times)) if times else None)
    if held.at_ms > view.now_ms:
        return Waiting(task=task, why=f"{held.text}; then {fired[0].text}", at_ms=int(held.at_ms))
    since_ms = max(held.at_ms, min(check.at_ms for check in fired))
    since_ms = since_ms if since_ms < FOREVER_MS else view.now_ms
    return Due(table=view.figures.table, task=task, since_ms=int(since_ms), reason=fired[0].text)


def next_publish_ms(
    figures: Figures, ledger: Ledger, config: MaintainConfig, *, now_ms: int
) -> int | None:
    """Wall-clock time before which no cycle starts, maybe past; None: no pause to keep.

    Row-level statements of other engines that fit into the pause meet no new delete files.
    """
    task = TaskName.RESOLVE
    end_ms = _pause_end_ms(task, _view(task, figures, ledger, now_ms), config)
    return None if end_ms is None else int(end_ms)


def held_until_ms(
    task: TaskName, figures: Figures, ledger: Ledger, config: MaintainConfig, *, now_ms: int
) -> float:
    """Wall-clock time before which a task does not start, whatever its triggers say; maybe past."""
    return _held_until(task, _view(task, figures, ledger, now_ms), config).at_ms


def _view(task: TaskName, figures: Figures, ledger: Ledger, now_ms: int) -> _View:
    return _View(
        figures=figures, since=figures.since[task], record=ledger.record(task), now_ms=now_ms
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Check:
    text: str
    is_reached: bool = False
    at_ms: float = field(default=FOREVER_MS)  # when time alone reaches it


def _check(triggers: tuple[_Trigger, ...], view: _View, config: MaintainConfig) -> Iterator[_Check]:
    for trigger in triggers:
        setting = trigger.setting
        threshold = config[setting.name]
        value = trigger.figure(view)
        if threshold == 0 or value is None:
            continue
        is_reached = value >= threshold
        name = setting.name.partition(".")[2].removesuffix("-ms")
        text = f"{name} {_amount(setting.kind, value)} of {_amount(setting.kind, threshold)}"
        at_ms = view.now_ms + threshold - value if setting.kind == Kind.MS else FOREVER_MS
        yield _Check(text=text, is_reached=is_reached, at_ms=max(at_ms, 0))


def _held_until(task: TaskName, view: _View, config: MaintainConfig) -> _Check:
    """Until when a task may not start, whatever its triggers say."""
    record, wait_ms = view.record, view.record.retry_ms - view.now_ms
    # None is longer, even with the chance that is added, unless a clock went back.
    if 0 < wait_ms <= 2 * max(config["backoff-max-ms"], BUSY_RETRY_MS):
        after = f"after failure {record.failures}" if record.failures else "for the lock"
        return _Check(text=f"waits {_amount(Kind.MS, wait_ms)} {after}", at_ms=record.retry_ms)
    end_ms = _pause_end_ms(task, view, config)
    if end_ms is None or end_ms <= view.now_ms:
        return _Check(text="", at_ms=0)
    return _Check(text=f"pauses {_amount(Kind.MS, end_ms - view.now_ms)}", at_ms=end_ms)


def _pause_end_ms(task: TaskName, view: _View, config: MaintainConfig) -> float | None:
    """A clock that went back, or another machine's that is ahead, doubles the pause at most."""
    pause_ms = _pause_ms(task, view.record, config)
    last_ms = _last_run_ms(task, view.record, view.figures)
    if last_ms is None or pause_ms == 0 or last_ms - view.now_ms > pause_ms:
        return None
    return last_ms + pause_ms


def _pause_ms(task: TaskName, record: TaskRecord, config: MaintainConfig) -> float:
    return config.min_interval_ms(task) * (1 << record.idle_runs)


def _last_run_ms(task: TaskName, record: TaskRecord, figures: Figures) -> int | None:
    """End of the last run here; a publish counts whoever made it."""
    times = [record.ended_ms, figures.published_ms if task == TaskName.RESOLVE else None]
    return max((each for each in times if each is not None), default=None)


def _amount(kind: Kind, value: float) -> str:
    if kind == Kind.SHARE:
        return f"{value:.1%}"
    if value == FOREVER_MS:
        return "long"
    return {Kind.BYTES: bytes_text, Kind.MS: span_text}.get(kind, count_text)(value)
