"""IMMUTABLE columns through a whole cycle: scoped deletes are right, violations are refused."""

from __future__ import annotations

import json
import random
from typing import Any

import pyarrow as pa
import pytest

from resolver import resolve
from tableformat import CommitConflictError, InvalidInputError, Table, TableCatalog
from tableformat.cdc.events import EventBatch
from tableformat.cdc.ingest import commit_written, with_ordinals, write_changes
from tableformat.cdc.sink import plan_sink
from tableformat.codec.avro.manifest_store import load_manifest, load_manifest_list
from tableformat.spec.data_file import DataFile
from tests.support.memory_tables import memory_catalog
from tests.support.staged_tables import StagedTable

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("region", pa.string()),
        pa.field("rate", pa.float64()),
        pa.field("note", pa.string()),
    ]
)
REGIONS = ("eu", "us", None)


def create(folder: object, immutable: list[str] | None = None, **more: Any) -> Table:
    return memory_catalog(str(folder)).create_table(
        "t.rows",
        SCHEMA,
        primary_key=["id"],
        partition_by=["region"],
        immutable_columns=["region"] if immutable is None else immutable,
        **more,
    )


def rows(*values: tuple[Any, ...]) -> pa.Table:
    return pa.table([pa.array(c, f.type) for c, f in zip(zip(*values), SCHEMA)], schema=SCHEMA)  # noqa: B905


def published(table: Table) -> dict[int, tuple[Any, ...]]:
    found = table.scan().to_arrow().to_pylist()
    state = {row["id"]: (row["region"], row["rate"], row["note"]) for row in found}
    assert len(state) == len(found), "a key has two rows"
    return state


def delete_specs(table: Table, branch: str = "staging") -> set[int]:
    store = table.environment.store
    head = table.refresh().state.head(branch)
    assert head is not None
    return {
        entry.data_file.spec_id
        for manifest in load_manifest_list(store, head)
        for entry in load_manifest(store, manifest)
        if entry.data_file.equality_ids
    }


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("layout", ["envelope", "flattened"])
def test_scoped_deletes_of_random_streams_equal_the_fold(
    tmp_path: object, seed: int, layout: str
) -> None:
    """Rows keep their region; deletes hold whole rows, so they stay within the partition."""
    rng = random.Random(seed)
    table = create(tmp_path, enforce_immutable="except-delete" if seed % 2 else False)
    state: dict[int, tuple[Any, ...]] = {}
    region_of = {key: rng.choice(REGIONS) for key in range(20)}
    for number in range(8):
        events = []
        for step in range(rng.randrange(1, 15)):
            key = rng.randrange(20)
            row = (region_of[key], rng.random(), f"{number}.{step}")
            if key in state and rng.random() < 0.4:
                row = state.pop(key)
                op = "d"
            else:
                state[key] = row
                op = "u"
            body = dict(zip(("id", "region", "rate", "note"), (key, *row), strict=True))
            events.append(debezium(body, op) if layout == "envelope" else flattened(body, op))
        write_changes(
            table.environment,
            table.identifier,
            pa.table({"value": events}),
            options={"deletes": "row", "layout": layout},
        )
        assert delete_specs(table) <= {0}, "a delete left its partition"
        if rng.random() < 0.5:
            resolve(table)
            assert published(table) == state
    resolve(table)
    assert published(table) == state


def debezium(row: dict[str, Any], op: str) -> str:
    before, after = (row, None) if op == "d" else (None, row)
    return json.dumps({"before": before, "after": after, "op": op})


def flattened(row: dict[str, Any], op: str) -> str:
    return json.dumps({**row, "__deleted": str(op == "d").lower()})


def test_keys_alone_are_deleted_globally_although_the_partition_is_immutable(
    tmp_path: object,
) -> None:
    table = create(tmp_path)
    table.append(rows((1, "eu", 1.0, "a"), (2, "us", 1.0, "a")))
    event = json.dumps({"before": {"id": 1}, "after": None, "op": "d"})
    write_changes(table.environment, table.identifier, pa.table({"value": [event]}))
    found = delete_specs(table)
    assert found == {s.spec_id for s in table.state.metadata.partition_specs if not s.fields}
    resolve(table)
    assert set(published(table)) == {2}


@pytest.mark.parametrize("layout", ["envelope", "flattened"])
def test_delete_without_its_row_is_a_bad_record_where_rows_are_promised(
    tmp_path: object, layout: str
) -> None:
    """Null instead of the region would send the delete to the partition of null."""
    table = create(tmp_path)
    tombstone = layout == "flattened"
    value = None if tombstone else json.dumps({"before": None, "after": None, "op": "d"})
    events = pa.table({"key": ['{"id": 1}'], "value": pa.array([value], pa.string())})
    with pytest.raises(InvalidInputError, match="holds its key only"):
        write_changes(
            table.environment,
            table.identifier,
            events,
            options={"deletes": "row", "layout": layout},
        )


