"""What a cycle works on, and what it needs of its surroundings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from resolver.index.base import PrimaryKeyIndex
from resolver.target import LiveFiles
from tableformat.catalog.base import TableState
from tableformat.commit.changeset import Fence
from tableformat.environment import Environment


class IndexKeeper(Protocol):
    """Brings the primary-key index of a target branch to its head."""

    def at_head(
        self, state: TableState, target: str, live: LiveFiles, *, rebuild: bool = False
    ) -> tuple[PrimaryKeyIndex, str]:
        """The index bound to the head of `target`, and how it got there (see `ResolveReport`).

        Args:
            state: The table version.
            target: The branch.
            live: The live files of its head.
            rebuild: Do not trust what is there.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleOptions:
    """What a cycle works on.

    Attributes:
        staging, target: The branches; equal for an in-place conversion.
        limit: Staged snapshots at most.
        until: The last staged snapshot to publish; nothing is, if it does not wait.
        summary: More properties of the publish.
        from_snapshot: Operator's override of the cursor; what it leaves out must be nothing, or
            `skip_unpublished`.
        skip_unpublished: The operator knows that `from_snapshot` leaves out staged snapshots.
        from_staging_state: Where the log of staging has expired, take what is staged from the state
            of its head; see `staging_state`.
        staged_after: For that: the highest sequence number that is not staged.
        fence: Gives the lock's token; raises when the lease is lost. None: without a lock.
        attempts_max: Publish attempts before the conflict is raised.
    """

    staging: str
    target: str
    limit: int | None = None
    until: int | None = None
    summary: Mapping[str, str] = field(default_factory=dict)
    from_snapshot: int | None = None
    skip_unpublished: bool = False
    from_staging_state: bool = False
    staged_after: int | None = None
    fence: Callable[[], Fence] | None = None
    attempts_max: int = 100

    @property
    def is_in_place(self) -> bool:
        """Whether equality deletes are converted on their own branch."""
        return self.staging == self.target


@dataclass(slots=True)
class Phases:
    """Milliseconds per phase, in order of their first use."""

    environment: Environment
    spent_ms: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Add the time of a block to `name`, but what other phases took of it."""
        clock = self.environment.runtime.clock
        begin, inner_ms = clock.monotonic_ms(), -sum(self.spent_ms.values())
        try:
            yield
        finally:
            spent_ms = clock.monotonic_ms() - begin
            inner_ms += sum(self.spent_ms.values())
            self.spent_ms[name] = self.spent_ms.get(name, 0.0) + spent_ms - inner_ms
