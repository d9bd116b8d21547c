"""What others do between stage and resolve never loses, doubles or revives a staged change.

The other tool is written without product code; the rows of main are read without it, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table.update import RemoveSnapshotsUpdate

import tableformat as tf
from maintenance import expire
from maintenance.status import read_status
from maintenance.tasks.compact import compact
from maintenance.tasks.options import CompactOptions, ExpireOptions
from resolver import resolve
from resolver.cursor import LostCursorError
from tableformat.commit.expiry_plan import ExpiryPolicy
from tableformat.errors import NotFoundError, TableError
from tests.support.adopted_tables import Theirs
from tests.support.foreign_table import Entry
from tests.support.foreign_tool import ForeignTool, LiveRow, now_ms
from tests.support.former_metadata import delete_former_metadata
from tests.support.interruptions import interrupt
from tests.support.lying_lock import GrantAllLock
from tests.support.staged_tables import SCHEMA, keys, rows_of

EXPIRY = ExpireOptions(policy=ExpiryPolicy(max_snapshot_age_ms=0, min_snapshots_to_keep=1))
COMPACTION = CompactOptions(rewrite_all=True, input_files_min=1)
BASE = [(key, "eu", "base") for key in range(1, 5)]
IN_THE_CYCLE = ["resolve.after_plan", "resolve.after_match", "resolve.after_dv_write"]


@dataclass
class World:
    """A table on disk, and another tool on it."""

    table: tf.Table
    foreign: ForeignTool
    lock: GrantAllLock = field(default_factory=lambda: GrantAllLock(tokens="same"))

    def resolve(self, limit: int | None = None):
        """Beside others' maintenance: the lock is not why the rows are right."""
        return resolve(self.table, limit=limit, lock=self.lock)

    def head(self, branch: str = "main") -> int:
        head = self.foreign.head(branch)
        assert head is not None
        return head

    def data(self, branch: str = "main") -> list[Entry]:
        return [entry for entry in self.foreign.live(self.head(branch)) if entry.is_data]

    def row(self, key: int, branch: str = "staging") -> LiveRow:
        [row] = [row for row in self.foreign.rows(branch) if row.values[0] == key]
        return row

    def stage(self, *upserts, deletes=()) -> int:
        return self.table.stage(
            upserts=rows_of(*upserts) if upserts else None, deletes=keys(*deletes)
        ).snapshot.snapshot_id

    def added(self, snapshot_id: int) -> Entry:
        """The data file of a staged snapshot."""
        live = self.foreign.live(snapshot_id)
        [entry] = [each for each in live if each.is_data and each.snapshot_id == snapshot_id]
        return entry

    def compact(self) -> None:
        assert not compact(self.table, COMPACTION, lock=self.lock).errors

    def check(self, *rows) -> None:
        """Main holds these rows, in files that are there once, and no equality delete."""
        assert Counter(row.values for row in self.foreign.rows()) == Counter(rows)
        paths = Counter(entry.path for entry in self.data())
        assert max(paths.values(), default=1) == 1, f"a data file is live twice: {paths}"
        ids = Counter(row.row_id for row in self.foreign.rows())
        assert max(ids.values(), default=1) == 1, f"row ids twice: {ids}"
        live = self.foreign.live(self.head())
        assert not [entry.path for entry in live if entry.is_key_delete]
        found = self.table.scan().to_arrow().to_pylist()
        assert Counter(tuple(row.values()) for row in found) == Counter(rows)

    def resolve_all(self, *rows) -> None:
        """After one cycle main holds these rows, and nothing waits."""
        self.resolve()
        self.check(*rows)
        assert self.resolve().staged_snapshots == 0
        self.check(*rows)


def new_world(folder: Path, partition_by: tuple[str, ...] = ()) -> World:
    catalog = tf.open_catalog("local", warehouse=str(folder / "warehouse"))
    table = catalog.create_table("t.rows", SCHEMA, primary_key=["id"], partition_by=partition_by)
    table.append(rows_of(*BASE))
    return World(table, ForeignTool(folder / "warehouse", "t", "rows"))


@pytest.fixture
def world(tmp_path):
    """Keys 1 to 4 on main, in one file."""
    return new_world(tmp_path)


def without(*gone: int):
    return [row for row in BASE if row[0] not in gone]


def new(key: int, note: str = "new"):
    return (key, "us", note)


# -- half a backlog: fast-forward, and back ------------------------------------------------------


def stage_by_icefold(world: World, row, gone: int) -> int:
    return world.stage(row, deletes=[gone])


def stage_by_another(world: World, row, gone: int) -> int:
    files = world.foreign.data_files([row])
    deletes = world.foreign.key_deletes([gone, row[0]])
    return world.foreign.commit("staging", "overwrite", add=[*files, *deletes])


def move_by_icefold(world: World, snapshot_id: int, *, back: bool) -> None:
    if back:
        world.table.refs.rollback(snapshot_id=snapshot_id)
    else:
        world.table.refs.fast_forward("main", to=snapshot_id)


