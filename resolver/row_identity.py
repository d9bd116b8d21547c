"""Which row id each staged row has on the target. Pure NumPy.

A staged row keeps the id of the row that the delete of its own commit replaced: the newest row of
its key that lived just before that commit, an earlier row of the batch or one of the target. So
ids are passed on along a chain of upserts. A row that no delete of its commit replaces is new, and
keeps the id that it has on the staging branch. What one commit deletes and a later one inserts is
a new row, and nothing of this depends on where a cycle ends.

With first(v) the first commit after row v whose delete reaches it (`match` has the last one):

    replaced by commit c, of key k:  rows v of k with first(v) = c that nothing else killed before c
    parent of a row of c and k:      the newest of those; of several rows of c and k the last one
                                     has it, so an id is never given twice
    id of a row:                     that of the root of its parents

A row that brings an id, or that the target has already, has no parent.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from resolver.match import GLOBAL_SCOPE, Bools, Int64s
from tableformat.integer_order import stable_order

NO_ROW_ID = -1
NEVER = np.iinfo(np.int64).max
NOWHERE = -1
SPREAD_MAX = 4  # numbers per key in a table of all numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyDeletes:
    """Deletes by key: shape `(deletes,)`: the key's number, order and scope, as in `match`."""

    key: Int64s
    order: Int64s
    scope: Int64s

    def take(self, which: Bools) -> KeyDeletes:
        """Some of them."""
        return KeyDeletes(key=self.key[which], order=self.order[which], scope=self.scope[which])


@dataclass(frozen=True, slots=True, kw_only=True)
class Lives:
    """Rows, those of the target before those of the batch. Shapes `(rows,)`.

    Attributes:
        key: The key's number.
        order: Of the commit that brought the row.
        scope: The scope that deletes must have to reach it.
        row_id: Its own; `NO_ROW_ID` where it has none.
        killed_at: The first commit that deletes it by position, or by other columns; `NEVER`.
        is_heir: Whether it takes the id of the row that it replaces.
        spared: Row ordinals whose deletes of some orders do not count, by these orders.
    """

    key: Int64s
    order: Int64s
    scope: Int64s
    row_id: Int64s
    killed_at: Int64s
    is_heir: Bools
    spared: tuple[tuple[Int64s, tuple[int, ...]], ...] = ()


def kept_row_ids(deletes: KeyDeletes, rows: Lives) -> Int64s:
    """The row id of each row, shape `(rows,)`: its own, or that of the row it goes back to."""
    root = roots(_parents(rows, first_deaths(deletes, rows)))
    found = rows.row_id[root]
    return np.where(found == NO_ROW_ID, rows.row_id, found)


def first_deaths(
    deletes: KeyDeletes, rows: Lives, by: tuple[Int64s, Int64s] | None = None
) -> Int64s:
    """The order of the first delete by key after each row that reaches it; `NEVER`.

    Args:
        deletes: The deletes, by arrival.
        rows: The rows, by arrival.
        by: Other orders of the deletes and of the rows to go by.
    """
    orders, order = by or (deletes.order, rows.order)
    placed = KeyDeletes(key=deletes.key, order=orders, scope=deletes.scope)
    died = first_deletes(placed, rows.key, order, rows.scope)
    for ordinals, spared in rows.spared:
        died[ordinals] = first_deletes(
            placed.take(~np.isin(deletes.order, spared)),
            rows.key[ordinals],
            order[ordinals],
            rows.scope[ordinals],
        )
    return died


def first_deletes(deletes: KeyDeletes, key: Int64s, order: Int64s, scope: Int64s) -> Int64s:
    """The order of the first delete after each row that reaches it; `NEVER`. Shape of `key`."""
    is_global = deletes.scope == GLOBAL_SCOPE
    first = first_after(deletes.key[is_global], deletes.order[is_global], key, order)
    if not is_global.all():
        scopes = int(deletes.scope.max()) + 1
        reachable = (scope >= 0) & (scope < scopes)
        pair = deletes.key[~is_global] * scopes + deletes.scope[~is_global]
        own = first_after(
            pair,
            deletes.order[~is_global],
            key[reachable] * scopes + scope[reachable],
            order[reachable],
        )
        first[reachable] = np.minimum(first[reachable], own)
    return first


