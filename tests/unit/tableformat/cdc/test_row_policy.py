"""Out-of-order guard, soft deletes and order within files, against folds by a dict."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest

from resolver import resolve
from tableformat import InvalidInputError, Table
from tableformat.cdc.ingest import write_changes
from tableformat.cdc.sink import plan_sink
from tableformat.codec.avro.manifest_store import load_manifest, load_manifest_list
from tableformat.spec.constraints import sequence_field_id
from tests.support.memory_tables import memory_catalog
from tests.support.staged_tables import StagedTable

SCHEMA = pa.schema(
    [
        pa.field("region", pa.string()),
        pa.field("id", pa.int64(), nullable=False),
        pa.field("note", pa.string()),
        pa.field("version", pa.int64()),
        pa.field("gone", pa.bool_()),
    ]
)
EVENT = pa.schema(
    [*[SCHEMA.field(n) for n in ("region", "id", "note", "version")], ("op", pa.string())]
)
REGIONS = ("eu", "us", "asia")
Event = dict[str, Any]
Fold = dict[int, Event]


@pytest.fixture
def table(tmp_path: object) -> Table:
    catalog = memory_catalog(str(tmp_path))
    return catalog.create_table("t.rows", SCHEMA, primary_key=["id"], partition_by=["region"])


def typed(table: Table, events: Sequence[Event], **options: str) -> None:
    given = {"kind-column": "op", "sequence-column": "version", **_dashed(options)}
    rows = pa.Table.from_pylist(list(events), schema=EVENT)
    write_changes(table.environment, table.identifier, rows, format_name="upsert", options=given)


def debezium(table: Table, events: Sequence[Event], **options: str) -> None:
    """The table's column is filled from the event: deletes hold their key only."""
    given = {"sequence": "source.lsn", "sequence-column": "version", **_dashed(options)}
    texts = []
    for event in events:
        row = {name: event[name] for name in ("region", "id", "note")}
        is_delete = event["op"] == "d"
        body = {
            "before": {"id": event["id"]} if is_delete else None,
            "after": None if is_delete else row,
            "op": event["op"],
            "source": {"lsn": event["version"]},
        }
        texts.append(json.dumps(body))
    rows = pa.table({"value": texts})
    write_changes(table.environment, table.identifier, rows, options=given)