def move_by_another(world: World, snapshot_id: int, *, back: bool) -> None:
    world.foreign.set_branch("main", snapshot_id)


WRITERS = pytest.mark.parametrize("stage", [stage_by_icefold, stage_by_another])
MOVERS = pytest.mark.parametrize("move", [move_by_icefold, move_by_another])


@WRITERS
@MOVERS
@pytest.mark.parametrize("limit", [None, 1])
@pytest.mark.parametrize("upto", [1, 2, 3])
def test_backlog_that_main_was_forwarded_to_and_rolled_back_from_is_published_whole(
    world, stage, move, limit, upto
):
    before = world.head()
    ids = [stage(world, new(key), gone) for key, gone in [(11, 1), (12, 2), (13, 3)]]
    move(world, ids[upto - 1], back=False)
    move(world, before, back=True)
    if limit:
        assert world.resolve(limit=1).staged_snapshots == 1
        world.check(*without(1), new(11))
        world.resolve(limit=1)
        world.check(*without(1, 2), new(11), new(12))
    world.resolve_all(*without(1, 2, 3), new(11), new(12), new(13))


@WRITERS
@MOVERS
def test_forwarded_main_is_converted_in_place_and_the_rest_is_published(world, stage, move):
    first = stage(world, new(11), 1)
    stage(world, new(12), 2)
    move(world, first, back=False)
    assert Counter(r.values for r in world.foreign.rows()) == Counter([*without(1), new(11)])
    world.resolve_all(*without(1, 2), new(11), new(12))


# -- dead positions of files that left -----------------------------------------------------------


def vector(world: World, row: LiveRow) -> int:
    return world.foreign.delete_rows("staging", [row])


def position_file(world: World, row: LiveRow) -> int:
    files = world.foreign.position_deletes("staging", row.path, [row.position])
    return world.foreign.commit("staging", "delete", add=files)


def own_compaction(world: World) -> None:
    world.compact()


def foreign_compaction(world: World) -> None:
    world.foreign.rewrite(keep_row_ids=True)


def foreign_compaction_without_ids(world: World) -> None:
    world.foreign.rewrite(keep_row_ids=False)


def two_compactions(world: World) -> None:
    world.foreign.rewrite(keep_row_ids=True)
    world.compact()


REWRITES = [own_compaction, foreign_compaction, foreign_compaction_without_ids, two_compactions]


@pytest.mark.parametrize("delete", [vector, position_file])
@pytest.mark.parametrize("rewrite", REWRITES)
@pytest.mark.parametrize("when", ["before the cycle", *IN_THE_CYCLE])
def test_staged_position_finds_its_row_in_the_file_it_was_rewritten_to(
    world, delete, rewrite, when
):
    world.stage(new(9))
    delete(world, world.row(2))
    if when == "before the cycle":
        rewrite(world)
    else:
        interrupt(world.table, when, lambda: rewrite(other(world)))
    world.resolve_all(*without(2), new(9))


@pytest.mark.parametrize("rewrite", REWRITES)
@pytest.mark.parametrize("when", ["before the cycle", *IN_THE_CYCLE])
def test_staged_update_never_leaves_the_old_row_beside_the_new_one(world, rewrite, when):
    """As Spark writes it: a vector, and the new row with the id of the old one."""
    world.stage(new(9))
    world.foreign.update_rows("staging", [(world.row(2), new(2))])
    if when == "before the cycle":
        rewrite(world)
    else:
        interrupt(world.table, when, lambda: rewrite(other(world)))
    world.resolve_all(*without(2), new(2), new(9))


@pytest.mark.parametrize("delete", [vector, position_file])
@pytest.mark.parametrize("tool", ["icefold", "another"])
def test_staged_position_survives_a_copy_on_write_delete_of_other_rows(world, delete, tool):
    world.stage(new(9))
    delete(world, world.row(2))
    if tool == "icefold":
        world.table.delete("id = 3", mode="copy-on-write")
    else:
        world.foreign.rewrite(keep_row_ids=True, without=lambda row: row.values[0] == 3)
    world.resolve_all(*without(2, 3), new(9))


@pytest.mark.parametrize("mode", ["merge-on-read", "copy-on-write"])
@pytest.mark.parametrize("delete", [vector, position_file])
def test_staged_position_reaches_a_row_that_an_update_has_moved(world, delete, mode):
    world.stage(new(9))
    delete(world, world.row(2))
    world.table.update({"note": "'moved'"}, "id = 2", mode=mode)
    world.resolve_all(*without(2), new(9))


@pytest.mark.parametrize("rewrite", REWRITES)
@pytest.mark.parametrize("delete", [vector, position_file])
def test_staged_position_of_a_row_published_by_a_limited_cycle_survives_compaction(
    world, delete, rewrite
):
    world.stage(new(9), new(10))
    delete(world, world.row(9))
    world.resolve(limit=1)
    world.check(*BASE, new(9), new(10))
    rewrite(world)
    world.resolve_all(*BASE, new(10))


