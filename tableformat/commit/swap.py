"""The commit loop: prepare against a fresh state, swap, and settle what became of it.

```
load ─> landed already? ─> prepare (validate, write) ─> swap ─┬─ returned ──────────────> committed
  ^                                                            ├─ conflict ── wait ──┐
  └────────────────────────────────────────────────────────────┼─────────────────────┘
                                                               └─ anything else ─> look for it
                                                                     found ─────────────> committed
                                                                     not found ─────────> unknown
```

Only a lost swap is tried again, and every try prepares again (I12). `landed` is asked first in
every round, because a client library may have repeated a request on its own (R69). Whatever else
breaks at or after the swap is an unknown outcome: the table is searched for the change, and nothing
is deleted (I10, R56, R58, R60).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from pyiceberg.table.update import TableUpdate

from tableformat.catalog.base import Identifier, TableState
from tableformat.commit.retry import commit_retry_policy, status_check_policy
from tableformat.environment import Environment
from tableformat.errors import CommitConflictError, CommitUnknownError, TableError


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


def swap_until_settled(
    environment: Environment,
    identifier: Identifier,
    change: TableChange,
    *,
    state: TableState | None = None,
) -> SwapOutcome:
    """Bring `change` into the table, or say why not.

    Args:
        environment: Catalog, store, clock.
        identifier: The table.
        change: What to do.
        state: A recent version, which saves the first load.

    Raises:
        CommitConflictError: Not landed; the swap was lost more often than `commit.retry.*` allows.
        CommitUnknownError: It may have landed; nothing was deleted.
        TableError: Raised by `change.prepare`; nothing landed, `files_safe_to_delete` is set.
    """
    runtime = environment.runtime
    started_ms = runtime.clock.monotonic_ms()
    current = state
    attempts = 0
    while True:
        if current is None:
            current = environment.catalog.load_table(identifier)
        if attempts > 0 and change.has_landed(current):
            return SwapOutcome(state=current, attempts=attempts, looked_up=True)
        attempts += 1
        with _nothing_landed():
            updates = change.prepare(current)
            if not updates:
                return SwapOutcome(state=current, attempts=attempts)
            runtime.fail_point("commit.before_swap")
        try:
            return _swap(environment, change, current, updates, attempts)
        except CommitConflictError as conflict:
            policy = commit_retry_policy(current.metadata.properties)
            elapsed_ms = runtime.clock.monotonic_ms() - started_ms
            if not policy.allows(attempts, elapsed_ms=elapsed_ms):
                conflict.with_context(table=current.name, attempts=attempts, **change.context())
                current = environment.catalog.load_table(identifier)
                if change.has_landed(current):
                    return SwapOutcome(state=current, attempts=attempts, looked_up=True)
                raise
            runtime.clock.sleep_ms(policy.wait_ms(attempts, runtime))
            current = None


def _swap(
    environment: Environment,
    change: TableChange,
    base: TableState,
    updates: Sequence[TableUpdate],
    attempts: int,
) -> SwapOutcome:
    swapped = False
    try:
        landed = environment.catalog.commit(base, updates)
        swapped = True
        environment.runtime.fail_point("commit.after_swap")
        return SwapOutcome(state=landed, attempts=attempts)
    except TableError as error:
        if not swapped and not isinstance(error, CommitUnknownError):
            raise  # a conflict, or raised before the swap (catalog/base.py)
        found = _look_for(environment, base, change, error)
    except Exception as error:  # noqa: BLE001 - whatever broke, the swap may have landed (R60)
        found = _look_for(environment, base, change, error)
    except BaseException as interrupt:
        # Interrupted, not failed: leave at once, touch nothing, say what to look for.
        interrupt.add_note(f"commit outcome unknown; {_one_line(base, change)}; delete nothing")
        raise
    return SwapOutcome(state=found, attempts=attempts, looked_up=True)


def _look_for(
    environment: Environment, base: TableState, change: TableChange, cause: Exception
) -> TableState:
    """The refreshed table once it shows the change.

    Not being there yet proves nothing: a delayed request can still land (R56), so after the last
    look the outcome stays unknown.
    """
    runtime = environment.runtime
    policy = status_check_policy(base.metadata.properties)
    started_ms = runtime.clock.monotonic_ms()
    looks = 0
    while True:
        looks += 1
        try:
            state = environment.catalog.load_table(base.identifier)
            if change.has_landed(state):
                return state
        except TableError as error:
            cause.add_note(f"look {looks} failed: {error}")
        if not policy.allows(looks, elapsed_ms=runtime.clock.monotonic_ms() - started_ms):
            raise CommitUnknownError(
                "the answer of the commit was lost, and the table does not show it yet",
                action="look for it again before anything else; delete nothing",
                table=base.name,
                looks=looks,
                cause=type(cause).__name__,
                **change.context(),
            ) from cause
        runtime.clock.sleep_ms(policy.wait_ms(looks, runtime))


@contextmanager
def _nothing_landed() -> Iterator[None]:
    """Errors from here leave the table as it is: no swap was started, earlier ones were lost."""
    try:
        yield
    except TableError as error:
        error.files_safe_to_delete = True
        raise


def _one_line(base: TableState, change: TableChange) -> str:
    context = {"table": base.name, **change.context()}
    return ", ".join(f"{name}={value}" for name, value in context.items())
