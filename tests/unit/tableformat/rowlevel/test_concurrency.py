"""Every pair of a statement and something that lands beside it, at every phase of the statement.

The outcome follows from the conflict matrix. Where both are committed, the rows are those of one
after the other.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pytest

from resolver import resolve
from tableformat.environment import Environment
from tableformat.errors import CommitConflictError, CommitUnknownError
from tableformat.rowlevel.committing import commit_changes
from tableformat.rowlevel.engine import InProcessEngine
from tableformat.rowlevel.planning import plan_statement
from tableformat.sql.statement import parse_statement
from tests.support.memory_tables import memory_catalog
from tests.support.rowlevel_histories import (
    NAME,
    SCHEMA,
    Change,
    Rows,
    add_to_ids,
    applied,
    as_table,
    compact,
    delete_ids,
    load,
    stored_rows,
)

PHASES = ("rowlevel.after_plan", "rowlevel.after_scan", "rowlevel.before_commit",
          "commit.before_swap")  # fmt: skip
NEAR = {key: ("EU", key) for key in range(10)}
FAR = {key: ("US", key) for key in range(100, 110)}


@dataclass(frozen=True)
class Other:
    """What lands: its effect on the rows, and the letters of the matrix it meets."""

    name: str
    run: Callable[[Environment], object]
    effect: Callable[[Rows], Rows]
    touches_our_file: bool = False  # F
    deletes_elsewhere: bool = False  # D: a vector, whose rows have no statistics
    adds_a_match: bool = False  # P


def _change(name: str, change: Change, mode: str, **letters: bool) -> Other:
    return Other(
        name,
        lambda environment: change.run(load(environment), mode=mode),
        lambda rows: applied(rows, change.delta(rows)),
        **letters,
    )


def _append(name: str, rows: Rows, **letters: bool) -> Other:
    return Other(
        name,
        lambda environment: load(environment).append(as_table(rows)),
        lambda before: {**before, **rows},
        **letters,
    )


def _publish(name: str, rows: Rows, **letters: bool) -> Other:
    def run(environment: Environment) -> None:
        table = load(environment)
        table.stage(upserts=as_table(rows))
        resolve(table, engine="local")

    return Other(name, run, lambda before: {**before, **rows}, **letters)


def _compact(name: str, near: bool, **letters: bool) -> Other:
    def run(environment: Environment) -> None:
        paths = sorted(_paths_by_first_id(environment).items())
        path = paths[0 if near else -1][1]
        compact(environment, lambda each: each == path)

    return Other(name, run, lambda rows: rows, **letters)


def _paths_by_first_id(environment: Environment) -> dict[int, str]:
    tasks = load(environment).scan().plan.tasks
    files = [task.entry.data_file for task in tasks]
    return {int.from_bytes(f.lower_bounds[1], "little"): f.file_path for f in files}


MOR, COW = "merge-on-read", "copy-on-write"
OTHERS = [
    _append("append of a match", {-1: ("EU", 3)}, adds_a_match=True),
    _append("append of another row", {500: ("EU", 3)}),
    _change("delete near", delete_ids(7, 8), MOR, touches_our_file=True),
    _change("delete far", delete_ids(105, 106), MOR, deletes_elsewhere=True),
    _change("delete near by copy", delete_ids(7, 8), COW, touches_our_file=True),
    _change("delete far by copy", delete_ids(105, 106), COW),
    _change("update near", add_to_ids(8, 9, 1), MOR, touches_our_file=True),
    _change("update far", add_to_ids(106, 107, 1), MOR, deletes_elsewhere=True),
    _change("update near by copy", add_to_ids(8, 9, 1), COW, touches_our_file=True),
    _change("update far by copy", add_to_ids(106, 107, 1), COW),
    _change("drop near", delete_ids(0, 10), MOR, touches_our_file=True),
    _change("drop far", delete_ids(100, 110), MOR),
    _compact("compaction near", True, touches_our_file=True),
    _compact("compaction far", False),
    _publish("publish near", {6: ("EU", 60)}, touches_our_file=True),
    _publish("publish far", {107: ("US", 70)}, deletes_elsewhere=True),
    _publish("publish of a match", {-2: ("EU", 1)}, adds_a_match=True),
    Other("properties", lambda e: load(e).set_properties({"note": "x"}), lambda rows: rows),
    Other(
        "schema",
        lambda e: load(e).update_schema(lambda s: s.rename_column("region", "zone")),
        lambda rows: rows,
    ),
]


@dataclass(frozen=True)
class Ours:
    """A statement on ids below 5, which are all in one file, or one that covers that file."""

    name: str
    change: Change
    mode: str
    minds_deletes: bool = False  # D
    merge: bool = False

    @property
    def operation(self) -> str:
        return "merge" if self.merge else self.change.kind


OURS = [
    Ours("delete", delete_ids(-9, 5), MOR),
    Ours("delete by copy", delete_ids(-9, 5), COW),
    Ours("drop", delete_ids(-9, 50), MOR),
    Ours("update", add_to_ids(-9, 5, 1000), MOR, minds_deletes=True),
    Ours("update by copy", add_to_ids(-9, 5, 1000), COW),
    Ours("merge", add_to_ids(-9, 5, 1000), MOR, minds_deletes=True, merge=True),
    Ours("merge by copy", add_to_ids(-9, 5, 1000), COW, minds_deletes=True, merge=True),
]


@pytest.mark.slow
@pytest.mark.parametrize("isolation", ["serializable", "snapshot"])
@pytest.mark.parametrize("other", OTHERS, ids=lambda each: each.name)
@pytest.mark.parametrize("ours", OURS, ids=lambda each: each.name)
def test_pair_ends_as_the_matrix_says(tmp_path, ours: Ours, other: Other, isolation: str) -> None:
    is_serializable = isolation == "serializable"
    expected_conflict = other.touches_our_file or (
        is_serializable and (other.adds_a_match or (other.deletes_elsewhere and ours.minds_deletes))
    )
    for phase in PHASES:
        environment = _table(tmp_path / phase, ours.operation, isolation)
        base = {**NEAR, **FAR}

        def land(_: str, environment=environment, phase=phase) -> None:
            del environment.runtime.fail_points.armed[phase]
            other.run(environment)

        environment.runtime.fail_points.armed[phase] = land
        conflict = _run(environment, ours)
        assert (conflict is not None) == expected_conflict, (phase, conflict)
        if conflict is not None:
            assert "snapshot" in conflict.conflicts[0]
            expected = other.effect(base)
        else:
            after = other.effect(base)
            delta = ours.change.delta(base if other.adds_a_match else after)
            expected = applied(after, delta)
        table = load(environment)
        if other.name == "schema":
            found = {row["id"]: (row["zone"], row["amount"])
                     for row in table.scan().to_arrow().to_pylist()}  # fmt: skip
        else:
            found = stored_rows(environment, table, table.state.head("main").snapshot_id)
        assert found == expected, phase


def _table(folder, operation: str, isolation: str) -> Environment:
    catalog = memory_catalog(index_directory=str(folder))
    table = catalog.create_table(
        NAME,
        SCHEMA,
        primary_key=["id"],
        properties={
            f"write.{operation}.isolation-level": isolation,
            "commit.retry.min-wait-ms": "0",
            "tests.drawn": str(uuid.uuid4()),
        },
    )
    table.append(as_table(NEAR))
    table.append(as_table(FAR))
    return catalog.environment


def _run(environment: Environment, ours: Ours) -> CommitConflictError | None:
    try:
        if ours.merge:
            _merge(environment, ours)
        else:
            ours.change.run(load(environment), mode=ours.mode)
    except CommitConflictError as error:
        return error
    return None


def _merge(environment: Environment, ours: Ours) -> None:
    """What Spark would do, with the rows of the UPDATE of the same condition."""
    on = "t.id = s.id AND t.id >= -9 AND t.id < 5"
    text = f"MERGE INTO {NAME} t USING x s ON {on} WHEN MATCHED THEN UPDATE SET amount = s.amount"
    plan = plan_statement(environment, parse_statement(text), mode=ours.mode)
    sets = ", ".join(f"{name} = {value}" for name, value in ours.change.assignments.items())
    text = f"UPDATE {NAME} SET {sets} WHERE {ours.change.where}"
    update = plan_statement(environment, parse_statement(text))
    engine = InProcessEngine.for_plan(environment, update)
    assert engine is not None
    environment.runtime.fail_point("rowlevel.after_plan")
    changes = engine.evaluate(update)
    environment.runtime.fail_point("rowlevel.after_scan")
    commit_changes(environment, plan, changes, partial(engine.rewrite, plan))


def test_conflict_names_snapshot_operation_and_files(tmp_path) -> None:
    environment = _table(tmp_path, "delete", "serializable")

    def land(_: str) -> None:
        del environment.runtime.fail_points.armed["rowlevel.after_scan"]
        load(environment).delete("id = 7")

    environment.runtime.fail_points.armed["rowlevel.after_scan"] = land
    with pytest.raises(CommitConflictError) as caught:
        load(environment).delete("id = 1")
    landed = load(environment).state.head("main").snapshot_id
    [conflict] = caught.value.conflicts
    assert str(landed) in conflict
    assert "delete" in conflict
    assert conflict.endswith(".parquet")


def test_retries_plan_the_statement_again(tmp_path) -> None:
    environment = _table(tmp_path, "update", "serializable")
    left: list[int] = []

    def land(_: str) -> None:
        if left:
            load(environment).append(as_table({-left.pop(): ("EU", 0)}))

    environment.runtime.fail_points.armed["rowlevel.before_commit"] = land
    left += [3, 4]
    result = load(environment).update({"amount": "amount + 1"}, "id < 3", retries=2)
    assert (result.plans, result.updated_rows) == (3, 5)  # with the two that landed
    left += [5, 6]
    with pytest.raises(CommitConflictError):
        load(environment).update({"amount": "amount + 1"}, "id < 3", retries=1)


def test_failed_statement_leaves_no_files(tmp_path) -> None:
    environment = _table(tmp_path, "update", "serializable")

    def land(_: str) -> None:
        environment.runtime.fail_points.armed.clear()
        load(environment).append(as_table({-1: ("EU", 0)}))

    for mode in (MOR, COW):
        environment.runtime.fail_points.armed["rowlevel.before_commit"] = land
        before = None

        def note(_: str) -> None:
            nonlocal before
            before = _objects(environment)

        environment.runtime.fail_points.armed["rowlevel.after_plan"] = note
        with pytest.raises(CommitConflictError):
            load(environment).update({"amount": "amount + 1"}, "id < 3", mode=mode)
        added = {path for path in _objects(environment) - before if "/data/" in path}
        live = {t.entry.data_file.file_path for t in load(environment).scan().plan.tasks}
        assert added <= live


@pytest.mark.parametrize("mode", [MOR, COW])
def test_statement_whose_outcome_is_unknown_deletes_nothing(tmp_path, mode: str) -> None:
    """I10: the request may still land, and its snapshot needs the files."""
    environment = _table(tmp_path, "update", "serializable")
    load(environment).set_properties({"commit.status-check.num-retries": "0"})
    written = set()

    def lose(_: str) -> None:
        written.update(_objects(environment))
        raise CommitUnknownError("the answer was lost")

    environment.runtime.fail_points.armed["catalog.before_swap"] = lose
    with pytest.raises(CommitUnknownError):
        load(environment).update({"amount": "amount + 1"}, "id < 3", mode=mode)
    del environment.runtime.fail_points.armed["catalog.before_swap"]
    data = {path for path in written if "/data/" in path}
    assert len(data) > 2
    assert data <= _objects(environment)


def _objects(environment: Environment) -> set[str]:
    listed = environment.store.list_prefix(load(environment).state.metadata.location)
    return {each.location for each in listed}


def test_statement_refuses_a_table_made_anew(tmp_path) -> None:
    environment = _table(tmp_path, "delete", "serializable")

    def land(_: str) -> None:
        environment.runtime.fail_points.armed.clear()
        environment.catalog.drop_table(("t", "rows"))
        catalog = memory_catalog()
        catalog.environment = environment
        catalog.create_table(NAME, SCHEMA, primary_key=["id"]).append(as_table(NEAR))

    environment.runtime.fail_points.armed["rowlevel.after_scan"] = land
    with pytest.raises(CommitConflictError, match="another one has its name"):
        load(environment).delete("id < 3")
    assert load(environment).scan().to_arrow().num_rows == len(NEAR)


@pytest.mark.parametrize("mode", [MOR, COW])
@pytest.mark.parametrize("statement", ["delete", "update"])
def test_statement_that_read_rows_before_they_got_row_ids_is_planned_again(
    tmp_path, statement, mode
) -> None:
    """The first commit after an upgrade gives rows their ids, whoever makes it (R42)."""
    catalog = memory_catalog(str(tmp_path))
    version = {"format-version": "2"}
    table = catalog.create_table(NAME, SCHEMA, primary_key=["id"], properties=version)
    table.append(as_table(NEAR))
    table.upgrade()
    environment, given = catalog.environment, {}

    def ids() -> dict[int, int]:
        found = load(environment).scan(columns=["id", "_row_id"]).to_arrow().to_pylist()
        return {row["id"]: row["_row_id"] for row in found}

    def land(_: str) -> None:
        environment.runtime.fail_points.armed.clear()
        load(environment).append(as_table(FAR))
        given.update(ids())

    def run(retries: int) -> None:
        change = load(environment)
        if statement == "delete":
            change.delete("id < 3", mode=mode, retries=retries)
        else:
            change.update({"amount": "amount + 1"}, "id < 3", mode=mode, retries=retries)

    environment.runtime.fail_points.armed["rowlevel.before_commit"] = land
    with pytest.raises(CommitConflictError, match="has moved"):
        run(0)
    assert ids() == given
    run(1)
    gone = {0, 1, 2} if statement == "delete" else set()
    assert ids() == {key: row_id for key, row_id in given.items() if key not in gone}
