"""What PyIceberg's inspection does not have, and input that is wrong."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.update import AddSnapshotUpdate, SetSnapshotRefUpdate

from resolver import resolve
from tableformat.errors import InvalidInputError, NotFoundError
from tableformat.table_inspect import VIEWS
from tests.support.staged_tables import StagedTable


@pytest.fixture
def made(tmp_path):
    made = StagedTable(tmp_path, partition_by=["region"])
    made.table.append(made.rows((1, "EU", "a"), (2, "US", "b"), (3, None, "c")))
    made.table.stage(upserts=made.rows((1, "EU", "x")), deletes=pa.table({"id": [2]}))
    return made


def test_staged_shows_what_waits_in_order(made):
    made.table.stage(upserts=made.rows((4, "EU", "y")))
    waiting = made.table.inspect.staged().to_pylist()
    assert [row["ordinal"] for row in waiting] == [1, 2]
    assert waiting[0]["added_records"] == 1
    assert waiting[0]["added_equality_deletes"] == 2
    assert waiting[1]["parent_id"] == waiting[0]["snapshot_id"]
    resolve(made.table, limit=1)
    assert made.table.inspect.staged()["snapshot_id"].to_pylist() == [waiting[1]["snapshot_id"]]
    resolve(made.table)
    assert made.table.inspect.staged().num_rows == 0


def test_staged_is_what_waits_also_behind_commits_of_other_writers(made):
    """Others do not repeat the marker in their summaries; the resolver looks further back, too."""
    made.table.stage(upserts=made.rows((4, "EU", "y")))
    [_, second] = made.table.inspect.staged()["snapshot_id"].to_pylist()
    resolve(made.table, limit=1)
    commit_as_another_engine(made.table)
    assert made.table.inspect.staged()["snapshot_id"].to_pylist() == [second]


def commit_as_another_engine(table):
    """A snapshot of `main` with the same files and a summary of its own."""
    state = table.refresh().state
    head = state.head("main")
    snapshot = head.model_copy(
        update={
            "snapshot_id": table.environment.runtime.ids.snapshot_id(),
            "parent_snapshot_id": head.snapshot_id,
            "sequence_number": state.metadata.last_sequence_number + 1,
            "first_row_id": state.metadata.next_row_id,
            "added_rows": 0,
            "summary": Summary(Operation.APPEND),
        }
    )
    moved = SetSnapshotRefUpdate(ref_name="main", type="branch", snapshot_id=snapshot.snapshot_id)
    table.environment.catalog.commit(state, [AddSnapshotUpdate(snapshot=snapshot), moved])
    table.refresh()


def test_vectors_and_partitions_count_deleted_rows(made):
    resolve(made.table)
    vectors = made.table.inspect.vectors().to_pylist()
    assert sum(row["record_count"] for row in vectors) == 2
    data = set(made.table.inspect.data_files()["file_path"].to_pylist())
    assert {row["referenced_data_file"] for row in vectors} <= data
    by_region = {
        row["partition"]["region"]: row for row in made.table.inspect.partitions().to_pylist()
    }
    assert by_region["EU"]["record_count"] == 2
    assert by_region["US"]["position_delete_record_count"] == 1
    assert by_region[None]["position_delete_file_count"] == 0


def test_views_of_other_branches_and_snapshots(made):
    inspect = made.table.inspect
    first = inspect.history()["snapshot_id"][0].as_py()
    assert inspect.delete_files().num_rows == 0
    assert inspect.delete_files(branch="staging").num_rows > 0
    resolve(made.table)
    assert made.table.inspect.files(snapshot_id=first).num_rows == 3


@pytest.mark.parametrize("name", VIEWS)
def test_an_empty_table_has_empty_views_of_the_same_schema(tmp_path, made, name):
    empty = StagedTable(tmp_path / "other", partition_by=["region"]).table
    view = empty.inspect.view(name)
    assert view.num_rows == (name == "metadata_log")
    assert view.schema.names == made.table.inspect.view(name).schema.names
    assert view.schema.types == made.table.inspect.view(name).schema.types


def test_wrong_views_are_refused(made):
    with pytest.raises(InvalidInputError, match="no view 'nope'"):
        made.table.inspect.view("nope")
    with pytest.raises(InvalidInputError, match="takes no branch"):
        made.table.inspect.view("refs", branch="main")
    with pytest.raises(NotFoundError):
        made.table.inspect.files(branch="nope")
    with pytest.raises(InvalidInputError, match="not both"):
        made.table.inspect.files(branch="main", tag="x")


def test_summaries_of_foreign_writers_may_hold_anything(made):
    made.commit(
        data=made.data_files((9, "EU", "z")),
        summary={"note": "\x1b[31mred\n[bold]", "added-equality-deletes": "many"},
    )
    last = made.table.inspect.staged().to_pylist()[-1]
    assert dict(last["summary"])["note"] == "\x1b[31mred\n[bold]"
