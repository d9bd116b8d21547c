import pytest
from pyiceberg.table.snapshots import Operation, Snapshot, Summary

from tableformat.commit.summary import build_summary
from tests.support.commit_tables import CommitTable

TABLE = CommitTable(partitioned=True)


def summary(operation=Operation.OVERWRITE, *, added=(), removed=(), parent=None, extra=None):
    built = build_summary(operation, added=added, removed=removed, parent=parent, extra=extra or {})
    return built.additional_properties


def parent(**properties):
    named = {key.replace("_", "-"): value for key, value in properties.items()}
    return Snapshot(
        snapshot_id=1,
        sequence_number=1,
        timestamp_ms=1,
        manifest_list="l",
        summary=Summary(Operation.APPEND, **named),
    )


def test_every_kind_of_file_is_counted_as_the_spec_says():
    x, y = TABLE.data("x", rows=10), TABLE.data("y", rows=5, part="b")
    found = summary(
        added=[x, TABLE.vector(x, "p", cardinality=3), TABLE.equality_delete("e", rows=2)],
        removed=[y, TABLE.vector(y, "q", cardinality=4)],
    )
    assert found == {
        "added-data-files": "1",
        "added-records": "10",
        "added-delete-files": "2",
        "added-dvs": "1",
        "added-position-deletes": "3",
        "added-equality-delete-files": "1",
        "added-equality-deletes": "2",
        "added-files-size": str(1010 + 44 + 200),  # a vector by its own bytes, not its Puffin's
        "deleted-data-files": "1",
        "deleted-records": "5",
        "removed-delete-files": "1",
        "removed-dvs": "1",
        "removed-position-deletes": "4",
        "removed-files-size": str(1005 + 44),
        "changed-partition-count": "2",
        "total-records": "5",
        "total-files-size": str(1254 - 1049),
        "total-data-files": "0",
        "total-delete-files": "1",
        # Taking away more than there was leaves no total, as in Java.
        "total-equality-deletes": "2",
    }


def test_v2_position_delete_file_is_no_vector():
    old = TABLE.vector(TABLE.data("x"), "p").with_(
        file_format="PARQUET", content_offset=None, content_size_in_bytes=None
    )
    found = summary(removed=[old], parent=parent(total_position_deletes="9"))
    assert found["removed-position-delete-files"] == "1"
    assert "removed-dvs" not in found
    assert found["total-position-deletes"] == "8"


def test_totals_go_on_from_the_parent():
    found = summary(added=[TABLE.data("x", rows=10)], parent=parent(total_records="7"))
    assert found["total-records"] == "17"


@pytest.mark.parametrize("text", ["many", "9" * 5_000])
def test_total_that_the_parent_does_not_know_stays_unknown(text):
    found = summary(added=[TABLE.data("x")], parent=parent(total_records=text))
    assert "total-records" not in found
    assert "total-data-files" not in found


def test_properties_of_the_caller_cannot_replace_a_count():
    found = summary(added=[TABLE.data("x")], extra={"added-data-files": "99", "note": "n"})
    assert found["added-data-files"] == "1"
    assert found["note"] == "n"
