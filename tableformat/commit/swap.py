"""The commit loop: prepare against a fresh state, swap, and settle what became of it.

```
load ─> landed already? ─> prepare (validate, write) ─> swap ─┬─ returned ──────────────> committed
  ^                                                            ├─ conflict ── wait ──┐
  └────────────────────────────────────────────────────────────┼─────────────────────┘
                                                               ├─ conflict, not proven: once more,
                                                               │  and what ends it now is unknown
                                                               └─ anything else ─> look for it
                                                                     found ─────────────> committed
                                                                     not found ─────────> unknown
```

Only a lost swap is tried again, and every try prepares again (I12). `landed` is asked first in
every round, because a client library may have repeated a request on its own (R69). So a conflict
proves nothing while the table shows nothing that it was lost to: what shows the table may lag. To
try again is safe then, as what landed is what the next try is refused for. Whatever else breaks at
or after the swap is an unknown outcome: the table is searched for the change, and nothing is
deleted (I10, R56, R58, R60).

A group of tables goes the same way in one swap. What is seen of one of them tells the outcome of
all. Where others got ahead on some of them only, only those prepare again: what the others have
prepared is for the version that they still have.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Protocol
from uuid import UUID

from pyiceberg.table.update import TableUpdate

from tableformat.catalog.base import Identifier, TableCommit, TableState
from tableformat.commit.retry import commit_retry_policy, status_check_policy
from tableformat.environment import Environment
from tableformat.errors import CommitConflictError, CommitUnknownError, NotFoundError, TableError
from tableformat.store.locations import tables_of


def check_same_table(state: TableState, planned: UUID) -> None:
    """Refuse another table of the name: files written for one tell columns by the ids of that one.

    Raises:
        CommitConflictError: The table of `state` is not the one of that uuid.
    """
    if state.metadata.table_uuid != planned:
        raise CommitConflictError(
            "the table was dropped or renamed meanwhile, and another one has its name",
            table=state.name,
            action="run it again on the table that is there now",
        )


def load_again(environment: Environment, state: TableState) -> TableState:
    """The current version of a table that was there, or of another one of its name.

    Raises:
        NotFoundError: There is none any more.
    """
    try:
        return environment.catalog.load_table(state.identifier)
    except NotFoundError as error:
        if "location" not in error.context:  # else a file is gone, not the table
            error.message = "the table was dropped or renamed meanwhile"
            error.action = "if it has another name now, run it again under that one"
        raise


def load_same_table(environment: Environment, state: TableState) -> TableState:
    """The current version of a table.

    Raises:
        NotFoundError, CommitConflictError: As `load_again` and `check_same_table`.
    """
    found = load_again(environment, state)
    check_same_table(found, state.metadata.table_uuid)
    return found


class TableChange(Protocol):
    """What a commit does in one attempt."""

    def prepare(self, state: TableState) -> Sequence[TableUpdate]:
        """Validate against `state` and give the updates; none if there is nothing to do.

        Raises:
            TableError: It cannot be done on `state`; nothing has landed.
        """

    def has_landed(self, state: TableState) -> bool:
        """Whether `state` holds this change, committed by us."""

    def context(self) -> dict[str, object]:
        """What names this change in an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapOutcome:
    """A change that is in the table.

    Attributes:
        state: The table with the change.
        attempts: How often it was prepared.
        looked_up: True when the answer of the swap was lost and the change was found afterwards.
    """

    state: TableState
    attempts: int
    looked_up: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedChange:
    """A table, what is to become of it, and a recent version, which saves the first load."""

    identifier: Identifier
    change: TableChange
    state: TableState | None = None


def swap_until_settled(
    environment: Environment,
    identifier: Identifier,
    change: TableChange,
    *,
    state: TableState | None = None,
) -> SwapOutcome:
    """Bring `change` into the table, or say why not: as `swap_group_until_settled`, of one."""
    planned = PlannedChange(identifier=identifier, change=change, state=state)
    [outcome] = swap_group_until_settled(environment, [planned])
    return outcome


def swap_group_until_settled(
    environment: Environment, group: Sequence[PlannedChange]
) -> list[SwapOutcome]:
    """Bring the changes of all tables into them in one step, or say why not.

    Args:
        environment: Catalog, store, clock. Its catalog commits groups, or there is one table.
        group: Each table once.

    Returns:
        As `group`.

    Raises:
        CommitConflictError: None landed; the swap was lost more often than `commit.retry.*` of the
            first table allows.
        CommitUnknownError: All may have landed; nothing was deleted.
        CommitConflictError: A table is not the one that was planned for; none landed.
        TableError: Raised by a `change.prepare`, with its table; none landed,
            `files_safe_to_delete` is set.
    """
    return _GroupSwap(environment, group).run()


