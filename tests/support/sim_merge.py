"""MERGE without Spark: the real plan and the real commit, a join in Python between them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from tableformat.catalog.base import Identifier
from tableformat.environment import Environment
from tableformat.errors import InvalidInputError
from tableformat.rowlevel.changes import FILE, POSITION, ROW_ID, PositionSet, RowChanges
from tableformat.rowlevel.committing import commit_changes
from tableformat.rowlevel.engine import InProcessEngine, row_writer
from tableformat.rowlevel.planning import StatementPlan, plan_statement
from tableformat.rowlevel.requests import merge_statement
from tableformat.rowlevel.rewrite import FileRewrite
from tableformat.scan.reader import read_scan
from tableformat.spec.data_file import DataFile
from tests.support.sim_draw import as_table
from tests.support.sim_schema import AMOUNT, ID, REGION, Named, Row, TableSchema


@dataclass(frozen=True, slots=True)
class Merge:
    """MERGE INTO t USING rows AS s ON t.id = s.id AND t.id >= low.

    Attributes:
        typed: The columns id, region and amount, as the statement names them, with their types.
        source: Rows of those columns; distinct ids.
        low: Smaller ids match nothing.
        matched: update | delete | keep.
        inserts: Whether source rows without a match are inserted.
    """

    typed: dict[str, str]
    source: tuple[Row, ...]
    low: int
    matched: str
    inserts: bool

    @property
    def names(self) -> tuple[str, str, str]:
        ident, region, amount = self.typed
        return ident, region, amount

    @property
    def on(self) -> str:
        ident = self.names[0]
        return f"t.{ident} = s.{ident} AND t.{ident} >= {self.low}"

    @property
    def clauses(self) -> list[str]:
        ident, region, amount = self.names
        sets = f"SET {region} = s.{region}, {amount} = s.{amount}"
        values = f"({ident}, {region}, {amount}) VALUES (s.{ident}, s.{region}, s.{amount})"
        found = {"update": [f"UPDATE {sets}"], "delete": ["DELETE"], "keep": []}[self.matched]
        clauses = [f"WHEN MATCHED THEN {each}" for each in found]
        return clauses + [f"WHEN NOT MATCHED THEN INSERT {values}"] * self.inserts

    def partner(self, key: int) -> Row | None:
        """The source row that a target row of this key matches."""
        return next((row for row in self.source if row[0] == key and key >= self.low), None)

    def becomes(self, row: Named) -> Named | None:
        """What a row of the target is afterwards; None: gone."""
        ident, region, amount = self.names
        partner = self.partner(row[ident])
        if partner is None or self.matched == "keep":
            return row
        if self.matched == "delete":
            return None
        return row | {region: partner[1], amount: partner[2]}

    def inserted(self, keys: set[int]) -> tuple[Row, ...]:
        """Rows that come where the target has rows of these keys."""
        if not self.inserts:
            return ()
        return tuple(row for row in self.source if row[0] not in keys or row[0] < self.low)


def draw_merge(
    rng: random.Random, schema: TableSchema, keys: int, rows: Callable[[], tuple[Row, ...]]
) -> Merge:
    """Up to three source rows; their amounts are new, so that every update changes its row."""
    typed = {schema.name(each): schema.by_id[each].kind for each in (ID, REGION, AMOUNT)}
    matched = rng.choice(["update", "update", "delete", "keep"])
    inserts = matched == "keep" or rng.random() < 0.7
    low = rng.choice([-1, -1, rng.randrange(keys)])
    return Merge(typed, rows(), low, matched, inserts)


def run_merge(environment: Environment, identifier: Identifier, merge: Merge, mode: str) -> int:
    """Plan, evaluate and commit; how many rows changed. Errors as `rowlevel.execute`."""
    source = as_table(merge.typed, merge.source)
    assert source is not None
    statement = merge_statement(identifier, source, merge.on, merge.clauses)
    plan = plan_statement(environment, statement, mode=mode)
    engine = _MergeEngine(environment, merge)
    environment.runtime.fail_point("rowlevel.after_plan")
    changes = engine.evaluate(plan)
    environment.runtime.fail_point("rowlevel.after_scan")
    commit_changes(environment, plan, changes, partial(engine.rewrite, plan))
    return changes.deleted_rows + changes.updated_rows + changes.inserted_rows


@dataclass(frozen=True, slots=True)
class _MergeEngine:
    """`Engine` for a `Merge`."""

    environment: Environment
    merge: Merge

    def evaluate(self, plan: StatementPlan) -> RowChanges:
        unknown = set(self.merge.typed) - {field.name for field in plan.schema.fields}
        if unknown:  # Spark would say so
            raise InvalidInputError("unknown column", column=min(unknown))
        gone, keys = PositionSet(), set[int]()
        new = list(self._updated(plan, gone, keys))
        rows = as_table(self.merge.typed, self.merge.inserted(keys))
        writer, ids = row_writer(self.environment, plan), self.environment.runtime.ids
        files = writer.write(iter(new), ids) if new else []
        if rows is not None:
            files += writer.write(iter(rows.to_batches()), ids)
        updated = sum(batch.num_rows for batch in new)
        return RowChanges(
            positions=gone.by_path,
            files=tuple(files),
            deleted_rows=gone.distinct - updated,
            updated_rows=updated,
            inserted_rows=0 if rows is None else rows.num_rows,
        )

    def rewrite(self, plan: StatementPlan, rewrites: Sequence[FileRewrite]) -> list[DataFile]:
        return InProcessEngine(self.environment).rewrite(plan, rewrites)

    def _updated(
        self, plan: StatementPlan, gone: PositionSet, keys: set[int]
    ) -> Iterator[pa.RecordBatch]:
        """New versions of matched rows, with their row ids; collects what goes and all keys."""
        names = [field.name for field in plan.schema.fields]
        ident = self.merge.names[0]
        read = [name for name in names if name in plan.context.required_columns]
        for batch in read_scan(
            self.environment, plan.scan, columns=[*read, ROW_ID, FILE, POSITION]
        ):
            keys.update(batch.column(ident).to_pylist())
            if self.merge.matched == "keep":
                continue
            partners = [self.merge.partner(key) for key in batch.column(ident).to_pylist()]
            taken = pa.array([partner is not None for partner in partners])
            found = batch.filter(taken)
            gone.add_rows(found.column(FILE), found.column(POSITION))
            if self.merge.matched == "update" and found.num_rows:
                yield self._new_versions(found, names, [p for p in partners if p is not None])

    def _new_versions(
        self, found: pa.RecordBatch, names: list[str], partners: list[Row]
    ) -> pa.RecordBatch:
        columns: dict[str, Any] = {name: found.column(name) for name in [*names, ROW_ID]}
        for at, name in enumerate(self.merge.names[1:], start=1):
            columns[name] = pa.array([row[at] for row in partners], columns[name].type)
        return pa.RecordBatch.from_pydict(columns)
