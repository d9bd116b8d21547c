"""Who writes: staging, appends, a sink of batches, Flink, statements, changes of the schema."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, Self

import pyarrow as pa

from tableformat import Table
from tableformat.cdc.batch_commit import BatchId
from tableformat.cdc.change_writer import ChangeWriter, WrittenFiles
from tableformat.cdc.ingest import write_batch
from tableformat.cdc.sink import plan_sink
from tableformat.cdc.truncation import Truncation
from tableformat.errors import InvalidInputError, NotFoundError
from tests.support.sim_draw import (
    ARROW,
    SchemaEdit,
    SpecEdit,
    as_events,
    as_table,
    draw_columns,
    draw_schema_edit,
    draw_spec_edit,
    draw_statement,
)
from tests.support.sim_flink import commit_checkpoint, draw_checkpoint
from tests.support.sim_merge import draw_merge, run_merge
from tests.support.sim_operation import Operation
from tests.support.sim_schema import AMOUNT, ID, REGION
from tests.support.sim_table import DAMAGE_ERRORS, EXPECTED_ERRORS, IDENTIFIER, SimTable
from tests.support.sim_world import Actor

TRUNCATE_RATE = 0.15


@dataclass(frozen=True, slots=True, kw_only=True)
class TruncatingWriter(ChangeWriter):
    """A batch of a source that was emptied before."""

    @classmethod
    def of(cls, writer: ChangeWriter) -> Self:
        return cls(**{each.name: getattr(writer, each.name) for each in fields(writer)})

    def write(self, *given: Any) -> WrittenFiles:
        return replace(ChangeWriter.write(self, *given), truncation=Truncation())


class _Batch(NamedTuple):
    number: int
    operation: Operation
    events: pa.Table


class Writers(SimTable):
    """Actors that bring, change and delete rows, or change what rows are."""

    checkpoints = 0
    batches = 0
    batch: _Batch | None = None  # of the sink, which may have died over it

    def write(self, actor: Actor) -> None:
        table = self.table(self.environment(actor))
        while True:
            actor.sleep(actor.rng.random() * 3_000)
            schema = self.known(actor)
            typed, rows = self.fresh_rows(actor, schema)
            gone = actor.rng.sample(range(self.world.profile.keys), actor.rng.randint(0, 2))
            if not rows and not gone:
                continue
            keys = frozenset([row[0] for row in rows] + gone)
            key = schema.by_id[ID]
            columns = "whole"
            if not rows:
                typed = {key.name: key.kind}
            elif self.world.profile.leaves_out and actor.rng.random() < 0.6:
                columns, left = "partial", actor.rng.choice([REGION, AMOUNT])
                typed = {n: k for n, k in typed.items() if n != schema.name(left)}
                rows = tuple((row[0], row[1 if left == AMOUNT else 2]) for row in rows)
            with self.operation(actor, Operation(actor.name, "stage", rows, keys, typed)):
                deletes = pa.table({key.name: pa.array(gone, ARROW[key.kind])}) if gone else None
                table().stage(upserts=as_table(typed, rows), deletes=deletes, columns=columns)

    def ingest(self, actor: Actor) -> None:
        """Numbered batches, each given again until it is known to be there, also after a crash."""
        load = self.table(self.environment(actor))
        while True:
            actor.sleep(actor.rng.random() * 4_000)
            if self.batch is None and not self._new_batch(actor):
                continue
            assert self.batch is not None
            number, operation, events = self.batch
            with self.attempt(actor, operation):
                table = load()
                plan = plan_sink(
                    table.environment,
                    IDENTIFIER,
                    format_name="upsert",
                    options={"kind-column": "op"},
                    branch="staging",
                )
                if operation.empties:
                    plan = replace(plan, writer=TruncatingWriter.of(plan.writer))
                write_batch(plan, events, BatchId("sink", number))

    def _new_batch(self, actor: Actor) -> bool:
        schema = self.known(actor)
        typed, rows = self.fresh_rows(actor, schema)
        gone = actor.rng.sample(range(self.world.profile.keys), actor.rng.randint(0, 2))
        if not rows and not gone:
            return False
        if not rows:
            typed = {schema.name(ID): schema.by_id[ID].kind}
        keys = frozenset([row[0] for row in rows] + gone)
        empties = actor.rng.random() < TRUNCATE_RATE and self.world.profile.v2 is None
        operation = Operation(actor.name, "stage", rows, keys, typed, empties=empties)
        self.batch = _Batch(self.batches, operation, as_events(typed, rows, gone))
        self.batches += 1
        self.oracle.begin(operation)
        self.unsettled.append((operation, self.world.now_ms))
        return True

    @contextmanager
    def attempt(self, actor: Actor, operation: Operation) -> Iterator[None]:
        """One of several tries of an operation, which ends when it is `ok` or cannot be right."""
        tried = bool(operation.ids)
        self._watch(actor, operation)
        try:
            yield
        except EXPECTED_ERRORS as error:
            self.world.outcomes[f"batch {type(error).__name__}"] += 1
        except (*DAMAGE_ERRORS, NotFoundError) as error:
            has_expired = isinstance(error, NotFoundError) and self.world.profile.expires
            if not has_expired and not self._names_damage(error):
                raise
            self.world.outcomes[f"batch {type(error).__name__}"] += 1
        except InvalidInputError as error:
            if not self.oracle.may_refuse(operation):
                raise
            self.world.log(f"{actor.name} refused: {error}")
            outcome = "CommitUnknownError" if tried else "InvalidInputError"
            self.oracle.settle(operation, outcome)
            self.batch = None
        else:
            self.oracle.settle(operation, "ok")
            self.batch = None

    def flink(self, actor: Actor) -> None:
        """Staged changes in the shape that another engine gives them."""
        environment = self.environment(actor)
        while True:
            actor.sleep(actor.rng.random() * 4_000)
            schema = self.known(actor)
            columns = draw_columns(actor.rng, schema)
            typed = {column.name: column.kind for column in columns}
            checkpoint = draw_checkpoint(
                actor.rng,
                schema,
                self.world.profile.keys,
                lambda columns=columns: self.rows_of(actor, columns),
            )
            rows, keys = tuple(checkpoint.current.values()), frozenset(checkpoint.keys)
            if not checkpoint.inserted and not keys:
                continue
            if not checkpoint.inserted:
                typed = {columns[0].name: columns[0].kind}
            self.checkpoints += 1
            gone = tuple(r for r in checkpoint.inserted if r[2] in checkpoint.replaced)
            operation = Operation(actor.name, "stage", rows, keys, typed, gone, is_foreign=True)
            with self.operation(actor, operation):
                commit_checkpoint(
                    environment,
                    IDENTIFIER,
                    checkpoint,
                    typed,
                    number=self.checkpoints,
                    vectors=self.world.profile.flink == "vectors",
                )

    def append(self, actor: Actor) -> None:
        table = self.table(self.environment(actor))
        while True:
            actor.sleep(actor.rng.random() * 5_000)
            typed, rows = self.fresh_rows(actor, self.known(actor))
            if rows:
                with self.operation(actor, Operation(actor.name, "append", rows, typed=typed)):
                    table().append(as_table(typed, rows))

    def change(self, actor: Actor) -> None:
        """SQL on main, serializable: each statement that lands is one of a serial history."""
        load = self.table(self.environment(actor))
        while True:
            actor.sleep(actor.rng.random() * 4_000)
            if self.oracle.metadata["format-version"] < 3:
                continue
            if actor.rng.random() < 0.3:
                self.merge(actor, load)
                continue
            drawn = draw_statement(actor.rng, self.world.profile.keys, self.known(actor))
            mode = actor.rng.choice(["merge-on-read", "copy-on-write"])
            text = f"{drawn.assignments} where {drawn.where}"
            operation = Operation(
                actor.name, "statement", typed=drawn.typed, becomes=drawn.becomes, text=text
            )
            with self.operation(actor, operation):
                if drawn.assignments:
                    result = load().update(drawn.assignments, drawn.where, mode=mode)
                else:
                    result = load().delete(drawn.where, mode=mode)
                self.world.outcomes["rows changed by statements"] += result.updated_rows + (
                    result.deleted_rows or 0
                )

    def merge(self, actor: Actor, load: Callable[[], Table]) -> None:
        """One MERGE; as serializable as the other statements."""
        schema = self.known(actor)
        lasting = [schema.by_id[each] for each in (ID, REGION, AMOUNT)]
        merge = draw_merge(
            actor.rng, schema, self.world.profile.keys, lambda: self.rows_of(actor, lasting)
        )
        if not merge.source:
            return
        mode = actor.rng.choice(["merge-on-read", "copy-on-write"])
        operation = Operation(
            actor.name,
            "statement",
            typed=merge.typed,
            becomes=merge.becomes,
            inserts=merge.inserted,
            text=f"merge {merge.source} on {merge.on} {merge.clauses}",
        )
        with self.operation(actor, operation):
            changed = run_merge(load().environment, IDENTIFIER, merge, mode)
            self.world.outcomes["rows changed by merges"] += changed

    def evolve(self, actor: Actor) -> None:
        """Changes of schema and partition spec, planned on what the table is like at the time."""
        load = self.table(self.environment(actor))
        profile = self.world.profile
        while True:
            actor.sleep(actor.rng.random() * 6_000)
            drawn: SchemaEdit | SpecEdit
            if profile.changes_schema and (not profile.changes_spec or actor.rng.random() < 0.6):
                drawn = draw_schema_edit(actor.rng, self.oracle.schemas.current)
            else:
                fields = self.oracle.spec_fields()
                drawn = draw_spec_edit(actor.rng, self.oracle.schemas.current, fields)
            operation = Operation(actor.name, "evolve", shows=drawn.shows, text=drawn.text)
            with self.operation(actor, operation):
                if isinstance(drawn, SchemaEdit):
                    load().update_schema(drawn.edit)
                else:
                    load().update_partitioning(drawn.edit)
