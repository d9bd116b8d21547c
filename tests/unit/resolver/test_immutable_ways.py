"""IMMUTABLE columns in every way that a row can change. The oracle is a dict.

`rate` is declared, `note` is not. A step brings rows and takes keys in one commit, or in one cycle
where that is what a way publishes; a key in both is deleted and inserted again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest

from resolver import resolve
from tableformat import CommitConflictError, InvalidInputError, Table
from tableformat.cdc.ingest import write_changes
from tableformat.rowlevel.operation import begin
from tests.support.staged_tables import StagedTable

SCHEMA = pa.schema([("id", pa.int64()), ("rate", pa.string()), ("note", pa.string())])
ROWS = {1: ("a", "base"), 2: ("b", "base"), 3: (None, "base")}
Rows = Mapping[int, tuple[str | None, str]]
BESIDE = 1000  # keys from here on are those of somebody else
ENFORCED: list[Any] = [True, "except-delete", False]
BOTH = ENFORCED[:2]


@dataclass(frozen=True)
class Step:
    brings: Rows
    takes: frozenset[int] = frozenset()


SCENARIOS = {
    "other columns": [Step({1: ("a", "new"), 3: (None, "new")})],
    "new key": [Step({9: ("x", "new")})],
    "a value": [Step({1: ("z", "new"), 2: ("b", "new")})],
    "a value is cleared": [Step({2: (None, "new")})],
    "null gets a value": [Step({3: ("c", "new")})],
    "delete": [Step({}, frozenset({2}))],
    "delete and insert": [Step({2: ("b", "new")}, frozenset({2}))],
    "delete and insert another": [Step({2: ("z", "new")}, frozenset({2}))],
    "delete, later insert": [Step({}, frozenset({2})), Step({2: ("b", "new")})],
    "delete, later insert another": [Step({}, frozenset({2})), Step({2: ("z", "new")})],
    "delete beside a new key": [Step({9: ("x", "new")}, frozenset({1}))],
}


def fold(rows: Rows, step: Step, how: Any) -> Rows | None:
    """The rows after a step; None: refused."""
    gone = {key for key in step.takes if key in rows and key not in step.brings}
    changed = {key for key, row in step.brings.items() if key in rows and rows[key][0] != row[0]}
    if (how and changed) or (how is True and gone):
        return None
    return {key: row for key, row in rows.items() if key not in step.takes} | dict(step.brings)


@dataclass
class World:
    staged: StagedTable

    @property
    def table(self) -> Table:
        return self.staged.table.refresh()

    def rows(self) -> Rows:
        found = self.table.scan().to_arrow().to_pylist()
        rows = {each["id"]: (each["rate"], each["note"]) for each in found}
        assert len(rows) == len(found), "a key has two rows"
        return {key: row for key, row in rows.items() if key < BESIDE}

    def given(self, rows: Rows) -> pa.Table:
        return self.staged.rows(*((key, *row) for key, row in rows.items()))

    def files(self) -> set[str]:
        listed = self.staged.environment.store.list_prefix(self.table.location())
        return {each.location for each in listed if each.location.endswith(".parquet")}

    def back_to(self, snapshot_id: int) -> None:
        head = self.table.state.head("main")
        assert head is not None
        self.table.refs.replace("main", to=snapshot_id, expected_head=head.snapshot_id)
        if self.table.state.ref("staging") is not None:
            self.table.refs.drop("staging")

    def raw(self, step: Step) -> dict[str, Any]:
        """What another engine commits: data files and vectors of the rows that go."""
        found = self.table.scan(columns=["id", "_file", "_pos"]).to_arrow().to_pylist()
        goes = {*step.takes, *step.brings}
        paths = {row["_file"] for row in found if row["id"] in goes}
        tasks = {t.entry.data_file.file_path: t for t in self.staged.tasks()}
        tasks = {path: task for path, task in tasks.items() if path in paths}
        dead: dict[str, set[int]] = {}
        for path, task in tasks.items():  # one vector says all that is dead
            stays = {r["_pos"] for r in found if r["_file"] == path and r["id"] not in goes}
            dead[path] = set(range(task.entry.data_file.record_count)) - stays
        files = [task.entry.data_file for task in tasks.values()]
        return {
            "data": self.staged.data_files(*((k, *row) for k, row in step.brings.items())),
            "deletes": self.staged.vectors(dead, files) if dead else [],
            "removed": [task.dv for task in tasks.values() if task.dv is not None],
        }


def publish(world: World, **more: Any) -> None:
    try:
        resolve(world.table, **more)
    except InvalidInputError:
        head = world.table.state.head("staging")
        assert head is not None  # the repaired source stages anew
        world.table.refs.replace("staging", to="main", expected_head=head.snapshot_id)
        raise


def stage(world: World, step: Step) -> None:
    if step.takes:
        gone = pa.table({"id": pa.array(sorted(step.takes), pa.int64())})
        world.table.stage(deletes=gone)
    if step.brings:
        world.table.stage(upserts=world.given(step.brings))
    publish(world)


def stage_and_rewrite(world: World, step: Step) -> None:
    world.table.set_properties({"icefold.publish": "rewrite"})
    stage(world, step)


def stage_on_moved_rows(world: World, step: Step) -> None:
    """By position, in files that are rewritten before the publish."""
    world.table.set_properties({"icefold.publish": "rewrite"})
    world.staged.commit(**world.raw(step))
    world.staged.rewrite()
    publish(world)


def stage_as_another_engine(world: World, step: Step) -> None:
    world.staged.commit(**world.raw(step))
    publish(world)


def protocol(world: World, step: Step, mode: str | None = None) -> None:
    plan = begin(world.table, "merge", updated_columns=["note"], inserts_rows=True, mode=mode)
    worker = plan.worker()
    columns = ["id", "_file", "_pos", "_row_id"]
    found = {
        row["id"]: row
        for split in plan.splits
        for batch in worker.read(split, columns)
        for row in batch.to_pylist()
    }
    written = [{**found[key], "_action": 1} for key in step.takes & found.keys()]
    for key, (rate, note) in step.brings.items():
        updates = key in found and key not in step.takes
        place = {**found[key], "_action": 2} if updates else {"id": key, "_action": 3}
        written.append({**place, "rate": rate, "note": note})
    more = {"_file": pa.string(), "_pos": pa.int64(), "_row_id": pa.int64(), "_action": pa.int8()}
    schema = pa.schema([*SCHEMA, *more.items()])
    plan.finish([worker.write(pa.Table.from_pylist(written, schema).to_batches())])


def protocol_copies(world: World, step: Step) -> None:
    protocol(world, step, "copy-on-write")


def pick(world: World, step: Step) -> None:
    """Another engine writes to a branch; its commit is the next one of main."""
    branch = f"audit{len(world.table.state.metadata.snapshots)}"
    world.table.refs.create_branch(branch)
    world.staged.commit(branch=branch, **world.raw(step))
    head = world.table.state.head(branch)
    assert head is not None
    world.table.refs.cherry_pick(snapshot_id=head.snapshot_id)


def pick_beside(world: World, step: Step) -> None:
    """As `pick`, while main has gone on."""
    branch = f"audit{len(world.table.state.metadata.snapshots)}"
    world.table.refs.create_branch(branch)
    world.staged.commit(branch=branch, **world.raw(step))
    world.table.append(world.given({BESIDE + len(world.table.state.metadata.snapshots): ("q", "")}))
    head = world.table.state.head(branch)
    assert head is not None
    world.table.refs.cherry_pick(snapshot_id=head.snapshot_id)


WAYS: list[Callable[[World, Step], None]] = [
    stage,
    stage_and_rewrite,
    stage_on_moved_rows,
    stage_as_another_engine,
    protocol,
    protocol_copies,
    pick,
    pick_beside,
]


@pytest.fixture
def world(tmp_path: object) -> World:
    world = World(StagedTable(tmp_path, schema=SCHEMA))
    world.table.append(world.given(ROWS))
    return world


@pytest.mark.parametrize("how", ENFORCED)
@pytest.mark.parametrize("way", WAYS, ids=[each.__name__ for each in WAYS])
def test_every_way_refuses_what_the_constraint_forbids(world: World, way: Any, how: Any) -> None:
    world.table.set_immutable_columns(["rate"], enforced=how)
    start = world.table.state.head("main")
    assert start is not None
    for name, steps in SCENARIOS.items():
        expected: Rows = ROWS
        for step in steps:
            after = fold(expected, step, how)
            if after is None:
                with pytest.raises(InvalidInputError, match="IMMUTABLE") as caught:
                    way(world, step)
                assert "\n" not in str(caught.value), name
            else:
                way(world, step)
            expected = expected if after is None else after
            assert world.rows() == expected, name
        world.back_to(start.snapshot_id)
        assert world.rows() == ROWS, "a rollback is no change of rows"


def test_rows_that_are_appended_agree_with_those_of_their_keys(world: World) -> None:
    files = world.files()
    for how in BOTH:
        world.table.set_immutable_columns(["rate"], enforced=how)
        for given in ({1: ("z", "new")}, {2: (None, "new")}, {3: ("c", "new")}):
            with pytest.raises(InvalidInputError, match=r"IMMUTABLE.*column=rate"):
                world.table.append(world.given(given))
        with pytest.raises(InvalidInputError, match=r"old=\['y'\], new=\['x'\]"):
            world.table.append(world.staged.rows((9, "y", ""), (9, "x", "")))
        assert world.rows() == ROWS
        assert world.files() == files, "what is refused leaves no data files"
        added = 50 + len(str(how))
        world.table.append(world.given({added: ("x", "new")}))
        with pytest.raises(InvalidInputError, match="IMMUTABLE"):
            world.table.append(world.given({added: ("y", "new")}))
        world.table.set_immutable_columns(["rate"], enforced=False)
        world.table.delete(f"id = {added}")
        files = world.files()
    world.table.append(world.given({1: ("z", "new")}))  # believed


def test_rows_that_land_beside_an_append_are_compared_too(world: World) -> None:
    world.table.set_immutable_columns(["rate"], enforced=True)
    beside = World(world.staged).table

    def land(_: object) -> None:
        world.staged.environment.runtime.fail_points.armed.clear()
        beside.append(world.given({9: ("x", "first")}))

    world.staged.environment.runtime.fail_points.armed["commit.before_swap"] = land
    with pytest.raises(CommitConflictError, match="IMMUTABLE columns would change"):
        world.table.append(world.given({9: ("y", "second")}))
    assert world.rows() == {**ROWS, 9: ("x", "first")}


def test_constraint_that_is_declared_beside_a_statement_stops_it(world: World) -> None:
    plan = begin(world.table, "delete", row_filter="id = 1", is_whole_condition=True)
    row = plan.worker().read(plan.splits[0], ["_file", "_pos"]).__next__()
    row = row.append_column("_action", pa.array([1], pa.int8()))
    fragment = plan.worker().write([row])
    world.table.set_immutable_columns(["rate"], enforced=True)
    with pytest.raises(CommitConflictError, match="constraint was changed"):
        plan.finish([fragment])
    assert world.rows() == ROWS


def test_overwrite_keeps_the_values_of_keys_that_come_again(world: World) -> None:
    world.table.set_immutable_columns(["rate"], enforced="except-delete")
    with pytest.raises(InvalidInputError, match=r"old=\['a'\], new=\['z'\]"):
        world.table.overwrite(world.given({1: ("z", "new"), 9: ("x", "new")}))
    world.table.overwrite(world.given({1: ("a", "new"), 9: ("x", "new")}))
    assert world.rows() == {1: ("a", "new"), 9: ("x", "new")}
    world.table.set_immutable_columns(["rate"], enforced=True)
    with pytest.raises(InvalidInputError, match="rows cannot be deleted"):
        world.table.overwrite(world.given({1: ("a", "x"), 9: ("x", "x")}))


@pytest.mark.parametrize("mode", ["merge-on-read", "copy-on-write"])
@pytest.mark.parametrize("how", ENFORCED)
def test_upsert_brings_whole_rows(world: World, how: Any, mode: str) -> None:
    world.table.set_immutable_columns(["rate"], enforced=how)
    expected: Rows = ROWS
    for name in ("other columns", "new key", "a value", "null gets a value"):
        [step] = SCENARIOS[name]
        after = fold(expected, step, how)
        if after is None:
            with pytest.raises(InvalidInputError, match="IMMUTABLE"):
                world.table.upsert(world.given(step.brings), mode=mode)
        else:
            world.table.upsert(world.given(step.brings), mode=mode)
        expected = expected if after is None else after
        assert world.rows() == expected


def test_update_of_keys_moves_values_between_them(world: World) -> None:
    """A swap changes what both keys have; a new key is a delete of the old one."""
    for how in BOTH:
        world.table.set_immutable_columns(["rate"], enforced=how)
        with pytest.raises(InvalidInputError, match=r"IMMUTABLE.*keys_broken=2"):
            world.table.update({"id": "3 - id"}, "id <= 2")
    world.table.set_immutable_columns(["rate"], enforced=True)
    with pytest.raises(InvalidInputError, match=r"deletes a row.*key=\{'id': 2\}"):
        world.table.update({"id": "8"}, "id = 2")
    world.table.update({"note": "'same'"}, "id = 2")
    world.table.set_immutable_columns(["rate"], enforced="except-delete")
    world.table.update({"id": "8"}, "id = 2")
    assert world.rows() == {1: ROWS[1], 3: ROWS[3], 8: ("b", "same")}


@pytest.mark.parametrize("how", BOTH)
def test_changes_on_main_are_not_compared_so_they_are_refused(world: World, how: Any) -> None:
    world.table.set_immutable_columns(["rate"], enforced=how)
    rows = world.given({1: ("z", "new")})
    with pytest.raises(InvalidInputError, match="published branch"):
        write_changes(
            world.staged.environment,
            world.table.identifier,
            rows,
            format_name="append",
            branch="main",
        )


@pytest.mark.parametrize("how", BOTH)
def test_partial_rows_carry_the_columns(world: World, how: Any) -> None:
    world.table.set_immutable_columns(["rate"], enforced=how)
    lacks = pa.table({"id": [1], "note": ["new"]})
    with pytest.raises(InvalidInputError, match="rate"):
        world.table.stage(lacks, columns="partial")
    wrong = pa.table({"id": [1], "rate": ["z"]})
    world.table.stage(wrong, columns="partial")
    with pytest.raises(InvalidInputError, match="IMMUTABLE"):
        publish(world)
    world.table.stage(pa.table({"id": [1], "rate": ["a"]}), columns="partial")
    publish(world)
    assert world.rows() == ROWS


@pytest.mark.parametrize("how", BOTH)
def test_equality_deletes_on_main_are_compared_when_they_are_converted(
    world: World, how: Any
) -> None:
    """The rows are on main already; what is refused is to make the change final."""
    world.table.set_immutable_columns(["rate"], enforced=how)
    keys = pa.table({"id": pa.array([1], pa.int64())})
    world.staged.commit(branch="main", deletes=world.staged.equality_deletes(keys))
    world.staged.commit(branch="main", data=world.staged.data_files((1, "z", "new")))
    with pytest.raises(InvalidInputError, match="IMMUTABLE"):
        resolve(world.table, staging="main", target="main")
    world.table.set_immutable_columns(["rate"], enforced=False)
    resolve(world.table, staging="main", target="main")
    assert world.rows()[1] == ("z", "new")


def test_compaction_is_not_affected(world: World) -> None:
    world.table.set_immutable_columns(["rate"], enforced=True)
    world.table.append(world.given({9: ("x", "new")}))
    world.table.upsert(world.given({1: ("a", "new")}))
    before = world.rows()
    world.staged.rewrite()
    assert world.rows() == before


def test_nested_and_wide_values_are_compared(tmp_path: object) -> None:
    place = pa.struct([("zip", pa.int32()), ("town", pa.string())])
    schema = pa.schema([("id", pa.int64()), ("place", place), ("day", pa.float64())])
    staged = StagedTable(tmp_path, schema=schema)
    table = staged.table
    nan = float("nan")
    table.append(staged.rows((1, {"zip": 5, "town": "x"}, nan), (2, None, None)))
    table.set_immutable_columns(["place.zip", "day"], enforced="except-delete")
    table.upsert(
        staged.rows((1, {"zip": 5, "town": "y"}, nan), (2, {"zip": None, "town": "n"}, None))
    )
    with pytest.raises(InvalidInputError, match=r"column=place\.zip, old=\[5\], new=\[6\]"):
        table.upsert(staged.rows((1, {"zip": 6, "town": "y"}, nan)))
    with pytest.raises(InvalidInputError, match=r"column=place\.zip"):
        table.append(staged.rows((2, {"zip": 1, "town": "y"}, None)))
