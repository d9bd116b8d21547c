"""What all maintenance tasks share: the form of a call, the lease with its fence, the report.

A task (`Task`) refreshes the table, takes the table's maintenance lock (the one that the resolver
takes), plans, acts in steps that are each safe without the lock, and says what it did. A dry run
plans and reports the same way, takes no lock and changes nothing. Each is written as a function of
a `TaskRun`, which `maintenance_task` makes callable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass
from functools import partial, update_wrapper
from typing import Any, Protocol, TypeVar

from lock import HeldLease, LockManager, LockUnavailableError
from resolver.job import LOCK_TIMEOUT_MS
from resolver.maintenance_lock import (
    fence_of,
    hold_maintenance,
    maintenance_lock,
    task_lock_name,
)
from tableformat import Environment, Table
from tableformat.after_commit import reload_after
from tableformat.catalog.base import Identifier, TableState
from tableformat.commit.changeset import Fence
from tableformat.commit.request import check_writable
from tableformat.commit.swap import load_same_table
from tableformat.errors import InvalidInputError, NotFoundError
from tableformat.html_text import fields_html
from tableformat.spec.names import MAIN_BRANCH, STAGING_BRANCH


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskReport:
    """What every task reports.

    Attributes:
        task: The task's name, as the command line spells it.
        table: `namespace.table`.
        dry_run: Nothing was changed; the other numbers say what would be.
        changed: Whether anything was (or would be) changed.
        duration_ms: From the call to the report, waiting for the lock included.
    """

    task: str
    table: str
    dry_run: bool
    changed: bool
    duration_ms: float

    @property
    def failed(self) -> bool:
        """Whether there was something to do and none of it could be done."""
        return False

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)

    def _repr_html_(self) -> str:
        return fields_html(self.describe(), self.to_dict().items())

    def describe(self) -> str:
        """One line for people."""
        if not self.changed and not self.failed:
            return f"{self.table}: {self.task}: nothing to do"
        task = f"{self.task} (dry run)" if self.dry_run else self.task
        return f"{self.table}: {task}: {self.outcome()} ({self.duration_ms / 1e3:.2f} s)"

    def outcome(self) -> str:
        """What was done, without the table's name."""
        return "something"


@dataclass(slots=True, kw_only=True)
class TaskRun:
    """One call of a task, from taking the lease to its release.

    Attributes:
        table: The table; `refresh` gives its newest state.
        task: The task's name.
        lease: None in a dry run.
        started_ms: Monotonic.
        prove: Renews the lock of a task that pauses; raises if that was ended, or is another's.
    """

    table: Table
    task: str
    lease: HeldLease | None
    started_ms: float
    prove: Callable[[], object] = lambda: None

    @property
    def environment(self) -> Environment:
        """Catalog, store, clock."""
        return self.table.environment

    @property
    def identifier(self) -> Identifier:
        """The table's identifier."""
        return self.table.identifier

    @property
    def duration_ms(self) -> float:
        """Since the call."""
        return self.environment.runtime.clock.monotonic_ms() - self.started_ms

    def refresh(self) -> TableState:
        """The newest state.

        Raises:
            NotFoundError: The table was dropped or renamed meanwhile.
            CommitConflictError: Likewise, and another one has its name.
        """
        self.table.state = load_same_table(self.environment, self.table.state)
        return self.table.state

    def fence(self) -> Fence | None:
        """The fence for one commit or one batch of deletes, after proving the lease anew.

        Raises:
            LeaseLostError: Someone else has taken over.
        """
        return None if self.lease is None else fence_of(self.lease)

    def pause(self) -> None:
        """Let others have the lock until `resume`; raises where the task is asked to stop.

        Raises:
            LeaseLostError: The task's own lock is someone else's, or an operator has ended it.
        """
        if self.lease is not None:
            self.lease.pause()
            with suppress(LockUnavailableError):
                self.prove()

    def resume(self) -> None:
        """Take the lock again; whatever depends on the table is read anew. Raises as `pause`."""
        if self.lease is not None:
            self.prove()
            self.lease.resume()

    def report(self, kind: type[R], *, changed: bool, **figures: Any) -> R:
        """The task's report."""
        return kind(
            task=self.task,
            table=self.table.name,
            dry_run=self.lease is None,
            changed=changed,
            duration_ms=self.duration_ms,
            **figures,
        )


class BranchOptions(Protocol):
    """What the options of every task have."""

    @property
    def branch(self) -> str:
        """The branch that is worked on: the fence token is above any that it has seen."""


