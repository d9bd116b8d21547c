"""What may happen to an operation on its way: an error, a death, somebody else."""

from __future__ import annotations

from collections.abc import Callable

from tableformat import Table
from tableformat.environment import Environment
from tableformat.runtime import Runtime


class Killed(BaseException):
    """The process is gone; nothing may catch it."""


def interrupt(table: Table, point: str, action: Callable[[], object], *, times: int = 1) -> None:
    """Run `action` the first `times` times that the table's process passes the fail point."""
    points = table.environment.runtime.fail_points
    left = times

    def run(_name: str) -> None:
        nonlocal left
        left -= 1
        if left <= 0:
            points.armed.pop(point, None)
        action()

    points.armed[point] = run


def fail_with(error: BaseException) -> Callable[[], None]:
    """An action that raises."""

    def fail() -> None:
        raise error

    return fail


def other_process(table: Table) -> Table:
    """The same table through a handle of its own: one clock, other ids, no fail points."""
    runtime = Runtime(clock=table.environment.runtime.clock)
    environment = Environment(table.environment.catalog, table.environment.store, runtime)
    return Table(environment, table.refresh().state)
