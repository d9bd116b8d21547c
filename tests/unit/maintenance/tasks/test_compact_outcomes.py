"""What becomes of a compaction's new files when nobody knows whether its commit has landed."""

from __future__ import annotations

import pyarrow as pa
import pytest

import tableformat as tf
from lock import LeaseLostError
from maintenance.tasks.base import TaskRun
from maintenance.tasks.compact import compact
from maintenance.tasks.compaction import workers
from maintenance.tasks.options import CompactOptions
from tableformat.errors import CommitUnknownError, NotFoundError

SCHEMA = pa.schema([("id", pa.int64())])


def rows(*keys):
    return pa.table({"id": pa.array(keys, pa.int64())})


@pytest.mark.parametrize("partial", [True, False], ids=["in parts", "together"])
def test_unknown_outcome_deletes_no_new_file(tmp_path, partial):
    """I10, R56: the request may still land, and its snapshot needs them."""
    catalog = tf.open_catalog("local", warehouse=str(tmp_path / "warehouse"))
    table = catalog.create_table("t.rows", SCHEMA, primary_key=["id"])
    table.set_properties({"commit.status-check.num-retries": "0"})
    table.append(rows(1, 2))
    table.append(rows(3))
    points, store = table.environment.runtime.fail_points, table.environment.store

    def data():
        return {
            each.location for each in store.list_prefix(f"{table.state.metadata.location}/data")
        }

    before = data()

    def lose(_name):
        raise CommitUnknownError("the answer was lost")

    points.armed["catalog.before_swap"] = lose
    with pytest.raises(CommitUnknownError):
        compact(table, CompactOptions(rewrite_all=True, partial_progress=partial))
    assert len(data() - before) == 1
    points.armed.clear()
    compact(table, CompactOptions(rewrite_all=True))
    assert sorted(table.scan().to_arrow()["id"].to_pylist()) == [1, 2, 3]


def data_files_in_store(table):
    store, prefix = table.environment.store, f"{table.state.metadata.location}/data"
    return {each.location for each in store.list_prefix(prefix)}


def partitioned(tmp_path):
    catalog = tf.open_catalog("local", warehouse=str(tmp_path / "warehouse"))
    schema = pa.schema([("id", pa.int64()), ("region", pa.string())])
    table = catalog.create_table("t.rows", schema, primary_key=["id"], partition_by=["region"])
    table.set_properties({"commit.status-check.num-retries": "0"})
    for first in (0, 10):
        table.append(pa.table({"id": [first, first + 1, first + 2], "region": ["a", "b", "c"]}))
    return catalog, table


def test_unknown_outcome_deletes_no_file_of_a_group_that_was_left_out_either(tmp_path):
    """I10, R56: while one outcome is not known, nothing that the run wrote is deleted."""
    catalog, table = partitioned(tmp_path)
    other = catalog.load_table("t.rows")
    points = table.environment.runtime.fail_points.armed
    written = data_files_in_store(table)

    def take_a_file(_name):
        other.overwrite(pa.table({"id": [99], "region": ["b"]}))
        written.update(data_files_in_store(table))
        points["compact.before_commit"] = lose_the_next

    def lose_the_next(_name):
        points["catalog.before_swap"] = lose

    def lose(_name):
        raise CommitUnknownError("the answer was lost")

    points["compact.before_commit"] = take_a_file
    with pytest.raises(CommitUnknownError):
        compact(table, CompactOptions(rewrite_all=True))
    points.clear()
    assert written <= data_files_in_store(table)
    assert sorted(table.refresh().scan().to_arrow()["id"].to_pylist()) == [0, 2, 10, 12, 99]


@pytest.mark.parametrize("name", ["pause", "resume"])
def test_lost_lease_deletes_what_no_commit_was_tried_with(tmp_path, monkeypatch, name):
    _, table = partitioned(tmp_path)
    before = data_files_in_store(table)

    def lose(_):
        raise LeaseLostError("simulated")

    monkeypatch.setattr(workers, "POLL_MS", 0)
    monkeypatch.setattr(TaskRun, name, lose)
    with pytest.raises(LeaseLostError):
        compact(table, CompactOptions(rewrite_all=True))
    assert data_files_in_store(table) == before


@pytest.mark.parametrize("parts", [1, 3])
def test_lost_commit_race_of_one_part_leaves_the_other_parts_alone(tmp_path, parts):
    _, table = partitioned(tmp_path)
    points = table.environment.runtime.fail_points.armed

    def refuse(_name):
        points.pop("commit.before_list_put")
        raise NotFoundError("simulated")

    points["commit.before_list_put"] = refuse
    options = CompactOptions(
        rewrite_all=True, partial_progress=True, partial_progress_commits_max=parts
    )
    report = compact(table, options)
    assert (report.failed_groups, len(report.commits)) == (3 // parts, parts - 1)
    live = {task.entry.data_file.file_path for task in table.refresh().scan().plan.tasks}
    assert len(live) == 3 - 3 // parts + 2 * (3 // parts)