def staged_update(world: World, row: LiveRow) -> int:
    return world.foreign.update_rows("staging", [(row, new(row.values[0], "second"))])


@pytest.mark.parametrize("delete", [vector, position_file, staged_update])
@pytest.mark.parametrize("mode", ["merge-on-read", "copy-on-write"])
@pytest.mark.parametrize("change", ["deleted", "updated"])
def test_staged_position_of_a_published_row_that_main_has_changed_since(
    world, delete, mode, change
):
    """Its file may still be on main, and the position dead there: the row's id is known."""
    world.stage(new(11), new(12))
    delete(world, world.row(11))
    world.resolve(limit=1)
    if change == "deleted":
        world.table.delete("id = 11", mode=mode)
    else:
        world.table.update({"note": "'by main'"}, "id = 11", mode=mode)
    world.resolve_all(*BASE, new(12), *([new(11, "second")] if delete is staged_update else []))


@pytest.mark.parametrize("delete", [vector, position_file])
def test_staged_position_survives_a_rollback_past_the_compaction_that_wrote_its_file(world, delete):
    before = world.head()
    world.compact()
    world.stage(new(9))
    delete(world, world.row(2))
    world.table.refs.rollback(snapshot_id=before)
    world.resolve_all(*without(2), new(9))


@pytest.mark.parametrize("rewrite", [own_compaction, foreign_compaction])
def test_staged_position_takes_no_other_row_of_its_key(world, rewrite):
    """Twins of one key: the one with the row's id dies."""
    world.table.append(rows_of((2, "eu", "twin")))
    world.stage(new(9))
    [row] = [row for row in world.foreign.rows("staging") if row.values == (2, "eu", "twin")]
    vector(world, row)
    rewrite(world)
    world.resolve_all(*BASE, new(9))


def test_staged_position_of_a_row_that_is_gone_deletes_nothing(world):
    world.table.append(rows_of((2, "eu", "twin")))
    world.stage(new(9))
    [row] = [row for row in world.foreign.rows("staging") if row.values == (2, "eu", "twin")]
    vector(world, row)
    world.table.delete("id = 2 AND note = 'twin'")
    world.compact()
    world.resolve_all(*BASE, new(9))


@pytest.mark.parametrize("mode", ["merge-on-read", "copy-on-write"])
@pytest.mark.parametrize("when", ["after the delete was staged", "before it"])
def test_staged_position_reaches_the_row_that_came_instead(world, mode, when):
    """Staged changes come after everything that is on the target when they are published."""
    world.stage(new(9))
    if when == "before it":
        world.table.delete("id = 2", mode=mode)
    vector(world, world.row(2))
    if when != "before it":
        world.table.delete("id = 2", mode=mode)
    world.table.append(rows_of((2, "eu", "again")))
    world.resolve_all(*without(2), new(9))


@pytest.mark.parametrize("rows", [[2], [1, 2, 3, 4]])
def test_staged_update_reaches_the_row_that_came_instead(world, rows):
    world.stage(new(9))
    world.resolve()
    world.foreign.delete_rows("main", [world.row(key, "main") for key in rows])
    world.foreign.update_rows("staging", [(world.row(2), new(2))])
    world.table.append(rows_of((2, "eu", "again")))
    world.resolve_all(*without(*rows), new(2), new(9))


def test_replaced_vector_brings_only_its_new_positions(world):
    """The staged vector repeats what main's vector said; main has the row back since."""
    before = world.head()
    world.table.delete("id = 1", mode="merge-on-read")
    world.stage(new(9))
    vector(world, world.row(2))
    world.table.refs.rollback(snapshot_id=before)
    world.resolve_all(*without(2), new(9))


def test_cycle_refuses_when_the_file_of_a_staged_position_cannot_be_read_any_more(world):
    world.stage(new(9))
    row = world.row(2)
    vector(world, row)
    world.compact()
    Path(row.path.removeprefix("file://")).unlink()
    with pytest.raises(TableError, match=row.path.rsplit("/", 1)[1]):
        world.resolve()
    assert Counter(each.values for each in world.foreign.rows()) == Counter(BASE)


# -- a staged data file that is on main already --------------------------------------------------


def icefold_picks(world: World, snapshot_id: int) -> None:
    world.table.refs.cherry_pick(snapshot_id=snapshot_id)


def another_picks(world: World, snapshot_id: int) -> None:
    assert world.foreign.cherry_pick(snapshot_id) is not None


def another_adds_the_path(world: World, snapshot_id: int) -> None:
    world.foreign.add_path("main", world.added(snapshot_id))


PICKS: list[Callable[[World, int], None]] = [icefold_picks, another_picks, another_adds_the_path]
ANY_PICK = pytest.mark.parametrize("pick", PICKS)