def first_after(keys: Int64s, orders: Int64s, key: Int64s, order: Int64s) -> Int64s:
    """The first of `orders` with the same key that is greater; `NEVER`. Shape of `key`.

    Keys are numbers from 0 on.
    """
    again = _repeated(keys, key)
    if again is None:
        return _first_after_of_any(keys, orders, key, order)
    only = np.full(len(again), NEVER, dtype=np.int64)
    only[keys] = orders
    first = only[key]
    first[first <= order] = NEVER
    if again.any():
        some, rows = again[keys], np.flatnonzero(again[key])
        first[rows] = _first_after_of_any(keys[some], orders[some], key[rows], order[rows])
    return first


def _first_after_of_any(keys: Int64s, orders: Int64s, key: Int64s, order: Int64s) -> Int64s:
    steps = 2 + max(int(orders.max(initial=0)), int(order.max(initial=0)))
    known = np.sort(keys * steps + orders)
    if not len(known):
        return np.full(len(key), NEVER, dtype=np.int64)
    slot = np.searchsorted(known, key * steps + order, side="right")
    at = known[np.minimum(slot, len(known) - 1)]
    found = (slot < len(known)) & (at // steps == key)
    return np.where(found, at % steps, NEVER)


def _parents(rows: Lives, died: Int64s) -> Int64s:
    """The row that each row replaces; itself where there is none. Shape `(rows,)`."""
    parent = np.arange(len(rows.key), dtype=np.int64)
    replaced = np.flatnonzero((died != NEVER) & (rows.killed_at >= died))
    heirs = np.flatnonzero(rows.is_heir & (rows.killed_at > rows.order))
    old, new = rows.key[replaced], rows.key[heirs]
    again = _repeated(old, new)
    if again is not None:
        again |= np.bincount(new, minlength=len(again)) > 1
        only = np.full(len(again), NOWHERE, dtype=np.int64)
        only[old] = replaced
        only[again] = NOWHERE
        older = only[new]
        found = (older != NOWHERE) & (died[older] == rows.order[heirs])
        parent[heirs[found]] = older[found]
        replaced, heirs = replaced[again[old]], heirs[again[new]]
    steps = 2 + int(rows.order.max(initial=0))
    steps = max(steps, 2 + int(died[replaced].max(initial=0)))
    at, last = _last_of(rows.key[replaced] * steps + died[replaced], replaced, rows)
    wanted, heir = _last_of(rows.key[heirs] * steps + rows.order[heirs], heirs, rows)
    if len(at):
        slot = np.minimum(np.searchsorted(at, wanted), len(at) - 1)
        found = at[slot] == wanted
        parent[heir[found]] = last[slot[found]]
    return parent


def _repeated(keys: Int64s, others: Int64s) -> Bools | None:
    """By number, for those of both arrays: whether it is among `keys` more than once.

    The others, nearly all of the usual batch, need no sort. None: the numbers are too far apart
    for a table of all.
    """
    size = 1 + max(int(keys.max(initial=-1)), int(others.max(initial=-1)))
    if size > SPREAD_MAX * (len(keys) + len(others)):
        return None
    return np.bincount(keys, minlength=size) > 1


def _last_of(group: Int64s, ordinals: Int64s, rows: Lives) -> tuple[Int64s, Int64s]:
    """The groups, ascending, and the newest row of each: by order, then by row id."""
    by_group = stable_order(group)
    if (np.diff(group[by_group]) == 0).any():
        by_group = np.lexsort((rows.row_id[ordinals], rows.order[ordinals], group))
    group, ordinals = group[by_group], ordinals[by_group]
    is_last = np.r_[group[1:] != group[:-1], np.ones(min(len(group), 1), dtype=np.bool_)]
    return group[is_last], ordinals[is_last]


def roots(parent: Int64s) -> Int64s:
    """Where the chain of each row begins: the way doubles with each step."""
    while True:
        further = parent[parent]
        if np.array_equal(further, parent):
            return parent
        parent = further
