"""A random history on real components beside a dict: every snapshot of main equals the model.

Local files, a SQLite catalog and lock, Parquet, Avro and Puffin bytes, a RocksDB index. Whoever
dies goes on as a new process would: with nothing but what is stored. At the end of an example
DuckDB reads every retained snapshot of main, and the checker with its own parsers the files.
"""

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from maintenance.tasks.compact import compact
from maintenance.tasks.drop_dead_deletes import drop_dead_deletes
from maintenance.tasks.expire import expire
from maintenance.tasks.options import (
    CompactOptions,
    ExpireOptions,
    RemoveOrphansOptions,
    RewriteManifestsOptions,
    RewriteVectorsOptions,
)
from maintenance.tasks.remove_orphans import remove_orphans
from maintenance.tasks.rewrite_manifests import rewrite_manifests
from maintenance.tasks.rewrite_vectors import rewrite_vectors
from resolver import resolve
from resolver.cursor import cursor_of
from resolver.index_check import verify
from resolver.index_keeper import index_folder
from tableformat import open_catalog
from tableformat.commit.branch_history import ancestors
from tableformat.commit.expiry_plan import ExpiryPolicy
from tableformat.commit.refs import rollback
from tests.support.goals import goal
from tests.support.interop_engines import duckdb_connection
from tests.support.memory_disk import memory_disk
from tests.support.table_checker import check_table

NAME = "t.rows"
SCHEMA = pa.schema([("id", pa.int64()), ("region", pa.string()), ("amount", pa.int64())])
KEYS = st.integers(0, 7)
REGIONS = st.sampled_from(["eu", "us", None])
ROWS = st.lists(st.tuples(KEYS, REGIONS), max_size=5, unique_by=lambda row: row[0])
GONE = st.lists(KEYS, max_size=3)
MODES = st.sampled_from(["merge-on-read", "copy-on-write"])
COMPACTION = CompactOptions(rewrite_all=True, input_files_min=1)
DEATHS = {
    "stage": ("stage.before_commit", "catalog.before_swap", "catalog.after_swap"),
    "resolve": (
        "resolve.after_plan",
        "resolve.after_match",
        "index.prepare.written",
        "resolve.after_dv_write",
        "commit.before_swap",
        "catalog.after_swap",
        "commit.after_swap",
        "resolve.after_publish",
        "index.apply.before",
        "resolve.before_trim",
        "resolve.after_trim",
    ),
    "compact": ("compact.after_write", "commit.before_swap", "catalog.after_swap"),
}

Row = tuple[int, str | None, int]


class Killed(BaseException):
    """The process is gone."""


@dataclass(frozen=True)
class Version:
    """A snapshot of main: its rows, and how many staged commits are in them."""

    rows: Counter
    published: int


def rows_table(rows):
    columns = list(zip(*rows, strict=True)) or [(), (), ()]
    return pa.table(dict(zip(SCHEMA.names, map(list, columns), strict=True)), schema=SCHEMA)


def as_counter(table):
    return Counter(tuple(row.values()) for row in table.to_pylist())


