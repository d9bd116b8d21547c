from __future__ import annotations

import uuid

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.transforms import IdentityTransform

from resolver import resolve
from tableformat import InvalidInputError
from tableformat.errors import CommitConflictError
from tableformat.spec.names import IMMUTABLE_COLUMNS, STAGING_MARKER
from tests.support.change_events import ORDERS, create_orders, order
from tests.support.memory_tables import memory_catalog


def rows(*values: dict[str, object]) -> pa.Table:
    return pa.Table.from_pylist(list(values), schema=ORDERS)


def staged(table: object, branch: str = "staging") -> dict[int, tuple[str, str | None]]:
    found = table.scan(branch=branch).to_arrow().to_pylist()  # type: ignore[attr-defined]
    state = {row["id"]: (row["region"], row["note"]) for row in found}
    assert len(state) == len(found)
    return state


def test_upserts_replace_and_deletes_remove_and_main_is_untouched() -> None:
    table = create_orders(memory_catalog())
    table.append(rows(order(1, note="a"), order(2, note="a"), order(3, note="a")))
    table.stage(upserts=rows(order(1, note="b"), order(4)), deletes=pa.table({"id": [2, 9]}))
    assert staged(table) == {1: ("EU", "b"), 3: ("EU", "a"), 4: ("EU", None)}
    assert table.scan().to_arrow().num_rows == 3


def test_key_deleted_and_upserted_in_one_call_is_upserted() -> None:
    table = create_orders(memory_catalog())
    table.stage(upserts=rows(order(1, note="a")))
    table.stage(upserts=rows(order(1, note="b")), deletes=pa.table({"id": [1]}))
    assert staged(table) == {1: ("EU", "b")}


def test_update_that_moves_a_row_between_partitions_leaves_no_copy() -> None:
    table = create_orders(memory_catalog(), partition_by=["region"])
    table.stage(upserts=rows(order(1, region="EU"), order(2, region="EU")))
    table.stage(upserts=rows(order(1, region="US")), deletes=pa.table({"id": [2]}))
    assert staged(table) == {1: ("US", None)}


def test_immutable_columns_place_the_delete_in_its_partition() -> None:
    catalog = memory_catalog()
    table = create_orders(
        catalog, partition_by=["region"], properties={IMMUTABLE_COLUMNS: "region"}
    )
    table.stage(upserts=rows(order(1, region="EU"), order(2, region="US")))
    result = table.stage(deletes=pa.table({"id": [1], "region": ["EU"]}))
    assert staged(table) == {2: ("US", None)}
    assert len(result.state.metadata.partition_specs) == 1
    with pytest.raises(InvalidInputError, match=r"key column is missing.*column=region"):
        table.stage(deletes=pa.table({"id": [2]}))


def test_key_twice_in_upserts_is_refused_before_anything_is_written() -> None:
    table = create_orders(memory_catalog())
    with pytest.raises(InvalidInputError, match=r"1 keys are upserted more than once.*'id': 1"):
        table.stage(upserts=rows(order(1), order(2), order(1)))
    assert table.refresh().state.ref("staging") is None


def test_run_end_encoded_key_is_refused_before_anything_is_written() -> None:
    table = create_orders(memory_catalog())
    key = pa.RunEndEncodedArray.from_arrays(pa.array([1, 2], pa.int32()), pa.array([1, 2]))
    given = rows(order(1), order(2))
    given = given.set_column(given.column_names.index("id"), "id", key)
    with pytest.raises(InvalidInputError, match=r"run-end encoded.*column=id"):
        table.stage(upserts=given)
    assert table.refresh().state.ref("staging") is None


def test_uuid_keys_are_checked_and_staged() -> None:
    schema = pa.schema([pa.field("id", pa.uuid(), nullable=False), pa.field("v", pa.int64())])
    table = memory_catalog().create_table("shop.uuids", schema, primary_key=["id"])
    ids = pa.array([uuid.UUID(int=n).bytes for n in (1, 2, 1)], pa.binary(16))
    values = pa.table({"id": pa.ExtensionArray.from_storage(pa.uuid(), ids), "v": [1, 2, 3]})
    with pytest.raises(InvalidInputError, match="more than once"):
        table.stage(upserts=values)
    table.stage(upserts=values.slice(0, 2))
    table.stage(deletes=values.slice(1, 1).select(["id"]))
    assert table.scan(branch="staging", columns=["v"]).to_arrow().to_pylist() == [{"v": 1}]


