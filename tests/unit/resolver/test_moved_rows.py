"""Staged deletes of one partition, and rows that left it before the deletes were resolved."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pyarrow as pa
import pytest
from pyiceberg.transforms import IdentityTransform

from maintenance.tasks.compact import compact
from maintenance.tasks.options import CompactOptions
from resolver import resolve
from tableformat import Table
from tests.support.staged_tables import StagedTable

GONE = pa.table({"id": pa.array([1], pa.int64())})


def _compact(staged: StagedTable) -> None:
    report = compact(staged.table.refresh(), CompactOptions(rewrite_all=True))
    assert report.commits


def _update(staged: StagedTable) -> None:
    assert staged.table.update({"note": "'b'"}, "note = 'a'").updated_rows == 2


def _by_region(table: Table) -> None:
    table.update_partitioning(lambda s: s.add_field("region", IdentityTransform(), "region"))


@pytest.mark.parametrize("rewrite", [_compact, _update])
@pytest.mark.parametrize("again", [False, True], ids=["deleted", "replaced"])
def test_staged_delete_reaches_its_row_under_another_spec(
    tmp_path: object, rewrite: Callable[[StagedTable], None], again: bool
) -> None:
    """R03: there was one spec when it was staged, so its partition held every row of the key."""
    staged = StagedTable(tmp_path, partition_by=["bucket(3, id)"])
    staged.table.append(staged.rows((1, "eu", "a"), (2, "us", "a")))
    if again:
        staged.table.stage(upserts=staged.rows((1, "eu", "new")))
    else:
        staged.table.stage(deletes=GONE)
    _by_region(staged.table)
    rewrite(staged)
    resolve(staged.table)
    kept = "a" if rewrite is _compact else "b"
    assert staged.published() == Counter([(2, "us", kept), *([(1, "eu", "new")] if again else [])])


def test_delete_staged_beside_files_of_another_spec_keeps_to_its_partition(
    tmp_path: object,
) -> None:
    """Another writer's delete under the old spec: rows under the new one are out of its reach."""
    staged = StagedTable(tmp_path, partition_by=["bucket(3, id)"])
    old = staged.table.spec()
    staged.table.append(staged.rows((1, "eu", "old spec")))
    _by_region(staged.table)
    staged.table.append(staged.rows((1, "eu", "new spec")))
    staged.commit(deletes=staged.equality_deletes(GONE, spec=old))
    resolve(staged.table)
    assert staged.published() == Counter([(1, "eu", "new spec")])