def staged_append(world: World, *rows) -> int:
    return world.table.append(rows_of(*rows), branch="staging").snapshot.snapshot_id


@ANY_PICK
@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("limit", [None, 1])
def test_staged_append_that_was_picked_is_there_once(world, pick, which, limit):
    ids = [staged_append(world, new(11)), staged_append(world, new(12))]
    world.table.append(rows_of(new(5)))
    pick(world, ids[which])
    if limit:
        world.resolve(limit=1)
        world.check(*BASE, new(5), new(11), *([new(12)] if which else []))
    world.resolve_all(*BASE, new(5), new(11), new(12))


@ANY_PICK
@pytest.mark.parametrize("point", IN_THE_CYCLE)
def test_staged_append_that_is_picked_inside_the_cycle_is_there_once(world, pick, point):
    picked = staged_append(world, new(11))
    world.table.append(rows_of(new(5)))
    interrupt(world.table, point, lambda: pick(other(world), picked))
    world.resolve()
    world.resolve_all(*BASE, new(5), new(11))


@pytest.mark.parametrize("pick", [icefold_picks, another_adds_the_path])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_picked_upsert_keeps_its_place_in_the_order(world, pick, which):
    """Deletes of its own commit and of earlier ones do not reach it; those of later ones do."""
    ids = [
        world.stage(new(1, "first"), new(11, "first")),
        world.stage(new(1, "second"), new(12, "second"), deletes=[11]),
        world.stage(new(1, "third"), deletes=[12]),
    ]
    world.table.append(rows_of(new(5)))
    pick(world, ids[which])
    world.resolve_all(*without(1), new(5), new(1, "third"))


@ANY_PICK
def test_rows_that_main_has_deleted_of_a_picked_file_stay_deleted(world, pick):
    picked = staged_append(world, new(11), new(12))
    world.table.append(rows_of(new(5)))
    pick(world, picked)
    world.table.delete("id = 11", mode="merge-on-read")
    world.resolve_all(*BASE, new(5), new(12))


@ANY_PICK
@pytest.mark.parametrize(
    "rewrite", [own_compaction, foreign_compaction, foreign_compaction_without_ids]
)
def test_picked_file_that_was_compacted_is_not_added_again(world, pick, rewrite):
    picked = staged_append(world, new(11), new(12))
    staged_append(world, new(13))
    world.table.append(rows_of(new(5)))
    pick(world, picked)
    rewrite(world)
    expect_or_refuse(world, [*BASE, new(5), new(11), new(12), new(13)])


@pytest.mark.parametrize(
    "rewrite", [own_compaction, foreign_compaction, foreign_compaction_without_ids]
)
def test_row_of_a_picked_upsert_that_was_compacted_keeps_its_place(world, rewrite):
    staged = world.stage(new(1), new(11))
    world.stage(deletes=[11])
    world.table.append(rows_of(new(5)))
    another_adds_the_path(world, staged)
    rewrite(world)
    expect_or_refuse(world, [*without(1), new(5), new(1)])


@ANY_PICK
def test_picked_file_that_was_deleted_on_main_is_not_added_again(world, pick):
    picked = staged_append(world, new(11), new(12))
    world.table.append(rows_of(new(5)))
    pick(world, picked)
    world.table.delete("id = 11 OR id = 12")
    world.resolve_all(*BASE, new(5))


@ANY_PICK
@pytest.mark.parametrize("mode", ["merge-on-read", "copy-on-write"])
@pytest.mark.parametrize("gone", ["id = 11 OR id = 12", "id = 11"], ids=["file", "row"])
def test_staged_update_of_a_picked_row_that_main_has_deleted_is_published(world, pick, mode, gone):
    """The history that tells the row's id on main is all there: no reason to refuse."""
    picked = staged_append(world, new(11), new(12))
    world.foreign.update_rows("staging", [(world.row(11), new(11, "second"))])
    world.table.append(rows_of(new(5)))
    pick(world, picked)
    world.table.delete(gone, mode=mode)
    rest = [] if "12" in gone else [new(12)]
    world.resolve_all(*BASE, new(5), new(11, "second"), *rest)


@pytest.mark.parametrize("pick", [icefold_picks, another_adds_the_path])
@pytest.mark.parametrize("mode", ["merge-on-read", "copy-on-write"])
@pytest.mark.parametrize("others", [False, True])
def test_row_of_a_picked_upsert_that_main_has_updated_keeps_its_place(world, pick, mode, others):
    """The upsert's own delete does not reach it, whatever file main has moved it to."""
    more = [new(11)] if others else []
    picked = world.stage(new(1), *more)
    world.table.append(rows_of(new(5)))
    pick(world, picked)
    world.table.update({"note": "'moved'"}, "id = 1 and region = 'us'", mode=mode)
    world.resolve_all(*without(1), new(5), new(1, "moved"), *more)


