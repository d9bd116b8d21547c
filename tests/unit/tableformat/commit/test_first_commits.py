"""Which snapshot a branch began with, where expiry by other tools takes ids of parents away."""

import pytest
from pyiceberg.table.snapshots import Operation, Snapshot, Summary

from tableformat.commit.branch_history import is_first

FIRST = {
    "added-data-files": "2",
    "total-data-files": "2",
    "total-delete-files": "0",
}
LATER = FIRST | {"total-data-files": "5"}


@pytest.mark.parametrize(
    ("number", "parent", "summary", "expected"),
    [
        (7, None, FIRST, True),
        (7, 3, FIRST, False),
        (7, None, LATER, False),
        (1, None, {}, True),
        (7, None, {}, False),
        (7, None, {"added-data-files": "2"}, False),
    ],
    ids=[
        "a table that was replaced",
        "a parent",
        "a parent that was taken away",
        "no totals, the first number",
        "no totals",
        "no totals, counts",
    ],
)
def test_commit_is_the_first_only_if_totals_or_its_number_say_so(number, parent, summary, expected):
    snapshot = Snapshot(
        snapshot_id=9,
        parent_snapshot_id=parent,
        sequence_number=number,
        timestamp_ms=1,
        manifest_list="memory://list",
        summary=Summary(Operation.APPEND, **summary),
    )
    assert is_first(snapshot) is expected
