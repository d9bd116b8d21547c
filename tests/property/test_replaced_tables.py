"""A table that one other tool alone has written and staged on, and then replaced: random histories.

Nothing that it wrote says of which branch a snapshot is. Whatever it did to the branches before
REPLACE TABLE, no row of the old main comes to the new one.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest

import tableformat as tf
from resolver import resolve
from resolver.cursor import LostCursorError
from tests.support.foreign_tool import ForeignTool
from tests.support.lying_lock import GrantAllLock
from tests.support.staged_tables import SCHEMA, rows_of

NEW = [(100, "us", "new")]


@pytest.mark.parametrize("seed", range(20))
def test_nothing_of_the_old_main_comes_back(tmp_path, seed):
    rng = random.Random(seed)
    table = tf.open_catalog("local", warehouse=str(tmp_path / "warehouse")).create_table(
        "t.rows", SCHEMA, primary_key=["id"]
    )
    table.append(rows_of((0, "eu", "ours")))  # the other tool needs manifests to write alike
    foreign = ForeignTool(tmp_path / "warehouse", "t", "rows")
    written = iter(range(1, 100))

    def rows() -> list[tuple[int, str, str]]:
        return [(next(written), "eu", "old") for _ in range(rng.randint(1, 2))]

    staged: set[int] = set()
    foreign.replace_table(rows())
    heads = [foreign.append(rows()) for _ in range(rng.randint(1, 3))]

    def stage() -> None:
        added = rows()
        staged.update(key for key, *_ in added)
        deletes = foreign.key_deletes([rng.randint(1, 9)]) if rng.random() < 0.5 else []
        operation = "overwrite" if deletes else "append"
        foreign.commit("staging", operation, add=[*foreign.data_files(added), *deletes])

    def append() -> None:
        heads.append(foreign.append(rows()))

    def compact() -> None:
        heads.append(foreign.rewrite(keep_row_ids=rng.random() < 0.5) or heads[-1])

    def roll_back() -> None:
        foreign.set_branch("main", rng.choice(heads))

    stage()
    for step in rng.choices([stage, append, compact, roll_back], [3, 2, 1, 1], k=rng.randint(0, 6)):
        step()
    foreign.replace_table(NEW)
    for key in range(200, 200 + rng.randint(0, 2)):
        foreign.append([(key, "us", "new")])
    before = Counter(row.values for row in foreign.rows("main"))
    table.refresh()
    with pytest.raises(LostCursorError, match=r"was replaced.*--from-snapshot") as refused:
        resolve(table, lock=GrantAllLock(tokens="same"))
    assert Counter(row.values for row in foreign.rows("main")) == before
    told = int(refused.value.context["stopped_at"])
    resolve(table, from_snapshot=told, skip_unpublished=True, lock=GrantAllLock(tokens="same"))
    after = Counter(row.values for row in foreign.rows("main"))
    assert before <= after
    assert {key for key, *_ in after - before} <= staged
