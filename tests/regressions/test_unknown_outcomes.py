"""Bugs other projects had where an answer was lost: group E of docs/guarantees.md.

R56, R58, R59, R60 and R63 are in `test_commit_regressions.py`.
"""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pytest

import tableformat as tf
from resolver import resolve
from resolver.index_check import verify
from tableformat.errors import StoreUnavailableError, TableError
from tableformat.store import bucket_objects
from tests.support.interruptions import Killed, fail_with, interrupt, other_process
from tests.support.raw_rows import raw_rows
from tests.support.row_model import Model, assert_holds, listed
from tests.support.s3_server import Fault, fresh_bucket, s3_properties, s3_server
from tests.support.staged_tables import SCHEMA, StagedTable

BASE = [(key, "eu", "base") for key in range(6)]
ATTEMPTS_MAX = 3


def keys(*ids):
    return pa.table({"id": pa.array(ids, pa.int64())})


# -- R61 -----------------------------------------------------------------------------------------


class LostReplies:
    """The answer of the n-th put is lost, and the store stays away for the delete that follows."""

    def __init__(self, store, lost):
        self.puts, self.lost, self._away = 0, lost, False
        self._put, self._delete = store.put, store.delete
        store.put, store.delete = self.put, self.delete

    def put(self, location, data):
        self._put(location, data)
        self.puts += 1
        if self.puts - 1 == self.lost:
            self._away = True
            raise StoreUnavailableError("no answer", location=location)

    def delete(self, locations):
        if self._away:
            self._away = False
            raise StoreUnavailableError("no answer")
        self._delete(locations)


def work_of(staged):
    """What a table goes through, each step repeatable."""
    table = staged.table
    return [
        lambda: table.stage(upserts=staged.rows((1, "us", "new"), (7, "us", "new"))),
        lambda: table.stage(deletes=keys(2)),
        lambda: resolve(table),
        lambda: table.delete("id = 3"),
        lambda: table.update({"note": "'x'"}, "id = 4 AND note = 'base'"),
    ]


AFTER_WORK = (
    Model().upsert(*BASE).upsert((1, "us", "new"), (7, "us", "new"), (4, "eu", "x")).drop(2, 3)
)


def test_r61_lost_reply_of_any_put_never_makes_the_table_unusable(tmp_path):
    """Data file, delete file, manifest, list, metadata, Puffin: each in its turn."""
    lost, suffixes = 0, set()
    while True:
        staged = StagedTable(tmp_path / str(lost))
        staged.table.append(staged.rows(*BASE))
        replies = LostReplies(staged.environment.store, lost)
        failures = sum(_failures(step) for step in work_of(staged))
        if replies.puts <= lost:
            break
        assert failures <= 1
        resolve(staged.table)
        assert_holds(staged.table, AFTER_WORK)
        suffixes |= {each.rsplit(".", 1)[-1] for each in listed(staged.table)}
        lost += 1
    assert suffixes == {"parquet", "avro", "json", "puffin"}
    assert lost > 20


def _failures(step):
    """Repeat a step until it answers; how often it did not."""
    for failures in range(ATTEMPTS_MAX):
        try:
            step()
        except StoreUnavailableError:
            continue
        return failures
    raise AssertionError("a step failed again and again")


def test_r61_put_that_s3_repeats_is_never_taken_for_somebody_elses(tmp_path, monkeypatch):
    """The first try landed, its answer did not: the second one is told 412."""
    monkeypatch.setattr(bucket_objects, "_WAIT_S", (0.001, 0.01))
    server, bucket = s3_server(), fresh_bucket()
    catalog = tf.open_catalog(
        "lake",
        type="sql",
        uri=f"sqlite:///{tmp_path}/catalog.db",
        warehouse=f"s3://{bucket}/lake",
        **{"index-directory": str(tmp_path / "index")},
        **s3_properties(),
    )
    table = catalog.create_table("t.rows", SCHEMA, primary_key=["id"])
    rows = [dict(zip(SCHEMA.names, row, strict=True)) for row in BASE]
    steps = [
        lambda: table.append(pa.Table.from_pylist(rows, SCHEMA)),
        lambda: table.stage(deletes=keys(2)),
        lambda: resolve(table),
        lambda: table.delete("id = 3"),
    ]
    try:
        for step in steps:
            server.faults.append(Fault("PUT", "after", "500 Internal Error"))
            step()
            assert server.faults == []
    finally:
        server.faults.clear()
    assert_holds(table, Counter(row for row in BASE if row[0] not in {2, 3}))


