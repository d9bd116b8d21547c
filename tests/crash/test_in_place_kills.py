"""SIGKILL at the fail points of a resolve in place, on v2 and v3: run again, the table is the same.

The table is another tool's: its key is declared nowhere, its writer goes on beside.
"""

import pyarrow as pa
import pytest

from resolver import resolve
from resolver.index_check import verify
from tests.support.adopted_tables import NAME, ROWS, Theirs
from tests.support.crash_child import KILLED, lock_of, open_table, run_until_killed
from tests.support.table_checker import check_table

POINTS = [
    "lock.after_acquire", "resolve.after_read", "index.build.shard",
    "index.build.after_current", "resolve.after_match", "resolve.before_dv_write",
    "resolve.after_dv_write", "commit.before_manifest_put", "commit.before_list_put",
    "commit.before_swap", "catalog.before_metadata_put", "catalog.before_swap",
    "catalog.after_swap", "commit.after_swap", "resolve.after_publish", "index.prepare.written",
    "resolve.after_prepare", "index.apply.before", "index.apply.after", "resolve.after_apply",
    "lock.before_release",
]  # fmt: skip


def resolve_in_place(table):
    return resolve(table, staging="main", target="main", lock=lock_of(table))


def keys(*values):
    return pa.table({"id": pa.array(values, pa.int64())})


@pytest.mark.parametrize(
    ("version", "granularity", "point"),
    [
        *[(*each, point) for each in ((2, "partition"), (3, "file")) for point in POINTS],
        *[(2, "file", point) for point in ("resolve.before_dv_write", "resolve.after_dv_write")],
    ],
)
def test_killed_resolve_in_place_run_again_gives_the_same_table(
    tmp_path, version, granularity, point
):
    theirs = Theirs(tmp_path, version=version)
    theirs.table.set_properties(
        {"icefold.primary-key": "id", "write.delete.granularity": granularity}
    )
    model = {row[0]: row for row in ROWS}

    def write(rows, gone):
        theirs.write(rows, keys(*gone), pa.table({"status": ["gone"]}))
        for key in gone:
            model.pop(key, None)
        model.update({row[0]: row for row in rows})

    write([(1, "first", 1), (20, "gone", 1)], [1, 2, None])
    assert run_until_killed(resolve_in_place, str(tmp_path), NAME, point=point) == KILLED
    assert theirs.rows().total() == len(model)
    write([(1, "second", 2), (3, "second", 2)], [1, 3])
    model.pop(20)  # by its status
    resolve_in_place(open_table(str(tmp_path), NAME))
    table = theirs.open()
    assert set(theirs.rows()) == set(model.values())
    head = table.current_snapshot().snapshot_id
    live = check_table(table.environment.store.get, table.metadata_location)[head].live
    assert {file.content for file in live} == {0, 1}
    assert verify(table).report.is_sound
