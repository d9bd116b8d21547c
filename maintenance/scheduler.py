"""Runs maintenance on many tables: polls, plans, runs tasks in a few threads.

Everything that decides is pure (`triggers`) and everything that is known lives in one thread, the
one that calls `run`; other threads only look at metadata and run tasks, and hand back what they
found. Per turn:

1. take what threads have finished: note it in the table's ledger, look at the table again;
2. read the catalog's pointers of tables whose poll is due, in one query where there are many; a
   table that moves is polled often, a quiet one seldom;
3. look at the metadata of tables whose pointer moved, and only of those;
4. start the tasks that are due, the most urgent first, as far as threads are free. Tables that one
   stream feeds are published together, as one cycle (`cut_groups`).

A table that fails waits by itself, twice as long after each failure; the others go on.
"""

from __future__ import annotations

import logging
import math
import queue
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol, TypeAlias

from lock import LockManager
from maintenance.cut_groups import STALLED_MS, CutGroup, cut_groups, has_batches
from maintenance.run_history import Ledger, Outcome, Run, save_ledger
from maintenance.runners import RUNNERS, Runner
from maintenance.scheduler_options import SchedulerOptions
from maintenance.settings import TaskName
from maintenance.stopping import stoppable
from maintenance.table_patterns import find_tables
from maintenance.task_threads import Finished, GroupFinished, Worker
from maintenance.told_outages import ToldOutages
from maintenance.triggers import Due, plan_table
from maintenance.watched import Look, WatchedTable, look_at
from resolver.maintenance_lock import maintenance_lock
from resolver.open_indexes import OpenIndexes
from tableformat import TableCatalog
from tableformat.catalog.base import Identifier
from tableformat.commit.retry import backoff_ms
from tableformat.errors import TableError

logger = logging.getLogger("icefold.maintain")

POLL_MIN_MS = 250
POLL_MAX_MS = 2_000
POLL_MAX_LOADING_MS = 10_000  # where a poll is a load of the whole metadata (REST)
QUIET_SHARE = 8  # a table is polled at an eighth of the time for which it has been quiet
TOLD_MS = 10_000  # who was told of commits within this time is not polled for them often
LOOKED_AT_MS = 1_000  # where a store answers, a table is within this time
LEDGER_MS = 5_000  # how often the cycles of a table that went well are written down
TURN_MAX_MS = 500  # a signal is noticed within this time
LOOK_BACKOFF_MIN_MS, LOOK_BACKOFF_MAX_MS = 1_000, 600_000
LOOK_THREADS = 2
ONCE_OVERRIDES = {"resolve.commits": 1.0}  # who comes once publishes whatever waits