@ANY_PICK
@pytest.mark.parametrize("mode", ["merge-on-read", "copy-on-write"])
def test_staged_position_reaches_a_picked_row_that_main_has_updated(world, pick, mode):
    picked = staged_append(world, new(11), new(12))
    vector(world, world.row(11))
    world.table.append(rows_of(new(5)))
    pick(world, picked)
    world.table.update({"note": "'moved'"}, "id = 11", mode=mode)
    world.resolve_all(*BASE, new(5), new(12))


@pytest.mark.parametrize("rewrite", REWRITES)
def test_staged_position_in_a_file_that_main_was_forwarded_to_survives_compaction(world, rewrite):
    """Main has the file as staging has it, with the same row ids."""
    staged = world.stage(new(9), new(10))
    world.table.refs.fast_forward("main", to=staged)
    vector(world, world.row(9))
    rewrite(world)
    world.resolve_all(*BASE, new(10))


def test_lost_row_takes_no_picked_row_of_a_later_place(world):
    world.stage(new(9))
    vector(world, world.row(2))
    later = staged_append(world, new(2))
    world.table.append(rows_of(new(5)))
    icefold_picks(world, later)
    world.table.delete("id = 2 and region = 'eu'", mode="copy-on-write")
    world.resolve_all(*without(2), new(5), new(2), new(9))


@pytest.mark.parametrize("limit", [None, 1])
@pytest.mark.parametrize("mode", [None, "merge-on-read", "copy-on-write"])
def test_deletes_that_come_with_a_second_naming_do_not_reach_its_rows(world, limit, mode):
    files = world.foreign.data_files([new(1), new(11)])
    for _ in range(2):
        deletes = world.foreign.key_deletes([1, 11])
        world.foreign.commit("staging", "append", add=[*files, *deletes])
    world.table.append(rows_of(new(5)))
    row = new(1)
    if limit:
        world.resolve(limit=1)
    if limit and mode:
        world.table.update({"note": "'moved'"}, "id = 1", mode=mode)
        row = new(1, "moved")
    world.resolve_all(*without(1), new(5), row, new(11))


@pytest.mark.parametrize("limit", [None, 1])
@pytest.mark.parametrize("deleted_between", [False, True])
def test_data_file_of_two_staged_snapshots_is_published_once_at_the_first_place(
    world, limit, deleted_between
):
    files = world.foreign.data_files([new(11), new(12)])
    world.foreign.commit("staging", "append", add=files)
    if deleted_between:
        world.stage(deletes=[11])
    world.foreign.commit("staging", "append", add=files)
    world.table.append(rows_of(new(5)))
    for _ in range(2 if limit else 0):
        world.resolve(limit=1)
    world.resolve_all(*BASE, new(5), *([] if deleted_between else [new(11)]), new(12))


def test_repeat_of_an_expired_commit_takes_no_effect_however_little_of_it_is_left(world):
    """Its other file had died before the publish; the one that main has says what it is."""
    files = [*world.foreign.data_files([new(11)]), *world.foreign.data_files([new(12)])]
    deletes = world.foreign.key_deletes([11, 12, 1])
    first = world.foreign.commit("staging", "overwrite", add=[*files, *deletes])
    world.stage(deletes=[12])
    world.resolve()
    world.table.append(rows_of((1, "eu", "again")))
    world.foreign.commit("staging", "overwrite", add=[*files, *deletes])
    expire(world.table, EXPIRY, lock=world.lock)
    assert first not in world.foreign.table().by_id
    world.resolve_all(*without(1), (1, "eu", "again"), new(11))


@pytest.mark.parametrize("point", ["resolve.after_plan", "resolve.after_read"])
def test_cycle_beside_a_publish_that_expires_within_it_publishes_nothing_again(world, point):
    """The planned head is gone with the publish; another tool's commit is all that main has."""
    world.stage(new(9), deletes=[2])

    def publish_and_forget():
        beside = other(world)
        beside.stage(new(10))
        beside.resolve(limit=1)
        world.foreign.append([(2, "eu", "again")])
        world.foreign.expire(older_than_ms=now_ms(), retain_last=1)

    world.table.append(rows_of(new(5)))
    world.foreign.append([new(6)])
    interrupt(world.table, point, publish_and_forget)
    with pytest.raises(TableError, match="cannot tell which staged snapshots were published"):
        world.resolve()
    world.check(*without(2), new(5), new(6), new(9), (2, "eu", "again"))


def test_repeat_whose_rows_had_all_died_before_the_publish_takes_no_effect(world):
    """It is staged while the first one waits; the publish leaves its file out."""
    files = world.foreign.data_files([new(11)])
    deletes = world.foreign.key_deletes([1])
    world.foreign.commit("staging", "overwrite", add=[*files, *deletes])
    world.stage(new(1), deletes=[11])
    world.foreign.commit("staging", "overwrite", add=[*files, *deletes])
    world.resolve(limit=2)
    world.check(*without(1), new(1))
    expire(world.table, EXPIRY, lock=world.lock)
    world.resolve_all(*without(1), new(1))


