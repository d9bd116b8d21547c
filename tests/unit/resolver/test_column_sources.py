"""Where missing columns come from, against a replay change by change over a list of rows."""

from __future__ import annotations

import random

import numpy as np
import pytest

from resolver.column_sources import NOWHERE, Versions, column_sources, previous_rows
from resolver.match import GLOBAL_SCOPE
from resolver.row_identity import NEVER, KeyDeletes, Lives

KEYS, COMMITS, COLUMNS = 3, 8, (5, 6)


class History:
    """Rows `[key, order, sequence, killed at]`, and what they replace; deletes with sequences.

    Each row comes with a delete of its key; the first rows are those of the target.
    """

    def __init__(self, seed: int, *, sequenced: bool) -> None:
        draw = random.Random(seed)
        self.rows: list[list[int]] = []
        self.deletes: list[tuple[int, int, int | None]] = []
        for key in range(KEYS):
            if draw.random() < 0.7:
                self.rows.append([key, 0, draw.randint(1, 9) if sequenced else 0, NEVER])
        for order in range(1, COMMITS + 1):
            for key in range(KEYS):
                sequence = draw.randint(1, 9) if sequenced else 0
                roll = draw.random()
                if roll < 0.5:
                    self.rows.append([key, order, sequence, NEVER])
                    self.deletes.append((key, order, sequence))
                elif roll < 0.65:
                    hard = draw.random() < 0.5 and sequenced
                    self.deletes.append((key, order, sequence if hard else None))
            for row in self.rows:
                if row[1] < order and draw.random() < 0.05:
                    row[3] = min(row[3], order)

    def previous(self, at: int, *, sequenced: bool) -> int:
        """The newest older row that nothing has deleted before the row; `NOWHERE`."""
        key, arrival, sequence, _ = self.rows[at]
        own = (sequence, arrival) if sequenced else (0, arrival)
        older = []
        for other, (other_key, came, other_sequence, killed) in enumerate(self.rows):
            version = (other_sequence, came) if sequenced else (0, came)
            if other_key == key and version < own and killed > arrival:
                older.append((version, other, came))
        if not older:
            return NOWHERE
        version, found, came = max(older)
        for each, order, delete_sequence in self.deletes:
            if each != key:
                continue
            if delete_sequence is None or not sequenced:
                if came < order < arrival:
                    return NOWHERE
            elif version < (delete_sequence, order) < own:
                return NOWHERE
        return found


@pytest.mark.parametrize("sequenced", [False, True])
@pytest.mark.parametrize("seed", range(200))
def test_columns_come_from_the_row_just_before_the_change(seed, sequenced):
    history = History(seed, sequenced=sequenced)
    rows = np.array(history.rows, dtype=np.int64).reshape(-1, 4)
    known = np.array([each[2] is not None for each in history.deletes], dtype=np.bool_)
    deletes = np.array([[*e[:2], e[2] or 0] for e in history.deletes], np.int64).reshape(-1, 3)
    lives = Lives(
        key=rows[:, 0],
        order=rows[:, 1],
        scope=np.zeros(len(rows), dtype=np.int64),
        row_id=np.arange(len(rows), dtype=np.int64),
        killed_at=rows[:, 3],
        is_heir=rows[:, 1] > 0,
    )
    keyed = KeyDeletes(
        key=deletes[:, 0], order=deletes[:, 1], scope=np.full(len(deletes), GLOBAL_SCOPE)
    )
    steps = COMMITS + 1
    versions = Versions(
        rows=rows[:, 2] * steps + rows[:, 1],
        deletes=deletes[:, 2] * steps + deletes[:, 1],
        is_known=known,
    )
    draw = np.random.default_rng(seed)
    staged = np.flatnonzero(rows[:, 1] > 0)
    partial = staged[draw.random(len(staged)) < 0.7]
    found = previous_rows(lives, keyed, partial, versions if sequenced else None)
    expected = [history.previous(at, sequenced=sequenced) for at in partial.tolist()]
    assert found.tolist() == expected

    lacks = {column: draw.random(len(partial)) < 0.6 for column in COLUMNS}
    sources = column_sources(partial, found, lacks, len(rows))
    place = {at: number for number, at in enumerate(partial.tolist())}
    for column in COLUMNS:
        for number, at in enumerate(partial.tolist()):
            if not lacks[column][number]:
                continue
            source = at
            while source in place and lacks[column][place[source]]:
                source = expected[place[source]]
            assert sources[column][number] == source


def test_a_chain_of_a_hundred_partial_rows_ends_at_the_first_row():
    count = 101
    order = np.arange(count, dtype=np.int64)
    zeros = np.zeros(count, dtype=np.int64)
    lives = Lives(
        key=zeros,
        order=order,
        scope=zeros,
        row_id=order,
        killed_at=np.full(count, NEVER),
        is_heir=order > 0,
    )
    deletes = KeyDeletes(key=zeros[1:], order=order[1:], scope=np.full(count - 1, GLOBAL_SCOPE))
    previous = previous_rows(lives, deletes, order[1:])
    assert previous.tolist() == order[:-1].tolist()
    lacks = {5: np.ones(count - 1, dtype=np.bool_)}
    assert column_sources(order[1:], previous, lacks, count)[5].tolist() == [0] * (count - 1)
