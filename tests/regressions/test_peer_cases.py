"""Cases that other projects' reviews and issues raised, by the P-ids of docs/guarantees.md.

P1, P2 and P5 are in `test_commit_regressions.py`.
"""

from __future__ import annotations

import random
import shutil
from collections import Counter
from dataclasses import replace
from functools import partial

import pyarrow as pa
import pytest

from resolver import resolve
from resolver.index_check import verify
from resolver.index_keeper import index_folder
from tableformat.commit import request
from tableformat.commit.evolution import update_spec
from tableformat.errors import CommitConflictError, InvalidInputError
from tableformat.lookup.result import LookupSource
from tableformat.rowlevel.committing import commit_changes
from tableformat.rowlevel.engine import InProcessEngine
from tableformat.rowlevel.planning import plan_statement
from tableformat.runtime import Runtime
from tableformat.sql.statement import parse_statement
from tests.support.commit_tables import SeededIds
from tests.support.memory_tables import memory_catalog
from tests.support.row_model import Model, assert_history_holds, assert_holds, head_id, live_files
from tests.support.staged_tables import BASE, SCHEMA, StagedTable, keys, rows_of

# -- P3 ------------------------------------------------------------------------------------------


def test_p3_key_that_is_deleted_and_inserted_again_in_one_cycle_survives(staged):
    """Every way to write it: before, in and after the commit of the delete; known keys and new."""
    table = staged.table
    table.stage(deletes=keys(0, 1, 2))
    table.stage(upserts=staged.rows((0, "eu", "after")))
    table.stage(upserts=staged.rows((1, "eu", "with")), deletes=keys(1))
    table.stage(upserts=staged.rows((2, "eu", "then gone"), (30, "eu", "then gone")))
    table.stage(deletes=keys(2, 30, 31))
    table.stage(upserts=staged.rows((31, "us", "new"), (0, "us", "last")))
    assert resolve(table).staged_snapshots == 6
    expected = Model().upsert(*BASE, (0, "us", "last"), (1, "eu", "with"), (31, "us", "new"))
    assert_holds(table, expected.drop(2, 30))


@pytest.mark.parametrize("seed", range(3))
def test_p3_any_order_of_deletes_and_inserts_of_few_keys_ends_as_a_dict_says(tmp_path, seed):
    source, staged, model = random.Random(seed), StagedTable(tmp_path), Model()
    for step in range(20):
        gone = source.sample(range(4), source.randrange(3))
        new = [(key, "eu", f"{step}") for key in source.sample(range(4), source.randrange(3))]
        if gone or new:
            staged.table.stage(
                upserts=staged.rows(*new) if new else None, deletes=keys(*gone) if gone else None
            )
            model.drop(*gone).upsert(*new)
        if source.random() < 0.1 and head_id(staged.table, "staging") is not None:
            resolve(staged.table)
            assert_holds(staged.table, model)
    resolve(staged.table)
    assert_holds(staged.table, model)


# -- P4 ------------------------------------------------------------------------------------------


def test_p4_vector_has_the_partition_and_spec_of_its_data_file(tmp_path):
    """Three specs, NULL among the values; deleted by the resolver, by statements, and both."""
    staged = StagedTable(tmp_path, partition_by=["region"])
    table, model = staged.table, Model()

    def append(first):
        rows = [(first + at, [None, "eu", "us"][at % 3], f"{at % 4}") for at in range(12)]
        table.append(staged.rows(*rows))
        model.upsert(*rows)

    append(0)
    update_spec(
        staged.environment, table.identifier, lambda spec: spec.add_field("id", "bucket[2]")
    )
    append(100)
    update_spec(staged.environment, table.identifier, lambda spec: spec.remove_field("region"))
    append(200)
    gone = [first + at for first in (0, 100, 200) for at in range(6)]
    table.refresh().stage(deletes=pa.table(staged.rows(*(model[key] for key in gone))))
    resolve(table)
    table.delete("note = '3'")
    model.drop(*gone, *[key for key, row in model.items() if row[2] == "3"])
    assert_holds(table, model)
    files = {file.path: file for file in live_files(table) if file.content == 0}
    vectors = [file for file in live_files(table) if file.offset is not None]
    for vector in vectors:
        data = files[vector.referenced]
        assert (vector.spec_id, vector.partition) == (data.spec_id, data.partition)
    places = {(vector.spec_id, vector.partition) for vector in vectors}
    assert {spec_id for spec_id, _ in places} == {0, 1, 2}
    assert (0, (None,)) in places
    assert len(places) >= 7