@pytest.mark.parametrize("with_rows", [True, False])
@pytest.mark.parametrize("when", [None, "resolve.before_dv_write"])
def test_repeated_deletes_do_not_reach_rows_that_came_since(world, when, with_rows):
    """Whether these came before the cycle or while it ran. The repeated rows have all died."""
    deletes = world.foreign.key_deletes([1, 11])
    files = world.foreign.data_files([new(11)]) if with_rows else []
    for _ in range(2):
        world.foreign.commit("staging", "overwrite", add=[*files, *deletes])
        world.stage(deletes=[2, 11])
    world.resolve(limit=2)

    def others_append():
        world.foreign.append([(1, "eu", "again"), new(20)])

    if when is None:
        others_append()
    else:
        world.table.append(rows_of((2, "eu", "again")))
        interrupt(world.table, when, others_append)
    world.resolve_all(*without(1, 2), (1, "eu", "again"), new(20))


@pytest.mark.parametrize("limit", [None, 1])
@pytest.mark.parametrize("is_published", [True, False])
def test_vector_for_what_repeated_deletes_would_reach_takes_no_row(world, is_published, limit):
    """A tool that turns staged deletes into vectors applies the repeated ones, too."""
    again = [*world.foreign.data_files([new(11)]), *world.foreign.key_deletes([1, 11])]
    world.foreign.commit("staging", "overwrite", add=again)
    if is_published:
        world.resolve()
    world.stage(new(1, "since"))
    [row] = [each for each in world.foreign.rows("staging") if each.values == new(1, "since")]
    world.foreign.commit("staging", "overwrite", add=again)
    vector(world, row)
    for _ in range(3 if limit else 0):
        world.resolve(limit=limit)
    world.resolve_all(*without(1), new(1, "since"), new(11))


def test_staged_position_in_a_rewrite_that_main_was_rolled_back_behind_reaches_its_row(world):
    """Another tool's rewrite, which staging stands on, is no staged commit."""
    before = world.head()
    world.foreign.rewrite(keep_row_ids=False)
    world.stage(new(9))
    vector(world, world.row(1))
    world.table.refs.rollback(snapshot_id=before)
    world.foreign.rewrite(keep_row_ids=False)
    world.resolve_all(*without(1), new(9))


def test_rewrite_of_main_below_a_commit_to_it_is_not_staged_when_the_log_is_cut(world):
    """Staging stands on what main has lost; that main was there has expired with its log."""
    before = world.head()
    world.stage(new(9), deletes=[1])
    world.table.refs.fast_forward("main", to="staging")
    world.foreign.rewrite(keep_row_ids=True)
    world.resolve()
    world.table.refs.rollback(snapshot_id=before)
    world.table.append(rows_of(new(10)))
    interrupt(world.table, "commit.before_swap", lambda: world.stage(new(12), deletes=[2]))
    world.resolve()  # and staging stays, for what came meanwhile
    state = world.table.refresh().state
    gone = RemoveSnapshotsUpdate(snapshot_ids=[before])
    cut = world.table.environment.catalog.commit(state, [gone])
    assert before not in {entry.snapshot_id for entry in cut.metadata.snapshot_log}
    world.resolve_all(*without(1, 2), new(9), new(10), new(12))


def test_snapshots_that_came_to_main_in_one_transaction_are_not_staged(world):
    """The table's log names the last of them only."""
    before = world.head()
    rows = [[new(11)], [new(12)], [new(13)]]
    world.foreign.in_one_transaction(lambda: [world.foreign.append(each) for each in rows])
    world.stage(new(9), deletes=[1])
    world.table.refs.rollback(snapshot_id=before)
    world.resolve_all(*without(1), new(9))


def test_snapshot_that_was_audited_and_published_on_main_is_not_staged(world):
    """A pick of the next snapshot moves main there, which the log has with a later time."""
    before = world.head()
    audited = world.foreign.commit(
        "nowhere", "append", add=world.foreign.data_files([new(11)]), **{"wap.id": "audited"}
    )
    world.foreign.cherry_pick(audited)
    world.stage(new(9), deletes=[1])
    world.table.refs.rollback(snapshot_id=before)
    world.resolve_all(*without(1), new(9))


def test_staged_position_in_a_file_that_a_publish_left_out_deletes_nothing(world):
    world.foreign.commit("staging", "append", add=world.foreign.data_files([new(11)]))
    row = world.row(11)
    world.stage(deletes=[11])
    vector(world, row)
    world.resolve(limit=2)
    world.table.append(rows_of(new(11, "later")))
    world.resolve_all(*BASE, new(11, "later"))


def test_staged_snapshot_that_was_published_is_not_picked(world):
    published, waiting = world.stage(deletes=[1]), world.stage(deletes=[2])
    world.resolve(limit=1)
    world.table.append(rows_of((1, "eu", "again")))
    with pytest.raises(TableError, match="published to the branch already"):
        icefold_picks(world, published)
    icefold_picks(world, waiting)
    world.resolve_all(*without(1, 2), (1, "eu", "again"))


