"""Other tools that change rows of `main` themselves while changes wait: row-level statements of
Spark, merge-on-read or copy-on-write, and write-audit-publish with `wap.id`.

They share no code with icefold, but where they call its cherry-pick.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from tableformat.commit.cherry_pick import cherry_pick
from tests.support.foreign_table import ForeignCommit, ForeignTable, write_rows
from tests.support.sim_files import View
from tests.support.sim_operation import Operation
from tests.support.sim_schema import AMOUNT, Named, Row, TableSchema
from tests.support.sim_world import Actor

if TYPE_CHECKING:
    from tests.support.sim_meddlers import Meddlers


def change_main(tools: Meddlers, actor: Actor) -> None:
    """Deletes or updates one row of main: by a vector, or by a copy of its file."""
    while True:
        actor.sleep(actor.rng.random() * 4_000)
        table = tools.table()
        head = table.head("main")
        if head is None or "first-row-id" not in head:
            continue
        view, schema = tools.view(table, head), tools.schema(table)
        counts = Counter(row for row, _ in view.identities.values())
        places = [p for p, i in view.places.items() if counts[view.identities[i][0]] == 1]
        if not places:
            continue
        place = actor.rng.choice(places)
        old = view.identities[view.places[place]][0]
        new: Row | None = None
        if actor.rng.random() < 0.6:
            at = schema.fields.index(AMOUNT)
            new = (*old[:at], tools.simulation.serial.next(), *old[at + 1 :])
        operation = Operation(
            actor.name, "statement", becomes=_meaning(schema, old, new), is_foreign=True
        )
        with tools.simulation.operation(actor, operation):
            if actor.rng.random() < 0.5:
                rows, row_id = [] if new is None else [new], view.places[place]
                commit = tools.row_delta(
                    actor, table, head, place, set(), row_id, rows, branch="main"
                )
            else:
                commit = _copy(tools, actor, table, head, view, place, new)
            tools.land(actor, commit)


def _meaning(schema: TableSchema, old: Row, new: Row | None) -> Any:
    """What a statement makes of a row: nothing, unless it is `old`."""
    names = [schema.name(field_id) for field_id in schema.fields]

    def becomes(row: Named) -> Named | None:
        if any(row.get(n) != value for n, value in zip(names, old, strict=True)):
            return {}
        return None if new is None else dict(zip(names, new, strict=True))

    return becomes


def _copy(
    tools: Meddlers,
    actor: Actor,
    table: ForeignTable,
    head: dict[str, Any],
    view: View,
    place: tuple[str, int],
    new: Row | None,
) -> ForeignCommit:
    """The file anew with the ids of its rows; without it, and its vector."""
    path = place[0]
    ids = {at: row_id for (each, at), row_id in view.places.items() if each == path}
    rows = {at: view.identities[row_id] for at, row_id in ids.items()}
    del rows[place[1]]
    if new is not None:
        rows[place[1]] = new, None  # type: ignore[assignment]
    commit = tools.commit(actor, table, "main", "overwrite" if rows else "delete")
    for entry in table.entries(head):
        if entry.path == path and rows:
            stored = write_rows(
                tools.put, tools.path(commit, "0.parquet"), tools.schema(table),
                [row for row, _ in rows.values()], [ids[at] for at in rows],
                [updated for _, updated in rows.values()],
            )  # fmt: skip
            commit.add(entry, stored)
        if path in (entry.path, entry.file["referenced_data_file"]):
            commit.remove(entry)
    return commit


def audit(tools: Meddlers, actor: Actor) -> None:
    """Write-audit-publish: an append on no branch, with a `wap.id`; published later, or never."""
    environment = tools.simulation.environment(actor)
    while True:
        actor.sleep(actor.rng.random() * 3_000)
        table = tools.table()
        unpublished = [each for each in table.by_id.values() if _waits(tools, table, each)]
        if not unpublished or actor.rng.random() < 0.4:
            _write(tools, actor, table)
            continue
        source = actor.rng.choice(unpublished)
        source_id = source["snapshot-id"]
        bound = tools.oracle.operation_of[source_id].bound
        kind = actor.rng.choice(["icefold", "java"])
        head = table.head("main")
        if kind == "java" and head and source.get("parent-snapshot-id") == head["snapshot-id"]:
            tools.move_main(actor, table, source_id, "forward")
            continue
        operation = Operation(
            actor.name, "append", bound=bound, source=source_id, is_foreign=kind == "java"
        )
        with tools.simulation.operation(actor, operation):
            if kind == "icefold":
                cherry_pick(environment, tools.identifier, snapshot_id=source_id)
                continue
            said = {"source-snapshot-id": str(source_id),
                    "published-wap-id": source["summary"]["wap.id"]}  # fmt: skip
            commit = tools.commit(actor, table, "main", "append", **said)
            for entry in table.added(source):
                commit.add(entry, {})
            tools.land(actor, commit)


def _waits(tools: Meddlers, table: ForeignTable, snapshot: dict[str, Any]) -> bool:
    """Whether it is on no branch and nothing of main was made of it, as far as that tells."""
    snapshot_id, head = snapshot["snapshot-id"], table.head("main")
    if tools.oracle.operation_of[snapshot_id].kind != "loose":
        return False
    history = [] if head is None else list(table.ancestors(head["snapshot-id"]))
    picked = {each["summary"].get("source-snapshot-id") for each in history}
    return snapshot_id not in {e["snapshot-id"] for e in history} and str(snapshot_id) not in picked


def _write(tools: Meddlers, actor: Actor, table: ForeignTable) -> None:
    found = tools.rows_like(actor, table, "main") if table.head("main") else None
    if found is None:
        return
    (like, rows), schema = found, tools.schema(table)
    bound = schema, tuple(rows)
    with tools.simulation.operation(
        actor, Operation(actor.name, "loose", bound=bound, is_foreign=True)
    ):
        commit = tools.commit(actor, table, "main", "append")
        commit.is_loose, commit.summary["wap.id"] = True, f"wap-{commit.snapshot_id}"
        commit.add(like, write_rows(tools.put, tools.path(commit, "0.parquet"), schema, rows))
        tools.land(actor, commit)
