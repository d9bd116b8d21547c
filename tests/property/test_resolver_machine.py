"""A random history beside a dict: every published snapshot equals the fold up to its marker."""

import shutil
import tempfile
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from resolver import resolve
from resolver.index_check import verify
from resolver.index_keeper import index_folder
from resolver.staging import marker_of
from tableformat.spec.data_file import FileContent
from tests.support.goals import goal
from tests.support.memory_tables import memory_catalog

SCHEMA = pa.schema([("id", pa.int64()), ("region", pa.string()), ("amount", pa.int64())])
KEYS = st.integers(0, 7)
REGIONS = st.sampled_from(["eu", "us", None])
ROWS = st.lists(st.tuples(KEYS, REGIONS), max_size=5, unique_by=lambda row: row[0])


def rows_table(rows):
    columns = list(zip(*rows, strict=True)) or [(), (), ()]
    return pa.table(dict(zip(SCHEMA.names, map(list, columns), strict=True)), schema=SCHEMA)


def as_counter(table):
    return Counter(tuple(row.values()) for row in table.to_pylist())


class ResolverMachine(RuleBasedStateMachine):
    """`published` and `staged` are the model: rows as a multiset, staged commits in order."""

    partition_by: tuple[str, ...] = ()

    @initialize()
    def create(self):
        self.folder = tempfile.mkdtemp(prefix="icefold-machine-")
        self.catalog = memory_catalog(self.folder)
        self.table = self.catalog.create_table(
            "t.rows", SCHEMA, primary_key=["id"], partition_by=self.partition_by
        )
        self.published: Counter = Counter()
        self.history: dict[int, Counter] = {}
        self.staged: list[tuple[int, list, set]] = []
        self.amount = 0

    def teardown(self):
        shutil.rmtree(getattr(self, "folder", ""), ignore_errors=True)

    def fresh(self, rows):
        self.amount += 1
        return [(key, region, self.amount) for key, region in rows]

    @rule(rows=ROWS)
    def append_to_target(self, rows):
        if rows:
            full = self.fresh(rows)
            self.table.append(rows_table(full))
            self.published.update(full)

    @rule(rows=ROWS, gone=st.lists(KEYS, max_size=3))
    def stage(self, rows, gone):
        if not rows and not gone:
            return
        full = self.fresh(rows)
        result = self.table.stage(
            upserts=rows_table(full), deletes=pa.table({"id": pa.array(gone, pa.int64())})
        )
        self.staged.append(
            (result.snapshot.snapshot_id, full, {row[0] for row in full} | set(gone))
        )

    @precondition(lambda self: self.table.refresh().state.head("staging") is not None)
    @rule(limit=st.none() | st.integers(1, 3))
    def resolve(self, limit):
        report = resolve(self.table, limit=limit)
        covered = self.staged[:limit] if limit else self.staged
        assert report.staged_snapshots == len(covered)
        for _, full, keys in covered:
            for row in [row for row in self.published if row[0] in keys]:
                del self.published[row]
            self.published.update(full)
        self.staged = self.staged[len(covered) :]
        if covered:
            assert marker_of(self.table.state.head("main")) == covered[-1][0]
        again = resolve(self.table, limit=limit) if not self.staged else None
        assert again is None or again.staged_snapshots == 0

    @precondition(lambda self: self.table.refresh().state.head("staging") is not None)
    @rule(rows=ROWS, times=st.integers(1, 2))
    def resolve_while_others_commit(self, rows, times):
        points = self.table.environment.runtime.fail_points
        competitor = self.catalog.load_table("t.rows")

        def commit(name):
            nonlocal times
            times -= 1
            if times <= 0:
                points.armed.pop(name)
            if rows:
                full = self.fresh(rows)
                competitor.append(rows_table(full))
                self.published.update(full)

        points.armed["resolve.after_dv_write"] = commit
        try:
            self.resolve(limit=None)
        finally:
            points.armed.clear()

    @rule()
    def lose_the_index(self):
        shutil.rmtree(index_folder(self.table.environment, self.table.state, "main"), True)

    @invariant()
    def main_equals_the_model(self):
        if not hasattr(self, "table"):
            return
        assert as_counter(self.table.scan().to_arrow()) == self.published
        goal("G2", operations=1)
        head = self.table.state.head("main")
        if head is not None:
            self.history.setdefault(head.snapshot_id, Counter(self.published))

    @invariant()
    def staging_merges_on_read(self):
        if not hasattr(self, "table") or self.table.refresh().state.head("staging") is None:
            return
        if not self.staged:
            return
        found = {row["id"]: row for row in self.table.scan(branch="staging").to_arrow().to_pylist()}
        for key in {key for _, _, keys in self.staged for key in keys}:
            newest = next(
                (
                    row
                    for _, full, keys in reversed(self.staged)
                    if key in keys
                    for row in full
                    if row[0] == key
                ),
                None,
            )
            last_keys = next(full for _, full, keys in reversed(self.staged) if key in keys)
            if any(row[0] == key for row in last_keys):
                assert tuple(found[key].values()) == newest
            else:
                assert key not in found

    def check_every_snapshot(self):
        for snapshot_id, rows in self.history.items():
            scan = self.table.scan(snapshot_id=snapshot_id)
            assert as_counter(scan.to_arrow()) == rows
            paths = [task.dv.data_file.referenced_data_file for task in scan.plan.tasks if task.dv]
            assert len(paths) == len(set(paths))
            assert not any(
                task.equality_deletes or task.position_deletes for task in scan.plan.tasks
            )
            assert all(task.entry.data_file.content == FileContent.DATA for task in scan.plan.tasks)


class CheckedMachine(ResolverMachine):
    def teardown(self):
        if hasattr(self, "table"):
            self.check_every_snapshot()
            if any(Path(self.folder).rglob("CURRENT")):
                assert verify(self.table).report.is_sound
        super().teardown()


@pytest.mark.parametrize(
    "partition_by", [(), ("bucket(2, id)",), ("region",)], ids=["none", "by-key", "by-other"]
)
def test_resolver_equals_the_model(partition_by):
    machine = type("Machine", (CheckedMachine,), {"partition_by": partition_by})
    run_state_machine_as_test(
        machine, settings=settings(max_examples=20, stateful_step_count=15, deadline=None)
    )
