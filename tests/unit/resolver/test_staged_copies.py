"""Staged snapshots that remove data files: copy-on-write statements on the staging branch."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pytest
from pyiceberg.table.update import RemoveSnapshotsUpdate

from maintenance.tasks.compact import compact
from maintenance.tasks.options import CompactOptions
from resolver import resolve
from resolver.cursor import LostCursorError
from resolver.index_check import verify
from tableformat import open_catalog
from tableformat.commit.branch_history import branch_history
from tableformat.errors import UnsupportedError
from tests.support.foreign_tool import ForeignTool
from tests.support.staged_tables import StagedTable, keys

SCHEMA = pa.schema([("id", pa.int64()), ("region", pa.string()), ("amount", pa.int64())])
BASE = [(1, "eu", 1), (2, "eu", 2), (3, "eu", 3)]


class World:
    """A table whose staging branch another tool writes to by copying files."""

    def __init__(self, folder, publish: str) -> None:
        catalog = open_catalog("local", warehouse=f"{folder}/warehouse")
        self.table = catalog.create_table("t.rows", SCHEMA, primary_key=["id"])
        self.table.set_properties({"icefold.publish": publish})
        self.foreign = ForeignTool(folder / "warehouse", "t", "rows")
        self.append(*BASE)

    def append(self, *rows) -> None:
        self.table.append(self.rows(*rows))

    def rows(self, *rows) -> pa.Table:
        return pa.Table.from_pylist(
            [dict(zip(SCHEMA.names, row, strict=True)) for row in rows], SCHEMA
        )

    def stage(self, *rows) -> None:
        self.table.refresh().stage(self.rows(*rows))

    def copy(self, change) -> None:
        """A statement on staging: by key the new amount, None deletes."""

        def new(row):
            key, region, amount = row.values
            to = change.get(key, amount)
            return None if to is None else (key, region, to)

        self.foreign.copy_on_write("staging", new)

    def resolve(self, **options):
        return resolve(self.table.refresh(), **options)

    def ids(self, branch: str = "main") -> dict[int, int]:
        return {row.values[0]: row.row_id for row in self.foreign.rows(branch)}

    def amounts(self, branch: str = "main") -> dict[int, int]:
        rows = [row.values for row in self.foreign.rows(branch)]
        assert len({row[0] for row in rows}) == len(rows), f"a key has two rows: {rows}"
        return {key: amount for key, _, amount in rows}

    def data_files(self) -> set[str]:
        return {e.path for e in self.foreign.live(self.foreign.head("main")) if e.is_data}

    def check_index(self) -> None:
        assert verify(self.table.refresh()).report.is_sound


@pytest.fixture(params=["link", "rewrite"])
def world(request, tmp_path):
    return World(tmp_path, request.param)


@pytest.mark.parametrize("limit", [1, None])
def test_file_of_main_leaves_and_its_copy_arrives(world, limit):
    before, ids = world.data_files(), world.ids()
    world.stage((9, "eu", 9))
    world.copy({1: 10, 2: None})
    world.stage((3, "eu", 30))
    for _ in range(3 if limit else 1):
        world.resolve(limit=limit)
    assert world.amounts() == {1: 10, 3: 30, 9: 9}
    assert not before & world.data_files()
    assert world.ids()[1] == ids[1]
    world.check_index()
    world.stage((1, "eu", 100), (3, "eu", 300))  # through the index
    world.resolve()
    assert world.amounts() == {1: 100, 3: 300, 9: 9}
    world.check_index()


@pytest.mark.parametrize("limit", [1, None])
def test_copy_of_a_file_that_is_staged_itself_is_published_once(world, limit):
    world.stage((1, "eu", 10), (5, "eu", 50))
    world.copy({5: 51, 2: None})
    world.copy({5: 52})
    shown = world.ids("staging")
    for _ in range(3 if limit else 1):
        world.resolve(limit=limit)
    assert world.amounts() == {1: 10, 3: 3, 5: 52}
    if limit is None:
        assert world.ids()[5] == shown[5]
    world.stage((5, "eu", 53))
    world.resolve()
    assert world.amounts() == {1: 10, 3: 3, 5: 53}
    world.check_index()


def test_copy_that_changes_no_row_brings_its_ids_where_main_is_rolled_back_behind_it(world):
    world.stage((5, "eu", 5), (6, "eu", 6))
    staged = {row.path for row in world.foreign.rows("staging") if row.values[0] == 5}
    world.foreign.copy_on_write("staging", lambda row: row.values, paths=staged)
    world.resolve(limit=1)
    before = world.foreign.head()
    world.resolve()
    published = world.ids()
    assert world.foreign.head("staging") == world.foreign.head() != before
    world.table.refresh().refs.rollback(snapshot_id=before)
    world.stage((7, "eu", 7))
    world.resolve()
    assert {key: row_id for key, row_id in world.ids().items() if key != 7} == published
    world.check_index()


def test_rows_that_were_deleted_before_the_copy_stay_deleted(world):
    world.stage((1, "eu", 10))  # deletes the row of main that a copy of its file leaves out
    world.resolve()
    two = [row for row in world.foreign.rows("staging") if row.values[0] == 2]
    world.foreign.delete_rows("staging", two)
    world.copy({3: 30})
    world.resolve(limit=1)
    world.resolve()
    assert world.amounts() == {1: 10, 3: 30}
    world.check_index()


def test_delete_of_all_rows_of_a_file_reaches_them_wherever_they_went(world):
    """No row is copied, so nothing can come back: staged changes are the newest."""
    world.stage((9, "eu", 9))
    world.copy({1: None, 2: None, 3: None})
    world.append((4, "eu", 4))
    compact(world.table.refresh(), CompactOptions(rewrite_all=True))
    world.table.refresh().update({"amount": "7"}, "id = 2")
    world.resolve()
    assert world.amounts() == {4: 4, 9: 9}
    world.check_index()


@pytest.mark.parametrize("keeps", [True, False])
def test_copy_follows_a_file_that_was_only_compacted(world, keeps):
    world.stage((9, "eu", 9))
    world.copy({1: 10})
    world.append((4, "eu", 4))
    if keeps:
        compact(world.table.refresh(), CompactOptions(rewrite_all=True))
    else:
        world.foreign.rewrite(keep_row_ids=False)
    world.resolve()
    assert world.amounts() == {1: 10, 2: 2, 3: 3, 4: 4, 9: 9}
    world.check_index()


def deleted(world) -> None:
    world.table.refresh().delete("id = 2")


def deleted_by_copying(world) -> None:
    world.table.refresh().delete("id = 2", mode="copy-on-write")


def updated(world) -> None:
    world.table.refresh().update({"amount": "7"}, "id = 2")


def compacted_and_updated(world) -> None:
    world.append((4, "eu", 4))
    compact(world.table.refresh(), CompactOptions(rewrite_all=True))
    updated(world)


def updated_and_compacted(world) -> None:
    updated(world)
    compact(world.table.refresh(), CompactOptions(rewrite_all=True))


def deleted_by_key(world) -> None:
    world.foreign.commit("main", "delete", add=world.foreign.key_deletes([2]))


CHANGES = [
    deleted,
    deleted_by_copying,
    updated,
    compacted_and_updated,
    updated_and_compacted,
    deleted_by_key,
]


@pytest.mark.parametrize("meanwhile", CHANGES)
def test_copy_of_a_row_that_main_has_changed_since_is_refused(world, meanwhile):
    world.stage((9, "eu", 9))
    world.copy({1: 10})
    meanwhile(world)
    was = world.amounts()
    with pytest.raises(UnsupportedError, match="would bring these back") as refused:
        world.resolve()
    assert "\n" not in str(refused.value)
    assert world.amounts() == was
    world.resolve(limit=1)  # what was staged before it goes on
    assert world.amounts() == was | {9: 9}


@pytest.mark.parametrize("is_compacted", [True, False])
def test_copy_of_a_row_of_before_a_publish_is_refused(world, is_compacted):
    """Staging was moved back to the snapshot of main before it: the copy has the older row."""
    before = world.foreign.head("main")
    world.stage((1, "eu", 10))
    world.resolve()
    if is_compacted:
        compact(world.table.refresh(), CompactOptions(rewrite_all=True))
    world.foreign.set_branch("staging", before)
    world.copy({3: 30})
    with pytest.raises(UnsupportedError, match="would bring these back"):
        world.resolve(from_snapshot=before)
    assert world.amounts() == {1: 10, 2: 2, 3: 3}


def test_copy_is_refused_where_main_deletes_a_row_within_the_cycle(world):
    world.stage((9, "eu", 9))
    world.copy({1: 10})
    points = world.table.environment.runtime.fail_points

    def act(_: str) -> None:
        points.armed.clear()
        deleted_by_key(world)

    points.armed["resolve.after_dv_write"] = act
    with pytest.raises(UnsupportedError, match="would bring these back"):
        world.resolve()
    assert world.amounts() == {1: 1, 3: 3}


@pytest.mark.parametrize("granularity", ["partition", "file"])
@pytest.mark.parametrize("meanwhile", ["nothing", "delete", "compact"])
def test_copy_on_v2(tmp_path, granularity, meanwhile):
    staged = StagedTable(
        tmp_path, properties={"format-version": "2", "write.delete.granularity": granularity}
    )
    staged.table.append(staged.rows((1, "eu", "a"), (2, "eu", "b"), (3, "eu", "c")))
    staged.table.stage(deletes=keys(2))
    [task] = staged.tasks("staging")
    staged.commit(data=staged.data_files((1, "eu", "new"), (3, "eu", "c")), removed=[task.entry])
    staged.table.stage(deletes=keys(3))
    resolve(staged.table, limit=1)
    if meanwhile == "delete":
        staged.commit(branch="main", deletes=staged.equality_deletes(keys(1)))
        with pytest.raises(UnsupportedError, match="would bring these back"):
            resolve(staged.table)
        return
    if meanwhile == "compact":
        staged.rewrite()
    for _ in range(2):
        resolve(staged.table, limit=1)
    assert staged.published() == Counter([(1, "eu", "new")])
    live = {each.entry.data_file.file_path for each in staged.tasks()}
    assert meanwhile == "compact" or task.entry.data_file.file_path not in live
    staged.table.stage(staged.rows((1, "eu", "newer")))
    resolve(staged.table)
    assert staged.published() == Counter([(1, "eu", "newer")])


@pytest.mark.parametrize("copied", [1, 2])
def test_equality_deletes_leave_staging_with_the_last_file_that_they_reach(tmp_path, copied):
    """So Java does, whose statements take those along that are older than all files."""
    staged = StagedTable(tmp_path)
    staged.table.append(staged.rows((1, "eu", "a"), (2, "eu", "b")))
    staged.table.append(staged.rows((3, "eu", "c")))
    staged.table.stage(deletes=keys(2))
    tasks = sorted(staged.tasks("staging"), key=lambda each: each.entry.sequence_number)[:copied]
    kept = [(1, "eu", "a"), (3, "eu", "c")]
    removed = [*(each.entry for each in tasks), *tasks[0].equality_deletes]
    staged.commit(data=staged.data_files(*kept[:copied]), removed=removed)
    if copied == 1:
        with pytest.raises(UnsupportedError, match="removes equality deletes that reach rows"):
            resolve(staged.table)
        return
    resolve(staged.table)
    assert staged.published() == Counter(kept)


@pytest.mark.parametrize("compacted", [False, True])
def test_state_of_staging_that_lacks_a_file_of_main_is_refused(world, compacted):
    """Without the log nothing says that the file was removed, and its rows would stay."""
    world.stage((9, "eu", 9))
    world.copy({1: 10})
    world.stage((8, "eu", 8))
    if compacted:
        world.append((4, "eu", 4))
        compact(world.table.refresh(), CompactOptions(rewrite_all=True))
    forget(world)
    with pytest.raises(UnsupportedError, match="the log that says which has expired"):
        world.resolve(from_staging_state=True)


@pytest.mark.parametrize("change", [{1: 10}, {1: None, 2: None, 3: None}])
def test_state_of_staging_is_refused_where_what_is_left_of_its_log_removed_files(world, change):
    """Main has rewritten the file, too, and nothing of its history is left."""
    world.stage((9, "eu", 9))
    world.copy(change)
    compact(world.table.refresh(), CompactOptions(rewrite_all=True))
    world.append((4, "eu", 4))
    state = world.table.refresh().state
    head = state.head("main")
    gone = [each.snapshot_id for each in branch_history(state, "main") if each != head]
    world.table.environment.catalog.commit(state, [RemoveSnapshotsUpdate(snapshot_ids=gone)])
    with pytest.raises(LostCursorError, match="--from-staging-state"):
        world.resolve()
    with pytest.raises(UnsupportedError, match="the log that says which has expired"):
        world.resolve(from_staging_state=True)
    assert world.amounts() == {1: 1, 2: 2, 3: 3, 4: 4}


def test_state_of_staging_with_copies_of_staged_files_is_published(world):
    world.stage((9, "eu", 9))
    nine = {row.path for row in world.foreign.rows("staging") if row.values[0] == 9}
    world.copy({9: 90})
    world.copy({9: 91})
    assert not nine & {row.path for row in world.foreign.rows("staging")}
    world.append((4, "eu", 4))
    forget(world)
    world.resolve(from_staging_state=True)
    assert world.amounts() == {1: 1, 2: 2, 3: 3, 4: 4, 9: 91}


def forget(world) -> None:
    """Another tool expires the staged snapshots below the head."""
    staging = world.foreign.table().ancestors(world.foreign.head("staging"))
    gone = [each["snapshot-id"] for each in staging][1:3]
    state = world.table.refresh().state
    world.table.environment.catalog.commit(state, [RemoveSnapshotsUpdate(snapshot_ids=gone)])
