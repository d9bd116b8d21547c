"""Row ids of a batch, against a replay commit by commit over a list of live rows."""

from __future__ import annotations

import random

import numpy as np
import pytest

from resolver.match import GLOBAL_SCOPE
from resolver.row_identity import NEVER, KeyDeletes, Lives, kept_row_ids

SCOPES = 2


class History:
    """Rows `[key, scope, order, own id, killed at]`; deletes `(key, order, scope)`."""

    def __init__(self, seed: int) -> None:
        draw = random.Random(seed)
        keys = draw.choice([1, 3, 3, 12])  # of many keys most batches have each once at most
        self.deletes: list[tuple[int, int, int]] = []
        self.rows: list[list[int]] = []
        self.ids: list[int] = []
        self.heirs = draw.random() < 0.8
        live: list[int] = []
        for _ in range(draw.randint(0, 4)):  # of the target
            self._bring(draw.randrange(keys), draw.randrange(SCOPES), 0, live, None)
        for order in range(1, draw.choice([1, 2, 7]) + 1):
            gone = [each for each in live if draw.random() < 0.1]  # by position
            deletes = [
                (draw.randrange(keys), draw.choice([GLOBAL_SCOPE, 0, 1]))
                for _ in range(draw.randint(0, 3))
            ]
            self.deletes += [(key, order, scope) for key, scope in deletes]
            replaced: dict[int, int] = {}
            for at in list(live):
                key, scope = self.rows[at][:2]
                if (key, GLOBAL_SCOPE) in deletes or (key, scope) in deletes:
                    live.remove(at)
                    known = replaced.get(key)
                    if known is None or self._age(at) > self._age(known):
                        replaced[key] = at
                elif at in gone:
                    live.remove(at)
                if at in gone:
                    self.rows[at][4] = order
            brought = [draw.randrange(keys) for _ in range(draw.randint(0, 3))]
            for number, key in enumerate(brought):
                is_last = key not in brought[number + 1 :]
                parent = replaced.get(key) if is_last and self.heirs else None
                self._bring(key, draw.randrange(SCOPES), order, live, parent)

    def _age(self, at: int) -> tuple[int, int]:
        return self.rows[at][2], self.rows[at][3]

    def _bring(self, key: int, scope: int, order: int, live: list[int], parent: int | None) -> None:
        own = 100 + len(self.rows)
        self.rows.append([key, scope, order, own, NEVER])
        self.ids.append(own if parent is None else self.ids[parent])
        live.append(len(self.rows) - 1)


@pytest.mark.parametrize("seed", range(400))
def test_ids_are_those_of_a_replay(seed):
    history = History(seed)
    rows = np.array(history.rows, dtype=np.int64).reshape(-1, 5)
    deletes = np.array(history.deletes, dtype=np.int64).reshape(-1, 3)
    found = kept_row_ids(
        KeyDeletes(key=deletes[:, 0], order=deletes[:, 1], scope=deletes[:, 2]),
        Lives(
            key=rows[:, 0],
            order=rows[:, 2],
            scope=rows[:, 1],
            row_id=rows[:, 3],
            killed_at=rows[:, 4],
            is_heir=(rows[:, 2] > 0) & history.heirs,
        ),
    )
    assert found.tolist() == history.ids


def test_a_chain_of_a_hundred_upserts_ends_with_the_first_id():
    count = 101
    order = np.arange(count, dtype=np.int64)
    zeros = np.zeros(count, dtype=np.int64)
    deletes = KeyDeletes(key=zeros[1:], order=order[1:], scope=np.full(count - 1, GLOBAL_SCOPE))
    rows = Lives(
        key=zeros,
        order=order,
        scope=zeros,
        row_id=order + 7,
        killed_at=np.full(count, NEVER),
        is_heir=order > 0,
    )
    assert kept_row_ids(deletes, rows).tolist() == [7] * count
