"""A tool that commits equality deletes to `main` itself, as Flink's upsert sink does: rows and what
they replace in one row delta, several times a second, beside a resolver that works in place.

It shares no code with icefold, never looks who else has committed, and deletes rows of its own
commit by position: with deletion vectors, on v2 with position delete files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tests.support.foreign_table import (
    ForeignCommit,
    ForeignTable,
    write_keys,
    write_positions,
    write_rows,
    write_vector,
)
from tests.support.sim_files import Spec, partition_of, spec_of
from tests.support.sim_operation import KeyDelete, Operation
from tests.support.sim_schema import ID, Row, TableSchema
from tests.support.sim_world import Actor

if TYPE_CHECKING:
    from tests.support.sim_meddlers import Meddlers

PAUSE_MS = 800


def upsert(tools: Meddlers, actor: Actor) -> None:
    """Commits a checkpoint now and then; begins when there is a manifest to write others like."""
    rng, simulation = actor.rng, tools.simulation
    while True:
        actor.sleep(rng.random() * PAUSE_MS)
        table = tools.table()
        head, spec_id = table.head("main"), table.metadata["default-spec-id"]
        is_old = head is not None and "first-row-id" not in head  # what v3 needs it lacks
        if head is None or spec_id not in table.written_specs():
            continue
        if is_old and table.metadata["format-version"] > 2:
            continue
        schema, spec = tools.schema(table), spec_of(table.metadata, spec_id)
        given = simulation.rows_of(actor, [schema.by_id[f] for f in schema.fields])
        replaced = tuple(row for row in given if rng.random() < 0.2)
        rows = tuple(row for row in given if row not in replaced or rng.random() < 0.5)
        replaced = tuple(row for row in replaced if row not in rows)
        live = [row for row, _ in tools.view(table, head).identities.values()]
        deletes = tuple(_deletes(actor, table, schema, [*rows, *replaced], live))
        if not rows and not replaced and not deletes:
            continue
        operation = Operation(
            actor.name, "upsert", bound=(schema, rows), deletes=deletes, is_foreign=True
        )
        with simulation.operation(actor, operation):
            commit = tools.commit(actor, table, "main", "overwrite")
            for where in sorted({partition_of(row, spec) for row in given}, key=repr):
                here = [row for row in given if partition_of(row, spec) == where]
                _add_rows(tools, actor, commit, spec_id, where, here, set(replaced))
            for at, each in enumerate(deletes):
                name = tools.path(commit, f"keys-{at}.parquet")
                columns = [schema.by_id[f] for f in each.fields]
                like = table.like(*each.where)
                commit.add(like, write_keys(tools.put, name, columns, sorted(each.keys, key=repr)))
            tools.land(actor, commit)


def _deletes(
    actor: Actor,
    table: ForeignTable,
    schema: TableSchema,
    given: Sequence[Row],
    live: Sequence[Row],
) -> Iterator[KeyDelete]:
    """By the first set of fields all rows that come, and some that are there; by others a few.

    Deletes of a partition if its columns are among the fields, else of the whole table.
    """
    rng = actor.rng
    for at, fields in enumerate(actor.world.profile.upserts):
        if at and rng.random() < 0.6:
            continue
        some = rng.sample(live, min(len(live), rng.randint(0, 1 + (at == 0))))
        chosen = [*(given if at == 0 or rng.random() < 0.3 else ()), *some]
        spec_id = _scope(table, fields)
        if not chosen or spec_id is None:
            continue
        spec = spec_of(table.metadata, spec_id)
        places = [schema.fields.index(f) for f in fields]
        scopes: dict[tuple[Any, ...], set[tuple[Any, ...]]] = {}
        for row in chosen:
            key = tuple(row[place] for place in places)
            scopes.setdefault(partition_of(row, spec), set()).add(key)
        for where, keys in sorted(scopes.items(), key=repr):
            yield KeyDelete(fields, frozenset(keys), (spec_id, where), is_global=not _used(spec))


def _scope(table: ForeignTable, fields: Sequence[int]) -> int | None:
    """The spec that deletes by these fields are written under; None: there is none for them."""
    default = table.metadata["default-spec-id"]
    for spec_id in (default, *sorted(table.written_specs() - {default}, reverse=True)):
        used = _used(spec_of(table.metadata, spec_id))
        if used <= set(fields) and (spec_id == default or not used):
            return int(spec_id)
    return None


def _used(spec: Spec) -> set[int]:
    return {source for source, transform in spec if transform != "void"}


def _add_rows(
    tools: Meddlers,
    actor: Actor,
    commit: ForeignCommit,
    spec_id: int,
    where: tuple[Any, ...],
    rows: Sequence[Row],
    replaced: set[Row],
) -> None:
    """A data file of one partition, and the positions in it that die with the commit."""
    table = commit.table
    name = f"{spec_id}-{'-'.join(map(str, where))}-{rows[0][ID - 1]}"
    path = tools.path(commit, f"{name}.parquet")
    like = table.like(spec_id, where)
    commit.add(like, write_rows(tools.put, path, tools.schema(table), rows))
    dead = [at for at, row in enumerate(rows) if row in replaced]
    if not dead:
        return
    if table.metadata["format-version"] > 2:
        commit.add(like, write_vector(tools.put, tools.path(commit, f"{name}.puffin"), path, dead))
        return
    file = write_positions(tools.put, tools.path(commit, f"{name}-dead.parquet"), path, dead)
    if actor.rng.random() < 0.5:
        file["referenced_data_file"] = None  # as writers by partition leave it
    commit.add(like, file)
