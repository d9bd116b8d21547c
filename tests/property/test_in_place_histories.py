"""Random histories of a table that is resolved in place, with kills, beside a dict.

PyIceberg made it, its schema declares no key, and its writer commits equality deletes to `main`.
"""

from __future__ import annotations

import random
from collections import Counter

import pyarrow as pa
import pytest

from maintenance.tasks.compact import compact
from maintenance.tasks.expire import expire
from maintenance.tasks.options import CompactOptions, ExpireOptions, RewriteVectorsOptions
from maintenance.tasks.rewrite_vectors import rewrite_vectors
from resolver import resolve
from resolver.index_check import verify
from tableformat.commit.expiry_plan import ExpiryPolicy
from tests.support.adopted_tables import NAME, ROWS, Theirs
from tests.support.goals import goal
from tests.support.interop_engines import duckdb_connection
from tests.support.table_checker import check_table

STEPS = 30
EVERYTHING = CompactOptions(rewrite_all=True, input_files_min=1)
DEATHS = (
    "resolve.after_plan",
    "resolve.after_match",
    "resolve.before_dv_write",
    "resolve.after_dv_write",
    "index.prepare.written",
    "commit.before_swap",
    "catalog.after_swap",
    "commit.after_swap",
    "resolve.after_publish",
    "index.apply.before",
    "compact.after_write",
)


class Killed(BaseException):
    """The process is gone."""


class History:
    """A table, and what it should hold."""

    def __init__(self, folder, chance, *, version, granularity):
        self.theirs, self.chance = Theirs(folder, version=version), chance
        self.model = {row[0]: row for row in ROWS}
        self.kills = self.number = 0
        self.theirs.table.set_properties(
            {"icefold.primary-key": "id", "write.delete.granularity": granularity}
        )
        self.restart()

    def restart(self):
        self.theirs.table = self.theirs.open()

    def write(self):
        """As Flink commits: what a row's key had before dies, then the row comes."""
        self.number += 1
        keys = self.chance.sample([*range(12), None], 5)
        rows = [(key, f"w{self.number}", self.number) for key in keys[:3]]
        self.theirs.write(rows, pa.table({"id": pa.array(keys, pa.int64())}))
        for key in keys:
            self.model.pop(key, None)
        self.model |= {row[0]: row for row in rows}

    def append(self):
        self.number += 1
        row = (100 + self.number, "appended", self.number)
        self.theirs.table.append(self.theirs.arrow([row]))
        self.model[row[0]] = row

    def until(self, point, work):
        """Do the work; at `point` the process dies, and another one goes on."""
        points = self.theirs.table.environment.runtime.fail_points

        def die(name):
            raise Killed(name)

        if point is not None:
            points.armed[point] = die
        try:
            work()
        except Killed:
            self.kills += 1
            self.restart()
        finally:
            points.armed.clear()

    def resolve(self, point=None):
        self.until(point, lambda: resolve(self.theirs.table, staging="main", target="main"))

    def compact(self, point=None):
        self.until(point, lambda: compact(self.theirs.table, EVERYTHING))

    def rewrite_vectors(self):
        rewrite_vectors(self.theirs.table, RewriteVectorsOptions(rewrite_all=True))

    def expire(self):
        policy = ExpiryPolicy(max_snapshot_age_ms=0, min_snapshots_to_keep=1)
        expire(self.theirs.table, ExpireOptions(policy=policy))

    def step(self):
        point = self.chance.choice([None, *DEATHS])
        done = self.chance.choice(
            [self.write] * 4
            + [self.append, self.rewrite_vectors, self.expire]
            + [lambda: self.resolve(point)] * 4
            + [lambda: self.compact(point)]
        )
        done()
        assert self.theirs.rows() == Counter(self.model.values())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("version", "granularity"),
    [(2, "partition"), (2, "file"), (3, "file")],
    ids=["v2-partition", "v2-file", "v3"],
)
def test_histories_in_place_with_kills_equal_the_model(tmp_path, version, granularity):
    kills = 0
    for seed in range(2):
        folder = tmp_path / str(seed)
        folder.mkdir()
        history = History(folder, random.Random(seed), version=version, granularity=granularity)
        for _ in range(STEPS):
            history.step()
        history.write()
        history.resolve()
        kills += history.kills
        table = history.theirs.table.refresh()
        head = check_table(table.environment.store.get, table.metadata_location)[
            table.current_snapshot().snapshot_id
        ]
        assert {each.content for each in head.live} <= {0, 1}
        path = table.metadata_location.removeprefix("file://")
        found = duckdb_connection().sql(f"SELECT id, status, n FROM iceberg_scan('{path}')")
        assert Counter(found.fetchall()) == Counter(history.model.values())
        assert verify(table).report.is_sound
        assert table.name == NAME
    assert kills > 2
    goal("G2", operations=2 * STEPS)
