"""How a scheduler works: what all its runs have in common."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from maintenance.settings import TaskName
from resolver.job import LOCK_TIMEOUT_MS
from tableformat.errors import InvalidInputError
from tableformat.spec.names import MAIN_BRANCH, STAGING_BRANCH


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerOptions:
    """How a scheduler works.

    Attributes:
        every_ms: Look at the tables, and publish whatever waits, in this rhythm; None: as soon as
            triggers say.
        parallel_max: Tasks at a time; of long ones, `long_max`.
        cores: Of this machine.
        tasks: What is done at all.
        overrides: Settings for all tables, by name without prefix; see `settings`.
        defaults: The same, for tables that say nothing themselves.
        rediscover_ms: How often patterns are matched again.
        grace_ms: How long a stop waits for what is running.
        lock_timeout_ms: How long a task waits for other maintenance of its table.
    """

    every_ms: int | None = None
    parallel_max: int = 4
    cores: int = field(default_factory=lambda: os.cpu_count() or 1)
    tasks: tuple[TaskName, ...] = tuple(TaskName)
    overrides: Mapping[str, float] = field(default_factory=dict)
    defaults: Mapping[str, float] = field(default_factory=dict)
    staging: str = STAGING_BRANCH
    target: str = MAIN_BRANCH
    rediscover_ms: int = 60_000
    grace_ms: int = 20_000
    lock_timeout_ms: int = LOCK_TIMEOUT_MS

    def __post_init__(self) -> None:
        if self.parallel_max < 1:
            raise InvalidInputError("at least one task at a time", parallel_max=self.parallel_max)

    @property
    def long_max(self) -> int:
        """Long tasks at a time: a thread and a core are left to cycles where there are two.

        Tables of one stream come due at one time, and their cycle waits for each that is at work.
        """
        return max(min(self.parallel_max, self.cores) - 1, 1)
