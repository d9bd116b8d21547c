"""Equality deletes converted on their own branch, beside others who commit to it."""

from collections import Counter

import pyarrow as pa
import pytest

from resolver import resolve
from resolver.index_check import verify
from resolver.scan_join import _Join
from tests.support.adopted_tables import ROWS, Theirs
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


@pytest.mark.parametrize(
    ("statuses", "files"), [(["us"], 2), (["us", None], 3), (["aa", "zz"], 4), (["", None], 1)]
)
def test_deletes_by_other_columns_read_the_files_whose_statistics_may_hold_them(
    tmp_path, monkeypatch, statuses, files
):
    """A range is that of all deletes together; `new` is in one file, too."""
    theirs = Theirs(tmp_path, version=2)
    theirs.table.set_properties({"icefold.primary-key": "id"})
    rows = [(11, "eu", 1), (12, "us", 2), (13, "us", 3), (14, None, 4)]
    for each in rows:
        theirs.write([each])
    read = []
    real = _Join.dead_in

    def dead_in(join, each):
        read.append(each.file.file_path)
        return real(join, each)

    monkeypatch.setattr(_Join, "dead_in", dead_in)
    theirs.write([], pa.table({"status": pa.array(statuses, pa.string())}))
    resolve(theirs.table, staging="main", target="main")
    assert theirs.rows() == Counter(row for row in [*ROWS, *rows] if row[1] not in statuses)
    assert len(read) == files