class Observer(Protocol):
    """Told of every run, in the scheduler's thread."""

    def __call__(self, run: Run) -> None:
        """A task has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerEnd:
    """How it ended.

    Attributes:
        runs: Of `run_once`: what was done.
        failed: Tables that could not be looked at, and why.
        abandoned: `task table` that a stop did not wait for; each can be run again.
        was_stopped: Whether it was asked to stop.
        is_looking: A thread still reads a table's metadata; there is nothing to wait for in that.
    """

    runs: tuple[Run, ...] = ()
    failed: Mapping[str, str] = field(default_factory=dict)
    abandoned: tuple[str, ...] = ()
    was_stopped: bool = False
    is_looking: bool = False


@dataclass(frozen=True, slots=True)
class _Woken:
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Committed:
    group: CutGroup


_Result: TypeAlias = Look | Finished | GroupFinished | _Woken | _Committed


class Scheduler:
    """Maintains tables until it is told to stop, or once.

    Args:
        catalog: Where the tables are.
        names: Tables, or patterns such as `shop.*`.
        options: How it works.
        runners: What the tasks are.
        lock: Lock manager; None: the catalog's own.
        observers: Told of every run.

    Raises:
        NotFoundError: A table that is named, not by a pattern, does not exist.
    """

    def __init__(
        self,
        catalog: TableCatalog,
        names: Sequence[str],
        options: SchedulerOptions | None = None,
        *,
        runners: Mapping[TaskName, Runner] = RUNNERS,
        lock: LockManager | None = None,
        observers: Sequence[Observer] = (),
    ) -> None:
        self._environment = catalog.environment
        self._clock = catalog.environment.runtime.clock
        self._names = tuple(names)
        self._options = options or SchedulerOptions()
        self._runners = runners
        self._lock = lock
        self._observers = tuple(observers)
        self._watched: dict[Identifier, WatchedTable] = {}
        # No `SimpleQueue`: CPython's (3.11, 3.12) waits for ever where a signal interrupts it after
        # its time is over, as one does that was sent to a stopped process.
        self._results: queue.Queue[_Result] = queue.Queue()
        self._rediscover_ms = 0.0
        self._stops = 0
        self._once = False
        self._runs: list[Run] = []
        self._busy: list[TaskName] = []  # what occupies threads
        self._rest_until_ms = -math.inf
        self._planned_ms = 0  # wall clock
        # Groups whose next cut is not there yet: the versions that said so, and until when.
        self._stalled: dict[tuple[Identifier, ...], tuple[tuple[str | None, ...], float]] = {}
        self._view_lock = threading.Lock()
        self._outages = ToldOutages(self._clock)
        self._discover()
        for watched in self._watched.values():
            if watched.name in self._names:
                self._environment.catalog.load_table(watched.identifier)

    def run(self) -> SchedulerEnd:
        """Maintain until `stop`.

        Effects: those of the tasks. On a stop no task starts any more, long tasks end between two
        steps, and what still runs after `grace_ms` is left behind; every task can be killed at any
        point and run again.
        """
        return self._run(once=False)

    def run_once(self) -> SchedulerEnd:
        """Run every task that is due, each at most once, and return."""
        return self._run(once=True)

    def stop(self) -> None:
        """End soon; a second call: now. Safe in a signal handler and from other threads."""
        self._stops += 1

    def wake(self, names: Collection[str]) -> None:
        """Look at tables now: somebody has committed to them. Safe from other threads.

        Args:
            names: Dotted; of one that is not known the patterns are matched again.
        """
        self._results.put(_Woken(tuple(names)))

    def is_publishing(self) -> bool:
        """Whether a cycle is on its way to its commit, or about to be: of what `wake` has told."""
        if not self._results.empty():
            return True
        told_ms = self._clock.monotonic_ms() - LOOKED_AT_MS
        return any(
            each.is_publishing or (each.is_moving and each.told_ms >= max(told_ms, each.cycle_ms))
            for each in self.tables()
        )

    def tables(self) -> list[WatchedTable]:
        """What is known of each table; for metrics and status."""
        with self._view_lock:
            return list(self._watched.values())

    def _run(self, *, once: bool) -> SchedulerEnd:
        self._once = once
        self._indexes = OpenIndexes(self._clock)
        own = maintenance_lock(self._environment) if self._lock is None else None
        manager = own or self._lock
        assert manager is not None
        self._worker = Worker(
            environment=self._environment,
            runners=self._runners,
            lock=stoppable(manager, lambda: self._stops > 0),
            options=replace(self._options, overrides=self._overrides()),
            indexes=self._indexes,
            is_stopping=lambda: self._stops > 0,
        )
        tasks = ThreadPoolExecutor(self._options.parallel_max, thread_name_prefix="maintain")
        looks = ThreadPoolExecutor(LOOK_THREADS, thread_name_prefix="look")
        self._tasks, self._looks = tasks, looks
        try:
            while not self._stops:
                wait_ms = self.turn()
                if once and self._is_idle():
                    break
                self._take_results(wait_ms)
            return self._end()
        finally:
            for pool in (tasks, looks):
                pool.shutdown(wait=False, cancel_futures=True)
            self._indexes.close()
            if own is not None and not self._running():
                own.close()

    def turn(self) -> float:
        """One turn; returns how long the next may wait, in milliseconds."""
        now_ms = self._clock.monotonic_ms()
        self._take_results(0)
        self._indexes.tidy()
        self._rediscover(now_ms)
        next_ms = self._poll(now_ms)
        self._start_looks()
        self._start_tasks()
        self._save_ledgers(older_ms=LEDGER_MS)
        return min(max(next_ms - self._clock.monotonic_ms(), 1.0), TURN_MAX_MS)

    def _is_idle(self) -> bool:
        return self._results.empty() and all(
            not (each.is_looking or each.running or each.needs_look)
            for each in self._watched.values()
        )

    def _running(self) -> list[str]:
        return [f"{task} {each.name}" for each in self._watched.values() for task in each.running]

    def _end(self) -> SchedulerEnd:
        deadline_ms = self._clock.monotonic_ms() + self._options.grace_ms
        while self._running() and self._stops < 2 and self._clock.monotonic_ms() < deadline_ms:
            self._take_results(TURN_MAX_MS)
        self._save_ledgers(older_ms=0)
        abandoned = tuple(self._running())
        if abandoned:
            logger.warning("left behind: %s; each can be run again", ", ".join(abandoned))
        return SchedulerEnd(
            runs=tuple(self._runs),
            failed={e.name: e.problem for e in self._watched.values() if e.problem is not None},
            abandoned=abandoned,
            was_stopped=self._stops > 0,
            is_looking=any(each.is_looking for each in self._watched.values()),
        )

    # What is watched

    def _rediscover(self, now_ms: float) -> None:
        if self._once or now_ms < self._rediscover_ms:
            return
        try:
            self._discover()
        except TableError as error:
            logger.warning("cannot list tables: %s", error)
        self._rediscover_ms = now_ms + self._options.rediscover_ms

    def _discover(self) -> None:
        found = find_tables(self._environment.catalog, self._names)
        with self._view_lock:
            for identifier in found:
                self._watched.setdefault(identifier, WatchedTable(identifier))
            for identifier in self._watched.keys() - set(found):
                if not self._watched[identifier].running:
                    del self._watched[identifier]
                    self._outages.ends(identifier)
        self._rediscover_ms = self._clock.monotonic_ms() + self._options.rediscover_ms

    def _poll(self, now_ms: float) -> float:
        """Find tables whose metadata moved; returns when the next poll is due."""
        slack_ms = now_ms + POLL_MIN_MS / 2  # polls that are due at about one time share a query
        due = [each for each in self._watched.values() if each.poll_ms <= slack_ms]
        if due and not self._once:
            self._poll_tables(due, now_ms)
        return min((each.poll_ms for each in self._watched.values()), default=now_ms + TURN_MAX_MS)

    def _poll_tables(self, due: list[WatchedTable], now_ms: float) -> None:
        try:
            found = self._environment.catalog.metadata_locations([e.identifier for e in due])
        except TableError as error:
            logger.warning("cannot read the catalog: %s", error)
            for each in due:
                each.poll_ms = now_ms + POLL_MAX_LOADING_MS
            return
        for each in due:
            may_look = each.problem is None or now_ms >= each.look_again_ms
            if found is None:
                each.needs_look = each.needs_look or may_look
            elif found.get(each.identifier) != each.location:
                each.location = found.get(each.identifier)
                each.moved_ms = now_ms
                each.needs_look = True
                each.failures = 0
            elif each.problem is not None and may_look:
                each.needs_look = True
            each.poll_ms = now_ms + self._poll_interval_ms(each, now_ms, is_load=found is None)

    def _poll_interval_ms(self, each: WatchedTable, now_ms: float, *, is_load: bool) -> float:
        if self._options.every_ms is not None:
            return self._options.every_ms
        if now_ms - each.told_ms < TOLD_MS:
            return POLL_MAX_MS
        quiet_ms = (now_ms - each.moved_ms) / QUIET_SHARE
        return min(max(quiet_ms, POLL_MIN_MS), POLL_MAX_LOADING_MS if is_load else POLL_MAX_MS)

    # What is run

    def _overrides(self) -> dict[str, float]:
        overrides = dict(self._options.overrides)
        if self._once or self._options.every_ms is not None:
            return ONCE_OVERRIDES | overrides
        return overrides

    def _start_looks(self) -> None:
        overrides = self._overrides()
        for each in self._watched.values():
            if each.needs_look and not each.is_looking:
                each.needs_look, each.is_looking = False, True
                self._looks.submit(self._look, each.identifier, each.ledger, overrides)

    def _look(
        self, identifier: Identifier, ledger: Ledger | None, overrides: dict[str, float]
    ) -> None:
        self._results.put(
            look_at(
                self._environment,
                identifier,
                ledger,
                staging=self._options.staging,
                target=self._options.target,
                overrides=overrides,
                defaults=self._options.defaults,
            )
        )

    def _start_tasks(self) -> None:
        before_ms, self._planned_ms = self._planned_ms, self._clock.now_ms()
        now_ms, is_back = self._planned_ms, self._planned_ms < before_ms
        due: list[tuple[WatchedTable, Due]] = []
        for each in self._watched.values():
            if is_back:  # plans wait for times of the clock before
                each.replan_ms = 0.0
            if each.figures is None or each.is_looking or each.needs_look:
                continue
            if now_ms >= each.replan_ms:
                self._plan(each, now_ms)
            due += [(each, one) for one in each.plan.due if each.may_start(one.task)]
        if not due:
            return
        due.sort(key=lambda pair: pair[1].rank(now_ms))
        groups = self._groups(due)
        for each, one in due:
            if not (each.may_start(one.task) and self._has_room(one.task)):
                continue
            if one.task != TaskName.RESOLVE or not has_batches(each):
                self._start(each, one)
            elif self._may_publish(groups[each.identifier], now_ms):
                self._start_group(groups[each.identifier], each, one)

    def _plan(self, each: WatchedTable, now_ms: int) -> None:
        assert each.look is not None
        assert each.figures is not None
        assert each.ledger is not None
        each.plan = plan_table(
            each.figures,
            each.ledger.without_waits() if self._once else each.ledger,
            each.look.config,
            now_ms=now_ms,
            tasks=[task for task in self._options.tasks if task not in each.tried],
        )
        each.replan_ms = each.plan.next_ms

    def _groups(self, due: Sequence[tuple[WatchedTable, Due]]) -> dict[Identifier, CutGroup]:
        is_wanted = any(one.task == TaskName.RESOLVE and has_batches(each) for each, one in due)
        return cut_groups(self._watched.values()) if is_wanted else {}

    def _may_publish(self, group: CutGroup, now_ms: int) -> bool:
        if not group.may_start(now_ms, with_waits=not self._once):
            return False
        versions, until_ms = self._stalled.get(group.key, (None, 0.0))
        return versions != group.locations or self._clock.monotonic_ms() >= until_ms

    def _start_group(self, group: CutGroup, each: WatchedTable, due: Due) -> None:
        for member in group.members:
            self._begin_cycle(member, due)
            if self._once:
                member.tried.add(TaskName.RESOLVE)
        self._busy.append(TaskName.RESOLVE)
        on_commit = partial(self._results.put, _Committed(group))
        self._tasks.submit(self._put, self._worker.publish, group, each, due, on_commit)

    def _begin_cycle(self, each: WatchedTable, due: Due) -> None:
        each.running[TaskName.RESOLVE] = due.reason
        each.cycle_ms, each.is_publishing = self._clock.monotonic_ms(), True

    def _has_room(self, task: TaskName) -> bool:
        if len(self._busy) >= self._options.parallel_max:
            return False
        if task == TaskName.RESOLVE:
            return True
        long = sum(one != TaskName.RESOLVE for one in self._busy)
        is_resting = self._clock.monotonic_ms() < self._rest_until_ms
        return long < self._options.long_max and not is_resting

    def _rest(self, run: Run) -> None:
        """After a long task beside a stream in this process nothing long starts for as long.

        Tables of one stream come due at one time: their cycles have every other second then. Not
        where more long tasks than one have room: those leave cores to the stream.
        """
        now_ms = self._clock.monotonic_ms()
        has_stream = any(now_ms - each.told_ms < TOLD_MS for each in self._watched.values())
        if run.task != TaskName.RESOLVE and has_stream and self._options.long_max == 1:
            self._rest_until_ms = now_ms + run.duration_ms

    def _start(self, each: WatchedTable, due: Due) -> None:
        if due.task == TaskName.RESOLVE:
            self._begin_cycle(each, due)
        else:
            each.running[due.task] = due.reason
        if self._once:
            each.tried.add(due.task)
        self._busy.append(due.task)
        self._tasks.submit(self._put, self._worker.run, each, due)

    def _put(self, work: Callable[..., Finished | GroupFinished], *given: object) -> None:
        """In a thread."""
        self._results.put(work(*given))

    # What comes back

    def _take_results(self, wait_ms: float) -> None:
        """Take all results; the first may be waited for."""
        timeout = wait_ms / 1e3
        while True:
            try:
                result = self._results.get(block=timeout > 0, timeout=timeout or None)
            except queue.Empty:
                return
            timeout = 0.0
            if isinstance(result, _Woken):
                self._take_wake(result)
            elif isinstance(result, _Committed):
                for member in result.group.members:
                    member.is_publishing = False
            elif isinstance(result, GroupFinished):
                self._take_group(result)
            elif isinstance(result, Finished):
                self._busy.remove(result.run.task)
                self._rest(result.run)
                self._take_run(result)
            elif (each := self._watched.get(result.identifier)) is not None:
                self._take_look(each, result)

    def _take_wake(self, woken: _Woken) -> None:
        for name in woken.names:
            each = self._watched.get(tuple(name.split(".")))
            if each is None:
                self._rediscover_ms = 0.0
            else:
                each.needs_look = True
                each.moved_ms = each.told_ms = self._clock.monotonic_ms()

    def _take_look(self, each: WatchedTable, look: Look) -> None:
        before = each.problem
        each.look, each.is_looking = look, False
        each.replan_ms = 0.0
        if look.outage is None:
            self._outages.ends(each.identifier)
        if look.figures is not None:
            each.location, each.failures = look.figures.metadata_location, 0
            # A run may have ended since the look began; then the next look counts from it.
            each.ledger = look.ledger if each.ledger is None else each.ledger
            return
        if look.outage is not None:
            self._outages.begins(each.identifier, look.outage, str(look.problem))
        elif look.problem != before:
            logger.error("%s: cannot be maintained: %s", each.name, look.problem)
        each.failures += 1
        wait_ms = backoff_ms(
            each.failures,
            min_ms=LOOK_BACKOFF_MIN_MS,
            max_ms=LOOK_BACKOFF_MAX_MS,
            runtime=self._environment.runtime,
        )
        each.look_again_ms = self._clock.monotonic_ms() + wait_ms  # or when its metadata moves

    def _take_group(self, finished: GroupFinished) -> None:
        self._busy.remove(TaskName.RESOLVE)
        key = finished.group.key
        self._stalled.pop(key, None)
        if finished.stalled is not None:
            self._stalled[key] = finished.stalled, self._clock.monotonic_ms() + STALLED_MS
        for each in finished.group.members:
            each.running.pop(TaskName.RESOLVE, None)
            each.is_publishing = False
            each.needs_look = True
        for one in finished.tables:
            self._take_run(one)

    def _take_run(self, finished: Finished) -> None:
        run, each = finished.run, self._watched.get(finished.identifier)
        if self._once:
            self._runs.append(run)
        if each is not None:
            each.running.pop(run.task, None)
            if run.task == TaskName.RESOLVE:
                each.is_publishing = False
            self._note(each, finished)
            each.needs_look = True
        for observer in self._observers:
            try:
                observer(run)
            except Exception:
                logger.exception("an observer of runs has failed")

    def _note(self, each: WatchedTable, finished: Finished) -> None:
        assert each.look is not None
        run, config = finished.run, each.look.config
        ledger = each.ledger or Ledger()
        wait_ms = finished.wait_ms
        if run.outcome == Outcome.FAILED:
            wait_ms = backoff_ms(
                ledger.record(run.task).failures + 1,
                min_ms=config["backoff-min-ms"],
                max_ms=config["backoff-max-ms"],
                runtime=self._environment.runtime,
            )
        each.ledger = ledger.after(
            run,
            snapshot_id=finished.snapshot_id,
            retry_ms=self._clock.now_ms() + int(wait_ms),
        )
        each.is_saved = False
        if (run.task, run.outcome) != (TaskName.RESOLVE, Outcome.DONE):
            self._save_ledger(each)

    def _save_ledgers(self, *, older_ms: float) -> None:
        """What a kill takes with it are the last seconds of cycles that went well."""
        now_ms = self._clock.monotonic_ms()
        for each in self._watched.values():
            if not each.is_saved and now_ms - each.saved_ms >= older_ms:
                self._save_ledger(each)

    def _save_ledger(self, each: WatchedTable) -> None:
        each.is_saved, each.saved_ms = True, self._clock.monotonic_ms()
        if each.look is not None and each.look.path is not None and each.ledger is not None:
            save_ledger(each.look.path, each.ledger)