# -- P6 ------------------------------------------------------------------------------------------

TWIN = 424_242
MERGE = (
    "MERGE INTO t.rows t USING t.source s ON t.id = s.id "
    "WHEN MATCHED THEN UPDATE SET note = s.note WHEN NOT MATCHED THEN INSERT *"
)


@pytest.fixture
def two_tables(tmp_path):
    """A target and a source; the source's snapshot has the id that the target's next one gets."""
    ids = SeededIds(6)
    catalog = memory_catalog(str(tmp_path), Runtime(ids=ids))
    unchecked = {"icefold.sql.check-primary-key": "false"}  # only the scan's snapshot is to tell
    target, source = (
        catalog.create_table(name, SCHEMA, primary_key=["id"], properties=unchecked)
        for name in ("t.rows", "t.source")
    )
    target.append(rows_of(*BASE))
    own = ids.snapshot_id
    ids.snapshot_id = lambda: TWIN
    source.append(rows_of((1, "us", "merged"), (50, "us", "merged")))

    def other_ids():
        ids.snapshot_id = own

    return target, source, other_ids


def planned_merge(target):
    """A planned MERGE, and what commits what Spark would have found on the planned versions."""
    environment = target.environment
    plan = plan_statement(environment, parse_statement(MERGE))
    text = "UPDATE t.rows SET note = 'merged' WHERE id = 1"
    update = plan_statement(environment, parse_statement(text))
    engine = InProcessEngine.for_plan(environment, update)
    changes = engine.evaluate(update)
    inserted = target._write(target.refresh().state, rows_of((50, "us", "merged")))
    changes = replace(changes, files=(*changes.files, *inserted), inserted_rows=1)
    return plan, lambda: commit_changes(environment, plan, changes, partial(engine.rewrite, plan))


def test_p6_statement_over_two_tables_is_held_to_the_targets_own_snapshot(two_tables):
    target, source, other_ids = two_tables
    planned = head_id(target)
    plan, finish = planned_merge(target)
    assert [each.snapshot_id for each in plan.context.tables] == [planned, TWIN]
    target.append(rows_of((50, "eu", "beside")))  # is TWIN, too: snapshot ids are per table
    other_ids()
    assert head_id(target) == head_id(source) == TWIN
    with pytest.raises(CommitConflictError):
        finish()
    assert_holds(target, Counter([*BASE, (50, "eu", "beside")]))


def test_p6_change_of_the_source_alone_is_no_conflict(two_tables):
    target, source, other_ids = two_tables
    _, finish = planned_merge(target)
    other_ids()
    for key in range(3):
        source.append(rows_of((60 + key, "us", "later")))
    finish()
    expected = Model().upsert(*BASE, (1, "eu", "merged"), (50, "us", "merged"))
    assert_holds(target, expected)


# -- P7 ------------------------------------------------------------------------------------------


@pytest.fixture
def upgraded(staged, monkeypatch):
    """As after an upgrade from v2: keys 3 and 4 are deleted by a position delete file."""
    [data] = [task.entry.data_file for task in staged.table.scan().plan.tasks]
    file = staged.position_deletes({data.file_path: [3, 4]}, [data])
    with monkeypatch.context() as patch:
        patch.setattr(request, "_check_form", lambda *_, **__: None)  # v3 may not be given new ones
        staged.commit(branch="main", deletes=[file])
    return staged


def test_p7_position_deletes_from_before_an_upgrade_are_honoured(upgraded):
    table = upgraded.table
    found = table.scan(columns=["id"]).to_arrow()["id"].to_pylist()
    assert Counter(found) == Counter(key for key in range(20) if key not in {3, 4})
    assert table.lookup([3, 4, 5]).to_arrow()["id"].to_pylist() == [5]


