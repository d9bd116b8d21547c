"""What a round reads of the tables: rows as they were, and rows that joins lead to, together.

Changes are spread over a table, and so are the rows that they are joined to: both touch every page,
and decompressing pages is most of a round. So a table's columns are decoded once for both:

```
values that lead to other tables ── of rows that left and came, these columns only
     │ (not where they are the key: nothing else has a changed row's key)
     v
lookups of a table, by the other tables' values ── what they decode keeps the rows that left
     v
the table's changes ── nothing is left to decode
```

Which rows these are is only foreseen: what a join asks for and is not here is looked up then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa

from tableformat.join.plan import Columns, Edge, JoinPlan, Tree
from tableformat.join.rows import columns_of, distinct
from tableformat.join.side import Side
from tableformat.scan.plan import map_ordered

# Changed rows of all tables. Above, decoding is not most of a round, and memory is better kept.
FETCH_ROWS_MAX = 200_000


@dataclass(frozen=True, slots=True)
class _Ask:
    """The changes of one table make a round look up another by their values."""

    by: str
    by_columns: Columns
    of: str
    of_columns: Columns


def fetch(plan: JoinPlan, sides: Mapping[str, Side]) -> None:
    """Read the changes of all tables, and most rows that a round looks up.

    Raises:
        CorruptDataError, NotFoundError: A file is damaged or gone.

    Effects: the sides remember both.
    """
    each_side = [*sides.values()]
    if sum(map_ordered(lambda side: side.rows_to_read, each_side)) <= FETCH_ROWS_MAX:
        _fetch_all([*dict.fromkeys(_asks(plan))], sides)
    map_ordered(lambda side: side.changes, each_side)
    for side in each_side:
        side.lookup.files.note({})


def _fetch_all(asks: list[_Ask], sides: Mapping[str, Side]) -> None:
    for side in sides.values():
        side.note_changes()
    foreign = {ask.of for ask in asks if ask.of_columns != sides[ask.of].plan.key}
    values: dict[str, pa.Table] = {}

    def read_values(alias: str) -> pa.Table:
        names = dict.fromkeys(name for ask in asks if ask.by == alias for name in ask.by_columns)
        return sides[alias].changed_values(tuple(names))

    def look_up(alias: str) -> None:
        wanted: dict[Columns, list[pa.Table]] = {}
        for ask in asks:
            if ask.of == alias and ask.by in values:
                found = columns_of(values[ask.by], ask.by_columns, ask.of_columns)
                wanted.setdefault(ask.of_columns, []).append(found)
        for columns, parts in wanted.items():
            sides[alias].fetch(columns, distinct(*parts))

    def begin(task: tuple[str, bool]) -> None:
        alias, reads = task
        if reads:
            values[alias] = read_values(alias)
        else:
            sides[alias].open_indexes()

    first = sorted(foreign)
    map_ordered(begin, [*((each, True) for each in first), *((each, False) for each in sides)])
    for alias in sorted(sides.keys() - foreign):
        look_up(alias)
        values[alias] = sides[alias].changes
    map_ordered(look_up, first)


def _asks(plan: JoinPlan) -> Iterator[_Ask]:
    for edge in _edges(plan.trees):
        yield _Ask(edge.parent, edge.parent_columns, edge.child, edge.child_columns)
        yield _Ask(edge.child, edge.child_columns, edge.parent, edge.parent_columns)
        if edge.child_columns != plan.sides[edge.child].key:  # rows by their key are in the changes
            yield _Ask(edge.child, edge.child_columns, edge.child, edge.child_columns)


def _edges(trees: tuple[Tree, ...]) -> Iterator[Edge]:
    for tree in trees:
        yield from tree.edges
        if tree.unmatched is not None:
            yield tree.unmatched.edge
            yield from _edges(tree.unmatched.trees)