@dataclass(slots=True)
class _GroupSwap:
    """The loop, and what its rounds share: a version of each table and what was prepared for it."""

    environment: Environment
    group: Sequence[PlannedChange]
    states: list[TableState] = field(default_factory=list)
    planned: list[TableState] = field(default_factory=list)  # the first ones
    updates: dict[Identifier, Sequence[TableUpdate]] = field(default_factory=dict)
    attempts: int = 0
    doubt: CommitConflictError | None = None  # a refusal that no table bears out yet

    def run(self) -> list[SwapOutcome]:
        runtime = self.environment.runtime
        started_ms = runtime.clock.monotonic_ms()
        load = self.environment.catalog.load_table
        self.states = [each.state or load(each.identifier) for each in self.group]
        self.planned = self.states
        while True:
            self.attempts += 1
            with self._turn():
                with self._nothing_landed():
                    self._look_again()
                    self._prepare()
                    if not any(self.updates.values()):
                        return self._outcomes()
                    runtime.fail_point("commit.before_swap")
                try:
                    return self._swap()
                except CommitConflictError as conflict:
                    lost = conflict
                    self.doubt = None if conflict.is_proven else conflict
                except TableError:
                    with self._doubted():
                        raise
            policy = commit_retry_policy(self.states[0].metadata.properties)
            elapsed_ms = runtime.clock.monotonic_ms() - started_ms
            if policy.allows(self.attempts, elapsed_ms=elapsed_ms):
                runtime.clock.sleep_ms(policy.wait_ms(self.attempts, runtime))
                if self._shows_it():
                    return self._outcomes(looked_up=True)
                continue
            lost.with_context(attempts=self.attempts, **self._context())
            if self._shows_it():
                return self._outcomes(looked_up=True)
            if self.doubt is None:
                raise lost
            self._look_for(lost)
            return self._outcomes(looked_up=True)

    def _turn(self) -> AbstractContextManager[None]:
        runtime, turns = self.environment.runtime, self.environment.turns
        return turns.take(is_group=len(self.group) > 1) if runtime.side_by_side else nullcontext()

    def _look_again(self) -> None:
        """Of several tables some have moved since they were planned; told where asking is cheap."""
        if self.attempts > 1 or len(self.group) == 1:
            return
        catalog = self.environment.catalog
        found = catalog.metadata_locations([each.identifier for each in self.states])
        if found is not None:
            self.states = [
                each
                if found.get(each.identifier) == each.metadata_location
                else catalog.load_table(each.identifier)
                for each in self.states
            ]

    def _prepare(self) -> None:
        """Prepare what is not prepared: all, or the tables that others have changed."""

        def prepare(member: tuple[PlannedChange, TableState]) -> Sequence[TableUpdate]:
            planned, state = member
            with self._named(state):
                return planned.change.prepare(state)

        for before, state in zip(self.planned, self.states, strict=True):
            check_same_table(state, before.metadata.table_uuid)
        members = zip(self.group, self.states, strict=True)
        missing = [each for each in members if each[0].identifier not in self.updates]
        at_once = tables_of(self.states[0].metadata.location)
        prepared = self.environment.runtime.each(prepare, missing, at_once=at_once)
        for (planned, _), updates in zip(missing, prepared, strict=True):
            self.updates[planned.identifier] = updates

    def _load(self) -> None:
        """The current versions; what was prepared for an older one is forgotten."""
        old = {each.identifier: each.metadata_location for each in self.states}
        self.states = [load_again(self.environment, each) for each in self.states]
        moved = [s.identifier for s in self.states if s.metadata_location != old[s.identifier]]
        if any(self.updates.get(each) for each in moved):
            self.doubt = None  # it would show the change, on which any later version stands
        for identifier in moved or old:  # what was refused is not offered again as it is
            self.updates.pop(identifier, None)

    def _shows_it(self) -> bool:
        """Whether the group has landed after all, by the current versions."""
        with self._doubted():
            self._load()
            return self._has_landed()

    def _has_landed(self) -> bool:
        """Whether a table shows the group; those that were looked at too early are loaded again.

        Another table of the name shows nothing: it lacks what this one lost, but never had it.
        """
        load = self.environment.catalog.load_table
        landed = [
            state.metadata.table_uuid == before.metadata.table_uuid
            and planned.change.has_landed(state)
            for planned, before, state in zip(self.group, self.planned, self.states, strict=True)
        ]
        if any(landed):
            given = zip(self.states, landed, strict=True)
            self.states = [state if is_in else load(state.identifier) for state, is_in in given]
        return any(landed)

    def _outcomes(self, *, looked_up: bool = False) -> list[SwapOutcome]:
        return [
            SwapOutcome(state=state, attempts=self.attempts, looked_up=looked_up)
            for state in self.states
        ]

    def _swap(self) -> list[SwapOutcome]:
        swapped = False
        try:
            self.states = self._commit()
            swapped = True
            self.environment.runtime.fail_point("commit.after_swap")
            return self._outcomes()
        except TableError as error:
            if not swapped and not isinstance(error, CommitUnknownError):
                raise  # a conflict, or raised before the swap (catalog/base.py)
            self._look_for(error)
        except Exception as error:  # noqa: BLE001 - whatever broke, the swap may have landed (R60)
            self._look_for(error)
        except BaseException as interrupt:
            # Interrupted, not failed: leave at once, touch nothing, say what to look for.
            named = ", ".join(f"{name}={value}" for name, value in self._context().items())
            interrupt.add_note(f"commit outcome unknown; {named}; delete nothing")
            raise
        return self._outcomes(looked_up=True)

    def _commit(self) -> list[TableState]:
        catalog = self.environment.catalog
        changed = [each for each in self.states if self.updates[each.identifier]]
        commits = [TableCommit(each, self.updates[each.identifier]) for each in changed]
        if len(commits) == 1:
            new = [catalog.commit(commits[0].base, commits[0].updates)]
        else:
            new = catalog.commit_group(commits)
        landed = {each.identifier: each for each in new}
        return [landed.get(each.identifier, each) for each in self.states]

    def _look_for(self, cause: Exception) -> None:
        """Refresh the tables until one shows the group.

        Not being there yet proves nothing: a delayed request can still land (R56), so after the
        last look the outcome stays unknown.
        """
        runtime = self.environment.runtime
        policy = status_check_policy(self.states[0].metadata.properties)
        started_ms = runtime.clock.monotonic_ms()
        looks = 0
        while True:
            looks += 1
            try:
                self._load()
                if self._has_landed():
                    return
            except TableError as error:
                cause.add_note(f"look {looks} failed: {error}")
            if not policy.allows(looks, elapsed_ms=runtime.clock.monotonic_ms() - started_ms):
                raise CommitUnknownError(
                    "the answer of the commit was lost, and the table does not show it yet",
                    action="look for it again before anything else; delete nothing",
                    looks=looks,
                    cause=cause.message if isinstance(cause, TableError) else type(cause).__name__,
                    **self._context(),
                ) from cause
            runtime.clock.sleep_ms(policy.wait_ms(looks, runtime))

    def _context(self) -> dict[str, object]:
        """What names the group in an error."""
        contexts = [each.change.context() for each in self.group]
        named = {
            key: ", ".join(dict.fromkeys(str(each[key]) for each in contexts))
            for key in contexts[0]
        }
        return {"table": ", ".join(each.name for each in self.states), **named}

    @contextmanager
    def _nothing_landed(self) -> Iterator[None]:
        """Errors from here leave all tables as they are: no swap was started, earlier ones lost."""
        with self._doubted():
            try:
                yield
            except TableError as error:
                error.files_safe_to_delete = True
                raise

    @contextmanager
    def _doubted(self) -> Iterator[None]:
        """While a refusal is in doubt, what ends the commit leaves its outcome unknown."""
        try:
            yield
        except TableError as error:
            if self.doubt is None or isinstance(error, CommitUnknownError):
                raise
            raise CommitUnknownError(
                "the commit was refused, the table shows nothing that it lost to, and then "
                f"something failed: {error.message}",
                action="look for it before anything else; delete nothing",
                refusal=self.doubt.message,
                **self._context(),
            ) from error

    @contextmanager
    def _named(self, state: TableState) -> Iterator[None]:
        """Errors of one of several tables say which."""
        try:
            yield
        except TableError as error:
            if len(self.group) > 1:
                error.with_context(table=state.name)
            raise
