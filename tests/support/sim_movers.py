"""Somebody gives up what is staged: drops the staging branch, or points it elsewhere.

He shares no code with icefold, and acts on the version that he sees. What the branch does not have
any more then is out of the fold: a publish that brings it is a violation, and so is one that leaves
out what waits still. Nobody else moves branches in these seeds, so that the history of the branches
says each time what waits.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tests.support.foreign_table import ForeignTable, edited
from tests.support.sim_operation import Operation
from tests.support.sim_world import Actor, Profile

if TYPE_CHECKING:
    from tests.support.sim_history import History
    from tests.support.sim_meddlers import Meddlers

MOVER = "mover"


def with_mover(profile: Profile) -> Profile:
    """The same with a mover, without others who move branches, or who know what they staged."""
    kept = {"foreign-compactor", "tidier", "switcher"} & set(profile.meddlers)
    return replace(
        profile,
        meddlers=tuple(sorted({*kept, MOVER})),
        has_operator=False,
        has_sink=False,
        flink=None,
        leaves_out=False,
    )


def move_staging(tools: Meddlers, actor: Actor) -> None:
    """Drops the branch, or points it at main's head or an older snapshot of it, or at a staged one
    that waits.
    """
    while True:
        actor.sleep(actor.rng.random() * 3_000)
        table = tools.table()
        head, main = table.head("staging"), table.head("main")
        if head is None or main is None:
            continue
        waiting = tools.oracle.staged[len(tools.oracle.staged) - tools.oracle.waiting :]
        older = [each["snapshot-id"] for each in table.ancestors(main["snapshot-id"])][1:4]
        choices: list[int | None] = [None, main["snapshot-id"], *waiting[:-1], *older[-1:]]
        new = actor.rng.choice(choices)
        if new == head["snapshot-id"]:
            continue
        with tools.simulation.operation(actor, Operation(actor.name, "set", is_foreign=True)):
            version = _moved(tools, actor, table, new)
            tools.oracle.moves.add(version)
            tools.swap(actor, table, version)


def _moved(tools: Meddlers, actor: Actor, table: ForeignTable, new: int | None) -> str:
    def change(metadata: dict[str, Any]) -> None:
        refs = dict(metadata["refs"])
        if new is None:
            del refs["staging"]
        else:
            refs["staging"] = refs["staging"] | {"snapshot-id": new}
        metadata["refs"] = refs

    return edited(tools.put, table, change, tools.now_ms(actor))


def see_move(history: History) -> None:
    """What staging does not have any more waits no longer; called once the new refs are known."""
    published = len(history.staged) - history.waiting
    kept = set(history._history(history.refs.get("staging")))
    left = [each for each in history.staged[published:] if each in kept]
    history.world.outcomes["staged and given up"] += len(history.staged) - published - len(left)
    history.staged[published:] = left
    history.order_of = {
        path: order for path, order in history.order_of.items() if order <= published + len(left)
    }