def _dashed(options: Mapping[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in options.items()}


def random_events(rng: random.Random, count: int) -> list[Event]:
    """Changes of few keys with rising versions, then far out of order."""
    events = [
        {
            "region": rng.choice(REGIONS),
            "id": rng.randrange(12),
            "note": f"n{version}",
            "version": version,
            "op": rng.choice("uuud"),
        }
        for version in range(1, count + 1)
    ]
    return sorted(events, key=lambda event: event["version"] + rng.uniform(0, count / 2))


def batches_of(rng: random.Random, events: list[Event]) -> list[list[Event]]:
    cuts = sorted(rng.sample(range(1, len(events)), 9))
    return [events[a:b] for a, b in zip([0, *cuts], [*cuts, len(events)], strict=True)]


def newest(fold: Fold, events: Sequence[Event]) -> None:
    for event in events:
        known = fold.get(event["id"])
        if known is None or event["version"] > known["version"]:
            fold[event["id"]] = event


def published(table: Table) -> dict[int, tuple[Any, ...]]:
    rows = table.scan().to_arrow().to_pylist()
    found = {row["id"]: (row["region"], row["note"], row["version"], row["gone"]) for row in rows}
    assert len(found) == len(rows), "a key has two rows"
    return found


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("write", [typed, debezium])
def test_random_streams_end_at_the_newest_version_when_deletes_are_soft(
    table: Table, seed: int, write: Any
) -> None:
    """Deletes leave rows, so an older change never wins, however late it comes."""
    rng = random.Random(seed)
    fold: Fold = {}
    for batch in batches_of(rng, random_events(rng, 150)):
        write(table, batch, soft_delete="gone")
        newest(fold, batch)
        if rng.random() < 0.5:
            resolve(table)
            check_soft(table, fold, write)
    resolve(table)
    check_soft(table, fold, write)


def check_soft(table: Table, fold: Fold, write: Any) -> None:
    rows = published(table)
    assert {key: (row[2], row[3]) for key, row in rows.items()} == {
        key: (event["version"], event["op"] == "d") for key, event in fold.items()
    }
    for key, event in fold.items():
        if event["op"] != "d" or write is typed:
            assert rows[key][:2] == (event["region"], event["note"])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("write", [typed, debezium])
def test_random_streams_with_hard_deletes_equal_the_fold_cycle_by_cycle(
    table: Table, seed: int, write: Any
) -> None:
    """A published hard delete is forgotten; within a cycle it wins over everything older."""
    rng = random.Random(100 + seed)
    fold: Fold = {}
    for batch in batches_of(rng, random_events(rng, 150)):
        write(table, batch)
        newest(fold, batch)
        if rng.random() < 0.4:
            resolve(table)
            fold = {key: event for key, event in fold.items() if event["op"] != "d"}
            assert published(table) == expected(fold)
    resolve(table)
    assert published(table) == expected(fold)


def expected(fold: Fold) -> dict[int, tuple[Any, ...]]:
    return {
        key: (event["region"], event["note"], event["version"], None)
        for key, event in fold.items()
        if event["op"] != "d"
    }


def event(id: int, version: int | None, op: str = "u", region: str = "eu") -> Event:
    return {"region": region, "id": id, "note": f"n{version}", "version": version, "op": op}


def test_older_change_after_the_publish_is_counted_as_outdated(table: Table) -> None:
    typed(table, [event(1, 10), event(2, 10)])
    resolve(table)
    typed(table, [event(1, 9, region="us"), event(2, 11)])
    report = resolve(table)
    assert report.outdated_rows == 1
    assert {key: row[2] for key, row in published(table).items()} == {1: 10, 2: 11}


def test_older_delete_after_the_publish_leaves_the_newer_row(table: Table) -> None:
    debezium(table, [event(1, 10)])
    resolve(table)
    debezium(table, [event(1, 9, "d")])
    assert resolve(table).deleted_rows == 0
    assert set(published(table)) == {1}


def test_equal_sequences_are_taken_in_arrival_order(table: Table) -> None:
    typed(table, [event(1, 5)])
    resolve(table)
    typed(table, [event(1, 5, region="us")])
    typed(table, [event(2, 5), event(2, 5, "d")])
    resolve(table)
    assert {key: row[0] for key, row in published(table).items()} == {1: "us"}


def test_row_that_another_writer_deleted_on_the_target_guards_no_longer(tmp_path: object) -> None:
    """The index may still know the row; the vector of its file says that it is gone."""
    foreign = StagedTable(tmp_path, schema=SCHEMA)
    table = foreign.table
    typed(table, [event(1, 10), event(2, 10)])
    resolve(table)
    task = table.scan().plan.tasks[0]
    file = task.entry.data_file
    foreign.commit(branch="main", deletes=foreign.vectors({file.file_path: [0]}, [file]))
    typed(table, [event(1, 3), event(2, 3)])
    resolve(table)
    assert {key: row[2] for key, row in published(table).items()} == {1: 3, 2: 10}


def test_typed_delete_that_should_hold_its_row_and_does_not_is_a_bad_record(table: Table) -> None:
    typed(table, [event(1, 1), event(2, 1)])
    bare = {"region": None, "id": 1, "note": None, "version": None, "op": "d"}
    with pytest.raises(InvalidInputError, match="holds its key only, not the row"):
        typed(table, [bare], deletes="row")
    typed(table, [bare, event(2, 2, "d")], deletes="row", on_bad_record="dead-letter")
    resolve(table)
    assert set(published(table)) == {1}


def test_staged_key_without_a_sequence_deletes_whatever_came_before(table: Table) -> None:
    """`stage`, and foreign writers, whose equality deletes hold the key only."""
    typed(table, [event(1, 10), event(2, 10)])
    resolve(table)
    typed(table, [event(2, 12)])
    table.stage(deletes=pa.table({"id": pa.array([1, 2], pa.int64())}))
    resolve(table)
    assert published(table) == {}


def test_staged_upsert_of_a_foreign_writer_is_as_old_as_its_row(table: Table) -> None:
    typed(table, [event(1, 10), event(2, 10)])
    resolve(table)
    rows = pa.Table.from_pylist([event(1, 9), event(2, 11)]).select(["region", "id", "version"])
    table.stage(upserts=rows)
    resolve(table)
    assert {key: row[2] for key, row in published(table).items()} == {1: 10, 2: 11}


def test_staged_upsert_without_its_sequence_is_refused(table: Table) -> None:
    table.set_sequence_column("version")
    with pytest.raises(InvalidInputError, match=r"sequence column.*column=version"):
        table.stage(upserts=pa.table({"id": pa.array([1], pa.int64())}))


def test_change_without_a_sequence_is_a_bad_record(table: Table) -> None:
    typed(table, [event(1, 1)])
    with pytest.raises(InvalidInputError, match="lacks a value of the sequence column 'version'"):
        typed(table, [event(2, 1), event(3, None)])
    typed(table, [event(2, 1), event(3, None, "d")], on_bad_record="dead-letter")
    resolve(table)
    assert set(published(table)) == {1, 2}


def test_newer_row_that_somebody_publishes_meanwhile_wins(table: Table) -> None:
    """The publish loses its race; the rows that came are compared, not only deleted by key."""
    typed(table, [event(1, 5), event(2, 5)])
    other = Table(table.environment, table.state)
    raced: list[object] = []

    def race(name: str) -> None:
        if name == "resolve.after_match" and not raced:
            rows = pa.Table.from_pylist([event(1, 9), event(2, 4)], schema=EVENT).drop(["op"])
            raced.append(other.append(rows))

    with pytest.MonkeyPatch.context() as patch:
        runtime = type(table.environment.runtime)
        patch.setattr(runtime, "fail_point", lambda _, name: race(name))
        assert resolve(table).attempts == 2
    assert {key: row[2] for key, row in published(table).items()} == {1: 9, 2: 5}


def test_sequence_that_its_column_cannot_hold_is_a_bad_record(tmp_path: object) -> None:
    schema = pa.schema([*SCHEMA, pa.field("short", pa.int32())])
    catalog = memory_catalog(str(tmp_path))
    table = catalog.create_table("t.a", schema, primary_key=["id"])
    events = [event(1, 7), event(2, 2**40), event(3, 2**31, "d"), event(4, 8)]
    with pytest.raises(
        InvalidInputError,
        match=r"does not fit its column: column 'short'.*position=event 1, bad.*2",
    ):
        debezium(table, events, sequence_column="short")
    assert table.refresh().state.head("staging") is None
    debezium(table, events, sequence_column="short", on_bad_record="dead-letter")
    rows = table.scan(branch="staging").to_arrow().to_pylist()
    assert {row["id"]: row["short"] for row in rows} == {1: 7, 4: 8}
    letters = catalog.load_table("t.a_dead_letter").scan().to_arrow().to_pylist()
    assert [json.loads(letter["value"])["source"]["lsn"] for letter in letters] == [2**40, 2**31]
    assert all("column 'short'" in letter["reason"] for letter in letters)


def test_later_sink_without_the_option_keeps_to_the_declared_column(table: Table) -> None:
    typed(table, [event(1, 10)])
    resolve(table)
    rows = pa.Table.from_pylist([event(1, 9)], schema=EVENT).drop(["op"])
    write_changes(table.environment, table.identifier, rows, format_name="upsert")
    resolve(table)
    assert {key: row[2] for key, row in published(table).items()} == {1: 10}


def test_sequence_follows_a_rename_of_its_column(table: Table) -> None:
    typed(table, [event(1, 10)])
    resolve(table)
    table.update_schema(lambda s: s.rename_column("version", "revision"))
    rows = pa.table({"id": [1], "revision": [9], "note": ["late"], "region": ["eu"]})
    write_changes(table.environment, table.identifier, rows, format_name="upsert")
    resolve(table)
    assert table.scan(columns=["revision"]).to_arrow().to_pylist() == [{"revision": 10}]


@pytest.mark.parametrize(
    ("format_name", "options", "message"),
    [
        ("debezium-json", {"sequence-column": "version"}, "nothing that says how old"),
        (
            "debezium-json",
            {"sequence-column": "version", "sequence": "source.a,source.b"},
            "several fields",
        ),
        ("append", {"sequence-column": "version"}, "every row is a new one"),
        ("upsert", {"sequence-column": "nope"}, "unknown column"),
        ("upsert", {"sequence-column": "version", "sequence": "note"}, "by another column"),
        ("upsert", {"soft-delete": "note"}, "optional boolean column"),
        ("append", {"soft-delete": "gone"}, "has no deletes"),
        ("upsert", {"sort-by": "nope"}, "sort-by needs columns"),
    ],
)
def test_policy_that_cannot_be_right_is_refused_and_leaves_no_trace(
    table: Table, format_name: str, options: dict[str, str], message: str
) -> None:
    with pytest.raises(InvalidInputError, match=message):
        plan_sink(
            table.environment,
            table.identifier,
            format_name=format_name,
            options=options,
            branch="staging",
        )
    assert sequence_field_id(table.refresh().state.metadata) is None


def test_soft_delete_needs_whole_rows_where_a_column_is_required(tmp_path: object) -> None:
    schema = pa.schema([*SCHEMA, pa.field("must", pa.int64(), nullable=False)])
    table = memory_catalog(str(tmp_path)).create_table("t.a", schema, primary_key=["id"])
    with pytest.raises(InvalidInputError, match=r"a column is required.*column=must"):
        typed(table, [], soft_delete="gone")


@pytest.mark.parametrize(
    ("sort_by", "order"),
    [(None, [1, 2, 3, 4]), ("none", [3, 1, 4, 2]), ("note", [4, 3, 2, 1])],
)
def test_rows_of_a_file_are_in_the_order_asked_for(
    table: Table, sort_by: str | None, order: list[int]
) -> None:
    notes = {1: "d", 2: "c", 3: "b", 4: None}
    rows = [{**event(key, 1), "note": notes[key]} for key in (3, 1, 4, 2)]
    typed(table, rows, **({} if sort_by is None else {"sort_by": sort_by}))
    ids = table.scan(branch="staging").to_arrow().column("id").to_pylist()
    assert ids == order


def test_equality_deletes_carry_the_sequence_beside_the_key(table: Table) -> None:
    typed(table, [event(1, 7), event(2, 8, "d")])
    head = table.refresh().state.head("staging")
    assert head is not None
    store = table.environment.store
    files = [
        entry.data_file
        for manifest in load_manifest_list(store, head)
        for entry in load_manifest(store, manifest)
        if entry.data_file.equality_ids
    ]
    assert [file.equality_ids for file in files] == [(2,)]
    assert set(files[0].lower_bounds or {}) == {2, 4}