@pytest.mark.parametrize("fold", ["resolve", "delete", "update"])
def test_p7_position_deletes_from_before_an_upgrade_become_part_of_the_vector(upgraded, fold):
    table, expected = upgraded.table, Model().upsert(*BASE).drop(3, 4)
    if fold == "resolve":
        table.stage(deletes=keys(7), upserts=upgraded.rows((3, "us", "again")))
        resolve(table)
        expected.drop(7).upsert((3, "us", "again"))
    elif fold == "delete":
        table.delete("id = 7")
        expected.drop(7)
    else:
        table.update({"note": "'x'"}, "id = 7")
        expected.upsert((7, "eu", "x"))
    assert_all_is_in_one_vector(table, expected)


def assert_all_is_in_one_vector(table, expected):
    """No position delete file is left, and one vector has all deleted positions of the file."""
    assert not [file for file in live_files(table) if file.content == 1 and file.offset is None]
    assert_holds(table, expected)
    [vector] = [file for file in live_files(table) if file.offset is not None]
    assert vector.record_count == 3


@pytest.mark.parametrize("replaces", [True, False], ids=["replaced", "first"])
def test_p7_vector_of_a_staging_writer_is_folded_and_never_a_second_one(staged, replaces):
    """On a published file with and without a vector, and on the writer's own file."""
    table, expected = staged.table, Model().upsert(*BASE)
    table.stage(deletes=keys(*([0] if replaces else [99])))
    resolve(table)  # staging is trimmed to main
    [task] = table.scan(branch="staging").plan.tasks
    data = task.entry.data_file
    own = staged.data_files((40, "eu", "own"), (41, "eu", "own"))
    known = [0] if replaces else []
    vectors = staged.vectors({data.file_path: [*known, 5], own[0].file_path: [1]}, [data, *own])
    deletes = [*vectors, *staged.equality_deletes(keys(6))]
    staged.commit(data=own, deletes=deletes, removed=[task.dv] if replaces else [])
    resolve(table)
    assert_holds(table, expected.drop(*known, 5, 6).upsert((40, "eu", "own")))
    referenced = Counter(file.referenced for file in live_files(table) if file.offset is not None)
    assert referenced == {data.file_path: 1, own[0].file_path: 1}


# -- P8 ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("back", [1, 2, 3], ids=lambda back: f"{back} publishes lost")
def test_p8_rolled_back_target_gets_all_staged_changes_again_and_none_twice(staged, back):
    """Each publish was trimmed; more was staged before anybody noticed."""
    table, model = staged.table, Model().upsert(*BASE)
    heads, history = [head_id(table)], {head_id(table): model.rows}
    for step in range(3):
        new = [(step, "eu", f"step {step}"), (100 + step, "eu", "new"), (19, "us", f"{step}")]
        table.stage(upserts=staged.rows(*new), deletes=keys(10 + step))
        assert resolve(table).trimmed
        heads.append(head_id(table))
        history[heads[-1]] = model.upsert(*new).drop(10 + step).rows
    table.stage(upserts=staged.rows((2, "us", "last")), deletes=keys(100))
    table.refs.rollback(snapshot_id=heads[-1 - back])
    resolve(table)
    assert_holds(table, model.upsert((2, "us", "last")).drop(100))
    assert resolve(table).staged_snapshots == 0
    assert verify(table).report.is_sound
    assert_history_holds(table, history)


def test_p8_target_replaced_by_an_older_fork_gets_what_it_lacks(staged):
    """`main` becomes a branch that forked off before the publishes, with a row of its own."""
    table, model = staged.table, Model().upsert(*BASE)
    table.refs.create_branch("audit")
    table.append(staged.rows((70, "us", "audit")), branch="audit")
    table.stage(upserts=staged.rows((1, "eu", "new")), deletes=keys(2))
    resolve(table)
    table.stage(deletes=keys(3))
    table.refs.replace("main", to="audit", expected_head=head_id(table))
    resolve(table)
    assert_holds(table, model.upsert((70, "us", "audit"), (1, "eu", "new")).drop(2, 3))
    assert verify(table).report.is_sound