@pytest.mark.parametrize(
    ("upserts", "deletes", "message"),
    [
        (None, None, "nothing to stage"),
        (rows(), None, "nothing to stage"),
        (None, pa.table({"note": ["x"]}), "key column is missing"),
        (None, pa.table({"id": pa.array([None], pa.int64())}), "required column holds nulls"),
        (pa.table({"id": [1]}), None, "required column is missing"),
        (pa.table({"id": ["1"], "region": ["EU"]}), None, "does not fit"),
    ],
)
def test_wrong_rows_are_refused_in_one_line(
    upserts: pa.Table | None, deletes: pa.Table | None, message: str
) -> None:
    table = create_orders(memory_catalog())
    with pytest.raises(InvalidInputError, match=message):
        table.stage(upserts=upserts, deletes=deletes)
    assert table.refresh().state.ref("staging") is None


def test_published_branch_is_refused_and_any_other_takes_no_marker() -> None:
    table = create_orders(memory_catalog())
    with pytest.raises(InvalidInputError, match="cannot stage on the published branch"):
        table.stage(upserts=rows(order(1)), branch="main")
    result = table.stage(upserts=rows(order(1)), branch="incoming")
    assert staged(table, "incoming") == {1: ("EU", None)}
    assert result.snapshot.summary is not None
    assert STAGING_MARKER not in result.snapshot.summary.additional_properties
    assert "icefold.carried" not in result.snapshot.summary.additional_properties


@pytest.mark.parametrize("point", ["stage.before_commit", "commit.before_swap"])
@pytest.mark.parametrize("way", ["stage", "write_changes"])
def test_deletes_of_one_partition_are_refused_once_the_table_has_another_spec(
    point: str, way: str
) -> None:
    """R03: they do not reach rows of the new spec. Asked before every swap, not once (I12)."""
    table = create_orders(memory_catalog(), partition_by=["bucket(3, id)"])
    points = table.environment.runtime.fail_points

    def evolve(name: str) -> None:
        del points.armed[name]
        table.update_partitioning(lambda s: s.add_field("region", IdentityTransform(), "region"))
        table.append(rows(order(1, note="under the new spec")))

    def write() -> None:
        if way == "stage":
            table.stage(upserts=rows(order(1, note="new")))
        else:
            table.write_changes(rows(order(1, note="new")))

    points.armed[point if way == "stage" else point.replace("stage", "ingest")] = evolve
    with pytest.raises(CommitConflictError, match="new partition spec while the batch"):
        write()
    assert "staging" not in table.refresh().state.metadata.refs
    write()
    assert staged(table) == {1: ("EU", "new")}


def test_dots_in_names_are_no_paths() -> None:
    schema = pa.schema(
        [
            pa.field("row.id", pa.int64(), nullable=False),
            pa.field("part.of", pa.string()),
            pa.field("part", pa.struct([("note", pa.string())])),
        ]
    )
    table = memory_catalog().create_table(
        "shop.dots", schema, primary_key=["row.id"], partition_by=["part.of"]
    )
    first = [
        {"row.id": key, "part.of": of, "part": {"note": "a"}} for key, of in ((1, "EU"), (2, "US"))
    ]
    table.append(pa.Table.from_pylist(first, schema=schema))
    table.stage(pa.table({"row.id": [1], "part.of": ["US"]}), columns="partial")
    table.stage(deletes=pa.table({"row.id": [2]}))
    resolve(table)
    assert table.scan().to_arrow().to_pylist() == [
        {"row.id": 1, "part.of": "US", "part": {"note": "a"}}
    ]
    with pytest.raises(InvalidInputError, match=r"key column is missing.*column=row\.id"):
        table.stage(deletes=pa.table({"id": [2]}))


@pytest.mark.parametrize(
    ("columns", "hint"),
    [
        ("partal", "did you mean 'partial'"),
        ("Whole", "did you mean 'whole'"),
        ("", "say 'partial'"),
        (["id", "note"], "say 'partial'"),
        (ORDERS, "say 'partial'"),
        (np.array(["id"]), "say 'partial'"),
        (None, "say 'partial'"),
    ],
    ids=str,
)
def test_wrong_choice_of_columns_is_one_line_that_says_what_to_give(columns, hint) -> None:
    table = create_orders(memory_catalog())
    with pytest.raises(InvalidInputError, match=f"whole or partial.*{hint}") as caught:
        table.stage(rows(order(1)), columns=columns)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("columns", ["whole", "partial"])
def test_unknown_column_names_the_nearest_of_the_table(columns) -> None:
    table = create_orders(memory_catalog())
    with pytest.raises(InvalidInputError, match=r"column=notes.*did you mean 'note'") as caught:
        table.stage(pa.table({"id": [1], "notes": ["x"]}), columns=columns)
    assert "_icefold" not in str(caught.value)


@pytest.mark.parametrize("given", [[{"id": 1}], {"id": [1]}, "id"], ids=str)
def test_rows_that_are_no_table_say_how_to_make_one(given) -> None:
    table = create_orders(memory_catalog())
    with pytest.raises(InvalidInputError, match=r"pa.table\(.*of a dict of columns.*from_pylist"):
        table.stage(given)