# -- R62 -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", [Killed(), TimeoutError("no answer")], ids=["kill", "time-out"])
@pytest.mark.parametrize("limit", [1, None], ids=["first of two", "both"])
def test_r62_resolver_restarted_as_another_job_never_publishes_a_file_twice(
    tmp_path, ending, limit
):
    """The publish has landed. The next job has another index folder, lock owner and process."""
    staged = StagedTable(tmp_path / "first")
    table = staged.table
    table.append(staged.rows(*BASE))
    table.stage(upserts=staged.rows((10, "eu", "a"), (1, "eu", "a")))
    table.stage(upserts=staged.rows((11, "eu", "b"), (1, "eu", "b")))
    interrupt(table, "catalog.after_swap", fail_with(ending))
    interrupt(table, "resolve.after_publish", fail_with(Killed()))
    with pytest.raises(Killed):
        resolve(table, limit=limit)
    again = other_process(table)
    resolve(again, index_directory=tmp_path / "second")
    expected = Model().upsert(*BASE, (10, "eu", "a"), (11, "eu", "b"), (1, "eu", "b"))
    assert_holds(again, expected)
    assert resolve(again, index_directory=tmp_path / "third").staged_snapshots == 0
    assert_holds(again, expected)
    assert verify(again).report.is_sound or limit == 1


def changes(*rows):
    fields = [*SCHEMA.names]
    return pa.Table.from_pylist([dict(zip(fields, row, strict=True)) for row in rows], SCHEMA)


@pytest.mark.parametrize("point", ["catalog.after_swap", "commit.after_swap"])
@pytest.mark.parametrize("branch", ["main", "staging"])
def test_r62_writer_that_repeats_a_batch_never_adds_its_rows_twice(tmp_path, point, branch):
    """Appended rows, which no key keeps apart."""
    staged = StagedTable(tmp_path)
    staged.table.append(staged.rows(*BASE))
    batch = changes((20, "eu", "once"), (20, "eu", "once too"))
    given = {"format_name": "append", "branch": branch, "query_id": "job"}
    staged.table.write_changes(changes((19, "eu", "first")), batch_id=0, **given)
    interrupt(staged.table, point, fail_with(Killed()))
    with pytest.raises(Killed):
        staged.table.write_changes(batch, batch_id=1, **given)
    again = other_process(staged.table)
    assert again.write_changes(batch, batch_id=1, **given).repeated
    assert again.write_changes(changes((21, "eu", "next")), batch_id=2, **given).commit is not None
    if branch == "staging":
        resolve(again)
        assert again.write_changes(batch, batch_id=1, **given).repeated
        assert resolve(again).staged_snapshots == 0
    new = [(19, "eu", "first"), (20, "eu", "once"), (20, "eu", "once too"), (21, "eu", "next")]
    assert_holds(again, Counter([*BASE, *new]))


def test_r62_keyed_changes_repeated_under_a_new_job_id_leave_one_row_per_key(tmp_path):
    """No id tells the two apart, so the key has to."""
    staged = StagedTable(tmp_path)
    staged.table.append(staged.rows(*BASE))
    batch = changes((1, "eu", "new"), (20, "eu", "new"))
    interrupt(staged.table, "catalog.after_swap", fail_with(Killed()))
    with pytest.raises(Killed):
        staged.table.write_changes(batch, query_id="old job", batch_id=0)
    again = other_process(staged.table)
    assert not again.write_changes(batch, query_id="new job", batch_id=0).repeated
    assert resolve(again).staged_snapshots == 2
    assert_holds(again, Model().upsert(*BASE, (1, "eu", "new"), (20, "eu", "new")))


@pytest.mark.parametrize("ending", [Killed(), OSError("connection reset")], ids=["kill", "error"])
def test_r62_statement_whose_answer_was_lost_is_never_applied_twice(tmp_path, ending):
    """An increment shows it: twice is not once."""
    staged = StagedTable(tmp_path, schema=pa.schema([("id", pa.int64()), ("n", pa.int64())]))
    staged.table.append(staged.rows((1, 10), (2, 20)))
    interrupt(staged.table, "catalog.after_swap", fail_with(ending))
    try:
        staged.table.update({"n": "n + 1"}, "id = 1")
    except Killed:
        pass
    except TableError as error:
        pytest.fail(f"an answer that can be looked up was not: {error}")
    assert raw_rows(staged.table) == Counter([(1, 11), (2, 20)])
