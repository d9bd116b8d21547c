"""The result rows of some rows of a root, in the old and in the new version of all tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tableformat.array_types import Int64s
from tableformat.changelog.pairing import one_array
from tableformat.integer_order import stable_order
from tableformat.join.plan import Edge, JoinPlan, Match, Tree, Unmatched
from tableformat.join.rows import NOWHERE, Found, Versions, columns_of, distinct, place_in
from tableformat.join.side import Side

Sides = Mapping[str, Side]
# Roots that are joined at a time: enough for lookups in batches, few enough for any memory.
SLICE_ROWS = 100_000


@dataclass(frozen=True, slots=True)
class _Joined:
    """Rows so far: of each table its rows, and which of them (`NOWHERE`: nulls) a row has."""

    rows: Mapping[str, pa.Table]
    at: Mapping[str, Int64s]

    def columns(self, alias: str, names: tuple[str, ...]) -> pa.Table:
        at = self.at[alias]
        rows = self.rows[alias].select(list(names)).take(pa.array(at, mask=at == NOWHERE))
        return columns_of(rows, names)

    def extended(self, edge: Edge, values: pa.Table, found: Found) -> _Joined:
        order = stable_order(found.place)
        places = found.place[order]
        wanted = place_in(values, self.columns(edge.parent, edge.parent_columns))
        first = np.searchsorted(places, wanted, side="left")
        matches = np.searchsorted(places, wanted, side="right") - first
        counts = {
            Match.INNER: matches,
            Match.LEFT: np.maximum(matches, 1),
        }[edge.match]
        row = np.repeat(np.arange(len(wanted)), counts)
        within = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
        child = np.full(len(row), NOWHERE, dtype=np.int64)
        has = matches[row] > 0
        child[has] = order[(first[row] + within)[has]]
        at = {alias: each[row] for alias, each in self.at.items()}
        return _Joined({**self.rows, edge.child: found.rows}, {**at, edge.child: child})

    def with_nulls(self, sides: Sides) -> _Joined:
        """With all tables: those that are not joined have nulls."""
        [*_, at] = self.at.values()
        nowhere = np.full(len(at), NOWHERE, dtype=np.int64)
        others = [alias for alias in sides if alias not in self.at]
        return _Joined(
            {**self.rows, **{alias: sides[alias].no_rows for alias in others}},
            {**self.at, **dict.fromkeys(others, nowhere)},
        )


def result_rows(
    plan: JoinPlan, tree: Tree, sides: Sides, roots: Versions
) -> tuple[pa.Table, pa.Table]:
    """The result rows of root rows: those of the old version, and those of the new one.

    Cost: one lookup per join, of the distinct values in both versions, and those that tell which
    roots a right or full join has no match for; memory follows the rows that share a value with one
    of the roots.
    """
    old, new = (_selected(plan, each.with_nulls(sides)) for each in _joined(tree, sides, roots))
    return old, new


def _joined(tree: Tree, sides: Sides, roots: Versions) -> tuple[_Joined, _Joined]:
    if tree.unmatched is not None:
        roots = _without_match(tree.unmatched, sides, roots)
    versions = [
        _Joined({tree.root: each.rows}, {tree.root: np.arange(each.rows.num_rows)})
        for each in (roots.old, roots.new)
    ]
    for edge in tree.edges:
        values = distinct(*(each.columns(edge.parent, edge.parent_columns) for each in versions))
        found = sides[edge.child].look_up(edge.child_columns, values)
        versions = [
            each.extended(edge, values, rows)
            for each, rows in zip(versions, (found.old, found.new), strict=True)
        ]
    old, new = versions
    return old, new


def _without_match(unmatched: Unmatched, sides: Sides, roots: Versions) -> Versions:
    """The roots that nothing before is joined to, in either version."""
    edge = unmatched.edge
    both = (roots.old, roots.new)
    values = distinct(*(columns_of(each.rows, edge.child_columns) for each in both))
    has_match = [np.zeros(values.num_rows + 1, dtype=np.bool_) for _ in both]  # the last: nulls
    for tree in unmatched.trees:
        above = _roots_with(tree, edge, values, sides)
        for seen, joined in zip(has_match, _joined(tree, sides, above), strict=True):
            place = place_in(values, joined.columns(edge.parent, edge.parent_columns))
            seen[place[place != NOWHERE]] = True
    kept = []
    for found, seen in zip(both, has_match, strict=True):
        is_kept = ~seen[place_in(values, columns_of(found.rows, edge.child_columns))]
        kept.append(Found(found.rows.filter(pa.array(is_kept)), found.place[is_kept]))
    return Versions(*kept)


def _roots_with(tree: Tree, edge: Edge, values: pa.Table, sides: Sides) -> Versions:
    """The root rows that lead to rows with some values in the columns that a join compares."""
    found = sides[edge.parent].look_up(edge.parent_columns, values)
    alias = edge.parent
    while alias != tree.root:
        up = next(each for each in tree.edges if each.child == alias)
        names = up.parent_columns
        both = (columns_of(each.rows, up.child_columns, names) for each in (found.old, found.new))
        found = sides[up.parent].look_up(names, distinct(*both))
        alias = up.parent
    return found


def _selected(plan: JoinPlan, joined: _Joined) -> pa.Table:
    columns = {}
    if plan.key_parts:
        parts = [one_array(joined.columns(alias, (name,)), name) for alias, name in plan.key_parts]
        columns[plan.key[0]] = key_text(parts)
    for name, (alias, column) in plan.select.items():
        columns[name] = one_array(joined.columns(alias, (column,)), column)
    return pa.table(columns)


def key_text(parts: list[pa.Array]) -> pa.Array:
    """Key parts as one text per row; different parts make different texts.

    A part is written as its length and its text, `3:abc`, and `-` where it is null.
    """
    texts = []
    for part in parts:
        plain = part.cast(pa.int64()) if pa.types.is_timestamp(part.type) else part
        text = plain.cast(pa.string())
        size = pc.utf8_length(text).cast(pa.string())
        texts.append(pc.fill_null(pc.binary_join_element_wise(size, text, ":"), "-"))
    return pc.binary_join_element_wise(*texts, ",")


def touched_roots(tree: Tree, sides: Sides) -> Iterator[Versions]:
    """The rows of a root whose result rows may have changed, in slices.

    A result row changes only if its root row did, or a row that its joins lead to came or left; of
    those the one nearest to the root is found from rows above it that did not change, so walking up
    in the new version reaches every such root. Of a right or full join also if its first match came
    or its last one left.
    """
    root = sides[tree.root]
    if root.is_first:
        for rows in _slices(root):
            yield Versions(
                Found(rows.slice(0, 0), np.empty(0, np.int64)),
                Found(rows, np.arange(rows.num_rows)),
            )
        return
    key = root.plan.key
    parts = [columns_of(rows, key) for rows in (root.before, root.after)]
    parts += [_roots_above(tree, edge, sides) for edge in tree.edges]
    if tree.unmatched is not None:
        values = _values_that_moved(tree.unmatched, sides)
        rows = root.look_up_new(tree.unmatched.edge.child_columns, values).rows
        parts.append(columns_of(rows, key))
    keys = distinct(*parts)
    for first in range(0, keys.num_rows, SLICE_ROWS):
        yield root.look_up(key, keys.slice(first, SLICE_ROWS))


def _roots_above(tree: Tree, edge: Edge, sides: Sides) -> pa.Table:
    """Keys of the root rows that lead to a row of the edge's child that came or left."""
    child = sides[edge.child]
    names = edge.parent_columns
    values = distinct(
        *(columns_of(rows, edge.child_columns, names) for rows in (child.before, child.after))
    )
    while True:
        parents = sides[edge.parent].look_up_new(edge.parent_columns, values).rows
        if edge.parent == tree.root:
            return columns_of(parents, sides[tree.root].plan.key)
        edge = next(each for each in tree.edges if each.child == edge.parent)
        values = distinct(columns_of(parents, edge.child_columns, edge.parent_columns))


def _values_that_moved(unmatched: Unmatched, sides: Sides) -> pa.Table:
    """Values that rows before a join have in one version only; in several slices: perhaps."""
    edge = unmatched.edge
    found = [columns_of(sides[edge.parent].no_rows, edge.parent_columns)]
    for tree in unmatched.trees:
        for roots in touched_roots(tree, sides):
            joined = _joined(tree, sides, roots)
            old, new = (distinct(each.columns(edge.parent, edge.parent_columns)) for each in joined)
            for one, other in ((old, new), (new, old)):
                found.append(one.filter(pa.array(place_in(other, one) == NOWHERE)))
    return distinct(*found)


def _slices(root: Side) -> Iterator[pa.Table]:
    waiting: list[pa.RecordBatch] = []
    for batch in root.scan():
        waiting.append(batch)
        if sum(each.num_rows for each in waiting) >= SLICE_ROWS:
            yield columns_of(pa.Table.from_batches(waiting), root.plan.columns)
            waiting = []
    if waiting:
        yield columns_of(pa.Table.from_batches(waiting), root.plan.columns)