@pytest.mark.parametrize("limit", [None, 1])
def test_staged_update_that_was_picked_takes_no_row_that_came_later(world, limit):
    """The row that it deletes has gone with the pick; its new row has the same row id."""
    world.stage(new(8))
    staged = staged_update(world, world.row(1))
    world.stage(new(9))
    world.table.append(rows_of(new(5)))
    icefold_picks(world, staged)
    later = (1, "eu", "another row of the key")
    world.table.append(rows_of(later))
    found = Counter(row.values for row in world.foreign.rows())
    if limit:
        assert world.resolve(limit=1).staged_snapshots == 2
    world.resolve_all(*found.elements(), new(8), new(9))


# -- scopes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_batch", [False, True])
def test_equality_delete_filed_under_a_bucket_its_key_does_not_hash_to_deletes_nothing(
    tmp_path, in_batch
):
    world = new_world(tmp_path, ("bucket(2, id)",))
    world.stage(new(9))
    world.resolve()
    if in_batch:
        world.stage(new(10))
    for key in (2, 10) if in_batch else (2,):
        [right] = world.foreign.key_deletes([key])
        wrong = (1 - right.file["partition"]["id_bucket"],)
        files = world.foreign.misfiled_key_deletes([key], wrong)
        world.foreign.commit("staging", "delete", add=files)
    merged = world.table.scan(branch="staging").to_arrow().to_pylist()
    expected = [*BASE, new(9), *([new(10)] if in_batch else [])]
    assert Counter(tuple(row.values()) for row in merged) == Counter(expected)
    world.resolve_all(*expected)


def other(world: World) -> World:
    """The same table through a handle of its own, without fail points."""
    catalog = tf.open_catalog("local", warehouse=str(world.foreign.warehouse))
    return World(catalog.load_table("t.rows"), world.foreign, world.lock)


def expect_or_refuse(world: World, rows) -> None:
    """Where the rows of a file that left cannot be told, the cycle may refuse; it never guesses."""
    before = Counter(row.values for row in world.foreign.rows())
    refused = None
    try:
        world.resolve()
    except TableError as error:
        refused = str(error)
    if refused is None:
        world.check(*rows)
        assert world.resolve().staged_snapshots == 0
    else:
        assert "\n" not in refused
        assert Counter(row.values for row in world.foreign.rows()) == before


@pytest.mark.parametrize("when", ["before the cycle", *IN_THE_CYCLE])
def test_data_file_of_two_staged_snapshots_keeps_the_first_place_when_it_is_picked(world, when):
    files = world.foreign.data_files([new(11), new(12)])
    world.foreign.commit("staging", "append", add=files)
    world.stage(deletes=[11])
    again = world.foreign.commit("staging", "append", add=files)
    world.table.append(rows_of(new(5)))
    if when == "before the cycle":
        another_picks(world, again)
    else:
        interrupt(world.table, when, lambda: another_picks(world, again))
    world.resolve_all(*BASE, new(5), new(12))


@pytest.mark.parametrize("tells", ["older metadata", "nothing"])
def test_state_of_staging_is_not_taken_twice_where_the_publish_has_expired(world, tells):
    """Another tool's commit is all that is left of main, and names no staged snapshot."""
    world.stage(new(9), deletes=[2])
    world.stage(new(10))
    world.resolve(limit=1)
    world.foreign.append([(2, "eu", "again")])
    world.foreign.expire(older_than_ms=now_ms(), retain_last=1)
    world.table.refresh()
    rows = [*without(2), new(9), (2, "eu", "again")]
    with pytest.raises(TableError, match="--from-staging-state"):
        world.resolve()
    if tells == "nothing":
        delete_former_metadata(world.table.environment, world.table.state)
        with pytest.raises(TableError, match="--staged-after"):
            resolve(world.table, lock=world.lock, from_staging_state=True)
    else:
        resolve(world.table, lock=world.lock, from_staging_state=True)
        rows.append(new(10))
    world.check(*rows)


def test_staged_position_finds_a_row_that_a_rollback_and_a_pick_have_given_another_id(world):
    staged, before = world.stage(new(11), new(12)), world.head()
    world.resolve()
    world.table.refs.rollback(snapshot_id=before)
    another_picks(world, staged)
    foreign_compaction(world)
    vector(world, world.row(11))
    world.resolve_all(*BASE, new(12))


