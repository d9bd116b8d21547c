"""Equality deletes converted on their own branch, beside others who commit to it."""

from collections import Counter

import pyarrow as pa
import pytest

from resolver import resolve
from resolver.index_check import verify
from tests.support.staged_tables import StagedTable


def keys(*ids):
    return pa.table({"id": pa.array(ids, pa.int64())})


@pytest.mark.parametrize("point", ["resolve.after_match", "resolve.after_dv_write"])
def test_row_that_comes_back_beside_a_conversion_is_found_by_the_next_delete(tmp_path, point):
    """It is younger than the delete that is being converted, so it lives, in the index too."""
    staged = StagedTable(tmp_path)
    staged.table.append(staged.rows((1, "eu", "old"), (2, "eu", "old")))
    staged.commit(branch="main", deletes=staged.equality_deletes(keys(1)))
    armed = staged.environment.runtime.fail_points.armed

    def append_beside(_):
        armed.clear()
        staged.table.append(staged.rows((1, "eu", "new")))

    armed[point] = append_beside
    report = resolve(staged.table, staging="main", target="main")
    assert report.attempts == 2
    assert staged.published() == Counter([(1, "eu", "new"), (2, "eu", "old")])
    assert verify(staged.table).report.is_sound
    staged.table.stage(deletes=keys(1))
    resolve(staged.table)
    assert staged.published() == Counter([(2, "eu", "old")])
