"""Rows of main, or of `audit`, are what an operation makes of its parent's (I1, I2)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import takewhile
from typing import Any

from tests.support.sim_files import Identities, Place, View
from tests.support.sim_fold import Base, Staged, as_in_state, fold, in_other_schema, picked
from tests.support.sim_history import MARKER, Change, History, MainState
from tests.support.sim_operation import Operation
from tests.support.sim_schema import Row, TableSchema, in_schema, moved, rewritten
from tests.support.sim_world import Violation


class RowChecks(History):
    """What main may hold: one state per answer that is right."""

    def _folds(
        self,
        parent: MainState,
        snapshot: dict[str, Any],
        operation: Operation,
        schema: TableSchema,
        view: View,
    ) -> Iterator[MainState]:
        """What main may be after it: one state per schema that the operation may have met."""
        before = in_schema(parent.rows, parent.schema, schema)
        if operation.kind == "pick":
            yield self._picked(parent, snapshot, operation, schema, view)
            return
        if operation.kind == "rewrite":
            yield MainState(before, parent.published, schema)
            return
        if operation.kind == "upsert":
            yield MainState(
                self._upserted(snapshot, operation, parent, schema), parent.published, schema
            )
            return
        if operation.kind == "publish":
            yield from self._published(parent, snapshot, schema)
            return
        if operation.kind == "append" and operation.bound is not None:
            written, rows = operation.bound
            more = Counter(moved(row, written, schema) for row in rows)
            yield MainState(before + more, parent.published, schema)
            return
        for bound in self.schemas.since(operation.since):
            rows = operation.rows_under(bound)
            if rows is None:
                continue
            if operation.becomes is None:
                more = Counter(moved(row, bound, schema) for row in rows)
                yield MainState(before + more, parent.published, schema)
            else:
                new = self._inserted(operation, bound, parent, schema)
                if new is not None:
                    before, stored = self._rows_under(snapshot, parent.schema, bound)
                    changes = rewritten(operation.becomes, bound, before, schema)
                    became = (changes(row) for row, _ in stored.values())
                    after = Counter(row for row in became if row is not None)
                    change = Change(before, changes, stored, new)
                    yield MainState(after + new, parent.published, schema, change)

    def _upserted(
        self,
        snapshot: dict[str, Any],
        operation: Operation,
        parent: MainState,
        schema: TableSchema,
    ) -> Counter[Row]:
        """Its rows, and those of its parent that its deletes do not name."""
        parent_id = snapshot["parent-snapshot-id"]
        before = next(s for s in self.metadata["snapshots"] if s["snapshot-id"] == parent_id)
        view = self.view(self.metadata, before, parent.schema)
        files = {f.path: (f.spec_id, f.partition) for f in view.checked.live if f.content == 0}
        rows = {p: view.identities[row_id][0] for p, row_id in view.places.items()}
        assert operation.bound is not None
        bound, new = operation.bound
        left = (
            moved(row, parent.schema, schema)
            for (path, _), row in rows.items()
            if not any(each.kills(row, parent.schema, files[path]) for each in operation.deletes)
        )
        return Counter(left) + Counter(moved(row, bound, schema) for row in new)

    def _rows_under(
        self, snapshot: dict[str, Any], known: TableSchema, bound: TableSchema
    ) -> tuple[TableSchema, Identities]:
        """The parent's rows under the schema known of it, and columns of `bound` dropped since.

        A statement that was planned before a column was dropped goes by what the column holds.
        """
        parent_id = snapshot.get("parent-snapshot-id")
        dropped = tuple(c for c in bound.columns if c.field_id not in known.by_id)
        if not dropped or parent_id is None:
            return known, self.identities.get(parent_id, {})
        both = TableSchema(-1 - self.files.memoized, (*known.columns, *dropped))
        parent = next(s for s in self.metadata["snapshots"] if s["snapshot-id"] == parent_id)
        return both, self.view(self.metadata, parent, both).identities

    def _inserted(
        self, operation: Operation, bound: TableSchema, parent: MainState, schema: TableSchema
    ) -> Counter[Row] | None:
        """Rows that a statement brings; None: not under this schema."""
        if operation.inserts is None:
            return Counter()
        if self._has_rows_of(operation, parent):
            return None
        given = operation.inserts({row[0] for row in parent.rows})
        rows = operation.rows_under(bound, given)
        return None if rows is None else Counter(moved(row, bound, schema) for row in rows)

    def _published(
        self, parent: MainState, snapshot: dict[str, Any], schema: TableSchema
    ) -> Iterator[MainState]:
        """Its parent's rows and the staged snapshots up to its marker.

        A rewrite that gave new row ids hides what became of rows, an expired history that a staged
        data file was there, and the state of staging when a vector's rows died: then either answer
        is right.
        """
        mark = snapshot["summary"].get(MARKER)
        carried = self.marked_by(mark)
        published = max(parent.published, carried)
        batch = [
            (at + 1, self.stages[self.staged[at]]) for at in range(parent.published, published)
        ]
        parent_id = snapshot.get("parent-snapshot-id")
        forgotten = self._forgotten(parent_id, parent, batch)
        revived, is_told = set[Place](), False
        for knows in (True, False) if parent.renamed else (True,):
            for gone in (frozenset(), forgotten) if forgotten else (frozenset(),):
                base = self._base(parent_id, parent, schema, knows=knows)
                unknown = {self.order_of[path] for path in gone}
                orders = {i: at for i, at in base.orders.items() if at not in unknown}
                base = replace(base, ever=base.ever - gone, orders=orders)
                rewrites = self.writes_anew(snapshot)
                for changes in (batch, as_in_state(batch)) if self.reads_state else (batch,):
                    folded = fold(base, changes, self.files, schema, rewrites=rewrites)
                    if folded.revived:
                        revived |= folded.revived
                        continue
                    yield MainState(folded.rows, published, schema, folded=folded)
                    is_told = True
        if not is_told:
            raise Violation(f"copies have brought back rows that main had changed: {revived}")

    def _forgotten(
        self, parent_id: int | None, parent: MainState, batch: list[tuple[int, Staged]]
    ) -> frozenset[str]:
        """Staged data files that were on main, and no snapshot says so any more."""
        if not self.world.profile.forgets:
            return frozenset()
        there = takewhile(self.retained.__contains__, self._history(parent_id))
        told = {path for each in there for path in self.listed.get(each, ())}
        return frozenset({f.path for _, each in batch for f in each.files} & parent.ever - told)

    def _picked(
        self,
        parent: MainState,
        snapshot: dict[str, Any],
        operation: Operation,
        schema: TableSchema,
        view: View,
    ) -> MainState:
        """The change of a staged snapshot, or data files of it, on top of the parent's rows."""
        source = None if operation.source is None else self.stages[operation.source]
        if source is not None:
            at = self.staged.index(operation.source or 0)
            assert at >= parent.published, f"picked, but published: {operation.source}"
        if source is not None and source.keys and self.world.profile.changes_spec:
            return MainState(view.found, parent.published, schema)  # deletes of other partitions
        base = self._base(snapshot.get("parent-snapshot-id"), parent, schema)
        sources = [] if source is None else [source]
        rows = picked(base, sources, operation.paths, self.files, schema)
        return MainState(rows, parent.published, schema)

    def _base(
        self, parent_id: int | None, state: MainState, schema: TableSchema, *, knows: bool = True
    ) -> Base:
        """A snapshot of main to fold over. `knows`: what became of rows under other row ids."""

        def lived(place: Place) -> list[int]:
            history = self._history(parent_id) if knows else ()
            known = ((self.places.get(each, {}), self.rewritten.get(each, {})) for each in history)
            ids = [places.get(place) for each in known for places in each]
            return [row_id for row_id in ids if row_id is not None]

        identities = {} if parent_id is None else self.identities[parent_id]
        named = {path for path, order in self.order_of.items() if order <= state.published}
        return Base(
            in_other_schema(identities, state.schema, schema),
            {} if parent_id is None else self.places[parent_id],
            state.orders,
            state.ever | named,
            named - state.ever,
            state.renamed if knows else {},
            lived,
        )

    def _see_audit(self, metadata: dict[str, Any], snapshot: dict[str, Any]) -> None:
        """All of the other staging branch over the snapshot of main that the target began at."""
        schema = self.schemas.by_schema_id[snapshot["schema-id"]]
        parent_id = snapshot.get("parent-snapshot-id")
        began = self.converted.get(parent_id, parent_id)
        is_publish = MARKER in snapshot["summary"] and snapshot["summary"][MARKER] in map(
            str, self.others["cdc"]
        )
        if not is_publish:  # a conversion of what was forwarded or picked comes first
            self.converted[snapshot["snapshot-id"]] = began
        base = self._base(began, self.state_of(began), schema)
        base = replace(base, orders={}, ever=frozenset())  # of the branch `staging`
        staged = self.others["cdc"] if is_publish else ()
        batch = ((at, self.stages[each]) for at, each in enumerate(staged, start=1))
        view = self.view(metadata, snapshot, schema)
        rows = fold(base, batch, self.files, schema).rows
        if rows != view.found:
            raise different(snapshot, view.found, rows)


def different(snapshot: dict[str, Any], found: Counter[Row], wanted: Counter[Row]) -> Violation:
    return Violation(
        f"snapshot {snapshot['snapshot-id']}: too many {dict(found - wanted)}, "
        f"missing {dict(wanted - found)}"
    )
