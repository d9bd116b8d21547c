"""Row ids are unique; a row keeps its own, and what it holds, while it lives (I7, R42)."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tests.support.sim_files import Identities, View
from tests.support.sim_fold import in_other_schema
from tests.support.sim_history import History, MainState
from tests.support.sim_operation import Operation
from tests.support.sim_schema import Row, TableSchema, moved


class RowIdChecks(History):
    """Which ids rows of main may have."""

    def _check_identities(
        self,
        snapshot: dict[str, Any],
        operation: Operation,
        old: TableSchema,
        states: list[MainState],
    ) -> None:
        """Row ids are unique; a row keeps its own, and what it holds, while it lives (I7, R42)."""
        now = self.identities[snapshot["snapshot-id"]]
        stored = self.identities.get(snapshot.get("parent-snapshot-id", -1), {})
        new = states[0].schema
        if operation.kind == "pick" or self._got_row_ids(snapshot):
            return
        if operation.kind == "publish":
            rewrites = self.writes_anew(snapshot)
            if rewrites and self._lost_row_ids(snapshot):
                return  # which of main's rows are staged ones cannot be told any more
            number = snapshot["sequence-number"] if rewrites else None
            fits = any(_has_folded(now, stored, state, number) for state in states)
            assert fits, f"other row ids: {_ids_of(now, states)}"
            return
        if operation.is_foreign and operation.becomes and "first-row-id" not in snapshot:
            return  # a place is all that a row of v2 is known by
        if operation.becomes is not None:
            number = snapshot["sequence-number"]
            assert any(_fits(now, state, number) for state in states), f"changed {now.items()}"
            return
        before = in_other_schema(stored, old, new)
        if operation.is_lossy and (operation.is_foreign or "first-row-id" not in snapshot):
            return
        if operation.kind == "rewrite":
            assert now == before, f"a rewrite changed {set(now.items()) ^ set(before.items())}"
        changed = {row_id for row_id in now.keys() & before.keys() if now[row_id] != before[row_id]}
        assert not changed, f"rows changed under their row ids {changed}"
        kept = {row for row, _ in now.values()} & {row for row, _ in before.values()}
        ids = {row_id for row_id, (row, _) in before.items() if row in kept}
        assert ids <= now.keys(), "rows got other row ids"

    def _got_row_ids(self, snapshot: dict[str, Any]) -> bool:
        """Whether a snapshot is the first after an upgrade."""
        parent = self.landed.get(snapshot.get("parent-snapshot-id", -1), snapshot)
        return "first-row-id" in snapshot and "first-row-id" not in parent

    def _lost_row_ids(self, snapshot: dict[str, Any]) -> bool:
        """Whether another tool's rewrite has given rows of its parent new row ids."""
        return bool(self.state_of(snapshot.get("parent-snapshot-id")).renamed)

    def _renamed(
        self, before: Identities, parent: MainState, view: View
    ) -> tuple[dict[int, int], dict[int, int]]:
        """Orders and row ids after a rewrite that has given rows other ids; equal rows in turn."""
        new: dict[Row, list[int]] = {}
        for row_id, (row, _) in sorted(view.identities.items()):
            if row_id not in before:
                new.setdefault(row, []).append(row_id)
        names = {
            row_id: new[row].pop(0)
            for row_id, (row, _) in sorted(before.items())
            if row_id not in view.identities and new.get(row)
        }
        orders = {names.get(i, i): order for i, order in parent.orders.items()}
        return orders, {**parent.renamed, **names}


def _fits(now: Identities, state: MainState, sequence_number: int) -> bool:
    """Whether the row ids are right after a statement.

    A row keeps its id; only a row that changed was last updated by the statement (R42). Inserted
    rows have ids that nobody had.
    """
    change = state.change
    assert change is not None
    expected = {}
    for row_id, (row, updated) in change.rows.items():
        became = change.of(row)
        if became is not None:
            # An UPDATE that writes what was there is an update all the same.
            same = became == moved(row, change.before, state.schema)
            expected[row_id] = (became, updated if same else sequence_number)
    more = {row_id: each for row_id, each in now.items() if row_id not in expected}
    return (
        all(now.get(row_id) == each for row_id, each in expected.items())
        and not more.keys() & change.rows.keys()
        and all(updated == sequence_number for _, updated in more.values())
        and Counter(row for row, _ in more.values()) == change.inserted
    )


def _has_folded(now: Identities, before: Identities, state: MainState, updated: int | None) -> bool:
    """Whether the row ids are right after a publish: kept, stored in a staged file, or new.

    `updated`: of rows that came; None: not looked at.
    """
    folded = state.folded
    assert folded is not None
    more = now.keys() - folded.kept.keys() - folded.stored.keys()
    return (
        all(now.get(row_id) == each for row_id, each in folded.kept.items())
        and all(row_id in now and now[row_id][0] == row for row_id, row in folded.stored.items())
        and all(updated in {None, now[row_id][1]} for row_id in folded.stored)
        and not more & before.keys()
        and Counter(now[row_id][0] for row_id in more) == folded.fresh
    )


def _ids_of(now: Identities, states: list[MainState]) -> str:
    """What is there, and what should be."""
    folded = states[0].folded
    assert folded is not None
    wanted = {i: row for i, (row, _) in folded.kept.items()} | folded.stored
    there = {i: row for i, (row, _) in now.items()}
    surplus = {i: row for i, row in there.items() if wanted.get(i) != row}
    lacks = {i: row for i, row in wanted.items() if there.get(i) != row}
    return f"{surplus} instead of {lacks}"