R = TypeVar("R", bound=TaskReport)
ReportT = TypeVar("ReportT", bound=TaskReport, covariant=True)
OptionsT = TypeVar("OptionsT", bound=BranchOptions, contravariant=True)


class Task(Protocol[OptionsT, ReportT]):
    """How a task is called."""

    def __call__(
        self,
        table: Table,
        options: OptionsT | None = None,
        *,
        dry_run: bool = False,
        lock: LockManager | None = None,
        lock_timeout_ms: int = LOCK_TIMEOUT_MS,
        **more: Any,
    ) -> ReportT:
        """Do it.

        Args:
            table: The table; refreshed before and after.
            options: What and how; None: the defaults.
            dry_run: Only say what would be done.
            lock: Lock manager; None: the catalog's own.
            lock_timeout_ms: How long to wait for other maintenance of the table.
            more: What this task alone takes.

        Raises:
            NotFoundError: There is no such table, or it was dropped or renamed meanwhile.
            CommitConflictError: Likewise, and another one has its name.
            LeaseUnavailableError: Someone else has had the lock for the whole of `lock_timeout_ms`.
            FencedError, lock.LeaseLostError: Another holder of the lock has taken over.
        """


def maintenance_task(
    name: str, defaults: OptionsT, *, pauses: bool = False
) -> Callable[[Callable[..., ReportT]], Task[OptionsT, ReportT]]:
    """Makes a task of a function of a `TaskRun` and the options; `name` as on the command line.

    `pauses`: It works without the maintenance lock for a while. A lock of its own keeps two of the
    kind from doing the same twice.
    """

    def decorate(work: Callable[..., ReportT]) -> Task[OptionsT, ReportT]:
        def call(
            table: Table,
            options: OptionsT | None = None,
            *,
            dry_run: bool = False,
            lock: LockManager | None = None,
            lock_timeout_ms: int = LOCK_TIMEOUT_MS,
            **more: Any,
        ) -> ReportT:
            chosen = defaults if options is None else options
            timeout_ms = None if dry_run else lock_timeout_ms
            with _run(table, name, chosen.branch, lock, timeout_ms, pauses=pauses) as run:
                report = work(run, chosen, **more)
            if report.changed and not dry_run:
                reload_after(table, f"{name} is done")
            elif not dry_run:
                run.refresh()  # nothing to do, unless the table is gone
            return report

        update_wrapper(call, work)
        del call.__wrapped__  # type: ignore[attr-defined]  # it has another signature
        return call

    return decorate


@contextmanager
def _run(
    table: Table,
    name: str,
    branch: str,
    lock: LockManager | None,
    timeout_ms: int | None,
    *,
    pauses: bool,
) -> Iterator[TaskRun]:
    """Refresh the table and hold its locks; a dry run (no timeout) holds nothing."""
    started_ms = table.environment.runtime.clock.monotonic_ms()
    state = table.refresh().state
    run = TaskRun(table=table, task=name, lease=None, started_ms=started_ms)
    if timeout_ms is None:
        yield run
        return
    owned = closing(maintenance_lock(table.environment)) if lock is None else nullcontext(lock)
    task, own = f"{name} {state.name}", task_lock_name(state, name)
    with (
        owned as manager,
        manager.hold(own, task=task, timeout_ms=timeout_ms) if pauses else nullcontext() as kept,
        hold_maintenance(state, manager, task=task, branch=branch, timeout_ms=timeout_ms) as lease,
    ):
        run.lease = lease
        if kept is not None:
            run.prove = partial(manager.renew, kept.lease)
        run.refresh()
        yield run


def check_branch(state: TableState, branch: str, *, task: str) -> None:
    """Whether a task may commit to a branch.

    Raises:
        UnsupportedError: The table is v1.
        InvalidInputError: It is a tag, or the staging branch: what is staged is the resolver's.
        NotFoundError: There is no such branch. `main` may be empty.
    """
    check_writable(state.metadata, table=state.name)
    if branch == STAGING_BRANCH:
        raise InvalidInputError(
            f"cannot {task} the staging branch: staged changes are resolved as they are",
            table=state.name,
            branch=branch,
        )
    ref = state.ref(branch)
    if ref is None and branch != MAIN_BRANCH:
        raise NotFoundError("there is no such branch", table=state.name, branch=branch)
    if ref is not None and ref.snapshot_ref_type.value != "branch":
        raise InvalidInputError("not a branch", table=state.name, branch=branch)
