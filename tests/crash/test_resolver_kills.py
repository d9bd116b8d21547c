"""SIGKILL at every fail point of a resolve, once and twice: running it again gives the same table.

Checked after each: rows of every published snapshot against the model, markers that join without
gap or overlap, an index equal to a scan, and the files by a checker that shares no code.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

import tableformat as tf
from resolver import resolve
from resolver.index.reader import open_reader
from resolver.index_check import verify
from resolver.index_keeper import index_folder
from tableformat.runtime import Runtime
from tests.support.crash_child import (
    KILLED,
    ROWS_PER_SHARD,
    lock_of,
    open_table,
    run_until_killed,
)
from tests.support.foreign_tool import ForeignTool
from tests.support.staging_ledger import check_exactly_once, markers
from tests.support.table_checker import check_table

SCHEMA = pa.schema([("id", pa.int64()), ("region", pa.string()), ("amount", pa.int64())])
POINTS = [
    "lock.before_acquire", "lock.after_acquire", "resolve.after_plan", "resolve.after_read",
    "index.build.file", "index.build.shard", "index.build.before_current",
    "index.build.after_current", "resolve.after_match", "resolve.before_dv_write",
    "resolve.after_dv_write", "commit.before_swap", "catalog.before_metadata_put",
    "catalog.before_swap", "catalog.after_swap", "commit.after_swap", "resolve.after_publish",
    "index.prepare.written", "resolve.after_prepare", "index.apply.before",
    "index.apply.after", "resolve.after_apply", "lock.before_release",
]  # fmt: skip
NAME = "t.rows"
ON_V2 = {
    each: {"format-version": "2", "write.delete.granularity": each}
    for each in ("partition", "file")
}


def rows(*values):
    return pa.Table.from_pylist(
        [dict(zip(SCHEMA.names, value, strict=True)) for value in values], SCHEMA
    )


def run_resolve(table):
    resolve(table, lock=lock_of(table))


class History:
    """A table with unresolved changes on top of two published cycles, and its model."""

    index_location: str | None = None

    def __init__(self, folder: Path, **properties: str) -> None:
        self.warehouse = str(folder / "warehouse")
        catalog = tf.open_catalog("local", warehouse=self.warehouse)
        self.table = catalog.create_table(
            NAME, SCHEMA, primary_key=["id"], partition_by=["region"], properties=properties
        )
        self.model = {key: (key, "eu", 0) for key in range(8)}
        self.table.append(rows(*self.model.values()))
        self.staged: list[int] = []
        self.states: dict[int | None, Counter] = {None: Counter(self.model.values())}

    def stage(self, upserts, deletes=()):
        gone = pa.table({"id": pa.array(deletes, pa.int64())})
        result = self.table.stage(upserts=rows(*upserts), deletes=gone)
        for key in deletes:
            self.model.pop(key, None)
        self.model.update({row[0]: row for row in upserts})
        self.staged.append(result.snapshot.snapshot_id)
        self.states[self.staged[-1]] = Counter(self.model.values())

    def stage_partial(self, versions):
        """Rows without their region."""
        name = SCHEMA.names[2]
        given = {"id": list(versions), name: list(versions.values())}
        result = self.table.stage(pa.table(given), columns="partial")
        for key, version in versions.items():
            self.model[key] = (*self.model[key][:2], version)
        self.staged.append(result.snapshot.snapshot_id)
        self.states[self.staged[-1]] = Counter(self.model.values())

    def copy(self, amounts):
        """Another tool updates rows of staging and writes their files anew."""

        def new(row):
            key, region, _ = row.values
            return (key, region, amounts[key]) if key in amounts else row.values

        foreign = ForeignTool(Path(self.warehouse), *NAME.split("."))
        self.staged.append(foreign.copy_on_write("staging", new))
        self.model |= {key: (*self.model[key][:2], to) for key, to in amounts.items()}
        self.states[self.staged[-1]] = Counter(self.model.values())

    def check(self):
        table = open_table(self.warehouse, NAME)
        read = table.environment.store.get
        for snapshot_id, marker in markers(read, table.metadata_location):
            found = table.scan(snapshot_id=snapshot_id).to_arrow().to_pylist()
            assert Counter(tuple(row.values()) for row in found) == self.states[marker]
        check_exactly_once(read, table.metadata_location, self.staged)
        assert verify(table, index_location=self.index_location).report.is_sound
        check_table(read, table.metadata_location)


@pytest.fixture
def history(tmp_path, request):
    """`request.param`: properties of the table."""
    history = History(tmp_path, **getattr(request, "param", {}))
    history.stage([(1, "us", 1), (9, "eu", 1)], deletes=[2])
    history.stage([(1, "eu", 2), (3, "us", 2)], deletes=[9])
    return history


@pytest.mark.parametrize(
    ("history", "point"),
    [
        *[({}, point) for point in POINTS],
        *[(ON_V2["partition"], point) for point in POINTS if point.startswith("resolve.")],
        *[(ON_V2["file"], point) for point in POINTS if point.endswith("_dv_write")],
    ],
    indirect=["history"],
    ids=lambda each: each if isinstance(each, str) else "-".join(each.values()),
)
def test_killed_resolve_run_again_gives_the_same_table(history, point):
    assert run_until_killed(run_resolve, history.warehouse, NAME, point=point) == KILLED
    history.table.refresh()
    history.stage([(4, "us", 3)], deletes=[1])
    run_resolve(open_table(history.warehouse, NAME))
    history.check()


@pytest.mark.parametrize(
    ("history", "point"),
    [
        (properties, point)
        for properties in ({}, {"icefold.publish": "rewrite"})
        for point in POINTS[: POINTS.index("index.prepare.written")]
    ],
    indirect=["history"],
    ids=lambda each: each if isinstance(each, str) else "-".join(each.values()),
)
def test_killed_resolve_of_files_that_were_copied_run_again_gives_the_same_table(history, point):
    """A file of main leaves, and a file of the batch never comes."""
    history.copy({3: 7, 5: 7})
    assert run_until_killed(run_resolve, history.warehouse, NAME, point=point) == KILLED
    history.table.refresh()
    history.stage([(4, "us", 3)], deletes=[1])
    run_resolve(open_table(history.warehouse, NAME))
    history.check()


@pytest.mark.parametrize(
    ("point", "is_split"), [("index.prepare.written", False), ("index.apply.after", True)]
)
def test_resolve_killed_around_a_split_gives_the_same_table(history, point, is_split):
    assert run_until_killed(run_resolve, history.warehouse, NAME, point=point) == KILLED
    folder = index_folder(history.table.environment, history.table.state, "main")
    built = history.states[None].total() // ROWS_PER_SHARD
    with open_reader(folder, Runtime()) as reader:
        assert (len(reader.header.shards) > built) == is_split
    history.table.refresh()
    history.stage([(key, "us", 3) for key in range(20, 60)], deletes=[1])
    assert run_until_killed(run_resolve, history.warehouse, NAME, point=point) == KILLED
    run_resolve(open_table(history.warehouse, NAME))
    history.check()


@pytest.mark.parametrize(
    "point",
    [
        "resolve.after_match", "resolve.before_rewrite", "resolve.after_rewrite",
        "resolve.after_dv_write", "catalog.before_swap", "catalog.after_swap",
        "resolve.after_publish", "index.apply.after", "resolve.after_apply",
    ],
)  # fmt: skip
def test_killed_resolve_that_writes_rows_anew_keeps_their_ids(history, point):
    before = row_ids(history.table)
    history.table.set_properties({"icefold.publish": "rewrite"})
    assert run_until_killed(run_resolve, history.warehouse, NAME, point=point) == KILLED
    history.table.refresh()
    history.stage([(4, "us", 3), (3, "us", 3)], deletes=[5])
    run_resolve(open_table(history.warehouse, NAME))
    history.check()
    after = row_ids(open_table(history.warehouse, NAME))
    assert {key: after[key] for key in (0, 1, 3, 4, 6, 7)} == {
        key: before[key] for key in (0, 1, 3, 4, 6, 7)
    }


@pytest.mark.parametrize("mode", ["link", "rewrite"])
@pytest.mark.parametrize(
    "point", ["resolve.after_match", "resolve.after_rewrite", "catalog.after_swap"]
)
def test_killed_resolve_that_fills_columns_gives_the_same_table(history, point, mode):
    history.table.set_properties({"icefold.publish": mode})
    history.stage_partial({4: 7, 3: 8})
    assert run_until_killed(run_resolve, history.warehouse, NAME, point=point) == KILLED
    history.table.refresh()
    history.stage([(4, "us", 3)])
    history.stage_partial({4: 9, 3: 9})
    run_resolve(open_table(history.warehouse, NAME))
    history.check()


def row_ids(table):
    rows = table.scan(columns=["id", "_row_id"]).to_arrow().to_pylist()
    return {row["id"]: row["_row_id"] for row in rows}


@pytest.mark.parametrize(
    ("history", "seed"),
    [*[({}, seed) for seed in range(12)], *[(ON_V2["partition"], seed) for seed in range(12, 16)]],
    indirect=["history"],
)
def test_two_kills_in_a_row_give_the_same_table(history, seed):
    draw = random.Random(seed)
    for _ in range(2):
        point = draw.choice(POINTS)
        run_until_killed(run_resolve, history.warehouse, NAME, point=point)
        history.table.refresh()
        history.stage([(draw.randrange(10), "us", 10 + seed)], deletes=[draw.randrange(10, 12)])
    run_resolve(open_table(history.warehouse, NAME))
    history.check()
