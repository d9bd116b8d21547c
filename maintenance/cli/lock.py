"""`icefold lock`: who holds a table's maintenance lock, and how to end it."""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict

import click

from lock import LockState
from maintenance.cli.context import (
    CliContext,
    ListedGroup,
    json_option,
    pass_context,
    print_json,
    say,
    table_argument,
)
from maintenance.settings import TaskName
from resolver.maintenance_lock import maintenance_lock, maintenance_lock_name, task_lock_name


@click.group(cls=ListedGroup)
def lock() -> None:
    """Inspect or break the lock that resolver and maintenance of a table share."""


@lock.command("show")
@table_argument
@json_option
@pass_context
def show(context: CliContext, table_name: str, as_json: bool) -> None:
    """Show the holder of TABLE's lock, and who waits for it.

    A compaction needs it at its end only, and is shown beside it.
    """
    table = context.table(table_name)
    with closing(maintenance_lock(table.environment, read_only=True)) as manager:
        state = manager.inspect(maintenance_lock_name(table.state))
        compaction = manager.inspect(task_lock_name(table.state, TaskName.COMPACT))
    if as_json:
        print_json({**asdict(state), "compaction": asdict(compaction)})
        return
    say(_describe(state))
    for waiter in state.waiters:
        say(f"  waiting: {waiter.holder}")
    if compaction.is_held:
        say(f"compaction: {_describe(compaction)}")


@lock.command("break")
@table_argument
@click.option("--token", type=int, help="Only if this is still the lease's fence token.")
@click.option(
    "--compaction", is_flag=True, help="Of the compaction under way, which may not have the lock."
)
@click.confirmation_option(prompt="End the lease? Its holder stops before its next commit")
@pass_context
def break_command(
    context: CliContext, table_name: str, token: int | None, compaction: bool
) -> None:
    """End the lease on TABLE's lock, whoever has it.

    A compaction rewrites without that lock: end its own lease, and it stops after what it is
    rewriting, commits no more, and deletes what it has written and not committed.
    """
    table = context.table(table_name)
    name = (
        task_lock_name(table.state, TaskName.COMPACT)
        if compaction
        else maintenance_lock_name(table.state)
    )
    with closing(maintenance_lock(table.environment)) as manager:
        before = manager.break_(name, token=token)
    say(f"ended: {_describe(before)}" if before.is_held else "nobody held it")


def _describe(state: LockState) -> str:
    if not state.is_held:
        return f"free (last fence token {state.token})"
    ended = "; its process has ended: whoever wants it takes it" if state.holder_has_ended else ""
    return (
        f"held by {state.holder} for {state.held_ms / 1000:.1f} s, fence token {state.token}, "
        f"last sign of life {state.silent_ms / 1000:.1f} s ago, lease {state.lease_ms / 1000:.1f} s"
        f"{ended}"
    )