def test_enforced_constraint_refuses_a_changed_value_before_anything_is_published(
    tmp_path: object,
) -> None:
    table = create(tmp_path, ["rate", "region"], enforce_immutable=True)
    table.append(rows((1, "eu", 1.0, "a"), (2, "us", 1.0, "a")))
    head = table.state.head("main")
    table.stage(upserts=rows((1, "eu", 1.0, "b"), (2, "us", 2.0, "b")))
    with pytest.raises(InvalidInputError) as error:
        resolve(table)
    text = str(error.value)
    assert "breaks the IMMUTABLE constraint" in text
    assert "key={'id': 2}, column=rate, old=[1.0], new=[2.0], keys_broken=1" in text
    assert table.refresh().state.head("main") == head
    table.set_immutable_columns(["rate", "region"], enforced=False)
    resolve(table)
    assert published(table)[2] == ("us", 2.0, "b")


def test_enforced_constraint_sees_a_row_that_a_scoped_delete_would_miss(tmp_path: object) -> None:
    table = create(tmp_path, enforce_immutable=True)
    table.append(rows((1, "eu", 1.0, "a")))
    table.stage(upserts=rows((1, "us", 1.0, "b")))
    with pytest.raises(InvalidInputError, match=r"column=region, old=\['eu'\], new=\['us'\]"):
        resolve(table)


def test_enforced_constraint_compares_the_commits_of_one_backlog(tmp_path: object) -> None:
    table = create(tmp_path, ["rate"], enforce_immutable=True)
    table.stage(upserts=rows((1, "eu", 1.0, "a"), (5, "eu", None, "a")))
    table.stage(upserts=rows((1, "eu", 1.0, "b"), (5, "eu", None, "b")))
    table.stage(upserts=rows((1, "eu", 3.0, "c")))
    with pytest.raises(InvalidInputError, match=r"old=\[1.0\], new=\[3.0\], keys_broken=1"):
        resolve(table)
    assert resolve(table, limit=2).staged_snapshots == 2
    assert published(table) == {1: ("eu", 1.0, "b"), 5: ("eu", None, "b")}


def test_enforced_column_that_is_cleared_is_a_violation(tmp_path: object) -> None:
    table = create(tmp_path, ["rate"], enforce_immutable=True)
    table.append(rows((1, "eu", 1.0, "a")))
    table.stage(upserts=rows((1, "eu", None, "b")))
    with pytest.raises(InvalidInputError, match=r"old=\[1.0\], new=\[None\]"):
        resolve(table)


def test_enforced_constraint_compares_with_rows_that_another_writer_adds_meanwhile(
    tmp_path: object,
) -> None:
    table = create(tmp_path, ["rate"], enforce_immutable=True)
    table.stage(upserts=rows((1, "eu", 1.0, "a")))
    other = Table(table.environment, table.state)
    raced = []

    def race(name: str) -> None:
        if name == "resolve.after_match" and not raced:
            raced.append(other.append(rows((1, "eu", 9.0, "x"))))

    runtime = table.environment.runtime
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(runtime), "fail_point", lambda _, name: race(name))
        with pytest.raises(InvalidInputError, match=r"old=\[9.0\], new=\[1.0\]"):
            resolve(table)


def test_null_and_nan_agree_with_themselves(tmp_path: object) -> None:
    table = create(tmp_path, ["rate", "region"], enforce_immutable=True)
    table.append(rows((1, None, float("nan"), "a"), (2, None, None, "a")))
    table.stage(upserts=rows((1, None, float("nan"), "b"), (2, None, None, "b")))
    resolve(table)
    assert {key: row[2] for key, row in published(table).items()} == {1: "b", 2: "b"}


def test_constraint_equal_to_the_key_is_enforced_without_effect(tmp_path: object) -> None:
    table = create(tmp_path, ["id"], enforce_immutable=True)
    table.append(rows((1, "eu", 1.0, "a")))
    table.stage(upserts=rows((1, "us", 2.0, "b")))
    resolve(table)
    assert published(table) == {1: ("us", 2.0, "b")}


def test_batch_planned_under_a_constraint_that_was_dropped_is_refused(tmp_path: object) -> None:
    """Its deletes are confined to partitions that rows may leave now."""
    table = create(tmp_path)
    plan = plan_sink(
        table.environment,
        table.identifier,
        format_name="upsert",
        options={"deletes": "row"},
        branch="staging",
    )
    change_format = plan.writer.build_format()
    (events,) = EventBatch.split(with_ordinals(rows((1, "eu", 1.0, "a"))), 10)
    parsed = plan.writer.parse(change_format, events)
    assert plan.writer.delete_spec == table.spec()
    written = plan.writer.write(parsed.changes, change_format, table.environment.runtime.ids)
    table.drop_immutable_columns()
    with pytest.raises(CommitConflictError, match="lost its IMMUTABLE constraint"):
        commit_written(plan, written, None)