@pytest.mark.parametrize("base", ["ours", "theirs"])
@pytest.mark.parametrize(("was_published", "waits"), [(True, True), (True, False), (False, True)])
def test_nothing_of_a_table_that_was_replaced_comes_back(world, base, was_published, waits):
    """Main has another root then, and no cursor; what staging stands on is the old main."""
    if was_published:
        world.stage(new(5), deletes=[1])
        world.resolve()
    if base == "theirs":
        world.foreign.append([new(6)])
        world.table.refresh()
    if waits:
        world.stage(new(7), deletes=[8])
    rows = [new(8), new(9)]
    world.foreign.replace_table(rows)
    with pytest.raises(LostCursorError, match=r"was replaced.*--from-snapshot") as refused:
        world.resolve()
    world.check(*rows)
    if waits:
        told = int(refused.value.context["stopped_at"])
        resolve(world.table, from_snapshot=told, skip_unpublished=True, lock=world.lock)
        rows = [new(7), new(9)]
        world.check(*rows)
    else:
        world.table.refs.drop("staging")
        assert world.resolve().staged_snapshots == 0, "nothing of the old table is missed"
    world.stage(new(10), deletes=[9])
    world.resolve_all(*(row for row in rows if row != new(9)), new(10))


@pytest.mark.parametrize("change", ["append", "delete"])
def test_history_that_pyiceberg_cut_is_not_told_as_whole(tmp_path, change):
    """Its expiry takes the parent's id from the oldest snapshot that it leaves."""
    theirs = Theirs(tmp_path, version=2)
    catalog = SqlCatalog("local", uri=f"sqlite:///{tmp_path}/icefold.db")
    their_table = catalog.load_table("shop.orders")
    if change == "append":
        their_table.append(Theirs.arrow([(99, "new", 0)]))
    else:  # one file is replaced: as many as there are were added
        their_table.delete("id = 0")
    *before, head = their_table.snapshots()
    their_table.maintenance.expire_snapshots().by_ids([e.snapshot_id for e in before]).commit()
    catalog.close()
    assert theirs.table.refresh().snapshots()[0].parent_snapshot_id is None
    with pytest.raises(NotFoundError, match=f"before {head.snapshot_id} has expired"):
        theirs.table.changes(None).to_arrow()


@pytest.mark.parametrize("base", ["ours", "theirs"])
@pytest.mark.parametrize("waits", [True, False])
def test_table_that_was_replaced_is_told_as_such_where_its_old_history_has_expired(
    world, base, waits
):
    """Its new history is whole, and begins after the snapshot that staging stands on."""
    world.stage(new(5), deletes=[1])
    world.resolve()
    if base == "theirs":
        world.foreign.append([new(6)])
        world.table.refresh()
    world.stage(new(7), deletes=[8])
    if not waits:
        world.resolve()
    everything = ExpiryPolicy(max_snapshot_age_ms=0, min_snapshots_to_keep=1)
    expire(world.table.refresh(), ExpireOptions(policy=everything))
    rows = [new(8), new(9)]
    world.foreign.replace_table(rows)
    with pytest.raises(LostCursorError, match=r"was replaced.*--from-snapshot") as refused:
        world.resolve()
    told = int(refused.value.context["stopped_at"])
    resolve(world.table, from_snapshot=told, skip_unpublished=True, lock=world.lock)
    world.check(*([new(7), new(9)] if waits else rows))


@pytest.mark.parametrize("main_goes_on", [True, False])
def test_table_of_others_that_was_replaced_is_told_by_its_older_metadata(world, main_goes_on):
    """Nobody but another tool has written: no snapshot says of which branch it is."""
    foreign = world.foreign
    foreign.replace_table([new(1), new(2)])
    foreign.set_branch("staging", foreign.head("main"))
    foreign.commit("staging", "append", add=foreign.data_files([new(3)]))
    if main_goes_on:
        foreign.append([new(4)])
    foreign.replace_table([new(8)])
    world.table.refresh()
    with pytest.raises(LostCursorError, match=r"was replaced.*--from-snapshot") as refused:
        world.resolve()
    status = read_status(world.table)
    assert status.backlog_snapshots is None, "what once was main does not wait"
    assert "was replaced" in str(status.problem)
    world.check(new(8))
    told = int(refused.value.context["stopped_at"])
    resolve(world.table, from_snapshot=told, skip_unpublished=True, lock=world.lock)
    world.check(new(3), new(8))


def test_target_rolled_back_behind_what_has_expired_is_not_taken_for_replaced(world):
    """Its history is whole and has nothing of what staging stands on, and is older than that."""
    first = world.head()
    world.stage(new(5))
    world.resolve()
    world.stage(new(6))
    world.resolve()
    world.stage(new(7))
    state = world.table.refresh().state
    kept = {first, *(ref.snapshot_id for ref in state.metadata.refs.values()), world.head()}
    gone = [s.snapshot_id for s in state.metadata.snapshots if s.snapshot_id not in kept]
    state = world.table.environment.catalog.commit(
        state, [RemoveSnapshotsUpdate(snapshot_ids=gone)]
    )
    world.foreign.set_branch("main", first)
    with pytest.raises(LostCursorError, match=r"expired\?"):
        world.resolve()
    world.check(*BASE)
