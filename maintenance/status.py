"""How one table does: what waits, what it is made of, who works on it, what comes next.

Metadata, the manifests of the published head, the index's header, the lock's record and the local
ledger are read; no data file is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from pyiceberg.table.metadata import TableMetadata

from lock import LockError
from maintenance.cycle_history import Cycle, read_cycles
from maintenance.pause import announced_ms
from maintenance.run_history import Ledger, ledger_path, load_ledger
from maintenance.settings import MaintainConfig, TaskName, parse_config
from maintenance.table_figures import Backlog, Figures, figures_of
from maintenance.triggers import plan_table
from resolver.cursor import plan_backlog
from resolver.former_main import check_was_not_main
from resolver.index.position import read_position, read_shared_position
from resolver.index_keeper import FILE_NOTES, index_folder
from resolver.maintenance_lock import maintenance_lock, maintenance_lock_name
from resolver.shared_keeper import configured_root, index_depot, notes_folder
from tableformat import InvalidInputError, Table
from tableformat.catalog.base import TableState
from tableformat.cdc.dead_letter import count_dead_letters
from tableformat.cdc.many.set_aside import read_set_aside
from tableformat.codec.avro.manifest_store import load_manifest_list
from tableformat.commit.branch_history import ancestors
from tableformat.environment import Environment
from tableformat.errors import TableError
from tableformat.scan.live_files import read_live_columns
from tableformat.spec.manifest_file import ManifestContent, ManifestFile
from tableformat.spec.names import MAIN_BRANCH, STAGING_BRANCH

SIZE_LIMITS_MB = (1, 4, 16, 64, 256, 1024)
CYCLES_MAX = 5
RUNS_MAX = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeBin:
    """Data files of one size class; `below_bytes` None: the largest."""

    below_bytes: int | None
    files: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexStatus:
    """The primary-key index: in shared storage where `index-location` says so, else local.

    Attributes:
        state: `missing`, `current`, `behind`, `elsewhere` (not on the branch's history) or
            `unreadable`.
        behind_commits: Target commits that it has not followed yet.
    """

    state: str
    size_bytes: int = 0
    snapshot_id: int | None = None
    behind_commits: int | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LockStatus:
    """Who works on the table; `holder` None: nobody. Times are since then."""

    holder: str | None = None
    held_ms: int = 0
    silent_ms: int = 0
    waiters: int = 0
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStatus:
    """One task of `maintain`.

    Attributes:
        is_due: Whether it would start now.
        why: The trigger that is reached, or what all of them wait for.
        at_ms: When time alone makes it due, wall clock.
        ended_ms: End of the last run on this machine.
        failures: Since the last success.
        error: The last failure, if there was no success since.
    """

    task: str
    is_due: bool
    why: str
    at_ms: int | None = None
    ended_ms: int | None = None
    failures: int = 0
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStatus:
    """One table at one moment.

    Attributes:
        backlog_snapshots: Staged snapshots that are not published; None: cannot be told.
        backlog_rows, backlog_deletes, backlog_bytes: What they hold.
        lag_ms: How far readers are behind: the age of the newest published change by the source's
            clock, where a writer tells it; never less than `staging_lag_ms`.
        staging_lag_ms: Age of the oldest unpublished staged snapshot; 0 without a backlog.
        source_ms: When the source made the newest published change; None: no writer tells it.
        dead_letters: Bad records that wait in the dead-letter table; None: cannot be told.
        next_publish_ms: Wall-clock time before which `maintain` does not publish; None: it may now.
        set_aside: Why `icefold ingest` has set the table aside, if it has.
        streams: The streams into several tables that feed it, by name.
        cut: The newest cut that it was published with; None: none.
        problem: Why the next resolve would stop, if it would.
        totals: Of the target head, by the summary's counters.
        dv_share: Share of the rows in data files that deletion vectors hide.
        settings_problem: Why `maintain` would leave the table alone.
        runs: The last ones of `maintain` on this machine, the newest last.
    """

    table: str
    target_snapshot_id: int | None
    target_age_ms: int | None
    staging_snapshot_id: int | None
    backlog_snapshots: int | None
    backlog_rows: int
    backlog_deletes: int
    backlog_bytes: int
    lag_ms: int
    staging_lag_ms: int
    source_ms: int | None
    dead_letters: int | None
    set_aside: str | None
    problem: str | None
    totals: Mapping[str, int]
    dv_share: float
    snapshots: int
    manifests: int
    metadata_bytes: int
    sizes: Sequence[SizeBin]
    index: IndexStatus
    lock: LockStatus
    cycles: Sequence[Cycle]
    tasks: Sequence[TaskStatus] = ()
    next_publish_ms: int | None = None
    streams: Sequence[str] = ()
    cut: str | None = None
    settings_problem: str | None = None
    runs: Sequence[Mapping[str, Any]] = field(default=())

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


def read_status(
    table: Table, *, staging: str = STAGING_BRANCH, target: str = MAIN_BRANCH
) -> TableStatus:
    """Read the status of `table`.

    Args:
        table: Refreshed first.
        staging: Branch with staged changes; may not exist.
        target: The published branch; may be empty.
    """
    environment = table.environment
    state = table.refresh().state
    now_ms = environment.runtime.clock.now_ms()
    ledger = load_ledger(ledger_path(environment, state, target))
    figures = figures_of(state, ledger, staging=staging, target=target)
    head = state.head(target)
    manifests = [] if head is None else load_manifest_list(environment.store, head)
    backlog = _as_resolved(environment, state, figures.backlog, staging=staging, target=target)
    figures = replace(figures, backlog=backlog)
    config, settings_problem = _config(state.metadata.properties)
    return TableStatus(
        table=state.name,
        target_snapshot_id=figures.target_snapshot_id,
        target_age_ms=None if figures.target_ms is None else now_ms - figures.target_ms,
        staging_snapshot_id=figures.staging_snapshot_id,
        backlog_snapshots=backlog.commits,
        backlog_rows=backlog.rows,
        backlog_deletes=backlog.deletes,
        backlog_bytes=backlog.size_bytes,
        lag_ms=figures.lag_ms(now_ms),
        staging_lag_ms=backlog.lag_ms(now_ms),
        source_ms=figures.source_ms,
        dead_letters=_dead_letters(table),
        set_aside=_set_aside(state.metadata.properties),
        problem=backlog.problem,
        totals=figures.totals,
        dv_share=figures.dv_share,
        snapshots=figures.snapshots,
        manifests=len(manifests),
        metadata_bytes=sum(manifest.manifest_length for manifest in manifests),
        sizes=_sizes(_data_file_sizes(table, target, manifests)),
        index=_index(table, target, figures),
        lock=_lock(table),
        cycles=read_cycles(state.metadata, target)[-CYCLES_MAX:],
        tasks=[] if config is None else _tasks(figures, ledger, config, now_ms),
        next_publish_ms=None
        if config is None
        else announced_ms(figures, ledger, config, now_ms=now_ms),
        streams=sorted(backlog.stream.queries),
        cut=None if backlog.stream.cut is None else str(backlog.stream.cut),
        settings_problem=settings_problem,
        runs=ledger.runs[-RUNS_MAX:],
    )  # fmt: skip


def _as_resolved(
    environment: Environment, state: TableState, backlog: Backlog, *, staging: str, target: str
) -> Backlog:
    """The backlog, unless older metadata files say that it was the target's (REPLACE TABLE)."""
    if not backlog.commits or staging == target:
        return backlog
    waiting = plan_backlog(state, staging=staging, target=target)
    try:
        check_was_not_main(environment, state, waiting, staging=staging, target=target)
    except TableError as error:
        return Backlog(commits=None, problem=str(error))
    return backlog


def _dead_letters(table: Table) -> int | None:
    try:
        return count_dead_letters(table.environment, table.state)
    except TableError:
        return None


def _set_aside(properties: Mapping[str, str]) -> str | None:
    record = read_set_aside(properties)
    if record is None:
        return None
    return (
        f"resumed, catches up; it was: {record.reason}" if record.is_asked_back else record.reason
    )


def _config(properties: Mapping[str, str]) -> tuple[MaintainConfig | None, str | None]:
    """The settings, or why there are none."""
    try:
        return parse_config(properties), None
    except InvalidInputError as error:
        return None, str(error)


def _tasks(
    figures: Figures, ledger: Ledger, config: MaintainConfig, now_ms: int
) -> list[TaskStatus]:
    plan = plan_table(figures, ledger, config, now_ms=now_ms)
    found = [_task(ledger, due.task, is_due=True, why=due.reason) for due in plan.due]
    found += [
        _task(ledger, waiting.task, is_due=False, why=waiting.why, at_ms=waiting.at_ms)
        for waiting in plan.waiting
    ]
    return found


def _task(
    ledger: Ledger, task: TaskName, *, is_due: bool, why: str, at_ms: int | None = None
) -> TaskStatus:
    record = ledger.record(task)
    return TaskStatus(
        task=task.value,
        is_due=is_due,
        why=why,
        at_ms=at_ms,
        ended_ms=record.ended_ms,
        failures=record.failures,
        error=record.error,
    )


def _data_file_sizes(
    table: Table, target: str, manifests: Sequence[ManifestFile]
) -> npt.NDArray[np.int64]:
    notes = notes_folder(table.environment, table.state, target) / FILE_NOTES
    columns = read_live_columns(table.environment.store, notes, manifests)
    sizes = [
        each.files["size_bytes"]
        for each, manifest in zip(columns, manifests, strict=True)
        if manifest.content == ManifestContent.DATA
    ]
    return np.concatenate([np.empty(0, dtype=np.int64), *sizes])


def _sizes(sizes: npt.NDArray[np.int64]) -> list[SizeBin]:
    limits = [limit << 20 for limit in SIZE_LIMITS_MB]
    bins = np.digitize(sizes, limits)
    return [
        SizeBin(
            below_bytes=limits[number] if number < len(limits) else None,
            files=int((bins == number).sum()),
            size_bytes=int(sizes[bins == number].sum()),
        )
        for number in range(len(limits) + 1)
    ]


def _index(table: Table, target: str, figures: Figures) -> IndexStatus:
    state = table.state
    root = configured_root(table.environment)
    position = (
        read_position(index_folder(table.environment, state, target))
        if root is None
        else read_shared_position(index_depot(table.environment, root, state, target))
    )
    if position.binding is None:
        return IndexStatus(
            state="unreadable" if position.problem else "missing",
            size_bytes=position.size_bytes,
            problem=position.problem,
        )
    bound = position.binding.snapshot_id
    behind = _commits_behind(state.metadata, figures.target_snapshot_id, bound)
    name = "elsewhere" if behind is None else "behind" if behind else "current"
    return IndexStatus(
        state=name, size_bytes=position.size_bytes, snapshot_id=bound, behind_commits=behind
    )


def _commits_behind(metadata: TableMetadata, head_id: int | None, bound: int | None) -> int | None:
    """Snapshots after `bound` up to the head; None: `bound` is not in its history."""
    if head_id == bound:
        return 0
    for count, snapshot in enumerate(ancestors(metadata, head_id)):
        if snapshot.snapshot_id == bound:
            return count
    return None


def _lock(table: Table) -> LockStatus:
    try:
        with closing(maintenance_lock(table.environment, read_only=True)) as manager:
            state = manager.inspect(maintenance_lock_name(table.state))
    except (LockError, TableError) as error:
        return LockStatus(problem=str(error))
    return LockStatus(
        holder=state.holder if state.is_held else None,
        held_ms=state.held_ms,
        silent_ms=state.silent_ms,
        waiters=len(state.waiters),
    )