def enforced(folder: object, how: Any = True) -> Table:
    table = create(folder, ["rate"], enforce_immutable=how)
    table.append(rows((1, "eu", 1.0, "a"), (2, "us", 2.0, "a")))
    return table


KEY_1 = pa.table({"id": pa.array([1], pa.int64()), "region": ["eu"]})


def test_key_that_is_deleted_cannot_come_back_with_other_values(tmp_path: object) -> None:
    table = enforced(tmp_path)
    table.stage(deletes=KEY_1)
    with pytest.raises(InvalidInputError, match=r"deletes a row.*key=\{'id': 1\}"):
        resolve(table)
    assert set(published(table)) == {1, 2}
    table.set_immutable_columns(["rate"], enforced="except-delete")
    resolve(table)
    table.stage(upserts=rows((1, "eu", 5.0, "b")))
    resolve(table)
    assert published(table)[1] == ("eu", 5.0, "b"), "today's way is there for who wants it"


def test_row_that_was_never_published_cannot_be_deleted_either(tmp_path: object) -> None:
    table = enforced(tmp_path)
    table.stage(upserts=rows((7, "eu", 1.0, "a")))
    table.stage(deletes=pa.table({"id": pa.array([7], pa.int64()), "region": ["eu"]}))
    with pytest.raises(InvalidInputError, match=r"deletes a row.*key=\{'id': 7\}"):
        resolve(table)
    assert resolve(table, limit=1).staged_snapshots == 1


def test_row_that_is_deleted_and_inserted_in_one_cycle_stays(tmp_path: object) -> None:
    table = enforced(tmp_path)
    table.stage(deletes=KEY_1)
    table.stage(upserts=rows((1, "eu", 1.0, "b")))
    resolve(table)
    assert published(table)[1] == ("eu", 1.0, "b")


def test_delete_of_a_key_that_is_not_there_is_nothing(tmp_path: object) -> None:
    table = enforced(tmp_path)
    gone = pa.table({"id": pa.array([99], pa.int64()), "region": ["eu"]})
    table.stage(upserts=rows((2, "us", 2.0, "b")), deletes=gone)
    resolve(table)
    assert published(table)[2] == ("us", 2.0, "b")


def test_statements_that_delete_are_refused(tmp_path: object) -> None:
    table = enforced(tmp_path)
    with pytest.raises(InvalidInputError, match="rows cannot be deleted"):
        table.delete("id = 1")
    with pytest.raises(InvalidInputError, match="rows cannot be deleted"):
        table.overwrite(rows((1, "eu", 9.0, "b")))
    catalog = TableCatalog(table.environment)
    merge = "MERGE INTO t.rows t USING t.rows s ON t.id = s.id WHEN MATCHED THEN "
    with pytest.raises(InvalidInputError, match="rows cannot be deleted"):
        catalog.sql(merge + "DELETE")
    table.set_immutable_columns(["rate"], enforced="except-delete")
    assert table.delete("id = 1").deleted_rows == 1


def test_truncate_of_the_source_is_refused(tmp_path: object) -> None:
    table = enforced(tmp_path)
    event = json.dumps({"op": "t", "before": None, "after": None, "source": {"table": "rows"}})
    write_changes(
        table.environment,
        table.identifier,
        pa.table({"value": [event]}),
        options={"on-truncate": "apply"},
    )
    with pytest.raises(InvalidInputError, match="deletes a row"):
        resolve(table)


def vector_of_key_1(staged: StagedTable) -> list[DataFile]:
    file = staged.only_file()
    [place] = staged.table.scan("id = 1", columns=["_pos"]).to_arrow()["_pos"].to_pylist()
    return staged.vectors({file.file_path: [place]}, [file])


@pytest.mark.parametrize("how", [True, "except-delete"])
def test_update_of_another_writer_by_position_is_compared(tmp_path: Any, how: Any) -> None:
    """It names no key: the deleted row's and the new one's are found all the same."""
    staged = StagedTable(tmp_path)
    staged.table.append(staged.rows((1, "eu", "a"), (2, "us", "a")))
    staged.table.set_immutable_columns(["region"], enforced=how)
    vectors = vector_of_key_1(staged)
    staged.commit(data=staged.data_files((1, "us", "b")), deletes=vectors)
    with pytest.raises(InvalidInputError, match=r"column=region, old=\['eu'\], new=\['us'\]"):
        resolve(staged.table)


@pytest.mark.parametrize("how", [True, "except-delete"])
def test_delete_of_another_writer_by_position_is_seen(tmp_path: Any, how: Any) -> None:
    staged = StagedTable(tmp_path)
    staged.table.append(staged.rows((1, "eu", "a"), (2, "us", "a")))
    staged.table.set_immutable_columns(["region"], enforced=how)
    staged.commit(deletes=vector_of_key_1(staged))
    if how is True:
        with pytest.raises(InvalidInputError, match=r"deletes a row.*key=\{'id': 1\}"):
            resolve(staged.table)
    else:
        resolve(staged.table)
        assert staged.published() == {(2, "us", "a"): 1}
