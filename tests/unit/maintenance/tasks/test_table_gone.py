"""A table that is dropped or renamed while a task works on it."""

from __future__ import annotations

from contextlib import contextmanager

import pyarrow as pa
import pytest
from click.testing import CliRunner

import tableformat as tf
from maintenance.cli.main import cli
from maintenance.tasks import base
from maintenance.tasks.compact import compact
from maintenance.tasks.drop_dead_deletes import drop_dead_deletes
from maintenance.tasks.expire import expire
from maintenance.tasks.options import CompactOptions, RewriteManifestsOptions, RewriteVectorsOptions
from maintenance.tasks.remove_orphans import remove_orphans
from maintenance.tasks.rewrite_manifests import rewrite_manifests
from maintenance.tasks.rewrite_vectors import rewrite_vectors
from resolver.maintenance_lock import hold_maintenance
from tableformat.errors import CommitConflictError, NotFoundError
from tests.support.interruptions import interrupt
from tests.support.staged_tables import EVERYTHING

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])
WAYS = {
    "dropped": (NotFoundError, "dropped or renamed meanwhile; table=t.rows; if it has another"),
    "renamed": (NotFoundError, "dropped or renamed meanwhile; table=t.rows; if it has another"),
    "dropped, made anew": (CommitConflictError, "another one has its name; table=t.rows; run it"),
    "renamed, made anew": (CommitConflictError, "another one has its name; table=t.rows; run it"),
}
TASKS = {
    "compact, planned": (compact, CompactOptions(rewrite_all=True), "compact.after_plan"),
    "compact, written": (compact, CompactOptions(rewrite_all=True), "compact.before_commit"),
    "compact, idle": (compact, CompactOptions(input_files_min=9), "compact.after_plan"),
    "expire": (expire, EVERYTHING, "commit.before_swap"),
    "orphans": (remove_orphans, None, "orphans.after_list"),
    "manifests": (rewrite_manifests, RewriteManifestsOptions(), "commit.before_swap"),
    "vectors": (
        rewrite_vectors,
        RewriteVectorsOptions(rewrite_all=True),
        "rewrite-vectors.before_commit",
    ),
    "dead deletes, idle": (drop_dead_deletes, None, "the end"),
}


def rows(*keys):
    return pa.table({"id": pa.array(keys, pa.int64()), "v": [str(key) for key in keys]})


@pytest.fixture
def table(tmp_path):
    catalog = tf.open_catalog("local", warehouse=str(tmp_path))
    table = catalog.create_table("t.rows", SCHEMA, primary_key=["id"])
    for key in range(0, 8, 2):
        table.append(rows(key, key + 1))
    table.delete("id = 1")
    return table


def take_away(tmp_path, way):
    catalog = tf.open_catalog("local", warehouse=str(tmp_path))
    if way.startswith("dropped"):
        catalog.drop_table("t.rows")
    else:
        catalog.rename_table("t.rows", "t.former")
    if way.endswith("made anew"):
        catalog.create_table("t.rows", SCHEMA, primary_key=["id"]).append(rows(7))


def then(action):
    """The maintenance lock, and what happens once it is released."""

    @contextmanager
    def hold(*arguments, **more):
        with hold_maintenance(*arguments, **more) as lease:
            yield lease
        action()

    return hold


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("task", TASKS)
def test_task_says_that_its_table_is_gone_and_touches_no_other(
    tmp_path, table, task, way, monkeypatch
):
    work, options, point = TASKS[task]
    if point == "the end":
        monkeypatch.setattr(base, "hold_maintenance", then(lambda: take_away(tmp_path, way)))
    else:
        interrupt(table, point, lambda: take_away(tmp_path, way))
    error, match = WAYS[way]
    with pytest.raises(error, match=match) as refused:
        work(table, options)
    assert "\n" not in str(refused.value)
    catalog = tf.open_catalog("local", warehouse=str(tmp_path))
    if way.startswith("renamed"):
        there = catalog.load_table("t.former").scan().to_arrow()
        assert sorted(there["id"].to_pylist()) == [0, 2, 3, 4, 5, 6, 7]
    if way.endswith("made anew"):
        assert catalog.load_table("t.rows").scan().to_arrow()["id"].to_pylist() == [7]


@pytest.mark.parametrize("way", WAYS)
def test_command_ends_with_one_line_and_an_exit_code(tmp_path, table, way, monkeypatch):
    pause, left = base.TaskRun.pause, [way]

    def taking_away(run):
        if left:
            take_away(tmp_path, left.pop())
        pause(run)

    monkeypatch.setattr(base.TaskRun, "pause", taking_away)
    done = CliRunner().invoke(
        cli, ["--warehouse", str(tmp_path), "compact", "t.rows", "--rewrite-all"]
    )
    assert (done.exit_code, done.stdout) == (1, ""), done.exception
    [line] = done.stderr.splitlines()
    assert WAYS[way][1] in line


def test_what_was_compacted_before_is_told(tmp_path, table):
    in_parts = CompactOptions(
        rewrite_all=True,
        group_bytes_max=1,
        partial_progress=True,
        partial_progress_commits_max=4,
    )
    interrupt(table, "compact.after_commit", lambda: take_away(tmp_path, "renamed"))
    with pytest.raises(NotFoundError, match=r"compacted in part as .* dropped or renamed"):
        compact(table, in_parts)
