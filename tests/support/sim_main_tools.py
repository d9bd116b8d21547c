"""Other tools that change rows of `main` themselves while changes wait: row-level statements of
Spark, merge-on-read or copy-on-write, and write-audit-publish with `wap.id`.

They share no code with icefold, but where they call its cherry-pick.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tableformat.commit.cherry_pick import cherry_pick
from tests.support.foreign_table import ForeignCommit, ForeignTable, write_places, write_rows
from tests.support.sim_files import Place, View
from tests.support.sim_operation import Operation
from tests.support.sim_schema import AMOUNT, Named, Row, TableSchema
from tests.support.sim_world import Actor

if TYPE_CHECKING:
    from tests.support.sim_meddlers import Meddlers


def change_main(tools: Meddlers, actor: Actor) -> None:
    """Deletes or updates one row of main: by a vector, or by a copy of its file.

    On v2 by a position delete file, at times with rows of other files of the partition.
    """
    while True:
        actor.sleep(actor.rng.random() * 4_000)
        table = tools.table()
        head, is_v2 = table.head("main"), table.metadata["format-version"] == 2
        if head is None or not (is_v2 or "first-row-id" in head):
            continue
        view, schema = tools.view(table, head), tools.schema(table)
        counts = Counter(row for row, _ in view.identities.values())
        places = [p for p, i in view.places.items() if counts[view.identities[i][0]] == 1]
        if not places:
            continue
        place = actor.rng.choice(places)
        old = view.identities[view.places[place]][0]
        new = _new_version(tools, actor, schema, old)
        changes, more = {old: new}, list[Place]()
        by_position = actor.rng.random() < 0.5
        if is_v2 and by_position:
            beside = actor.rng.sample(places, min(len(places), actor.rng.randint(0, 2)))
            more = _of_partition(table, head, place, beside)
            changes |= {view.identities[view.places[each]][0]: None for each in more}
        operation = Operation(
            actor.name,
            "statement",
            becomes=_meaning(schema, changes),
            is_foreign=True,
            is_lossy=is_v2 and not by_position,
        )
        with tools.simulation.operation(actor, operation):
            rows = [] if new is None else [new]
            if not by_position:
                commit = _copy(tools, actor, table, head, view, place, new)
            elif is_v2:
                commit = _delete_by_file(tools, actor, table, head, [place, *more], rows)
            else:
                commit = tools.row_delta(
                    actor, table, head, place, set(), view.places[place], rows, branch="main"
                )
            tools.land(actor, commit)


def _new_version(tools: Meddlers, actor: Actor, schema: TableSchema, old: Row) -> Row | None:
    """With another amount; None: the row goes."""
    if actor.rng.random() >= 0.6:
        return None
    at = schema.fields.index(AMOUNT)
    return (*old[:at], tools.simulation.serial.next(), *old[at + 1 :])


def _of_partition(
    table: ForeignTable, head: dict[str, Any], place: Place, places: Sequence[Place]
) -> list[Place]:
    """Other places in data files of one's partition."""
    where = {e.path: (e.spec_id, repr(e.file["partition"])) for e in table.entries(head)}
    return [each for each in places if each != place and where[each[0]] == where[place[0]]]


def _delete_by_file(
    tools: Meddlers,
    actor: Actor,
    table: ForeignTable,
    head: dict[str, Any],
    places: Sequence[Place],
    rows: Sequence[Row],
) -> ForeignCommit:
    """One position delete file for rows of a partition, and the rows that come instead."""
    commit = tools.commit(actor, table, "main", "overwrite" if rows else "delete")
    like = next(e for e in table.entries(head) if e.path == places[0][0])
    paths = {path for path, _ in places}
    file = write_places(tools.put, tools.path(commit, "dead.parquet"), places)
    if len(paths) == 1 and actor.rng.random() < 0.5:
        file["referenced_data_file"] = places[0][0]
    commit.add(like, file)
    if rows:
        name = tools.path(commit, "0.parquet")
        commit.add(like, write_rows(tools.put, name, tools.schema(table), rows))
    return commit


def _meaning(schema: TableSchema, changes: Mapping[Row, Row | None]) -> Any:
    """What a statement makes of a row: of others than `changes` nothing new."""
    names = [schema.name(field_id) for field_id in schema.fields]

    def becomes(row: Named) -> Named | None:
        known = tuple(row.get(name) for name in names)
        if known not in changes:
            return {}
        new = changes[known]
        return None if new is None else dict(zip(names, new, strict=True))

    return becomes


def _copy(
    tools: Meddlers,
    actor: Actor,
    table: ForeignTable,
    head: dict[str, Any],
    view: View,
    place: Place,
    new: Row | None,
) -> ForeignCommit:
    """The file anew with the ids of its rows, on v2 without; without it, and its vector."""
    path = place[0]
    ids = {at: row_id for (each, at), row_id in view.places.items() if each == path}
    rows = {at: view.identities[row_id] for at, row_id in ids.items()}
    del rows[place[1]]
    if new is not None:
        rows[place[1]] = new, None  # type: ignore[assignment]
    commit = tools.commit(actor, table, "main", "overwrite" if rows else "delete")
    for entry in table.entries(head):
        if entry.path == path and rows:
            lineage = [[ids[at] for at in rows], [updated for _, updated in rows.values()]]
            stored = write_rows(
                tools.put, tools.path(commit, "0.parquet"), tools.schema(table),
                [row for row, _ in rows.values()],
                *(lineage if table.metadata["format-version"] > 2 else ()),
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
