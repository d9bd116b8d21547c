"""What the scheduler's threads do: run one task of a table, or publish a group of tables.

Whatever goes wrong becomes the outcome of the run.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from lock import LeaseLostError, LeaseUnavailableError, LockError, LockManager
from maintenance.cut_groups import CutGroup, goes_with_others, publish_group
from maintenance.logs import error_text
from maintenance.pause import announce_pause
from maintenance.run_history import Outcome, Run
from maintenance.runners import Runner, TaskCall, TaskResult
from maintenance.scheduler_options import SchedulerOptions
from maintenance.settings import TaskName
from maintenance.triggers import BUSY_RETRY_MS, Due
from maintenance.watched import WatchedTable
from resolver.open_indexes import OpenIndexes
from tableformat import Environment, Table
from tableformat.after_commit import reload_after
from tableformat.catalog.base import Identifier
from tableformat.errors import TableError

Out = TypeVar("Out")
logger = logging.getLogger("icefold.maintain")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A run of a table, the target's head after it, and how long a refused one waits."""

    run: Run
    identifier: Identifier
    snapshot_id: int | None
    wait_ms: float = BUSY_RETRY_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFinished:
    """A publish of a group.

    Attributes:
        tables: What it was for those that had a part in it.
        stalled: The versions of the members at its begin, if there was no cut to publish.
    """

    group: CutGroup
    tables: Sequence[Finished]
    stalled: tuple[str | None, ...] | None = None


@dataclass(frozen=True, slots=True)
class _Failure:
    outcome: Outcome
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """What all runs of a scheduler have in common."""

    environment: Environment
    runners: Mapping[TaskName, Runner]
    lock: LockManager
    options: SchedulerOptions
    indexes: OpenIndexes
    is_stopping: Callable[[], bool]

    def run(self, each: WatchedTable, due: Due) -> Finished:
        """Run one task."""
        begun = self._begin()

        def work() -> tuple[TaskResult, int | None]:
            assert each.look is not None
            assert each.figures is not None
            table = Table(self.environment, self.environment.catalog.load_table(each.identifier))
            is_alone = bool(each.figures.backlog.stream.queries) and goes_with_others(each)
            call = TaskCall(
                table=table,
                lock=self.lock,
                lock_timeout_ms=self.options.lock_timeout_ms,
                staging=self.options.staging,
                target=self.options.target,
                config=each.look.config,
                # Behind what was seen there may be a batch by now, which goes with its group.
                until=each.figures.staging_snapshot_id if is_alone else None,
                indexes=self.indexes,
            )
            result = self.runners[due.task](call)
            reload_after(table, f"{due.task} is done")
            return result, table.state.head_id(self.options.target)

        found = self._guarded(work, f"{due.task} {each.name}")
        result, snapshot_id = (found, None) if isinstance(found, _Failure) else found
        return self._finished(each, due, begun, result, snapshot_id)

    def publish(
        self, group: CutGroup, first: WatchedTable, due: Due, on_commit: Callable[[], None]
    ) -> GroupFinished:
        """Publish a group; what goes wrong is the outcome of all that wait.

        Args:
            group: The tables.
            first: Whose trigger it was.
            due: The trigger.
            on_commit: As `resolve_group`.
        """
        begun, locations = self._begin(), group.locations
        publish = partial(
            publish_group,
            self.environment,
            group,
            self.options,
            lock=self.lock,
            indexes=self.indexes,
            on_commit=on_commit,
        )
        found = self._guarded(publish, f"{due.task} {first.name}")
        if isinstance(found, _Failure):
            failed = [self._finished(each, due, begun, found) for each in group.waiting]
            return GroupFinished(group=group, tables=failed)
        if not found.tables:
            waits = self._finished(first, due, begun, _Failure(Outcome.BUSY, found.text), wait_ms=0)
            return GroupFinished(group=group, tables=[waits], stalled=locations)
        parts = [(each, found.tables.get(each.name)) for each in group.members]
        done = [self._finished(each, due, begun, *part) for each, part in parts if part is not None]
        return GroupFinished(group=group, tables=done)

    def _begin(self) -> tuple[int, float]:
        clock = self.environment.runtime.clock
        return clock.now_ms(), clock.monotonic_ms()

    def _guarded(self, work: Callable[[], Out], what: str) -> Out | _Failure:
        try:
            return work()
        except LeaseUnavailableError as error:
            return _Failure(Outcome.BUSY, str(error))
        except LeaseLostError as error:
            outcome = Outcome.BUSY if self.is_stopping() else Outcome.FAILED
            return _Failure(outcome, error_text(error))
        except (TableError, LockError) as error:
            return _Failure(Outcome.FAILED, error_text(error))
        except Exception as error:
            logger.debug("%s", what, exc_info=True)
            return _Failure(Outcome.FAILED, f"{type(error).__name__}: {error}")

    def _finished(
        self,
        each: WatchedTable,
        due: Due,
        begun: tuple[int, float],
        result: TaskResult | _Failure,
        snapshot_id: int | None = None,
        *,
        wait_ms: float = BUSY_RETRY_MS,
    ) -> Finished:
        assert each.look is not None
        facts: Mapping[str, object] = {}
        if isinstance(result, _Failure):
            outcome = result.outcome
        else:
            outcome = Outcome.DONE if result.changed else Outcome.NOTHING
            outcome = Outcome.FAILED if result.failed else outcome
            facts = result.facts
        run = Run(
            table=each.name,
            task=due.task,
            outcome=outcome,
            began_ms=begun[0],
            duration_ms=round(self.environment.runtime.clock.monotonic_ms() - begun[1], 1),
            reason=due.reason,
            text=result.text.replace("\n", " "),
            facts=facts,
        )
        return Finished(
            run=announce_pause(run, each.look.config),
            identifier=each.identifier,
            snapshot_id=snapshot_id,
            wait_ms=wait_ms,
        )
