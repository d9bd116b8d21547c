"""One table as the scheduler sees it, and the reads that keep that view fresh."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from maintenance.run_history import Ledger, ledger_path, load_ledger
from maintenance.settings import MaintainConfig, TaskName, parse_config
from maintenance.table_figures import Figures, figures_of
from maintenance.triggers import TablePlan
from tableformat import Environment
from tableformat.catalog.base import Identifier, TableState
from tableformat.errors import StoreUnavailableError, TableError


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What one look at a table's metadata found.

    Attributes:
        figures: None when it failed.
        problem: Why it failed; one line.
        outage: What did not answer, if that is why; the same for all tables that it concerns.
        state: The version, of a table of a stream into several: a publish looks at all of those.
    """

    identifier: Identifier
    figures: Figures | None = None
    state: TableState | None = None
    config: MaintainConfig = field(default_factory=lambda: MaintainConfig({}))
    ledger: Ledger = field(default_factory=Ledger)
    path: Path | None = None
    problem: str | None = None
    outage: str | None = None


@dataclass(slots=True)
class WatchedTable:
    """A table between two looks. Changed by the scheduler's own thread only.

    Attributes:
        location: Metadata location that the catalog named last.
        moved_ms: Monotonic time at which it last moved: what polling adapts to.
        poll_ms: Monotonic time of the next poll.
        told_ms: Monotonic time at which somebody last told of a commit to it.
        look: The last look; None: none yet.
        ledger: None until the first look has read it.
        is_saved: Whether its file holds the ledger; `saved_ms`: since when, monotonic.
        needs_look: Metadata or ledger have moved on.
        is_looking: A look is under way.
        failures: Looks in a row that failed.
        look_again_ms: Monotonic time of the next one after a failure.
        running: Tasks under way, and what started them.
        cycle_ms: Monotonic time at which its last cycle began.
        is_publishing: That cycle has not committed yet.
    """

    identifier: Identifier
    location: str | None = None
    moved_ms: float = 0.0
    poll_ms: float = 0.0
    told_ms: float = -math.inf
    look: Look | None = None
    ledger: Ledger | None = None
    is_saved: bool = True
    saved_ms: float = -math.inf
    plan: TablePlan = field(default_factory=TablePlan)
    replan_ms: float = 0.0
    needs_look: bool = True
    is_looking: bool = False
    failures: int = 0
    look_again_ms: float = 0.0
    running: dict[TaskName, str] = field(default_factory=dict)
    cycle_ms: float = -math.inf
    is_publishing: bool = False
    tried: set[TaskName] = field(default_factory=set)

    @property
    def name(self) -> str:
        """`namespace.table`."""
        return ".".join(self.identifier)

    @property
    def figures(self) -> Figures | None:
        """Of the last look."""
        return None if self.look is None else self.look.figures

    @property
    def problem(self) -> str | None:
        """Why the table cannot be looked at."""
        return None if self.look is None else self.look.problem

    @property
    def is_moving(self) -> bool:
        """Whether the last look is not the newest version's."""
        return self.needs_look or self.is_looking

    def may_start(self, task: TaskName) -> bool:
        """At most one cycle and one other task.

        A cycle may queue behind a long task, which pauses where it does not need the lock.
        """
        if task == TaskName.RESOLVE:
            return TaskName.RESOLVE not in self.running
        return not (self.running.keys() - {TaskName.RESOLVE})


def look_at(
    environment: Environment,
    identifier: Identifier,
    ledger: Ledger | None,
    *,
    staging: str,
    target: str,
    overrides: Mapping[str, float],
    defaults: Mapping[str, float],
) -> Look:
    """Load a table's metadata and count. Never raises for what is wrong with the table.

    Args:
        environment: Catalog and store.
        identifier: The table.
        ledger: None: read it from its file.
        staging: Branch with staged changes.
        target: The published branch.
        overrides: Settings that go before the table's own.
        defaults: Those that the table's own go before.
    """
    try:
        state = environment.catalog.load_table(identifier)
        path = ledger_path(environment, state, target)
        ledger = load_ledger(path) if ledger is None else ledger
        config = parse_config(state.metadata.properties, overrides, defaults)
        figures = figures_of(state, ledger, staging=staging, target=target)
    except StoreUnavailableError as error:
        return Look(identifier=identifier, problem=str(error), outage=error.message)
    except TableError as error:
        return Look(identifier=identifier, problem=str(error))
    except Exception as error:  # noqa: BLE001 - one table never stops the others
        return Look(identifier=identifier, problem=f"{type(error).__name__}: {error}")
    return Look(
        identifier=identifier,
        figures=figures,
        state=state if figures.backlog.stream.queries else None,
        config=config,
        ledger=ledger,
        path=path,
    )
