"""Resolution is a comparison, not a replay (docs/design/0007). Pure NumPy.

Every delete has an order and a scope, every row has an order and the scope of its file. With D(k)
the newest order that deletes key k in a scope that reaches the row, the row dies iff

    order(row) < D(k)        strictly, so that a same-commit upsert survives (spec: equality
                             deletes reach only older data)

On a separate staging branch the order is the staged ordinal (1, 2, ...) and 0 for every row that
is already on the target; sequence numbers of two branches are not comparable. Where staging *is*
the target, the order is the data sequence number itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tableformat.array_types import Bools as Bools
from tableformat.array_types import Int64s as Int64s
from tableformat.integer_order import distinct_first, pair_order, stable_order

GLOBAL_SCOPE = -1
TARGET_ORDER = 0
NEVER_DELETED = np.iinfo(np.int64).min


@dataclass(frozen=True, slots=True, kw_only=True)
class NewestDeletes:
    """D(k) for every key and scope.

    Attributes:
        global_order: Shape `(keys,)`: newest global delete of the key, `NEVER_DELETED` if none.
        scoped_pairs: Sorted `key * scope_count + scope` of the scoped deletes, without repeats.
        scoped_order: Shape of `scoped_pairs`: their newest order.
        scope_count: Scopes are `0 .. scope_count - 1`.
    """

    global_order: Int64s
    scoped_pairs: Int64s
    scoped_order: Int64s
    scope_count: int


def newest_deletes(
    *, key: Int64s, order: Int64s, scope: Int64s, key_count: int, scope_count: int
) -> NewestDeletes:
    """Fold the deletes of a cycle into D(k).

    Args:
        key: Shape `(deletes,)`: dense key numbers, `0 .. key_count - 1`.
        order: Shape `(deletes,)`: the order of the commit each delete came with.
        scope: Shape `(deletes,)`: `GLOBAL_SCOPE`, or the number of a (spec, partition).
        key_count: Number of distinct keys.
        scope_count: Number of distinct (spec, partition) pairs.
    """
    by_order = stable_order(order)
    key, order, scope = key[by_order], order[by_order], scope[by_order]
    is_global = scope == GLOBAL_SCOPE
    global_order = np.full(key_count, NEVER_DELETED, dtype=np.int64)
    global_order[key[is_global]] = order[is_global]  # ascending, so the newest write stays
    pair = key[~is_global] * max(scope_count, 1) + scope[~is_global]
    # The first occurrence in reversed (newest first) order is the newest delete of the pair.
    pairs, first = distinct_first(pair[::-1])
    return NewestDeletes(
        global_order=global_order,
        scoped_pairs=pairs,
        scoped_order=order[~is_global][::-1][first],
        scope_count=max(scope_count, 1),
    )


def dead_rows(deletes: NewestDeletes, *, key: Int64s, order: Int64s, scope: Int64s) -> Bools:
    """Which rows die.

    Args:
        deletes: D(k).
        key: Shape `(rows,)`: the row's key number, or -1 when no delete names its key.
        order: Shape `(rows,)`: the row's order; `TARGET_ORDER` for rows of the target.
        scope: Shape `(rows,)`: number of the row's (spec, partition), or -1 when no scoped delete
            has it.
    """
    known = key >= 0
    newest = np.full(key.shape, NEVER_DELETED, dtype=np.int64)
    newest[known] = deletes.global_order[key[known]]
    if deletes.scoped_pairs.size:
        reachable = known & (scope >= 0)
        pair = key[reachable] * deletes.scope_count + scope[reachable]
        slot = np.searchsorted(deletes.scoped_pairs, pair)
        slot[slot == deletes.scoped_pairs.size] = 0
        found = deletes.scoped_pairs[slot] == pair
        scoped = np.where(found, deletes.scoped_order[slot], NEVER_DELETED)
        newest[reachable] = np.maximum(newest[reachable], scoped)
    return order < newest


@dataclass(frozen=True, slots=True)
class FilePositions:
    """Positions of one file: `file` is its number, `positions` are sorted, without repeats."""

    file: int
    positions: Int64s


def group_by_file(file: Int64s, position: Int64s) -> list[FilePositions]:
    """Group `(file, position)` pairs, one entry per file, ascending."""
    if file.size == 0:
        return []
    order = pair_order(file, position)
    file, position = file[order], position[order]
    is_new = np.r_[True, (file[1:] != file[:-1]) | (position[1:] != position[:-1])]
    file, position = file[is_new], position[is_new]
    starts = np.flatnonzero(np.r_[True, file[1:] != file[:-1]])
    groups = np.split(position, starts[1:])
    return [
        FilePositions(int(file[start]), group) for start, group in zip(starts, groups, strict=True)
    ]


def rows_by_number(number: Int64s, wanted: Int64s) -> list[Int64s]:
    """Per wanted number, shape `(n,)`, the ordinals of the rows that have it, ascending.

    `number`: shape `(rows,)`.
    """
    order = stable_order(number)
    ordered = number[order]
    first = np.searchsorted(ordered, wanted)
    end = np.searchsorted(ordered, wanted, side="right")
    return [order[a:b] for a, b in zip(first, end, strict=True)]