class Machine(RuleBasedStateMachine):
    """`rows` and `staged` are the model: a multiset, and what each staged commit brought."""

    partition_by: tuple[str, ...] = ()
    properties: Mapping[str, str] = {}

    @initialize()
    def create(self):
        self.folder = tempfile.mkdtemp(prefix="icefold-machine-", dir=memory_disk())
        self.table = self.catalog().create_table(
            NAME,
            SCHEMA,
            primary_key=["id"],
            partition_by=self.partition_by,
            properties=self.properties,
        )
        self.rows: Counter = Counter()
        self.published = 0
        self.staged: list[tuple[int, list[Row], set[int]]] = []
        self.versions: dict[int, Version] = {}
        self.amount = 0
        self.batches = 0
        self.has_expired = self.was_rolled_back = False

    def catalog(self):
        return open_catalog("local", warehouse=f"{self.folder}/warehouse")

    def restart(self):
        """Nothing is left but what is stored."""
        self.table = self.catalog().load_table(NAME)

    @property
    def is_v2(self):
        return "format-version" in self.properties

    def head(self, branch="main"):
        head = self.table.refresh().state.head(branch)
        return None if head is None else head.snapshot_id

    def fresh(self, rows):
        self.amount += 1
        return [(key, region, self.amount) for key, region in rows]

    def note_main(self):
        """What main is now; a compaction may have made it in several commits."""
        for snapshot in ancestors(self.table.refresh().state.metadata, self.head()):
            if snapshot.snapshot_id in self.versions:
                return
            self.versions[snapshot.snapshot_id] = Version(Counter(self.rows), self.published)

    def note_staged(self, full, gone):
        self.staged.append((self.head("staging"), full, {row[0] for row in full} | set(gone)))

    def note_published(self, until):
        for _, full, keys in self.staged[self.published : until]:
            for row in [row for row in self.rows if row[0] in keys]:
                del self.rows[row]
            self.rows.update(full)
        self.published = until
        self.note_main()

    @rule(rows=ROWS)
    def append(self, rows):
        if rows:
            full = self.fresh(rows)
            self.table.append(rows_table(full))
            self.rows.update(full)
            self.note_main()

    @rule(rows=ROWS, gone=GONE, dies=st.none() | st.sampled_from(DEATHS["stage"]))
    def stage(self, rows, gone, dies):
        if not rows and not gone:
            return
        full, before = self.fresh(rows), self.head("staging")
        deletes = pa.table({"id": pa.array(gone, pa.int64())})
        self.until(dies, lambda: self.table.stage(upserts=rows_table(full), deletes=deletes))
        assert dies or self.head("staging") != before
        if self.head("staging") != before:
            self.note_staged(full, gone)

    @rule(rows=ROWS, dies=st.booleans())
    def write_batch_until_it_is_there(self, rows, dies):
        """A batch whose answer was lost is given again, and is there once."""
        if not rows:
            return
        full, before = self.fresh(rows), self.head("staging")
        events = rows_table(full).append_column("op", [["+U"] * len(full)])

        def write():
            return self.table.write_changes(
                events, options={"kind-column": "op"}, query_id="q", batch_id=self.batches
            )

        self.until("catalog.after_swap" if dies else None, write)
        is_there = self.head("staging") != before  # else it died preparing the table for deletes
        assert write().repeated == is_there
        self.batches += 1
        self.note_staged(full, [])

    @precondition(lambda self: self.rows and not self.is_v2)
    @rule(below=KEYS, mode=MODES)
    def delete(self, below, mode):
        self.table.delete(f"id < {below} and region = 'eu'", mode=mode)
        for row in [row for row in self.rows if row[0] < below and row[1] == "eu"]:
            del self.rows[row]
        self.note_main()

    @precondition(lambda self: self.rows and not self.is_v2)
    @rule(key=KEYS, region=REGIONS, mode=MODES)
    def update(self, key, region, mode):
        literal = "NULL" if region is None else f"'{region}'"
        self.table.update({"region": literal, "amount": "amount + 1"}, f"id = {key}", mode=mode)
        after: Counter = Counter()
        for row, count in self.rows.items():
            after[(key, region, row[2] + 1) if row[0] == key else row] += count
        self.rows = after
        self.note_main()

    @precondition(lambda self: self.staged)
    @rule(limit=st.none() | st.integers(1, 3), dies=st.none() | st.sampled_from(DEATHS["resolve"]))
    def resolve(self, limit, dies):
        waiting = len(self.staged) - self.published
        report = self.until(dies, lambda: resolve(self.table, limit=limit))
        if report is not None:
            assert report.staged_snapshots == min(waiting, limit or waiting)
            self.note_published(self.published + report.staged_snapshots)
            return
        cursor = cursor_of(self.table.refresh().state, "main")
        ids = [snapshot_id for snapshot_id, _, _ in self.staged]
        until = 0 if cursor is None else ids.index(cursor) + 1
        assert until >= self.published
        self.note_published(until)

    @precondition(lambda self: self.published < len(self.staged))
    @rule(rows=ROWS, times=st.integers(1, 2))
    def resolve_while_others_append(self, rows, times):
        competitor = self.catalog().load_table(NAME)
        points = self.table.environment.runtime.fail_points

        def commit(name):
            nonlocal times
            times -= 1
            if times <= 0:
                points.armed.pop(name)
            if rows:
                full = self.fresh(rows)
                competitor.append(rows_table(full))
                self.rows.update(full)
                self.note_main()

        points.armed["resolve.after_dv_write"] = commit
        try:
            resolve(self.table)
        finally:
            points.armed.clear()
        self.note_published(len(self.staged))

    @precondition(lambda self: self.rows)
    @rule(dies=st.none() | st.sampled_from(DEATHS["compact"]))
    def compact(self, dies):
        report = self.until(dies, lambda: compact(self.table, COMPACTION))
        assert report is None or not report.errors
        self.note_main()

    @precondition(lambda self: self.rows)
    @rule(every=st.booleans())
    def rewrite_vectors(self, every):
        rewrite_vectors(self.table, RewriteVectorsOptions(small_files_min=2, rewrite_all=every))
        self.note_main()

    @precondition(lambda self: self.rows)
    @rule()
    def drop_dead_deletes(self):
        drop_dead_deletes(self.table)
        self.note_main()

    @precondition(lambda self: self.rows)
    @rule()
    def rewrite_manifests(self):
        rewrite_manifests(self.table, RewriteManifestsOptions(rewrite_all=True))
        self.note_main()

    # After both the position on staging may be past proving, and the resolver stops (R18).
    @precondition(lambda self: self.versions and not self.was_rolled_back)
    @rule()
    def expire(self):
        policy = ExpiryPolicy(max_snapshot_age_ms=0, min_snapshots_to_keep=1)
        expire(self.table, ExpireOptions(policy=policy))
        self.has_expired = True

    @rule()
    def remove_orphans(self):
        remove_orphans(self.table, RemoveOrphansOptions(older_than_ms=1, older_than_min_ms=0))

    @precondition(lambda self: len(self.versions) > 1 and not self.has_expired)
    @rule(back=st.integers(1, 4))
    def roll_back(self, back):
        """Staged changes published since then are published again; the rest stays away."""
        by_id = {each.snapshot_id: each for each in self.table.refresh().state.metadata.snapshots}
        goal_id = self.head()
        for _ in range(back):
            goal_id = by_id[goal_id].parent_snapshot_id or goal_id
        rollback(self.table.environment, self.table.identifier, snapshot_id=goal_id)
        self.rows = Counter(self.versions[goal_id].rows)
        self.published = self.versions[goal_id].published
        self.was_rolled_back = True  # staging may be at what main was

    @rule(add=st.booleans())
    def change_partition_spec(self, add):
        named = {field.name for field in self.table.refresh().spec().fields}
        if add and "amount_bucket" not in named:
            self.table.update_partitioning(
                lambda edit: edit.add_field("amount", "bucket[2]", "amount_bucket")
            )
        elif not add and named:
            self.table.update_partitioning(lambda edit: edit.remove_field(sorted(named)[0]))

    @rule(damage=st.booleans())
    def lose_the_index(self, damage):
        folder = Path(index_folder(self.table.environment, self.table.state, "main"))
        runs = sorted(folder.rglob("*.run"))
        if damage and runs:
            data = bytearray(runs[0].read_bytes())
            data[len(data) // 2] ^= 1
            runs[0].write_bytes(data)
        else:
            shutil.rmtree(folder, ignore_errors=True)

    def until(self, point: str | None, work: Callable[[], object]):
        """What `work` returns; None where it died at `point`, and another process goes on."""
        if point is None:
            return work()
        points = self.table.environment.runtime.fail_points

        def die(name: str) -> None:
            raise Killed(name)

        points.armed[point] = die
        try:
            return work()
        except Killed:
            self.restart()
            return None
        finally:
            points.armed.clear()

    @invariant()
    def main_equals_the_model(self):
        if hasattr(self, "table"):
            self.table.refresh()
            assert as_counter(self.table.scan().to_arrow()) == self.rows
            goal("G2", operations=1)

    @invariant()
    def staging_merges_on_read(self):
        if not hasattr(self, "table") or self.was_rolled_back or not self.staged[self.published :]:
            return
        found: dict[int, set[Row]] = {}
        for row in as_counter(self.table.scan(branch="staging").to_arrow()):
            found.setdefault(row[0], set()).add(row)
        newest: dict[int, set[Row]] = {}
        for _, full, keys in self.staged[self.published :]:
            newest |= {key: {row for row in full if row[0] == key} for key in keys}
        for key, rows in newest.items():
            assert found.get(key, set()) == rows

    def teardown(self):
        try:
            if hasattr(self, "table"):
                self.check_what_is_stored()
        finally:
            shutil.rmtree(getattr(self, "folder", ""), ignore_errors=True)

    def check_what_is_stored(self):
        self.restart()
        self.stage(rows=[(0, "eu")], gone=[], dies=None)
        self.resolve(limit=None, dies=None)  # whatever became of the index, now it is right
        self.main_equals_the_model()
        location = self.table.metadata_location
        check_table(self.table.environment.store.get, location)
        path = location.removeprefix("file://")
        for snapshot in self.table.state.metadata.snapshots:
            version = self.versions.get(snapshot.snapshot_id)
            if version is not None:
                scan = f"iceberg_scan('{path}', snapshot_from_id={snapshot.snapshot_id})"
                rows = duckdb_connection().sql(f"SELECT id, region, amount FROM {scan}").fetchall()
                assert Counter(rows) == version.rows
        assert verify(self.table).report.is_sound
        if self.is_v2:
            self.upgrade()

    def upgrade(self):
        """Deletes of v2 hold after it, and become vectors."""
        self.table.upgrade()
        self.main_equals_the_model()
        self.stage(rows=[(1, "us")], gone=[2], dies=None)
        self.resolve(limit=None, dies=None)
        self.main_equals_the_model()
        deletes = self.table.inspect.delete_files().to_pylist()
        assert {each["file_format"] for each in deletes} <= {"PUFFIN"}
        assert verify(self.table).report.is_sound


@pytest.mark.slow
@pytest.mark.parametrize(
    "partition_by", [(), ("bucket(2, id)",), ("region",)], ids=["none", "by-key", "by-other"]
)
def test_history_on_real_components_equals_the_model(partition_by):
    run(type("OneMachine", (Machine,), {"partition_by": partition_by}), max_examples=40)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("granularity", "partition_by"),
    [("partition", ("region",)), ("file", ())],
    ids=["by-partition", "by-file"],
)
def test_history_of_a_v2_table_on_real_components_equals_the_model(granularity, partition_by):
    properties = {"format-version": "2", "write.delete.granularity": granularity}
    members = {"partition_by": partition_by, "properties": properties}
    run(type("OneMachine", (Machine,), members), max_examples=8)


def run(machine, *, max_examples):
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=max_examples,
            stateful_step_count=30,
            deadline=None,
            # Minutes of shrinking at every failure; the steps are printed and replay without it.
            phases=(Phase.explicit, Phase.reuse, Phase.generate),
        ),
    )
