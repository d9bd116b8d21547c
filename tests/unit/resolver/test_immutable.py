"""IMMUTABLE columns through a whole cycle: scoped deletes are right, violations are refused."""

from __future__ import annotations

import json
import random
from typing import Any

import pyarrow as pa
import pytest

from resolver import resolve
from tableformat import CommitConflictError, InvalidInputError, Table
from tableformat.cdc.events import EventBatch
from tableformat.cdc.ingest import commit_written, with_ordinals, write_changes
from tableformat.cdc.sink import plan_sink
from tableformat.codec.avro.manifest_store import load_manifest, load_manifest_list
from tests.support.memory_tables import memory_catalog

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
    table = create(tmp_path, enforce_immutable=bool(seed % 2))
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
    assert delete_specs(table) == {1}
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