def test_p8_position_that_cannot_be_proven_stops_the_cycle(staged):
    """Staging was pointed back to before the publish: converting from the start would repeat."""
    table = staged.table
    base = head_id(table)
    table.stage(upserts=staged.rows((1, "eu", "new")))
    resolve(table)
    table.refs.replace("staging", to=base, expected_head=head_id(table, "staging"))
    table.stage(upserts=staged.rows((2, "eu", "newer")))
    before = table.refresh().metadata_location
    with pytest.raises(InvalidInputError, match="--from-snapshot"):
        resolve(table)
    assert table.refresh().metadata_location == before
    resolve(table, from_snapshot=base)
    assert_holds(table, Model().upsert(*BASE, (1, "eu", "new"), (2, "eu", "newer")))


# -- P9 ------------------------------------------------------------------------------------------


def missing(folder, _older):
    shutil.rmtree(folder)


def stale(folder, older):
    shutil.rmtree(folder)
    shutil.copytree(older, folder)


def corrupt(folder, _older):
    for path in [*folder.rglob("*.run"), *folder.rglob("*.sst")]:
        data = bytearray(path.read_bytes())
        data[len(data) // 3] ^= 0xFF
        path.write_bytes(data)


def cut(folder, _older):
    for path in [*folder.rglob("*.run"), *folder.rglob("*.sst")]:
        path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize("finder", ["lookup", "cycle"])
@pytest.mark.parametrize("damage", [missing, stale, corrupt, cut], ids=lambda each: each.__name__)
def test_p9_index_that_is_gone_stale_or_damaged_never_costs_a_row(staged, tmp_path, damage, finder):
    """Who finds it first marks it as damaged for all who come later."""
    table, model = staged.table, Model().upsert(*BASE)
    table.stage(upserts=staged.rows((1, "eu", "one"), (30, "eu", "one")))
    resolve(table)
    folder = index_folder(table.environment, table.state, "main")
    older = tmp_path / "older"
    shutil.copytree(folder, older)
    table.stage(upserts=staged.rows((2, "eu", "two"), (31, "eu", "two")), deletes=keys(30, 3))
    resolve(table)
    model.upsert((1, "eu", "one"), (2, "eu", "two"), (31, "eu", "two")).drop(30, 3)
    damage(folder, older)
    if finder == "lookup":
        found = table.lookup(list(range(35)))
        assert Counter(tuple(row.values()) for row in found.to_pylist()) == model.rows
        if damage is not stale:
            assert found.source == LookupSource.SCAN
            assert found.reason
    table.stage(upserts=staged.rows((31, "us", "three")), deletes=keys(2, 1, 30))
    assert resolve(table).index == ("followed" if damage is stale else "built")
    assert_holds(table, model.upsert((31, "us", "three")).drop(2, 1))
    assert verify(table).report.is_sound


def test_p9_index_whose_entries_are_damaged_is_built_afresh_within_the_cycle(staged):
    """So many keys that opening it reads none of the damaged blocks; asking for keys does."""
    table = staged.table
    many = [(key, "eu", "many") for key in range(1_000, 6_000)]
    table.append(staged.rows(*many))
    table.stage(upserts=staged.rows((1, "eu", "one")))
    resolve(table)
    folder = index_folder(table.environment, table.state, "main")
    entries = max(folder.rglob("*.run"), key=lambda path: path.stat().st_size)
    data = bytearray(entries.read_bytes())
    for at in range(len(data) // 3, 2 * len(data) // 3, 512):
        data[at] ^= 0xFF
    entries.write_bytes(data)
    gone = [key for key, _, _ in many[::3]]
    table.stage(deletes=keys(*gone))
    assert resolve(table).index == "built"
    assert_holds(table, Model().upsert(*BASE, *many, (1, "eu", "one")).drop(*gone))
    assert verify(table).report.is_sound
