"""What other tools do around a table without changing a row: settings, manifests, branches.

They share no code with icefold.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tests.support.foreign_table import (
    ForeignCommit,
    ForeignTable,
    edited,
    write_vector,
)
from tests.support.sim_history import PUBLISH
from tests.support.sim_operation import Operation
from tests.support.sim_world import Actor

if TYPE_CHECKING:
    from tests.support.sim_meddlers import Meddlers


def switch(tools: Meddlers, actor: Actor) -> None:
    """Somebody has publishes write staged rows once more, or not any more, whatever waits."""
    while True:
        actor.sleep(actor.rng.random() * 6_000)
        table = tools.table()
        new = "link" if table.metadata["properties"].get(PUBLISH) == "rewrite" else "rewrite"

        def change(metadata: dict[str, Any], new: str = new) -> None:
            metadata["properties"] = metadata["properties"] | {PUBLISH: new}

        with tools.simulation.operation(actor, Operation(actor.name, "set", is_foreign=True)):
            tools.swap(actor, table, edited(tools.put, table, change, tools.now_ms(actor)))


def tidy(tools: Meddlers, actor: Actor) -> None:
    """Another tool writes the manifests or the vectors of main or of staging anew (`replace`)."""
    while True:
        actor.sleep(actor.rng.random() * 5_000)
        table, branch = tools.table(), actor.rng.choice(["main", "staging"])
        head = table.head(branch)
        if head is None:
            continue
        kind = "rewrite" if branch == "main" else "stage"
        bound = None if branch == "main" else (tools.schema(table), ())
        operation = Operation(actor.name, kind, bound=bound, is_foreign=True)
        with tools.simulation.operation(actor, operation):
            commit = tools.commit(actor, table, branch, "replace")
            if actor.rng.random() < 0.5:
                commit.touched = {e["manifest_path"] for e in table.manifests(head)}
            else:
                _rewrite_vectors(tools, commit, head)
            tools.land(actor, commit)


def _rewrite_vectors(tools: Meddlers, commit: ForeignCommit, head: Mapping[str, Any]) -> None:
    """Each vector in a file of its own, with the positions and the age that it had."""
    vectors = [each for each in commit.table.entries(head) if each.is_vector]
    for at, entry in enumerate(vectors):
        start, size = entry.file["content_offset"], entry.file["content_size_in_bytes"]
        positions = tools.oracle.files.bitmap(entry.path, start, size)
        path, of = tools.path(commit, f"{at}.puffin"), entry.file["referenced_data_file"]
        commit.remove(entry)
        file = write_vector(tools.put, path, of, sorted(positions))
        commit.add(entry, file, sequence_number=entry.sequence_number)


def undo(tools: Meddlers, actor: Actor) -> None:
    """Somebody sets main to any snapshot that it ever was at (`set_current_snapshot`): back, or to
    one that a rollback has left behind."""
    while True:
        actor.sleep(actor.rng.random() * 8_000)
        table = tools.table()
        ids = [i for i in table.by_id if i in tools.oracle.main]
        if ids:
            tools.move_main(actor, table, actor.rng.choice(ids[-6:]), "rollback")


def fork(tools: Meddlers, actor: Actor) -> None:
    """While nothing waits, somebody drops the staging branch and begins it at an older snapshot of
    main, since which nothing was published."""
    while True:
        actor.sleep(actor.rng.random() * 4_000)
        table = tools.table()
        old, new = table.head("staging"), _fork_point(tools, actor, table)
        if old is None or new is None or new == old["snapshot-id"]:
            continue

        def change(metadata: dict[str, Any], new: int = new) -> None:
            metadata["refs"]["staging"] = {"type": "branch", "snapshot-id": new}

        with tools.simulation.operation(actor, Operation(actor.name, "set", is_foreign=True)):
            version = edited(tools.put, table, change, tools.now_ms(actor))
            tools.oracle.strips.add(version)
            tools.swap(actor, table, version)


def _fork_point(tools: Meddlers, actor: Actor, table: ForeignTable) -> int | None:
    oracle, head = tools.oracle, table.head("main")
    if head is None or oracle.waiting:
        return None
    now = oracle.main[head["snapshot-id"]]
    history = [each["snapshot-id"] for each in table.ancestors(head["snapshot-id"])]
    known = {each: oracle.main[each] for each in history if each in oracle.main}
    return actor.rng.choice(
        [
            each
            for each, state in known.items()
            if (state.published, state.marked) == (now.published, now.marked)
        ]
    )
